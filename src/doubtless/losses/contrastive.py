"""The contrastive loss on the unit sphere, of squared or plain distances, over all pairs or those of triplets.

Hadsell et al. 2006 as used by Warburg et al. 2023 (LAM), eq. 18, with the margin on the distance.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.errors import InputError, nearest
from doubtless.losses.reduction import mean_over

Pairs = Literal["all", "semi-hard", "hard"]
Reduction = Literal["active", "all"]
Distance = Literal["squared", "plain"]


def contrastive_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    margin: float,
    negative_weight: float = 0.5,
    pairs: Pairs = "all",
    reduction: Reduction = "active",
    distance: Distance = "squared",
) -> Tensor:
    """Pulls pairs of one label together, pushes others apart until their distance is `margin`.

    Over unordered pairs, u = z/‖z‖, d = ‖u_i − u_j‖:

        2(1 − w) · mean over positive pairs of ½ d²  +  2w · mean over negative pairs of ½ max(0, m² − d²)

    w = `negative_weight`, ½ by default: both weigh 1. `pairs`: which count; see `chosen_pairs`. `reduction`: what
    the means run over, `all` of those pairs or only the `active` ones, whose term is not 0. Most negative pairs
    are soon farther apart than the margin: over all of them the mean fades, however near the rest still are.
    How many are active is a constant to the gradient. `distance`: squared as above, whose curvature LAM has, or
    `plain`, d in place of ½ d² and m − d in place of ½ (m² − d²), which LAM's published code trains with. A kind of
    pair that the batch lacks contributes 0.
    Shapes are fixed and nothing is read back to the host, so that it compiles and never waits.

    embeddings (batch, D), not normalised; labels (batch,).

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])             # unit distance √2
    >>> contrastive_loss(z, torch.tensor([3, 3]), margin=0.7)  # one positive pair: ½ · 2
    tensor(1.)
    >>> contrastive_loss(z, torch.tensor([3, 4]), margin=2.0)  # one negative pair: ½ (4 − 2)
    tensor(1.)
    >>> z, labels = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]), torch.tensor([3, 4, 5])
    >>> contrastive_loss(z, labels, margin=1.5)                # the first and the last are 2 apart
    tensor(0.1250)
    >>> contrastive_loss(z, labels, margin=1.5, reduction="all")
    tensor(0.0833)
    >>> contrastive_loss(z, labels, margin=1.5, distance="plain")  # 1.5 − √2
    tensor(0.0858)
    """
    check_reduction(reduction)
    check_distance(distance)
    unit = normalize(embeddings, dim=-1)
    cosine = unit @ unit.T
    same = labels[:, None] == labels[None, :]
    pair = torch.ones_like(same).triu(diagonal=1)
    if pairs != "all":
        pair = pair & chosen_pairs(cosine.detach(), labels, pairs=pairs, margin=margin)
    positive, negative = same & pair, ~same & pair
    if reduction == "active":
        positive, negative = positive & are_apart(cosine), negative & are_nearer(cosine, margin)

    far, reach = 1 - cosine, 0.5 * margin**2  # ½ d², (batch, batch), and where it is enough
    if distance == "plain":
        far, reach = plain_distance(cosine), margin
    attraction = mean_over(far, positive)
    repulsion = mean_over((reach - far).relu(), negative)
    return 2 * (1 - negative_weight) * attraction + 2 * negative_weight * repulsion


def plain_distance(cosine: Tensor) -> Tensor:
    """d of unit vectors with these cosines, and 0 with a gradient of 0 where they are equal: a root has none there.

    >>> plain_distance(torch.tensor([1.0, 0.5, -1.0]))
    tensor([0., 1., 2.])
    """
    apart = are_apart(cosine)
    return torch.where(apart, (2 - 2 * cosine).where(apart, torch.ones_like(cosine)).sqrt(), 0.0)


def are_apart(cosine: Tensor) -> Tensor:
    """Where d > 0, by the cosines of unit vectors: equal ones have cosines a few roundings away from 1.

    >>> are_apart(torch.tensor([1.0, 0.9999999, 0.9]))
    tensor([False, False,  True])
    """
    return cosine < 1 - 16 * torch.finfo(cosine.dtype).eps


def are_nearer(cosine: Tensor, margin: float) -> Tensor:
    """Where d < m, by the cosines of unit vectors; nowhere where the margin cannot be told from none.

    >>> are_nearer(torch.tensor([1.0, 0.9, 0.0]), 0.7)
    tensor([ True,  True, False])
    """
    # d < m as c > 1 − m²/2. Where that rounds to 1 nothing is: rounding must not put equal points inside.
    drop = margin**2 / 2
    return cosine > (1 - drop if drop > torch.finfo(cosine.dtype).eps / 4 else torch.inf)


def check_reduction(reduction: str) -> None:
    """Refuses a reduction that there is not, with the nearest there is."""
    if reduction not in get_args(Reduction):
        raise InputError(f"There is no reduction {reduction!r}{nearest(reduction, get_args(Reduction))}")


def check_distance(distance: str) -> None:
    """Refuses a distance that there is not, with the nearest there is."""
    if distance not in get_args(Distance):
        raise InputError(f"There is no distance {distance!r}{nearest(distance, get_args(Distance))}")


def chosen_pairs(cosine: Tensor, labels: Tensor, *, pairs: Pairs, margin: float) -> Tensor:
    """Which pairs take part in a triplet worth learning from, (batch, batch), symmetric booleans, diagonal false.

    A triplet is an anchor a, another image p of its label and an image n of another one. With d = ‖u_i − u_j‖ it is

        semi-hard    0 < d_an − d_ap ≤ m    the right order, by less than the margin
        hard         d_an ≤ d_ap            the wrong order

    and {a, p} and {a, n} are chosen with it, whichever of the two is the anchor. `all` chooses every pair. Where no
    triplet is of the kind, no pair is chosen. As `TripletMarginMiner` of pytorch-metric-learning picks them, but
    of fixed shape, with nothing read back to the host, in O(batch² log batch).

    cosine (batch, batch), of unit embeddings, without gradient; labels (batch,).

    >>> unit = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])      # distances .63, 1.41 and .89
    >>> chosen_pairs(unit @ unit.T, torch.tensor([0, 0, 1]), pairs="semi-hard", margin=0.3).nonzero().tolist()
    [[0, 1], [1, 0], [1, 2], [2, 1]]
    """
    if pairs not in get_args(Pairs):
        raise InputError(f"There is no choice of pairs {pairs!r}{nearest(pairs, get_args(Pairs))}")
    same = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    if pairs == "all":
        return ~itself
    distance = (2 - 2 * cosine).clamp_min(0).sqrt()
    to_negatives = distance.masked_fill(same, torch.inf)  # (batch, batch), row by row of an anchor
    to_positives = distance.masked_fill(~same | itself, -torch.inf if pairs == "hard" else torch.inf)
    if pairs == "hard":
        chosen = torch.where(
            same,
            to_negatives.amin(1, keepdim=True) <= distance,
            to_positives.amax(1, keepdim=True) >= distance,
        )
    else:
        chosen = torch.where(
            same,
            _some_in(to_negatives, distance, distance + margin, right=True),  # d_ap < d_an ≤ d_ap + m
            _some_in(to_positives, distance - margin, distance, right=False),  # d_an − m ≤ d_ap < d_an
        )
    return (chosen | chosen.T) & ~itself


def _some_in(values: Tensor, low: Tensor, high: Tensor, *, right: bool) -> Tensor:
    """Whether a row has a value in (low, high], with `right`, or in [low, high); all (batch, batch)."""
    ordered = values.sort(dim=1).values
    return torch.searchsorted(ordered, high, right=right) > torch.searchsorted(ordered, low, right=right)
