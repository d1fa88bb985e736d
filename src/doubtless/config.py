"""The configuration of a run: one YAML file, every key checked, a wrong one answered with the nearest right one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from doubtless.errors import InputError, nearest

SectionType = TypeVar("SectionType", bound="Section")


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values cannot change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """The section `data`: which images, how they are split, how they are prepared."""

    source: str
    split: Literal["closed", "open", "given"] = "closed"
    ood: list[str] = []
    root: str | None = None
    """Folder below which sources and weights are looked for, too; $DOUBTLESS_DATA if not given."""
    size: int | None = Field(default=None, ge=8)
    """Side of the prepared images; sources in files need it."""
    channels: Literal[1, 3] | None = None
    augment: str | list[str | dict[str, dict[str, Any]]] = []
    """A preset ("crop-flip", "place"), or torchvision v2 transforms by name."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)
    split_seed: int = 0
    """Apart from `seed`, so that runs of several seeds share one split."""
    workers: int = Field(default=2, ge=0)


class ModelConfig(Section):
    """The section `model`: the network and the width of its embedding."""

    backbone: str = "conv-fashion"
    """One of ours, a plugin's, any timm model's name, or module:package.function."""
    dim: int = Field(default=32, ge=1)
    pooling: Literal["auto", "gem", "avg"] = "auto"
    weights: str | None = None
    """Local safetensors for the backbone."""
    pretrained: bool = False
    """Weights from timm's hub; needs a network."""
    normalization: Literal["auto", "none", "imagenet", "symmetric"] = "auto"
    freeze: bool = False
    """Train the head only, on features computed once."""
    head_start: Literal["random", "half-whitened"] = "random"


class NamedConfig(Section):
    """A class by its name, and what it is made with."""

    name: str
    arguments: dict[str, Any] = {}


class LossConfig(Section):
    """The section `loss`: what is minimised, and of which pairs or triplets."""

    name: str = "contrastive"
    """contrastive, triplet, a plugin's, module:package.function, or a class of pytorch_metric_learning.losses."""
    margin: float | None = Field(default=None, gt=0)
    negative_weight: float = Field(default=0.5, ge=0, le=1)
    mining: Literal["semi-hard", "hard"] = "semi-hard"
    pairs: Literal["all", "semi-hard", "hard"] = "all"
    """Of the contrastive loss: all pairs of a batch, or those that take part in such a triplet of it."""
    arguments: dict[str, Any] = {}
    miner: NamedConfig | None = None
    lr_factor: float = Field(default=1.0, gt=0)
    """The loss's own parameters (proxies) learn this much faster."""


class TrainingConfig(Section):
    """The section `training`: the loop, the optimiser, the devices."""

    epochs: int = Field(default=20, ge=0)
    batch_size: int = Field(default=128, ge=2)
    per_class: int | None = Field(default=None, ge=2)
    """Images per class in a batch; None: the smallest number from 4 on that fits."""
    optimizer: Literal["adam", "adamw", "rmsprop", "sgd"] = "adam"
    lr: float = Field(default=1e-3, gt=0)
    lr_decay: float = Field(default=1.0, gt=0, le=1)
    """The learning rate is multiplied by this after each epoch."""
    weight_decay: float = Field(default=0.0, ge=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    precision: Literal["auto", "32", "bf16"] = "auto"
    """auto: bf16 for timm networks on a GPU that computes in it, else 32 bits."""
    compile: bool | None = None
    """Compile the backbone; None: no, for it pays with some networks only (docs/gpu.md)."""
    monitor: Literal["map@r", "recall@1", "error_auroc"] = "map@r"
    """What chooses the best epoch on validation data; error_auroc where only an uncertainty is learned."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = Field(default=1, ge=1)
    nodes: int = Field(default=1, ge=1)


class EvaluationConfig(Section):
    """The section `evaluation`: how a finished run is measured."""

    score: Literal["direction", "expected-distance", "expected-likelihood", "mutual-likelihood"] = "direction"
    """By what the gallery is searched; see `doubtless.search.scores`."""
    ks: list[int] | None = None
    """The k of recall@k and map@k; None: 1, 5 and 10 as far as the gallery reaches."""
    data: str | None = None
    """Another source to measure on than the run's own test part: cars, with what was learned of birds."""
    ood_ratio: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """OOD items to one query in the paper one compares with; None: no further AUPRC."""


class Config(Section):
    """What a run is made of. A method may add sections of its own (`laplace`, …); `section` reads them."""

    method: str
    seed: int = Field(default=0, ge=0)
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
    options: EvaluationConfig, *, score: str | None = None, ood_ratio: float | None = None
) -> EvaluationConfig:
    """The same with another score or ratio, where one is asked for."""
    wanted = {"score": score, "ood_ratio": ood_ratio}
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
