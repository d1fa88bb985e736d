"""What the methods of LAM share: their options, and the posterior of a linear head as part of a module."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from doubtless.config import Config, Section
from doubtless.laplace import (
    CurvatureOptions,
    KroneckerCurvature,
    OnlineCurvature,
    Posterior,
    RatioByUnknowns,
    Tuned,
    check_kronecker,
    default_scales,
    fit,
    ratio_by_unknowns,
    tune,
)
from doubtless.losses.contrastive import Reduction
from doubtless.methods.base import Subset
from doubtless.methods.metric_loss import DEFAULT_MARGIN

MOST_NEGATIVE_WEIGHT: dict[Reduction, float] = {"all": 0.5, "active": 0.2}
"""What a curvature bears that nobody has asked to weigh otherwise. Averaged over all, negative pairs weigh as much
as there are of them inside the margin, hardly anything. Averaged over the active ones they weigh as much as the
positive pairs do, however few they are, and being nearer, more: what is left is mostly below 0. Figures are in
docs/methods.md."""


class TuneOptions(Section):
    """How τ and λ are chosen on validation images."""

    criterion: Literal["consensus-ece", "error-auroc", "match-likelihood", "none"] = "consensus-ece"
    """What chooses τ; none keeps `scale` and `prior_precision` as they are."""
    prior: Literal["marginal", "validation", "unknowns"] = "marginal"
    """λ by the marginal likelihood at each τ; or by the criterion too; or λ/τ by training classes that are left out
    of the curvature and should be doubted, which fits it three more times."""
    ratio: float | None = Field(default=None, gt=0)
    """λ/(τ · mean H), held at this; None: as `prior` says. Small: images are strange by features that training
    images hardly have; large: by how much of them the head does not see, which tells errors better."""
    grid: int = Field(default=50, ge=2)
    """So many τ are tried."""
    refine: int = Field(default=8, ge=0)
    """So many more between the neighbours of the best: over eight orders of magnitude a grid of 50 is coarse."""
    images: int = Field(default=2000, ge=2)
    """On at most so many images: each is compared with all neighbours, at every point of the grid."""
    gallery: int | None = Field(default=None, ge=2)
    """Their neighbours are at most so many images; None: themselves. What draws agree on depends on how dense
    neighbours lie, so a calibrated τ is one for galleries of this size: as large as the one it is meant for."""
    meant_for: int | None = Field(default=None, ge=2)
    """The size of that one: where there are fewer images to tune on, what draws agree on is extrapolated to it, and
    what is off on the whole counts once more, which the bins of a calibration error say with more noise."""


class LaplaceOptions(Section):
    """The section `laplace` of a configuration."""

    covariance: Literal["diagonal", "kronecker"] = "diagonal"
    """diagonal: as the papers have it, every weight by itself; kronecker: all weights together, which takes F×F
    numbers for F features and tells strangers whatever the prior."""
    geometry: Literal["arccos", "euclidean", "linear"] = "arccos"
    """Where outputs are normalised: in the loss, in the network, or, linear, not at all. Of the last a Kronecker
    covariance is exact."""
    approximation: Literal["fixed", "positive", "full"] = "fixed"
    """fixed: one image of a pair moves at a time; positive: positive pairs only; full: everything."""
    margin: float | None = Field(default=None, gt=0)
    """Of the curvature; None: that of the contrastive loss, or 0.7 where another loss trains."""
    negative_weight: float | None = Field(default=None, ge=0, le=1)
    """Of the curvature; None: that of the loss, at most ½, or ⅕ where averages are over active pairs. Past it
    repelling pairs outweigh the others, and what is below 0 is cut off: with the .85 that trains best nine of ten
    entries were 0 on CIFAR10. With a Kronecker covariance None is 0: negative pairs can only cut directions off."""
    reduction: Literal["active", "all"] | None = None
    """Which pairs the curvature's averages run over; None: as `loss.reduction` says of the contrastive loss, all
    where another loss trains."""
    scale: float | None = Field(default=None, gt=0)
    """τ before it is tuned; None: see `LaplaceHead.start`."""
    prior_precision: float | None = Field(default=None, gt=0)
    """λ before it is tuned; None: see `LaplaceHead.start`."""
    memory: float = Field(default=1e-3, gt=0, le=1)
    """α, online: the share of the newest batch in H."""
    samples: int = Field(default=1, ge=1)
    """Online: draws of the head per step."""
    refactor: int = Field(default=100, ge=1)
    """Online, kronecker: eigenvectors are found anew every so many steps."""
    refit: bool = False
    """Online: when training is over, H of all training images and all their pairs, as `lam-posthoc` has it. The
    running one is of the pairs that trained: with hard ones alone it knows the doubtful images best, and takes
    their errors for sure."""
    tune: TuneOptions = TuneOptions()


class LaplaceHead(nn.Module):
    """H, τ and λ around a linear head, in buffers: saved, restored and moved with the model they belong to.

    >>> head = nn.Linear(128, 16)
    >>> laplace = LaplaceHead(head, LaplaceOptions())
    >>> len(laplace.posterior(head).predict(torch.randn(5, 128)))  # (5, 128) → Embedding of 5 items
    5
    """

    scale: Tensor
    prior_precision: Tensor

    def __init__(self, head: nn.Linear, options: LaplaceOptions, *, running: bool = False) -> None:
        super().__init__()
        self.options = options
        self.curvature = _curvature(head, options, running=running)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("prior_precision", torch.ones(()))
        self.start(head, images=1)
        self._tuned: Tuned | None = None
        self._unknowns: RatioByUnknowns | None = None
        self._known: tuple[tuple[Any, ...], Posterior] | None = None

    @torch.no_grad()
    def start(self, head: nn.Linear, *, images: int) -> None:
        """τ and λ before anything is tuned, where the configuration leaves them open.

        λ is one over the mean square of the head's weights as they are now: a draw from the prior is as large as
        the weights themselves, whatever their number, so training begins with a signal as strong as the noise,
        and weights that grow leave the noise behind (docs/methods.md has the numbers). τ is the number of
        training images.
        """
        given = self.options
        self.scale.fill_(float(images) if given.scale is None else given.scale)
        if given.prior_precision is not None:
            self.prior_precision.fill_(given.prior_precision)
        else:
            self.prior_precision.copy_(head.weight.square().mean().reciprocal())

    def draw(self, head: nn.Linear) -> tuple[Tensor, Tensor | None]:
        """A head's weight (D, F) and bias (D,) from the current posterior, with gradient to the mean.

        Drawn by the device's own generator, which training seeds alike on all ranks at every epoch.
        """
        return self.curvature.sample(
            head.weight, head.bias, scale=self.scale, prior_precision=self.prior_precision
        )

    def posterior(self, head: nn.Linear) -> Posterior:
        """Around a head as it is now; made anew only when head, H, τ or λ have changed since."""
        state = [*head.parameters(), *self.buffers()]
        key = tuple((tensor.data_ptr(), tensor._version) for tensor in state)
        if self._known is None or self._known[0] != key:
            made = self.curvature.posterior(
                head.weight,
                head.bias,
                scale=float(self.scale),
                prior_precision=float(self.prior_precision),
            )
            self._known = (key, made)
        return self._known[1]

    def predictive(self, head: nn.Linear, features: Tensor) -> dict[str, Tensor]:
        """Location (n, D) and variance (n, D) or (n, 1) of a projected Gaussian for features (n, F)."""
        if not torch.compiler.is_exporting():
            return self.posterior(head).predictive(features)
        # The same by tensors alone: a graph cannot look whether a posterior is known already.
        return self.curvature.predictive(head, features, self.scale, self.prior_precision)

    def variance_ratio(self, head: nn.Linear) -> float:
        """As the posterior bounds it."""
        return self.posterior(head).variance_ratio()

    def fit(self, head: nn.Linear, train: Subset, config: Config) -> None:
        """H of all training images around the head, in one pass; τ and λ stay."""
        posterior = fit(
            train.features(),
            train.labels,
            head,
            covariance=self.options.covariance,
            options=curvature_options(config),
            generator=torch.Generator().manual_seed(config.seed),
        )
        self.keep(posterior.with_scale(float(self.scale), float(self.prior_precision)))

    def keep(self, posterior: Posterior) -> None:
        """Takes over a posterior's H, τ and λ."""
        self.curvature.keep(posterior)
        self.scale.fill_(posterior.scale)
        self.prior_precision.fill_(posterior.prior_precision)

    def tune(self, head: nn.Linear, validation: Subset, train: Subset, config: Config) -> None:
        """Chooses τ and λ on validation images, and on training images where classes are to be left out."""
        options, seed = self.options.tune, config.seed
        if options.criterion == "none":
            return
        features, labels = _some(validation, max(options.images, options.gallery or 0), seed)
        posterior = self.posterior(head)
        ratio = options.ratio
        if ratio is None and options.prior == "unknowns":
            ratio = self._ratio_by_unknowns(head, train, config)
        ratios = None if ratio is None else [ratio * float(posterior.flat_curvature().mean())]
        self._tuned = tune(
            posterior,
            features,
            labels,
            criterion=options.criterion,
            prior="marginal" if ratios is None and options.prior == "marginal" else "validation",
            ratios=ratios,
            scales=default_scales(posterior, options.grid),
            refine=options.refine,
            queries=None if len(labels) <= options.images else _rows(len(labels), options.images, seed),
            meant_for=options.meant_for,
            generator=torch.Generator(features.device).manual_seed(seed),
        )
        self.scale.fill_(self._tuned.posterior.scale)
        self.prior_precision.fill_(self._tuned.posterior.prior_precision)

    def _ratio_by_unknowns(self, head: nn.Linear, train: Subset, config: Config) -> float:
        self._unknowns = ratio_by_unknowns(
            train.features(),
            train.labels,
            head,
            covariance=self.options.covariance,
            options=curvature_options(config),
            seed=config.seed,
        )
        return self._unknowns.ratio

    def record(self) -> dict[str, Any]:
        """Plain values for model.json."""
        found: dict[str, Any] = {
            "scale": float(self.scale),
            "prior_precision": float(self.prior_precision),
            "covariance": self.options.covariance,
            "mean_curvature": float(self.curvature.mean()),
            "criterion": self.options.tune.criterion,
        }
        if self._unknowns is not None:
            found["unknowns_auroc"] = {str(ratio): score for ratio, score in self._unknowns.scores.items()}
        if self._tuned is None:
            return found
        best = max(self._tuned.trials, key=lambda trial: trial.score)
        scales = sorted({trial.scale for trial in self._tuned.trials})
        return found | {
            "prior": self.options.tune.prior,
            "score": best.score,
            "lowest_score": min(trial.score for trial in self._tuned.trials),
            "trials": len(self._tuned.trials),
            "scales_tried": [scales[0], scales[-1]],
            "best_scale_at_the_end": best.scale in (scales[0], scales[-1]),
        }


def _curvature(
    head: nn.Linear, options: LaplaceOptions, *, running: bool
) -> OnlineCurvature | KroneckerCurvature:
    """What holds H, as the options say."""
    dim, width = head.weight.shape
    has_bias = isinstance(head.bias, Tensor)
    if options.covariance == "diagonal":
        return OnlineCurvature(dim, width, memory=options.memory, has_bias=has_bias)
    check_kronecker(geometry=options.geometry, approximation=options.approximation)
    return KroneckerCurvature(
        dim,
        width,
        memory=options.memory,
        has_bias=has_bias,
        turns=options.geometry != "linear",
        running=running,
        refactor=options.refactor,
    )


def curvature_options(config: Config) -> CurvatureOptions:
    """Margin, geometry, approximation, weight of negatives and averages that a configuration asks `fit` for."""
    options, loss = config.section("laplace", LaplaceOptions), config.loss
    contrastive = loss.margin if loss.name == "contrastive" else None
    return CurvatureOptions(
        margin=options.margin or contrastive or DEFAULT_MARGIN["contrastive"],
        geometry=options.geometry,
        approximation=options.approximation,
        negative_weight=curvature_negative_weight(config),
        reduction=curvature_reduction(config),
    )


def curvature_negative_weight(config: Config) -> float:
    """The weight of negative pairs in the curvature: what is asked for, else the loss's, within bounds."""
    options = config.section("laplace", LaplaceOptions)
    if options.negative_weight is not None:
        return options.negative_weight
    if options.covariance == "kronecker":
        return 0.0
    return min(config.loss.negative_weight, MOST_NEGATIVE_WEIGHT[curvature_reduction(config)])


def curvature_reduction(config: Config) -> Reduction:
    """What the curvature's averages run over: what is asked for, else the contrastive loss's, else all pairs."""
    asked = config.section("laplace", LaplaceOptions).reduction
    if asked is not None:
        return asked
    return config.loss.reduction if config.loss.name == "contrastive" else "all"


def _some(part: Subset, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features and labels of all images, or of `count` drawn at random."""
    features, labels = part.features(), part.labels
    if len(labels) <= count:
        return features, labels
    rows = _rows(len(labels), count, seed)
    return features[rows.to(features.device)], labels[rows.to(labels.device)]


def _rows(of: int, count: int, seed: int) -> Tensor:
    """`count` numbers below `of`, each once."""
    return torch.randperm(of, generator=torch.Generator().manual_seed(seed))[:count]
