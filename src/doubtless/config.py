"""The configuration of a run: one YAML file, every key checked, a wrong one answered with the nearest right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from doubtless.errors import InputError, nearest

SectionType = TypeVar("SectionType", bound="Section")


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values cannot change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def validation_share(split: str) -> float:
    """The share of the training part that validates where none is named: a tenth of the images, or a fifth of the
    classes where parts share none.

    Scores over few classes say more of these classes than of the epoch, and cannot stop a training.

    >>> validation_share("closed"), validation_share("open")
    (0.1, 0.2)
    """
    return 0.1 if split == "closed" else 0.2


class DataConfig(Section):
    """The section `data`: which images, how they are split, how they are prepared."""

    source: str
    """Where images and labels come from, in one string: `doubtless sources` lists the kinds."""
    split: Literal["closed", "open", "given"] = "closed"
    """closed: parts share all classes; open: half of them train, the others test; given: the source's own parts."""
    ood: list[str] = []
    """Sources of images that are none of these; how well the uncertainty tells them is measured."""
    root: str | None = None
    """Folder below which sources and weights are looked for, too; $DOUBTLESS_DATA if not given."""
    size: int | None = Field(default=None, ge=8)
    """Side of the prepared images; sources in files need it."""
    channels: Literal[1, 3] | None = None
    """Grey or colour; None: as the source has them."""
    augment: str | list[str | dict[str, dict[str, Any]]] = []
    """A preset ("crop-flip", "place"), or torchvision v2 transforms by name."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """The share of the training part that validates; where none is named, that of `validation_share`."""
    test: float = Field(default=0.2, gt=0, lt=1)
    """The share that tests, of a closed split of a source without a test part of its own."""
    split_seed: int = 0
    """Apart from `seed`, so that runs of several seeds share one split."""
    workers: int = Field(default=2, ge=0)
    """Processes that read and prepare images."""

    @model_validator(mode="before")
    @classmethod
    def _with_a_share_to_validate(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("validation") is None:
            return {**values, "validation": validation_share(values.get("split", "closed"))}
        return values


class ModelConfig(Section):
    """The section `model`: the network and the width of its embedding."""

    backbone: str = "conv-fashion"
    """One of ours, a plugin's, any timm model's name, or module:package.function."""
    dim: int = Field(default=32, ge=1)
    """D, the numbers of an embedding."""
    pooling: Literal["auto", "gem", "avg"] = "auto"
    """Of maps of features: their mean, or GeM, between mean and maximum; auto: the network's own."""
    weights: str | None = None
    """Local safetensors for the backbone."""
    pretrained: bool = False
    """Weights from timm's hub; needs a network."""
    normalization: Literal["auto", "none", "imagenet", "symmetric"] = "auto"
    """Of pixels in [0, 1]: by ImageNet's statistics, or to [−1, 1]; auto: what the network was trained with."""
    freeze: bool = False
    """Train the head only, on features computed once."""
    frozen_stages: int = Field(default=0, ge=0)
    """So many first stages of the backbone stay as they are, with what comes before them. They see the largest
    maps, and what they know of edges and colours serves any picture: a training takes half the time."""
    batch_norm: Literal["trained", "frozen"] = "trained"
    """frozen: the backbone's batch norm keeps its statistics and uses them in training as well."""
    feature_norm: Literal["none", "layer"] = "none"
    """layer: features have mean 0 and variance 1 before the head, image by image."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The share of features that is dropped before the head while training."""
    head_start: Literal["random", "half-whitened"] = "random"
    """half-whitened: principal components of the training features, each divided by the root of its deviation."""


class NamedConfig(Section):
    """A class by its name, and what it is made with."""

    name: str
    """Of the class."""
    arguments: dict[str, Any] = {}
    """By name."""


class LossConfig(Section):
    """The section `loss`: what is minimised, and of which pairs or triplets."""

    name: str = "contrastive"
    """contrastive, triplet, a plugin's, module:package.function, or a class of pytorch_metric_learning.losses."""
    margin: float | None = Field(default=None, gt=0)
    """None: the loss's own, 0.7 of the contrastive loss and 0.2 of the triplet loss."""
    negative_weight: float = Field(default=0.5, ge=0, le=1)
    """w of the contrastive loss: positives weigh 2(1 − w), negatives 2w."""
    mining: Literal["semi-hard", "hard"] = "semi-hard"
    """Negatives of the triplet loss: the nearest that is farther than the positive, or the nearest of all."""
    pairs: Literal["all", "semi-hard", "hard"] = "all"
    """Of the contrastive loss: all pairs of a batch, or those that take part in such a triplet of it."""
    reduction: Literal["active", "all"] = "active"
    """Of the contrastive loss: positives and negatives are averaged over those pairs that are not zero, or all."""
    distance: Literal["squared", "plain"] = "squared"
    """Of the contrastive loss: ½ d², whose curvature LAM knows, or d itself, as its published code has it."""
    arguments: dict[str, Any] = {}
    """Further ones of the loss, by name."""
    miner: NamedConfig | None = None
    """Of pytorch-metric-learning, for its losses."""
    lr_factor: float = Field(default=1.0, gt=0)
    """The loss's own parameters (proxies) learn this much faster."""


LoggerName = Literal["tensorboard", "wandb", "mlflow"]


class TrainingConfig(Section):
    """The section `training`: the loop, the optimiser, the devices."""

    recipe: Literal["auto", "fine-tuning", "scratch"] = "auto"
    """Which defaults hold (`FINE_TUNING` or those written here); auto: fine-tuning where weights are named."""
    epochs: int = Field(default=20, ge=0)
    """Passes over the training part; 0: nothing is trained, what comes after training is done."""
    batch_size: int = Field(default=128, ge=2)
    """Images of a step, of all processes together."""
    per_class: int | None = Field(default=None, ge=2)
    """Images per class in a batch; None: the smallest number from 4 on that fits."""
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    """Each as torch has it."""
    lr: float = Field(default=1e-3, gt=0)
    """The learning rate of the first epoch."""
    schedule: Literal["decay", "step", "cosine"] = "decay"
    """How the learning rate falls: by `lr_decay` after each epoch, or `lr_step` epochs, or as a cosine to 0."""
    lr_decay: float = Field(default=1.0, gt=0, le=1)
    """What the learning rate is multiplied by: after each epoch, with `schedule: step` after `lr_step` of them."""
    lr_step: int = Field(default=10, ge=1)
    """Of `schedule: step`, in epochs."""
    warmup: int = Field(default=0, ge=0)
    """So many of the epochs train head and loss alone, the backbone stays as it is."""
    backbone_lr: float = Field(default=1.0, gt=0)
    """Factor on the learning rate of the backbone."""
    head_lr: float = Field(default=1.0, gt=0)
    """Factor on the learning rate of the head; for proxies see `loss.lr_factor` and `proxy.proxy_lr`."""
    clip: float | None = Field(default=None, gt=0)
    """Gradients longer than this, all parameters together, are shortened to it."""
    patience: int | None = Field(default=None, ge=1)
    """Training stops after so many epochs without a better validation score; None: it goes on to the end."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of the optimiser."""
    decayed: Literal["all", "weights"] = "all"
    """What weight decay acts on: all parameters, or none of the norms and biases."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Of `rmsprop` and `sgd`."""
    precision: Literal["auto", "32", "bf16"] = "auto"
    """auto: bf16 for timm networks on a GPU that computes in it, else 32 bits."""
    compile: bool | None = None
    """Compile the backbone; None: no, for it pays with some networks only (docs/gpu.md)."""
    monitor: Literal["map@r", "recall@1", "error_auroc"] = "map@r"
    """What chooses the best epoch on validation data; error_auroc where only an uncertainty is learned."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: a GPU where there is one."""
    devices: int = Field(default=1, ge=1)
    """Processes per machine: GPUs, or CPU processes."""
    nodes: int = Field(default=1, ge=1)
    """Machines (docs/several-nodes.md)."""
    timeout: float = Field(default=1800.0, gt=0)
    """Seconds that processes wait for each other; then the run ends on all of them, to be resumed."""
    loggers: list[LoggerName] = []
    """Where the figures of every epoch go beside the run's log.csv (docs/pipelines.md)."""


class OpenSetConfig(Section):
    """The section `evaluation.open_set`: labels left out of the gallery, so that their queries are unknown."""

    left_out: float = Field(default=0.5, gt=0, lt=1)
    """Share of the gallery's labels that is left out; at least one, and not all."""
    share: float = Field(default=0.1, ge=0, le=1)
    """Share of queries whose label is not in the gallery, where errors and unknowns are counted together."""
    seed: int = Field(default=0, ge=0)
    """Of the division."""


class EvaluationConfig(Section):
    """The section `evaluation`: how a finished run is measured."""

    score: Literal["direction", "expected-distance", "expected-likelihood", "mutual-likelihood"] = "direction"
    """By what the gallery is searched; see `doubtless.search.scores`."""
    ks: list[int] | None = None
    """The k of recall@k and map@k; None: 1, 5 and 10 as far as the gallery reaches."""
    data: str | None = None
    """Another source to measure on than the run's own test part: cars, with what was learned of birds."""
    size: int | None = Field(default=None, ge=8)
    """Side of the images that are measured; None: `data.size`. After random crops, which show things larger than
    they are, somewhat larger test images are often better."""
    ood_ratio: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """OOD items to one query in the paper one compares with; None: no further AUPRC."""
    scale: Literal["tuned", "as is"] = "as is"
    """tuned: the consensus is measured once more with all variances times one number, chosen on the validation
    part in the same way for every method (`ece_tuned`)."""
    open_set: OpenSetConfig | None = None
    """Labels left out of the gallery: FNIR@FPIR, OSCR, risk of errors and unknowns together; None: not measured."""
    disturbed: int | None = Field(default=None, ge=2)
    """So many test images are blurred, covered with noise, hidden in part and cropped: does the uncertainty rise?
    Each is embedded 24 times; None: not measured."""


class Config(Section):
    """What a run is made of. A method may add sections of its own (`laplace`, …); `section` reads them."""

    method: str
    """One that `doubtless methods` lists, or a plugin's."""
    seed: int = Field(default=0, ge=0)
    """Of weights, batches and draws; the split has its own."""
    base: str | None = None
    """The run whose model a two-stage method starts from."""
    data: DataConfig
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def section(self, name: str, kind: type[SectionType]) -> SectionType:
        """A method's own section, by its type."""
        section = getattr(self, name)
        assert isinstance(section, kind)
        return section

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in a run's config.yaml."""
        return self.model_dump(mode="json")

    def __eq__(self, other: object) -> bool:
        """By value: each method's configuration is a class of its own."""
        return isinstance(other, Config) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def to_yaml(self) -> str:
        """The text of a configuration file that says the same."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


FINE_TUNING: dict[str, dict[str, Any]] = {
    "data": {"augment": [{"RandomResizedCrop": {"scale": [0.5, 1.0]}}, "RandomHorizontalFlip"]},
    "model": {"batch_norm": "frozen", "head_start": "half-whitened"},
    "training": {
        "optimizer": "adamw",
        "lr": 1e-4,
        "weight_decay": 1e-4,
        "decayed": "weights",
        "schedule": "cosine",
        "warmup": 1,
        "clip": 10.0,
        "patience": 6,
    },
}
"""What holds where a configuration is silent and a pretrained network is trained, whatever the method."""


def fine_tunes(data: Mapping[str, Any]) -> bool:
    """Whether plain values of a configuration ask for the training of a pretrained network.

    >>> fine_tunes({"model": {"backbone": "resnet50", "pretrained": True}})
    True
    >>> fine_tunes({"model": {"backbone": "resnet50", "pretrained": True, "freeze": True}})
    False
    """
    model, training = (_section(data, name) for name in ("model", "training"))
    recipe = training.get("recipe", "auto")
    if recipe != "auto":
        return bool(recipe == "fine-tuning")
    return bool(model.get("weights") or model.get("pretrained")) and not model.get("freeze")


def with_fine_tuning(data: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with those of `FINE_TUNING` where they are silent.

    >>> with_fine_tuning({"training": {"lr": 0.1}})["training"]["lr"]
    0.1
    """
    filled = {name: {**defaults, **_section(data, name)} for name, defaults in FINE_TUNING.items()}
    wrong = {name: data[name] for name in filled if not isinstance(data.get(name, {}), Mapping)}
    return {**data, **filled, **wrong}  # what is no section is left for the check to say so


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name, {})
    return section if isinstance(section, Mapping) else {}


def check_config(data: Mapping[str, Any], sections: Mapping[str, type[Section]]) -> Config:
    """A checked configuration from plain values, with the sections a method adds by name.

    >>> check_config({"method": "deterministic", "data": {"source": "fashion-sample"}}, {}).training.epochs
    20
    """
    added: dict[str, Any] = {name: (kind, kind()) for name, kind in sections.items()}
    model: type[Config] = create_model("Config", __base__=Config, **added)
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        raise InputError(sentence_of(error, model)) from None


def with_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy with dotted keys set; values are read as YAML.

    >>> with_overrides({"training": {"epochs": 20}}, ["training.epochs=3", "seed=1"])
    {'training': {'epochs': 3}, 'seed': 1}
    """
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise InputError(f"An override is key=value, such as training.epochs=3, got {override!r}.")
        *parents, last = key.split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"{override!r} cannot be set: {parent} is a value, not a section.")
        try:
            place[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"The value of {override!r} cannot be read: {error}.") from error
    return result


def evaluation_options(
    options: EvaluationConfig,
    *,
    score: str | None = None,
    ood_ratio: float | None = None,
    size: int | None = None,
    open_set: float | None = None,
    scale: str | None = None,
    disturbed: int | None = None,
) -> EvaluationConfig:
    """The same with what is asked for in place of what it says."""
    divided = None if open_set is None else {"left_out": open_set}
    wanted = {
        "score": score,
        "ood_ratio": ood_ratio,
        "size": size,
        "open_set": divided,
        "scale": scale,
        "disturbed": disturbed,
    }
    changes = {name: value for name, value in wanted.items() if value is not None}
    try:
        return EvaluationConfig.model_validate({**options.model_dump(), **changes})
    except ValidationError as error:
        raise InputError(sentence_of(error, EvaluationConfig)) from None


def sentence_of(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong, in words."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *parents, key = (str(part) for part in first["loc"])
        return f"There is no configuration key {where!r}{nearest(key, _keys(model, parents))}"
    if first["type"] == "missing":
        return f"The configuration lacks the key {where!r}."
    return f"The configuration key {where!r} cannot be {first['input']!r}: {first['msg'].lower()}."


def _keys(model: type[BaseModel], parents: Sequence[str]) -> list[str]:
    for parent in parents:
        field = model.model_fields.get(parent)
        kinds = [kind for kind in _members(field.annotation) if isinstance(kind, type)] if field else []
        sections = [kind for kind in kinds if issubclass(kind, BaseModel)]
        if not sections:
            break
        model = sections[0]
    return list(model.model_fields)


def _members(annotation: Any) -> list[Any]:
    """A type, or the members of a union."""
    return list(getattr(annotation, "__args__", ())) or [annotation]
