"""Does the uncertainty rise when a picture gets worse, or shows less? Curves of what was measured at each step.

After figure 1 of Warburg, Miani, Brack and Hauberg, *Bayesian Metric Learning for Uncertainty Quantification in
Image Retrieval* (2023), and the crops of Kirchhof et al., *URL: A Representation Learning Benchmark for
Transferable Uncertainty Estimates* (2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from doubtless.metrics.measure import Curve
from doubtless.metrics.ood import auroc
from doubtless.metrics.ranking import check_scores

RIGHT = "recall@1"
Step = Mapping[str, Tensor]
"""Uncertainty → (n,) of the same n pictures at every step; "recall@1" → (n,) whether the first hit is right."""


def worse_curves(steps: Sequence[Step], strengths: Sequence[float]) -> dict[str, Curve]:
    """A line per uncertainty: chance that a picture at this step is less certain than one at the first step.

    Of all pairs of pictures, equal ones counting half: 1/2 at the first step, 1 where every picture is less certain
    than any undisturbed one. It has no unit, so that all uncertainties share an axis.

    >>> import torch
    >>> still, worse = {"doubt": torch.tensor([0.1, 0.2])}, {"doubt": torch.tensor([0.15, 0.9])}
    >>> worse_curves([still, worse], [0.0, 1.0])["doubt"].y
    [0.5, 0.75]
    """
    first = steps[0]
    return {
        name: Curve(list(strengths), [_right(step[name]) if name == RIGHT else auroc(first[name], step[name])
                                      for step in steps])
        for name in first
    }  # fmt: skip


def crop_curves(steps: Sequence[Step], areas: Sequence[float]) -> dict[str, Curve]:
    """A line per uncertainty: share of pictures whose crop is less certain than the picture itself.

    The first step is the whole. Equal uncertainties count half, which is also what guessing gives ("random").

    >>> import torch
    >>> whole, part = {"doubt": torch.tensor([0.1, 0.2, 0.3])}, {"doubt": torch.tensor([0.2, 0.2, 0.1])}
    >>> crop_curves([whole, part], [1.0, 0.5])["doubt"].y
    [0.5, 0.5]
    """
    first = steps[0]
    lines = {
        name: Curve(list(areas), [_right(step[name]) if name == RIGHT else _rises(first[name], step[name])
                                  for step in steps])
        for name in first
    }  # fmt: skip
    return lines | {"random": Curve([0.0, 1.0], [0.5, 0.5])}


def _rises(before: Tensor, after: Tensor) -> float:
    check_scores(before)
    check_scores(after)
    return float(((after > before).double() + 0.5 * (after == before).double()).mean())


def _right(right: Tensor) -> float:
    return float(right.double().mean())
