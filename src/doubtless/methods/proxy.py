"""Probabilistic proxies: one learned distribution per class, images as von Mises-Fisher distributions.

Kirchhof, Roth, Akata, Kasneci 2022, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning".
EL-nivMF is ``proxy: {similarity: elk, family: nivmf}``, EL-vMF ``{similarity: elk, family: vmf}``, ProxyNCA++
``{similarity: cosine, family: point}``: every row of the paper's ablation is a configuration. The length of an
embedding is its concentration, and so its uncertainty is 1/length, whichever similarity trains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from doubtless.config import Config, Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.losses.proxy import Family, ProxyLoss, ProxyObjective, Similarity, check_labels
from doubtless.methods.base import DataSpec, Losses, Method, Subset

MEASURED_EVERY = 16  # steps: the norm's part in the gradient is looked at that often
MEASURED_IMAGES = 1024  # as many of the training part are compared with the proxies at the start
PROXY_LR = {False: 3.0, True: 100.0}  # by whether the network is pretrained
THIRDS = ("short", "middle", "long")


class ProxyOptions(Section):
    """The section `proxy` of a configuration."""

    similarity: Similarity = "elk"
    """What compares an image with a class: elk (expected likelihood), bhattacharyya, kl, log-likelihood; cosine and
    l2 of points."""
    family: Family = "nivmf"
    """What a class is: vmf, nivmf (one concentration per dimension), point."""
    loss: ProxyObjective = "nca++"
    """ProxyNCA++ with a learned temperature, or ProxyAnchor alone (similarity cosine)."""
    anchor_weight: float = Field(default=0.0, ge=0)
    """nca++: so much ProxyAnchor (α 32, δ 0.1) on the proxies' directions is added."""
    samples: int = Field(default=5, ge=1)
    """Draws an image where there is no closed form (nivmf)."""
    concentration: float | None = Field(default=None, gt=0)
    """Where the classes' concentrations (l2: the proxies' lengths) start; None: see `starting_values`."""
    norm_factor: float | None = Field(default=None, gt=0)
    """An image's concentration is this times the length of its embedding; None: see `start`."""
    temperature: float | None = Field(default=None, gt=0)
    """Where the learned temperature starts; None: see `start`."""
    start: Literal["measured", "fixed"] = "measured"
    """measured: on a half-whitened head, norm_factor and temperature, where not given, suit the lengths and classes
    of the training part. fixed, or with another head: they are `starting_values`, for embeddings of length 1."""
    gap: float | None = Field(default=None, gt=0)
    """Of the measured start: an image's own class is so much above the mean of the others, in logits, which is how
    soft the loss is; None: the logarithm of the number of classes, so that its own one has about half of it all."""
    warm_start: bool = True
    """Proxies start at the class means of the embeddings, not at random."""
    proxy_lr: float | None = Field(default=None, gt=0)
    """Factor on the learning rate of the proxies; None: 3, or 100 on a half-whitened head, below which a network
    learns slowly. Proxies that lag behind it push images away from where their classes were."""
    concentration_lr: float = Field(default=3.0, gt=0)
    """Factor on the learning rate of the logarithms of the classes' concentrations."""
    temperature_lr: float = Field(default=3.0, gt=0)
    """Factor on the learning rate of the temperature's logarithm."""

    @model_validator(mode="before")
    @classmethod
    def _without_a_key_of_before(cls, values: Any) -> Any:
        """Runs from before there was `model.batch_norm` have a key here for it, which said False."""
        if isinstance(values, Mapping) and values.get("freeze_batch_norm") is False:
            return {key: value for key, value in values.items() if key != "freeze_batch_norm"}
        return values


class Proxy(Method):
    """Encoder, linear head, one proxy per class; the loss sees the images of all ranks."""

    name: ClassVar[str] = "proxy"
    summary: ClassVar[str] = "von Mises-Fisher images and class proxies (EL-nivMF and its relatives)"
    sections: ClassVar[Mapping[str, type[Section]]] = {"proxy": ProxyOptions}
    family: ClassVar[str] = "vmf"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.options = config.section("proxy", ProxyOptions)
        self.proxy_loss = build_loss(self.options, classes=spec.classes, dim=config.model.dim)
        self._steps = 0
        self._roles: dict[str, Tensor] = {}

    def start(self, train: Subset) -> None:
        """The head's start, and proxies at the directions of their classes where wanted."""
        super().start(train)
        check_labels(train.labels, self.spec.classes)
        measures = self.options.start == "measured" and self._pretrained
        if not (measures or self.options.warm_start):
            return
        with self.evaluated():
            embedded = torch.cat([self.head(rows) for rows in train.features().split(1024)])  # (n, D)
        if self.options.warm_start:
            self.proxy_loss.start_at(embedded, train.labels)
        if measures:
            self._measure(embedded, train.labels)

    def loss(self, batch: Batch) -> Losses:
        """Proxy loss of the global batch; now and then also what the length of an embedding does."""
        embeddings = gather(self.head(self.features(batch.inputs)))  # (global batch, D)
        labels = gather(batch.labels)
        losses = self.proxy_loss.terms(embeddings, labels)
        if self.training and torch.is_grad_enabled():
            if self._steps % MEASURED_EVERY == 0:
                (gradient,) = torch.autograd.grad(losses.total, embeddings, retain_graph=True)
                self._roles = roles_of_the_norm(embeddings, gradient, losses.logits, labels)
            self._steps += 1
        return Losses(losses.total, {**losses.terms, **self._roles})

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Locations (n, D), and concentrations (n,): their lengths, times one factor."""
        location = self.head(features)
        length = torch.linalg.vector_norm(location, dim=1)
        return {"location": location, "concentration": self.proxy_loss.norm_factor * length}

    def lr_factors(self) -> dict[str, float]:
        """Proxies, their concentrations and the temperature each have a factor of their own."""
        options = self.options
        return {
            **super().lr_factors(),
            "proxy_loss.location": options.proxy_lr or PROXY_LR[self._pretrained],
            "proxy_loss.log_concentration": options.concentration_lr,
            "proxy_loss.log_temperature": options.temperature_lr,
        }

    def record(self) -> dict[str, Any]:
        """What was learned beside the proxies."""
        loss = self.proxy_loss
        found: dict[str, Any] = {"norm_factor": loss.norm_factor}
        if self.options.loss == "nca++":
            found["temperature"] = float(loss.log_temperature.detach().exp())
        if self.options.family != "point":
            concentration = loss.log_concentration.detach().exp()
            found["concentration"] = [float(value) for value in concentration.aminmax()]
        return found

    def train(self, mode: bool = True) -> Proxy:
        """Steps are counted from here on: an epoch of a resumed run measures where the unbroken one does."""
        super().train(mode)
        self._steps = 0
        return self

    @property
    def _pretrained(self) -> bool:
        """Whether the head starts on features that say something already."""
        return self.config.model.head_start == "half-whitened"

    def _measure(self, embedded: Tensor, labels: Tensor) -> None:
        """Factor and temperature that suit embeddings (n, D) and their classes, where none is given."""
        options, loss = self.options, self.proxy_loss
        if options.norm_factor is None:
            start = starting_values(options.similarity, options.family, embedded.shape[1])
            loss.start_lengths(embedded, concentration=start.norm_factor)  # which is that of length 1
        if options.loss == "nca++" and options.temperature is None and options.warm_start:
            rows = torch.linspace(0, len(labels) - 1, min(len(labels), MEASURED_IMAGES)).long()
            rows = rows.to(labels.device)
            gap = options.gap or math.log(max(self.spec.classes, 2))
            loss.start_temperature(embedded[rows], labels[rows], gap=gap)


class StartingValues(NamedTuple):
    """Concentration of the classes, factor on the embeddings' lengths, temperature."""

    concentration: float
    norm_factor: float
    temperature: float


def starting_values(similarity: Similarity, family: Family, dim: int) -> StartingValues:
    """What the options leave open, for heads whose embeddings are about as long as 1 before training.

    Logits should span about 16 at first. Where draws are taken, classes much sharper than √dim see little but the
    draws' noise, which no five of them average out; the closed form of elk × vmf has no such bound, and with
    classes sharper than the images the length of an embedding is its inverse temperature.
    """
    if similarity == "cosine":
        return StartingValues(1.0, float(dim), 1 / 16)
    if similarity == "l2":
        return StartingValues(4.0, 4.0, 1.0)
    if similarity == "elk" and family == "vmf":
        return StartingValues(4.0 * dim, dim / 4, 1.0)
    return StartingValues(3 * math.sqrt(dim), float(dim), 1.0)


def build_loss(options: ProxyOptions, *, classes: int, dim: int) -> ProxyLoss:
    """The loss with what the options leave open filled in."""
    start = starting_values(options.similarity, options.family, dim)
    return ProxyLoss(
        classes,
        dim,
        similarity=options.similarity,
        family=options.family,
        objective=options.loss,
        samples=options.samples,
        concentration=options.concentration or start.concentration,
        norm_factor=options.norm_factor or start.norm_factor,
        temperature=options.temperature or start.temperature,
        anchor_weight=options.anchor_weight,
    )


@torch.no_grad()
def roles_of_the_norm(
    embeddings: Tensor, gradient: Tensor, logits: Tensor, labels: Tensor
) -> dict[str, Tensor]:
    """What the length of an embedding does in this batch's gradient, by thirds of the images ordered by length.

    `flatness_…`: entropy of the softmax over the classes as a share of its largest value: the length as an image's
    own temperature. `weight_…`: length of the gradient of the direction for each unit of error ‖softmax − one-hot‖,
    relative to the batch's: the length as an image's weight.
    """
    length = torch.linalg.vector_norm(embeddings.float(), dim=1)
    unit, gradient = normalize(embeddings.float(), dim=1), gradient.float()
    across = gradient - (gradient * unit).sum(1, keepdim=True) * unit
    force = length * torch.linalg.vector_norm(across, dim=1)  # (batch,)
    share, classes = logits.float().softmax(1), logits.shape[1]
    error = torch.linalg.vector_norm(share - one_hot(labels, classes), dim=1)
    flatness = torch.special.entr(share).sum(1) / math.log(max(classes, 2))
    order, count = length.argsort(), len(length)
    size = max(1, count // 3)
    least = torch.finfo(force.dtype).tiny
    overall = force.sum() / error.sum().clamp_min(least)
    found = {}
    for name, first in zip(THIRDS, (0, (count - size) // 2, count - size), strict=True):
        rows = order[first : first + size]
        found[f"flatness_{name}"] = flatness[rows].mean()
        weight = force[rows].sum() / error[rows].sum().clamp_min(least)
        found[f"weight_{name}"] = weight / overall.clamp_min(least)
    return found
