"""Calibration at a scale chosen on validation images, and the floor that no voter can be expected to get below.

A method whose variances are off by a factor has draws that agree too much or too little. One number, the scale of
its variances, chosen for all methods in the same way, puts that right: `ece_tuned` beside `ece`. Neither reaches 0,
not even where every confidence is exactly the chance of being right: of n queries at confidence p, not n·p come out
right but a number near it. What that costs is the floor: E Σ_B |Σ_{i∈B} y_i − p_i| / n with y_i ~ Bernoulli(p_i).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.calibration import BINS, consensus_bins, consensus_form
from doubtless.metrics.metric import CALIBRATION, Metric, Weighted, register
from doubtless.metrics.views import Agreed, Rescaled


def consensus_ece_floor(count: Tensor, *, samples: int) -> float:
    """The expected `consensus_ece` of a perfect voter with these confidences, count/samples of (q,); exact.

    The right answers of a bin are a sum of binomials, one per confidence that occurs in it. Its distribution is a
    Fourier transform of the product of theirs.

    >>> consensus_ece_floor(torch.tensor([50]), samples=100), consensus_ece_floor(torch.tensor([100]), samples=100)
    (0.5, 0.0)
    """
    if not len(count):
        raise InputError("No query was given, so there is no floor to compute.")
    sizes = count.long().bincount(minlength=samples + 1).cpu()  # how many queries have each count
    if len(sizes) > samples + 1:
        raise InputError(f"Of {samples} draws at most {samples} agree, got {len(sizes) - 1}.")
    bins = consensus_bins(torch.arange(samples + 1), samples=samples)
    total = sum(_mean_deviation(sizes[bins == bin], bins == bin, samples) for bin in range(BINS))
    return total / len(count)


def _mean_deviation(sizes: Tensor, members: Tensor, samples: int) -> float:
    """E|S − E S| of the right answers S of one bin: sizes (m,) queries at each confidence of its members."""
    queries = int(sizes.sum())
    if not queries:
        return 0.0
    chance = members.nonzero().squeeze(1).double() / samples  # (m,)
    angle = 2 * math.pi * torch.arange(queries + 1, dtype=torch.double) / (queries + 1)
    step = torch.polar(torch.ones_like(angle), -angle) - 1
    characteristic = torch.ones(queries + 1, dtype=torch.cdouble)
    for p, size in zip(chance.tolist(), sizes.tolist(), strict=True):
        if size:
            characteristic = characteristic * (1 + p * step) ** size
    probability = torch.fft.ifft(characteristic).real.clamp_min(0)  # of 0 … queries right answers
    away = torch.arange(queries + 1, dtype=torch.double) - float(chance @ sizes.double())
    return float(probability @ away.abs())


def _tuned(rescaled: Rescaled) -> Weighted:
    form = consensus_form(rescaled.count, rescaled.correct, samples=rescaled.samples)
    return lambda weights: form(weights)["ece"]


register(
    Metric(
        "ece_floor",
        "Consensus ECE, floor",
        "What a perfect voter with the same confidences and as many queries would be expected to show.",
        of=Agreed,
        measure=lambda agreed: consensus_ece_floor(agreed.count, samples=agreed.samples),
        group=CALIBRATION,
        higher=None,
        paired=False,
    )
)
register(
    Metric(
        "ece_tuned",
        "Consensus ECE, scale tuned",
        "The consensus ECE with all variances times one number that was chosen on validation images.",
        of=Rescaled,
        measure=_tuned,
        group=CALIBRATION,
        higher=False,
    )
)
register(
    Metric(
        "ece_tuned_floor",
        "Consensus ECE, scale tuned, floor",
        "What a perfect voter with the confidences of the tuned scale would be expected to show.",
        of=Rescaled,
        measure=lambda rescaled: consensus_ece_floor(rescaled.count, samples=rescaled.samples),
        group=CALIBRATION,
        higher=None,
        paired=False,
    )
)
register(
    Metric(
        "scale",
        "Scale of the variances",
        "The number that variances were multiplied by, for the consensus only; chosen on validation images.",
        of=Rescaled,
        measure=lambda rescaled: rescaled.scale,
        group=CALIBRATION,
        higher=None,
        paired=False,
    )
)
