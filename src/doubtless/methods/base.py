"""Method: what is trained and what `Embedding` it gives. Adding one is one file, one config, one test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from doubtless.config import Config, Section
from doubtless.data.loading import Batch
from doubtless.data.source import locate
from doubtless.embedding import FAMILIES, Embedding
from doubtless.errors import InputError
from doubtless.models import Encoder
from doubtless.registry import Registry

BatchKind = Literal["images", "tuples", "features"]


def _check_method(name: str, method: Any) -> None:
    if not isinstance(method, type) or not issubclass(method, Method) or method.name != name:
        raise InputError(f"The method {name!r} must be a subclass of Method that has this name.")


METHODS: Registry[type[Method]] = Registry("method", group="doubtless.methods", check=_check_method)
"""Method name → class. A method registers itself by being defined with a name."""


class Losses(NamedTuple):
    """What is minimised, and its terms by name for the log."""

    total: Tensor
    terms: dict[str, Tensor]


@dataclass(frozen=True)
class Described:
    """Images as a method sees them, in one pass: their embedding, and what says whether they are new.

    >>> import torch
    >>> both = Described(Embedding.point(torch.eye(3)), torch.zeros(3, 5))
    >>> len(Described.cat([both, both])), both.to("cpu").features.shape
    (6, torch.Size([3, 5]))
    """

    embedding: Embedding
    features: Tensor  # (n, W), of `Method.novelty_features`

    @staticmethod
    def cat(several: Sequence[Described]) -> Described:
        """One after the other, in this order."""
        return Described(
            Embedding.cat([one.embedding for one in several]), torch.cat([one.features for one in several])
        )

    def to(self, device: torch.device | str) -> Described:
        """The same on a device."""
        return Described(self.embedding.to(device), self.features.to(device))

    def __len__(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True)
class DataSpec:
    """What a method has to know of its data to build its network."""

    channels: int
    size: int
    label_names: list[str]
    """The classes it trains on, in the order of the labels of its batches."""
    backbone: nn.Module | None = field(default=None, repr=False, compare=False)
    """The network itself where it was given as an object; each method takes a copy."""

    @property
    def classes(self) -> int:
        """How many classes it trains on."""
        return len(self.label_names)

    def record(self) -> dict[str, Any]:
        """As it is written beside a model; a network that was given as an object is not part of it."""
        return {"channels": self.channels, "size": self.size, "label_names": self.label_names}


@dataclass(frozen=True)
class Subset:
    """A part of the data as `start` and `finish` see it: labels, and features computed when asked for."""

    labels: Tensor  # (n,)
    features: Callable[[], Tensor]  # () → (n, F), on the method's device
    batches: Callable[[], Iterable[Tensor]] | None = None
    """The same, a few images at a time; None: all at once."""

    def each(self, of_features: Callable[[Tensor], Tensor]) -> Tensor:
        """What a function makes of every image's features, (n, …), for those who keep little of much."""
        parts = [self.features()] if self.batches is None else self.batches()
        return torch.cat([of_features(part) for part in parts])


class Method(nn.Module):
    """Base of every method: an encoder, a linear head, and the contract between them and the rest.

    A method sets `name`, `version` (raised when its results would change), `summary`, `sections` (its own
    sections of the configuration), and says in

        loss(batch)                what to minimise
        encode(images)             what its features are, where they are not the encoder's
        family, distribution       what the embedding of features (n, F) is: the parameters of its family
        stages()                   runs it is made of, trained before it
        start(train)               what to do before the first step
        begin_epoch(epoch)         what to do before each epoch's
        finish(train, validation)  what to do after the last one: curvature, alignment, tuning
        record()                   plain values to keep in model.json
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    summary: ClassVar[str]
    sections: ClassVar[Mapping[str, type[Section]]] = {}
    family: ClassVar[str] = "point"
    """The family of the embeddings of a finished one; see `doubtless.embedding`."""
    folder: Path | None = None
    """The folder of its run, below which its stages lie; known once there is one."""
    load_run: Callable[[Path], Method | None] | None = None
    """Set with `folder`: the finished method of a run, None where there is no finished run."""
    learns: ClassVar[bool] = True
    """False: nothing of it is ever trained, and the defaults of fine-tuning are not its own."""
    encoder_rests: bool = False
    """Whether head and loss train alone for now: `training.warmup`."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            METHODS.register(cls.name, cls)

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__()
        self.config = config
        self.spec = spec
        model = config.model
        self.encoder = Encoder(
            model.backbone,
            given=spec.backbone,
            channels=spec.channels,
            size=spec.size,
            pooling=model.pooling,
            weights=None if model.weights is None else locate(model.weights, config.data.root),
            pretrained=model.pretrained,
            normalization=model.normalization,
            frozen_stages=model.frozen_stages,
            batch_norm=model.batch_norm,
            feature_norm=model.feature_norm,
            dropout=model.dropout,
        )
        if model.freeze:
            self.encoder.requires_grad_(False)
        self.head = nn.Linear(self.encoder.feature_dim, model.dim)

    @property
    def batch_kind(self) -> BatchKind:
        """What `loss` takes: features computed once where the encoder stays as it is, images otherwise."""
        return "features" if self.config.model.freeze and not self.config.data.augment else "images"

    @property
    def trains(self) -> bool:
        """False: there is no training loop, only `finish` runs."""
        return True

    @property
    def repeats_its_step(self) -> bool:
        """Whether within an epoch every call of `loss` does the same work, whatever is in the batch.

        No shape that depends on the data, no decision of the host, no Python counter, no waiting for the device.
        On a GPU such steps are recorded once per epoch and replayed: see `doubtless.training.accelerate`.
        """
        return False

    def stages(self) -> dict[str, Config]:
        """Runs that must be finished before this one: folder below its own → configuration."""
        return {}

    def loss(self, batch: Batch) -> Losses:
        """What is minimised, of one batch of `batch_kind`; every process sees the global batch through `gather`."""
        raise NotImplementedError

    def encode(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) to features (n, F): what `embed_features` takes."""
        return self.encoder(images)

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Features (n, F) to the parameters of `family`, by name, once the method is finished.

        It is run by `embed_features` and written into exported files, so it looks at no values: no decision by a
        number in a tensor, and nothing that fixes n. Points by default: what the linear head gives.
        """
        return {"location": self.head(features)}

    @property
    def variance_ratio(self) -> float:
        """Of projected Gaussians: at most so many times one dimension's variance is another's, for any image."""
        return 1.0

    def embed_features(self, features: Tensor) -> Embedding:
        """Features (n, F) to the embedding of n items. Its own only where an unfinished method embeds otherwise."""
        return FAMILIES[self.family](self.distribution(features))

    def novelty_features(self, features: Tensor) -> Tensor:
        """What of features (n, F) says whether an image is new: all, unless a method has other things in them."""
        return features

    def head_inputs(self, features: Tensor) -> Tensor:
        """What the linear head takes of features (n, F): all of them, unless a method has more in between."""
        return features

    def features(self, inputs: Tensor) -> Tensor:
        """Features (n, F) of a batch's inputs, whichever kind they are; no gradient while the encoder rests."""
        if self.batch_kind == "features":
            return inputs
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder_rests):
            return self.encode(inputs)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Within it: evaluation mode, and no gradients. After it: the mode that was before."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            if training:
                self.train()

    def observe(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W), uint8 or floats in [0, 1], to features (n, F) in 32 bits. Evaluation mode."""
        with self.evaluated():
            return self._observed(images)

    def embed(self, images: Tensor) -> Embedding:
        """Images (n, C, H, W), uint8 or floats in [0, 1], to an `Embedding` of n items. Evaluation mode."""
        with self.evaluated():
            return self.embed_features(self._observed(images))

    def describe(self, images: Tensor) -> Described:
        """The same, and the features (n, W) that novelty looks at, in one pass."""
        with self.evaluated():
            return self.describe_features(self._observed(images))

    def describe_features(self, features: Tensor) -> Described:
        """What `describe` gives, from features (n, F) that `observe` gave before."""
        with self.evaluated():
            return Described(self.embed_features(features), self.novelty_features(features))

    def _observed(self, images: Tensor) -> Tensor:
        return self.encode(images.to(self.device)).float()

    def start(self, train: Subset) -> None:
        """Before training: a head on pretrained features starts half-whitened where asked."""
        if self.config.model.head_start == "half-whitened":
            self.half_whiten_head(train)

    def half_whiten_head(self, train: Subset) -> None:
        """Sets the head to half-whitened principal components of the training features."""
        from doubtless.laplace import half_whitened

        with torch.no_grad():
            weight, bias = half_whitened(self.head_inputs(train.features()), self.head.out_features)
            self.head.weight.copy_(weight)
            if bias is not None:
                self.head.bias.copy_(bias)

    def begin_epoch(self, epoch: int) -> None:
        """Before an epoch's first step, also after a resume. For what changes in the course of training."""

    def finish(self, train: Subset, validation: Subset) -> None:
        """After training. Nothing to do for most."""

    def record(self) -> dict[str, Any]:
        """Plain values to keep in model.json: what was chosen or measured in `finish`."""
        return {}

    def lr_factors(self) -> dict[str, float]:
        """Factors on the learning rate by how a parameter's name begins; where several fit, the last one counts."""
        training = self.config.training
        return {"encoder.": training.backbone_lr, "head.": training.head_lr}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimiser takes: trainable parameters by their factor, and by whether weight decay acts on them.

        ``[{"params": […], "lr_factor": 1.0, "weight_decay": 1e-4}]``; equal ones share a group, one round
        of the optimiser.
        """
        training, factors = self.config.training, self.lr_factors()
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                continue
            factor = next((factors[start] for start in reversed(factors) if name.startswith(start)), 1.0)
            decays = (
                training.decayed == "all" or parameter.dim() > 1
            )  # norms and biases are vectors or numbers
            groups.setdefault((factor, training.weight_decay if decays else 0.0), []).append(parameter)
        return [
            {"params": members, "lr_factor": factor, "weight_decay": decay}
            for (factor, decay), members in groups.items()
        ]

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.encoder.mean.device

    def train(self, mode: bool = True) -> Method:
        """A frozen encoder stays in evaluation mode: its batch norm must not drift."""
        super().train(mode)
        if self.config.model.freeze:
            self.encoder.eval()
        return self
