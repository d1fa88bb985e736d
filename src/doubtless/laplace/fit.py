"""Post-hoc Laplace approximation: a trained head, or none at all, becomes a posterior in one pass.

The curvature of positive and of negative pairs is summed apart over class-balanced batches of cached
features, divided by the numbers of pairs and clamped once, at the end: the result does not depend on the
batch size, up to which pairs meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from doubtless.errors import InputError, nearest
from doubtless.laplace.curvature import (
    Approximation,
    CurvatureSums,
    Geometry,
    check_names,
    contrastive_ggn_sums,
)
from doubtless.laplace.kronecker import KroneckerSums, check_kronecker
from doubtless.laplace.kronecker_posterior import KroneckerPosterior
from doubtless.laplace.pairs import _precision
from doubtless.laplace.posterior import DiagonalPosterior, Posterior
from doubtless.laplace.symmetric import ROWS, SymmetricSum
from doubtless.losses.contrastive import Reduction, check_reduction
from doubtless.progress import phase

Covariance = Literal["diagonal", "kronecker"]
FAINT = 1e-4  # of the largest variance: below it products in float32 are not exact enough
NO_PAIR = "No two different images share a label, so there is no positive pair and no curvature."


class Head(NamedTuple):
    """A linear map onto embeddings."""

    weight: Tensor  # (D, F)
    bias: Tensor | None  # (D,)


@dataclass(frozen=True)
class CurvatureOptions:
    """Which curvature of the contrastive loss is meant, and in which batches its pairs meet.

    margin            negative pairs farther apart add nothing
    geometry          "arccos": the loss normalises; "euclidean": unit vectors are the network's output;
                      "linear": nothing is normalised, and a Kronecker product is the whole of the curvature
    approximation     "fixed": one point of a pair moves at a time; "positive": positive pairs only; "full": all
    negative_weight   w of negative pairs, 1 − w of positive ones; None: ½, or 0 with a Kronecker covariance, whose
                      directions they would only cut off
    reduction         "all": averages over all pairs, as the paper has it, whatever loss a head was trained with;
                      "active": over pairs that are not zero, which wants a smaller negative_weight
    batch_size        images whose pairs are looked at together
    per_class         images of one class side by side in a batch, so that positive pairs meet
    """

    margin: float = 0.7
    geometry: Geometry = "arccos"
    approximation: Approximation = "fixed"
    negative_weight: float | None = None
    reduction: Reduction = "all"
    batch_size: int = 256
    per_class: int = 4

    def __post_init__(self) -> None:
        check_names(geometry=self.geometry, approximation=self.approximation)
        check_reduction(self.reduction)
        if not self.margin >= 0:
            raise InputError(f"The margin must not be negative, got {self.margin}.")
        if self.negative_weight is not None and not 0 <= self.negative_weight <= 1:
            raise InputError(f"The negative_weight must lie between 0 and 1, got {self.negative_weight}.")


DEFAULT = CurvatureOptions()


@phase("curvature")
def fit(
    features: Tensor,
    labels: Tensor,
    head: Head | nn.Linear | Literal["half-whitened", "identity"] | None = None,
    *,
    dim: int | None = None,
    covariance: Covariance = "diagonal",
    options: CurvatureOptions = DEFAULT,
    generator: torch.Generator | None = None,
) -> Posterior:
    """A posterior around a head, from features (n, F) and labels (n,) of the training set.

    >>> features, labels = torch.randn(40, 8), torch.arange(40) % 4
    >>> posterior = fit(features, labels, dim=6)                  # half-whitened head: nothing is trained
    >>> posterior.predict(features).uncertainty.shape
    torch.Size([40])
    >>> fit(features, labels, nn.Linear(8, 3)).weight.shape       # around a trained head
    torch.Size([3, 8])
    >>> fit(features, labels, "identity").weight.shape            # features are embeddings already
    torch.Size([8, 8])
    >>> fit(features, labels, dim=6, covariance="kronecker").predict(features).uncertainty.shape
    torch.Size([40])

    `dim` is the dimension of a half-whitened head (512, or less where the features have less). `covariance` says
    which weights may go together: none ("diagonal"), or all ("kronecker", F×F numbers more). τ is the number
    of images and λ is 1: `doubtless.laplace.tune` finds better ones on validation data, `with_scale` takes others.
    """
    if len(features) != len(labels) or features.dim() != 2:
        raise InputError(
            "Features must be (n, F) with one label each, "
            f"got shape {tuple(features.shape)} and {len(labels)} labels."
        )
    start = _resolve(head, features, dim)
    batches = class_balanced_batches(
        labels, options.batch_size, per_class=options.per_class, generator=generator
    )
    device = start.weight.device
    parts = ((features[rows].to(device), labels[rows].to(device)) for rows in batches)
    if covariance == "diagonal":
        return _diagonal(parts, start, options, images=len(features))
    if covariance == "kronecker":
        return _kronecker(parts, start, options, images=len(features))
    raise InputError(f"There is no covariance {covariance!r}{nearest(covariance, get_args(Covariance))}")


def _diagonal(
    parts: Iterable[tuple[Tensor, Tensor]], head: Head, options: CurvatureOptions, *, images: int
) -> DiagonalPosterior:
    total: CurvatureSums | None = None
    for features, labels in parts:
        batch = contrastive_ggn_sums(
            features,
            *head,
            labels,
            margin=options.margin,
            geometry=options.geometry,
            approximation=options.approximation,
            reduction=options.reduction,
        )
        total = batch if total is None else total + batch
    if total is None or int(total.positive_pairs) == 0:
        raise InputError(NO_PAIR)
    negative_weight = 0.5 if options.negative_weight is None else options.negative_weight
    of_weight, of_bias = total.average(negative_weight=negative_weight)
    return DiagonalPosterior(
        *head,
        of_weight.clamp_min(0),
        None if of_bias is None else of_bias.clamp_min(0),
        scale=float(images),
        prior_precision=1.0,
    )


def _kronecker(
    parts: Iterable[tuple[Tensor, Tensor]], head: Head, options: CurvatureOptions, *, images: int
) -> KroneckerPosterior:
    check_kronecker(geometry=options.geometry, approximation=options.approximation)
    negative_weight = options.negative_weight or 0.0
    dim, width = head.weight.shape
    total = KroneckerSums(
        dim,
        width + (head.bias is not None),
        geometry=options.geometry,
        approximation=options.approximation,
        reduction=options.reduction,
        negatives=negative_weight > 0,
        device=head.weight.device,
    )
    for features, labels in parts:
        total.add(features, *head, labels, margin=options.margin)
    if int(total.pairs[0]) == 0:
        raise InputError(NO_PAIR)
    found = KroneckerPosterior.of(
        *head,
        total.average(negative_weight=negative_weight),
        scale=float(images),
        prior_precision=1.0,
    )
    if not bool(found.input_curvature.any()):
        raise InputError(
            "Negative pairs outweigh the positive ones in every direction, so all of the curvature was cut off "
            f"at 0; give a negative_weight below {negative_weight}."
        )
    return found


def class_balanced_batches(
    labels: Tensor, batch_size: int, *, per_class: int = 4, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Indices (batch,) in which every image comes once, and in groups of `per_class` of one class."""
    if batch_size < 2:
        raise InputError(f"A batch needs two images to have a pair, got batch_size {batch_size}.")
    order = _shuffled(len(labels), generator)
    classes = labels.cpu()[order]
    by_class = order[torch.argsort(classes, stable=True)]  # images of a class side by side, in random order
    sizes = torch.bincount(torch.unique(classes, return_inverse=True)[1]).tolist()
    groups = [group for part in by_class.split(sizes) for group in part.split(per_class)]
    if groups:
        shuffled = [groups[number] for number in _shuffled(len(groups), generator).tolist()]
        yield from torch.cat(shuffled).split(batch_size)


def _shuffled(n: int, generator: torch.Generator | None) -> Tensor:
    device = "cpu" if generator is None else generator.device
    return torch.randperm(n, generator=generator, device=device).cpu()


def half_whitened(features: Tensor, dim: int) -> Head:
    """Principal components of features (n, F), each divided by the root of its standard deviation: (dim, F).

    Half of what whitening does: it lifts the faint directions without making noise as loud as signal.
    The best head for a pretrained encoder that has not been trained (docs/methods.md).
    """
    n, width = features.shape
    if not 1 <= dim <= min(n - 1, width):
        raise InputError(
            f"A half-whitened head of {n} images with {width} features has 1 to {min(n - 1, width)} "
            f"dimensions, got {dim}."
        )
    mean = features.mean(0, dtype=torch.float64)
    variance, vectors = _principal(features, mean, dim, _precision(features))
    if not float(variance[-1]) > FAINT * float(variance[0]):
        variance, vectors = _principal(features, mean, dim, torch.float64)
    if not float(variance[-1]) > 1e-12 * float(variance[0]):
        raise InputError(
            f"The features vary in fewer than {dim} directions; ask for a half-whitened head of fewer."
        )
    # An eigenvector's sign is arbitrary: make its largest entry positive, so that heads can be compared.
    vectors = vectors * torch.sign(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)))
    weight = vectors.T / variance.pow(0.25).unsqueeze(1)
    return Head(weight.to(features.dtype), -(weight @ mean).to(features.dtype))


def _principal(features: Tensor, mean: Tensor, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The largest variances (dim,), falling, and their directions (F, dim), by products of this precision."""
    products = SymmetricSum(features.shape[1], device=features.device)
    for part in features.split(ROWS):
        centred = (part.double() - mean).to(dtype)
        products.add(centred, centred)
    variance, vectors = torch.linalg.eigh(products.value() / len(features))  # ascending
    return variance[-dim:].flip(0), vectors[:, -dim:].flip(1)


def _resolve(head: object, features: Tensor, dim: int | None) -> Head:
    """The head that was meant."""
    width = features.shape[1]
    if head is None or head == "half-whitened":
        return half_whitened(features, min(512, width, len(features) - 1) if dim is None else dim)
    if dim is not None:
        raise InputError("A dim is for a half-whitened head; a head that is given has its own.")
    if isinstance(head, str) and head == "identity":
        return Head(torch.eye(width, dtype=features.dtype, device=features.device), None)
    if isinstance(head, nn.Linear):
        return Head(head.weight.detach().clone(), None if head.bias is None else head.bias.detach().clone())
    if isinstance(head, tuple) and len(head) == 2:
        return Head(*head)
    raise InputError(
        f"The head must be 'half-whitened', 'identity', an nn.Linear or (weight, bias), got {head!r:.80}."
    )
