"""Probabilistic proxies: one learned distribution per class, images as von Mises-Fisher distributions.

Kirchhof, Roth, Akata, Kasneci 2022, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning".
EL-nivMF is ``proxy: {similarity: elk, family: nivmf}``, EL-vMF ``{similarity: elk, family: vmf}``, ProxyNCA++
``{similarity: cosine, family: point}``: every row of the paper's ablation is a configuration. The length of an
embedding is its concentration, and so its uncertainty is 1/length, whichever similarity trains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from doubtless.config import Config, Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.losses.proxy import Family, ProxyLoss, ProxyObjective, Similarity, check_labels
from doubtless.methods.base import DataSpec, Losses, Method, Subset

MEASURED_EVERY = 16  # steps: the norm's part in the gradient is looked at that often
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
    """An image's concentration is this times the length of its embedding; None: see `starting_values`."""
    temperature: float | None = Field(default=None, gt=0)
    """Where the learned temperature starts; None: see `starting_values`."""
    warm_start: bool = True
    """Proxies start at the class means of the embeddings, not at random."""
    proxy_lr: float = Field(default=3.0, gt=0)
    """Factor on the learning rate of the proxies."""
    concentration_lr: float = Field(default=3.0, gt=0)
    """Factor on the learning rate of the logarithms of the classes' concentrations."""
    temperature_lr: float = Field(default=3.0, gt=0)
    """Factor on the learning rate of the temperature's logarithm."""
    freeze_batch_norm: bool = False
    """The encoder's batch norm keeps the statistics it has."""


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
        if self.options.warm_start:
            with torch.no_grad():
                embedded = [self.head(rows) for rows in train.features().split(1024)]
            self.proxy_loss.start_at(torch.cat(embedded), train.labels)

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

    def parameter_groups(self) -> list[dict[str, Any]]:
        """By their factor on the learning rate; equal factors share a group: one round of the optimiser."""
        options, loss = self.options, self.proxy_loss
        factors = {id(loss.location): options.proxy_lr}
        if options.family != "point":
            factors[id(loss.log_concentration)] = options.concentration_lr
        if options.loss == "nca++":
            factors[id(loss.log_temperature)] = options.temperature_lr
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter in self.parameters():
            if parameter.requires_grad:
                groups.setdefault(factors.get(id(parameter), 1.0), []).append(parameter)
        return [{"params": members, "lr_factor": factor} for factor, members in groups.items()]

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
        if self.options.freeze_batch_norm:
            for module in self.encoder.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


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
