"""Are two items the same? TAR at FAR, the threshold at a chosen FAR, EER, over all pairs.

A pair is accepted when its cosine reaches a threshold. FAR is the share of pairs of two classes that are accepted,
TAR that of pairs of one class; at the equal error rate FAR = 1 − TAR. Pairs are counted into 2²⁰ cells of cosine, a
few million at a time, so all pairs of 60,000 items need no matrix; thresholds are the lower ends of cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.metric import VERIFICATION, Metric, register
from doubtless.metrics.views import Paired

CELLS = 2**20
RATES = (1e-1, 1e-2, 1e-3, 1e-4)
FEWEST = 10
"""False accepts that a rate must stand for; a rarer one is not measured."""
CHUNK = {"cpu": 2**22, "cuda": 2**26}  # pairs at a time
MOST = 2**27
"""Pairs beyond which every second, third … query stands for the others: FAR 1e-4 is 13,000 of these."""


@dataclass(frozen=True, eq=False)
class PairCounts:
    """How many pairs of one class, and of two, have a cosine in each cell (CELLS,), rising."""

    same: Tensor
    different: Tensor

    @property
    def threshold(self) -> Tensor:
        """(CELLS,) the cosine from which a cell is accepted."""
        return torch.arange(CELLS, dtype=torch.double) * (2 / CELLS) - 1

    def rates(self) -> tuple[Tensor, Tensor]:
        """FAR and TAR of accepting each cell and all above it, (CELLS,) each."""
        for count, kind in ((self.same, "one class"), (self.different, "two classes")):
            if not int(count.sum()):
                raise InputError(f"A verification needs pairs of {kind}, and there is none.")
        above = [count.flip(0).cumsum(0).flip(0).double() for count in (self.different, self.same)]
        return above[0] / above[0][0], above[1] / above[1][0]


def count_pairs(
    directions: Tensor,
    labels: Tensor,
    *,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    most: int = MOST,
) -> PairCounts:
    """All pairs of unit rows (n, D), or of these with a gallery (m, D); itself left out, each pair once.

    >>> counts = count_pairs(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1]))
    >>> int(counts.same.sum()), int(counts.different.sum())
    (1, 2)
    """
    alone = gallery is None or gallery_labels is None
    others, known = (
        (directions, labels) if gallery is None or gallery_labels is None else (gallery, gallery_labels)
    )
    pairs = len(directions) * len(others) // (2 if alone else 1)
    stride = -(-pairs // most) if pairs else 1
    queries = torch.arange(0, len(directions), stride, device=directions.device)
    counts = torch.zeros(2 * CELLS, dtype=torch.long, device=directions.device)
    places, wide = torch.arange(len(others), device=directions.device), others.double()
    for rows in queries.split(max(1, CHUNK.get(directions.device.type, 2**22) // max(1, len(others)))):
        first = int(rows[0]) if alone and stride == 1 else 0  # pairs of earlier rows are counted already
        cosine = directions[rows].double() @ wide[first:].T  # (c, m); float32 would move cells with the chunk
        cell = ((cosine + 1) * (CELLS / 2)).long().clamp_(0, CELLS - 1)
        cell += CELLS * (labels[rows].unsqueeze(1) == known[first:])
        if alone and stride == 1:
            kept = places[first:] > rows.unsqueeze(1)
        elif alone:
            kept = places[first:] != rows.unsqueeze(1)
        else:
            kept = None
        counts += (cell.flatten() if kept is None else cell[kept]).bincount(minlength=2 * CELLS)
    counts = counts.cpu()
    return PairCounts(same=counts[CELLS:], different=counts[:CELLS])


def threshold_at_far(counts: PairCounts, rate: float) -> float:
    """The lowest threshold that accepts at most a share `rate` of pairs of two classes.

    >>> counts = count_pairs(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1]))
    >>> round(threshold_at_far(counts, 0.1), 3)
    0.0
    """
    return float(counts.threshold[_place(counts, rate)])


def tar_at_far(counts: PairCounts, rate: float) -> float:
    """Share of pairs of one class accepted at that threshold.

    >>> tar_at_far(count_pairs(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1])), 0.1)
    1.0
    """
    return float(counts.rates()[1][_place(counts, rate)])


def equal_error_rate(counts: PairCounts) -> float:
    """Where FAR = 1 − TAR, on the line between the two thresholds around it.

    >>> equal_error_rate(count_pairs(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1])))
    0.0
    """
    far, tar = (torch.cat([rate, torch.zeros(1, dtype=torch.double)]) for rate in counts.rates())
    gap = far - (1 - tar)  # falls from 1 to −1
    after = int((gap <= 0).nonzero()[0])
    if after == 0:
        return float(far[0])
    step = gap[after - 1] / (gap[after - 1] - gap[after])
    return float(torch.lerp(far[after - 1], far[after], step))


def verification_measures(counts: PairCounts) -> dict[str, float]:
    """tar@far…, threshold@far… of rates that enough pairs stand behind, and eer; {} without pairs of both kinds.

    >>> verification_measures(count_pairs(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1])))
    {'eer': 0.0}
    """
    different = int(counts.different.sum())
    if not different or not int(counts.same.sum()):
        return {}
    measures = {"eer": equal_error_rate(counts)}
    for rate in RATES:
        if different * rate >= FEWEST:
            measures[f"tar@far{rate:g}"] = tar_at_far(counts, rate)
            measures[f"threshold@far{rate:g}"] = threshold_at_far(counts, rate)
    return measures


def _verification(paired: Paired) -> dict[str, float]:
    return verification_measures(paired.counts)


register(
    Metric(
        "eer",
        "Equal error rate",
        "Error where as many different pairs are taken for the same as same pairs are refused.",
        of=Paired,
        measure=_verification,
        group=VERIFICATION,
        higher=False,
    )
)
register(
    Metric(
        "tar@",
        "TAR at {k} FAR",
        "Share of same pairs that are accepted when {k} of the different ones are, too.",
        of=Paired,
        measure=_verification,
        group=VERIFICATION,
        percent=True,
    )
)
register(
    Metric(
        "threshold@",
        "Cosine at {k} FAR",
        "The cosine from which on pairs are then accepted.",
        of=Paired,
        measure=_verification,
        group=VERIFICATION,
        higher=None,
        percent=True,
    )
)


def _place(counts: PairCounts, rate: float) -> int:
    if not 0 < rate <= 1:
        raise InputError(f"A false accept rate must lie in (0, 1], got {rate}.")
    far, _ = counts.rates()
    # as in coverage@risk: a tenth of ten pairs must be one, whatever floating point makes of it
    allowed = (far <= rate * (1 + 1e-12)).nonzero()
    return int(allowed[0]) if len(allowed) else CELLS - 1
