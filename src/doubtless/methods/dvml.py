"""Deep variational metric learning: what an image shares with its class, and how it varies within it.

Lin, Duan, Dong, Lu and Zhou, *Deep Variational Metric Learning* (2018). Of a backbone feature y three linear layers
make z_I, the class centre as this image tells it, and N(μ_V, σ²_V), the variation within classes. z = z_I + z_V
with z_V drawn is a synthesised image of the class; a decoder makes y of it again:

    L = λ1 KL(N(μ_V, σ²_V) ‖ N(0, I)) + λ2 ‖y − ŷ(z)‖² + λ3 L_m(z) + λ4 L_m(z_I)

L_m is any metric loss. KL and ‖·‖² are sums over dimensions and means over the batch; what sees z is a mean over T
draws of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from doubtless.config import Config, Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather, is_main
from doubtless.losses.variational import (
    bounded_log_variance,
    draw_samples,
    kl_to_standard_normal,
    reconstruction_loss,
)
from doubtless.methods.base import DataSpec, Losses, Subset
from doubtless.methods.deterministic import Deterministic

COLLAPSED = 1e-3  # nats per image, mean over an epoch
LOSSES = ("kl", "reconstruction", "synthesised", "metric")


class FirstPhase(Section):
    """The section `dvml.phase1`: λ1 to λ4 while the decoder's gradient stops before the encoder."""

    kl: float = Field(default=1.0, ge=0)
    """λ1, on the divergence of the variation from N(0, I)."""
    reconstruction: float = Field(default=1.0, ge=0)
    """λ2, on the squared error of the decoded features."""
    synthesised: float = Field(default=0.1, ge=0)
    """λ3, on the metric loss of z_I + z_V."""
    metric: float = Field(default=1.0, ge=0)
    """λ4, on the metric loss of z_I."""


class SecondPhase(FirstPhase):
    """The section `dvml.phase2`: the same once the decoder's gradient reaches the encoder."""

    kl: float = Field(default=0.8, ge=0)
    synthesised: float = Field(default=0.2, ge=0)
    metric: float = Field(default=0.8, ge=0)


class DvmlOptions(Section):
    """The section `dvml`. The metric loss is that of the section `loss`."""

    samples: int = Field(default=20, ge=1)
    """T, draws of z_V an image and step; a loss of pytorch-metric-learning is called once for each."""
    phase1_epochs: int = Field(default=5, ge=0)
    """Epochs before the decoder's gradient is released."""
    phase1: FirstPhase = FirstPhase()
    phase2: SecondPhase = SecondPhase()
    decoder_width: int = Field(default=512, ge=1)
    """Units of the decoder's hidden layer."""
    log_variance_bound: float = Field(default=10.0, gt=0)
    """b: log σ²_V = b tanh(x/b) lies within ±b."""
    mine_at: Literal["every-sample", "first-sample"] = "every-sample"
    """Where `loss.miner` looks: at each draw, or, in one call for all, at the first draw for every other, too."""


class Parts(NamedTuple):
    """What the three layers make of n images, (n, D) each."""

    center: Tensor  # z_I
    mean: Tensor  # μ_V
    log_variance: Tensor  # log σ²_V


class Dvml(Deterministic):
    """An image is embedded as a Gaussian: z_I, and σ²_V, how widely images like it vary within their class.

    All T draws go through the decoder and our own metric losses as one batch. Losses of pytorch-metric-learning
    take one batch of points, so they are called draw by draw; see `dvml.mine_at` for those with a slow miner.
    """

    name: ClassVar[str] = "dvml"
    summary: ClassVar[str] = (
        "Gaussians; any metric loss, also of samples synthesised from a learned variation within classes"
    )
    sections: ClassVar[Mapping[str, type[Section]]] = {"dvml": DvmlOptions}
    family: ClassVar[str] = "gaussian"
    weights: Tensor
    kl_sum: Tensor
    kl_steps: Tensor

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.options = options = config.section("dvml", DvmlOptions)
        width, dim = self.encoder.feature_dim, config.model.dim
        self.variation_mean = nn.Linear(width, dim)
        self.variation_log_variance = nn.Linear(width, dim)
        self.decoder = nn.Sequential(
            nn.Linear(dim, options.decoder_width), nn.ReLU(), nn.Linear(options.decoder_width, width)
        )
        weights = [[getattr(phase, name) for name in LOSSES] for phase in (options.phase1, options.phase2)]
        self.register_buffer("weights", torch.tensor(weights), persistent=False)  # (2, 4)
        self.register_buffer("kl_sum", torch.zeros(()), persistent=False)  # of the epoch, on the device
        self.register_buffer("kl_steps", torch.zeros(()), persistent=False)
        self._warned = False
        self.epoch = 0

    @property
    def phase(self) -> Literal[1, 2]:
        """Which of the two phases of training this epoch belongs to."""
        return 1 if self.epoch < self.options.phase1_epochs else 2

    def begin_epoch(self, epoch: int) -> None:
        """Looks for a collapse in the epoch before, and starts to measure anew."""
        self._look_for_collapse()
        self.kl_sum.zero_()
        self.kl_steps.zero_()
        self.epoch = epoch

    def loss(self, batch: Batch) -> Losses:
        """L1 to L4 of the global batch, weighted as the phase says."""
        # With gradient: every rank computes the loss of the global batch. The draws are by the device's own
        # generator, which training seeds alike on all ranks at every epoch.
        features, labels = gather(self.features(batch.inputs)), gather(batch.labels)
        with torch.autocast(features.device.type, enabled=False):  # exponentials and squares of many numbers
            losses = self.losses(features.float(), labels)
            weights = self.weights[self.phase - 1]
            total = weights @ torch.stack([losses[name] for name in LOSSES])
        if self.training:
            self.kl_sum += losses["kl"].detach()
            self.kl_steps += 1
        return Losses(total, losses | {f"{name}_weight": weights[place] for place, name in enumerate(LOSSES)})

    def losses(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """L1 to L4 by name, not weighted: features (n, F), labels (n,)."""
        parts = self.parts(features)
        samples = self._synthesised(parts, self.options.samples)  # (T, n, D)
        # y is what is to be reconstructed, never what gives way: else features shrink until they are easy.
        decoded = self.decoder(samples.detach() if self.phase == 1 else samples)  # (T, n, F)
        return {
            "kl": kl_to_standard_normal(parts.mean, parts.log_variance).mean(),
            "reconstruction": reconstruction_loss(decoded, features.detach()),
            "synthesised": self.metric_loss.over_samples(
                samples, labels, mine_once=self.options.mine_at == "first-sample"
            ),
            "metric": self.metric_loss(parts.center, labels),
        }

    def parts(self, features: Tensor) -> Parts:
        """Features (n, F) to centre, mean and log variance of the variation."""
        raw = self.variation_log_variance(features)
        bounded = bounded_log_variance(raw, bound=self.options.log_variance_bound)
        return Parts(self.head(features), self.variation_mean(features), bounded)

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """The invariant part z_I (n, D), and the variance within its class σ²_V (n, D)."""
        parts = self.parts(features)
        return {"location": parts.center, "variance": parts.log_variance.exp()}

    def synthesise(self, images: Tensor, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        """n discriminative samples z_I + z_V of every image, (n, batch, D), not normalised. Evaluation mode.

        images (batch, C, H, W), uint8 or floats in [0, 1].
        """
        with self.evaluated():
            return self._synthesised(self.parts(self.observe(images)), n, generator=generator)

    def finish(self, train: Subset, validation: Subset) -> None:
        """Looks for a collapse in the last epoch."""
        self._look_for_collapse()

    def _synthesised(self, parts: Parts, n: int, *, generator: torch.Generator | None = None) -> Tensor:
        return parts.center + draw_samples(parts.mean, parts.log_variance, n, generator=generator)

    def _look_for_collapse(self) -> None:
        """Says once that the variation has become the prior, whatever the image, if it has over the last epoch."""
        if self._warned or not int(self.kl_steps) or not is_main():
            return
        mean = float(self.kl_sum / self.kl_steps)
        if mean < COLLAPSED:
            weight = float(self.weights[self.phase - 1, LOSSES.index("kl")])
            warnings.warn(
                f"In epoch {self.epoch} the variation within classes was N(0, I) for every image (mean KL "
                f"{mean:.1e}): it has collapsed and says nothing of the image. Lower dvml.phase{self.phase}.kl, "
                f"which is {weight:g}, for example to {weight / 10:g}.",
                stacklevel=2,
            )
            self._warned = True
