"""LAM online: the head is a distribution while the network trains.

Warburg, Miani, Brack and Hauberg, *Bayesian Metric Learning for Uncertainty Quantification in Image
Retrieval* (2023), eq. 4 and 5, with the expectations of eq. 79 and 80; the procedure is that of Miani et al.,
*Laplacian Autoencoders for Learning Stochastic Representations* (2022). At every step

    W ~ q = N(W_t, 1/(τH + λ)),    W_{t+1} = W_t − η ∇L(W),    H ← (1−α) H + α max(0, GGN(W)),

gradient and curvature both at the draw, averaged over `laplace.samples` of them. With the covariance `kronecker`
q is the matrix normal of `doubtless.laplace.kronecker_online`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from doubtless.config import Config, Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.errors import InputError
from doubtless.laplace import ContrastiveStep, contrastive_step
from doubtless.laplace.curvature import asks_the_device
from doubtless.losses.contrastive import Pairs
from doubtless.methods.base import DataSpec, Losses, Method, Subset
from doubtless.methods.laplace_head import (
    LaplaceHead,
    LaplaceOptions,
    curvature_negative_weight,
    curvature_reduction,
)
from doubtless.methods.metric_loss import DEFAULT_MARGIN, build_miner


class LamOnline(Method):
    """The contrastive loss at draws of the head, whose curvature is averaged along the way.

    Pairs are all of the global batch, or those in semi-hard or hard triplets (`loss.pairs`), or those a miner of
    pytorch-metric-learning picks (`loss.miner`, which waits for the device); loss and curvature see the same
    ones, and average over the same (`loss.reduction`) where `laplace.reduction` asks for no others. Under
    data-parallel training the features of all ranks are gathered and every rank draws the same head, so all hold
    the same H.
    """

    name: ClassVar[str] = "lam-online"
    summary: ClassVar[str] = "contrastive training at draws from a Laplace posterior of the head (LAM)"
    sections: ClassVar[Mapping[str, type[Section]]] = {"laplace": LaplaceOptions}
    family: ClassVar[str] = "projected-gaussian"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.miner = _checked_miner(config)
        self.laplace = LaplaceHead(self.head, config.section("laplace", LaplaceOptions), running=True)

    def start(self, train: Subset) -> None:
        """τ and λ to begin with."""
        super().start(train)
        self.laplace.start(self.head, images=len(train.labels))

    def loss(self, batch: Batch) -> Losses:
        """Contrastive loss at draws of the head; in training mode the curvature moves on, too."""
        # With gradient: every rank then computes the loss, and H, of the whole global batch.
        features, labels = gather(self.features(batch.inputs)), gather(batch.labels)
        draws = [self._draw(features, labels) for _ in range(self.laplace.options.samples)]
        if self.training:
            self._update_curvature(draws)
        total = draws[0].loss if len(draws) == 1 else torch.stack([draw.loss for draw in draws]).mean()
        return Losses(total, {"curvature": self.laplace.curvature.mean()})

    @property
    def repeats_its_step(self) -> bool:
        """With a diagonal of the approximation `fixed`, or of few outputs, without a miner: else only pairs that
        count are gone through, or some steps find eigenvectors and others do not."""
        options = self.laplace.options
        alike = options.approximation == "fixed" or not asks_the_device(self.head.out_features, self.device)
        return self.miner is None and options.covariance == "diagonal" and alike

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """The predictive of the head's posterior: location and variance (n, D)."""
        return self.laplace.predictive(self.head, features)

    @property
    def variance_ratio(self) -> float:
        """As the posterior bounds it."""
        return self.laplace.variance_ratio(self.head)

    def finish(self, train: Subset, validation: Subset) -> None:
        """Fits the curvature once more where wanted, and tunes τ and λ on validation images."""
        self.laplace.curvature.settle()
        if self.laplace.options.refit:
            self.laplace.fit(self.head, train, self.config)
        self.laplace.tune(self.head, validation, train, self.config)

    def record(self) -> dict[str, Any]:
        """τ, λ and how they were found; how many steps the curvature saw."""
        if self.laplace.options.refit:
            return {**self.laplace.record(), "refit": True}
        return {**self.laplace.record(), "steps": int(self.laplace.curvature.steps)}

    def _draw(self, features: Tensor, labels: Tensor) -> ContrastiveStep:
        """Loss and curvature at one draw of the head."""
        weight, bias = self.laplace.draw(self.head)
        chosen: Tensor | Pairs = self.config.loss.pairs
        if self.miner is not None:
            chosen = _mined(self.miner, linear(features.detach(), weight, bias).detach().float(), labels)
        options = self.laplace.options
        return contrastive_step(
            features,
            weight,
            bias,
            labels,
            margin=self.config.loss.margin or DEFAULT_MARGIN["contrastive"],
            geometry=options.geometry,
            approximation=options.approximation,
            negative_weight=self.config.loss.negative_weight,
            reduction=self.config.loss.reduction,
            distance=self.config.loss.distance,
            curvature_negative_weight=curvature_negative_weight(self.config),
            curvature_reduction=curvature_reduction(self.config),
            covariance=options.covariance,
            chosen=chosen,
        )

    @torch.no_grad()
    def _update_curvature(self, draws: list[ContrastiveStep]) -> None:
        """One step of H with the mean over the draws."""
        running = self.laplace.curvature
        if len(draws) == 1:
            running.update(*draws[0].curvature, draws[0].valid)
            return
        first = torch.stack([draw.curvature[0] for draw in draws]).mean(0)
        others = [draw.curvature[1] for draw in draws if draw.curvature[1] is not None]
        second = torch.stack(others).mean(0) if others else None
        running.update(first, second, torch.stack([draw.valid for draw in draws]).any())


def _mined(miner: nn.Module, outputs: Tensor, labels: Tensor) -> Tensor:
    """Which pairs a miner picks, (B, B), symmetric; triplets count as their two pairs."""
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs

    anchor, positive, other_anchor, negative = convert_to_pairs(miner(outputs, labels), labels)
    chosen = torch.zeros(len(labels), len(labels), dtype=torch.bool, device=labels.device)
    chosen[anchor, positive] = True
    chosen[other_anchor, negative] = True
    return (chosen | chosen.T).fill_diagonal_(False)


def _checked_miner(config: Config) -> nn.Module | None:
    """The miner of pytorch-metric-learning that is asked for; refuses losses without a known curvature."""
    loss = config.loss
    if loss.name != "contrastive" or loss.arguments:
        raise InputError(
            f"lam-online knows the curvature of the contrastive loss only, got loss {loss.name!r}"
            f"{' with arguments' if loss.arguments else ''}; set `loss: {{name: contrastive}}`, or take "
            "lam-posthoc, which trains with any loss."
        )
    if loss.miner is not None and loss.pairs != "all":
        raise InputError(f"loss.miner and `loss.pairs: {loss.pairs}` both choose pairs; set one of them.")
    if config.section("laplace", LaplaceOptions).margin is not None:
        raise InputError("lam-online takes its margin from loss.margin; laplace.margin is for lam-posthoc.")
    return build_miner(loss)
