"""Post-hoc Laplace approximation: a trained head, or none at all, becomes a posterior in one pass.

The curvature of positive and of negative pairs is summed apart over class-balanced batches of cached
features, divided by the numbers of pairs and clamped once, at the end: the result does not depend on the
batch size, up to which pairs meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.laplace.curvature import Approximation, CurvatureSums, Geometry, contrastive_ggn_sums
from doubtless.laplace.posterior import DiagonalPosterior


class Head(NamedTuple):
    """A linear map onto embeddings."""

    weight: Tensor  # (D, F)
    bias: Tensor | None  # (D,)


def fit(
    features: Tensor,
    labels: Tensor,
    head: Head | nn.Linear | Literal["half-whitened", "identity"] | None = None,
    *,
    dim: int | None = None,
    margin: float = 0.7,
    geometry: Geometry = "arccos",
    approximation: Approximation = "fixed",
    negative_weight: float = 0.5,
    batch_size: int = 256,
    per_class: int = 4,
    scale: float | None = None,
    prior_precision: float = 1.0,
    generator: torch.Generator | None = None,
) -> DiagonalPosterior:
    """A posterior around a head, from features (n, F) and labels (n,) of the training set.

    >>> posterior = fit(features, labels)                     # half-whitened head: nothing is trained
    >>> posterior = fit(features, labels, model.head)         # around a trained nn.Linear
    >>> posterior = fit(embeddings, labels, "identity")       # features are embeddings already
    >>> posterior.predict(features).uncertainty               # (n,)

    `dim` is the dimension of a half-whitened head (512, or less where the features have less). `scale` is τ,
    by default the number of images; `doubtless.laplace.tune` finds a better one on validation data.
    """
    if len(features) != len(labels) or features.dim() != 2:
        raise InputError(
            "features must be (n, F) with one label each, "
            f"got shape {tuple(features.shape)} and {len(labels)} labels."
        )
    weight, bias = _resolve(head, features, dim)
    total: CurvatureSums | None = None
    for rows in class_balanced_batches(labels, batch_size, per_class=per_class, generator=generator):
        batch = contrastive_ggn_sums(
            features[rows].to(weight.device),
            weight,
            bias,
            labels[rows].to(weight.device),
            margin=margin,
            geometry=geometry,
            approximation=approximation,
        )
        total = batch if total is None else total + batch
    if total is None or int(total.positive_pairs) == 0:
        raise InputError("no two images share a label, so there is no positive pair and no curvature.")
    of_weight, of_bias = total.average(negative_weight=negative_weight)
    return DiagonalPosterior(
        weight,
        bias,
        of_weight.clamp_min(0),
        None if of_bias is None else of_bias.clamp_min(0),
        scale=float(len(features)) if scale is None else scale,
        prior_precision=prior_precision,
    )


def class_balanced_batches(
    labels: Tensor, batch_size: int, *, per_class: int = 4, generator: torch.Generator | None = None
) -> Iterator[Tensor]:
    """Indices (batch,) in which every image comes once, and in groups of `per_class` of one class."""
    if batch_size < 2:
        raise InputError(f"a batch needs two images to have a pair; got batch_size {batch_size}.")
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
    The best head for a pretrained encoder that has not been trained (CUB-200 R@1 .514, raw features .487).
    """
    n, width = features.shape
    if not 1 <= dim <= min(n - 1, width):
        raise InputError(
            f"a half-whitened head of {n} images with {width} features has 1 to {min(n - 1, width)} "
            f"dimensions, got {dim}."
        )
    mean = features.double().mean(0)
    covariance = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for part in features.split(4096):
        centred = part.double() - mean
        covariance.addmm_(centred.T, centred)
    variance, vectors = torch.linalg.eigh(covariance / n)  # ascending
    variance, vectors = variance[-dim:].flip(0), vectors[:, -dim:].flip(1)  # (dim,), (F, dim)
    if not float(variance[-1]) > 1e-12 * float(variance[0]):
        raise InputError(
            f"the features vary in fewer than {dim} directions; ask for a half-whitened head of fewer."
        )
    # An eigenvector's sign is arbitrary: make its largest entry positive, so that heads can be compared.
    vectors = vectors * torch.sign(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)))
    weight = vectors.T / variance.pow(0.25).unsqueeze(1)
    return Head(weight.to(features.dtype), -(weight @ mean).to(features.dtype))


def _resolve(head: object, features: Tensor, dim: int | None) -> Head:
    """The head that was meant."""
    width = features.shape[1]
    if head is None or head == "half-whitened":
        return half_whitened(features, min(512, width, len(features) - 1) if dim is None else dim)
    if dim is not None:
        raise InputError("dim is for a half-whitened head; a head that is given has its own.")
    if isinstance(head, str) and head == "identity":
        return Head(torch.eye(width, dtype=features.dtype, device=features.device), None)
    if isinstance(head, nn.Linear):
        return Head(head.weight.detach().clone(), None if head.bias is None else head.bias.detach().clone())
    if isinstance(head, tuple) and len(head) == 2:
        return Head(*head)
    raise InputError(
        f"head must be 'half-whitened', 'identity', an nn.Linear or (weight, bias), got {head!r:.80}."
    )
