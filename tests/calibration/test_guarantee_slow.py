"""200 random splits: the error promised, covering sets and false alarms, counted where the truth is known."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binom

from doubtless.calibration.fit import calibrate, gated
from doubtless.metrics.uncertainty import coverage_at_risk
from tests.gallery.galleries import gallery, known


@pytest.mark.slow
def test_two_hundred_splits() -> None:
    """1,500 of 6,000 queries calibrate; the error over all 6,000 stands for the population's."""
    whole = known(*gallery(6000, classes=200, noise=0.5, seed=3))
    right = whole.right
    broken, gaps, covered, alarms = 0, [], [], []
    for split in range(200):
        order = torch.randperm(6000, generator=torch.Generator().manual_seed(split))
        made = calibrate(whole[order[:1500]], seed=split, figures=False)
        chance, presence = made.calibrator.probability(whole.hits), made.presence.p_value(whole.hits)
        doubt = gated(1 - chance[:, 0], presence, made.presence.false_alarm)
        answered = made.risk.answers(doubt)
        broken += bool(answered.any()) and float((~right[answered, 0]).double().mean()) > 0.05
        gaps.append(coverage_at_risk(doubt, right[:, 0], risk=0.05) - float(answered.double().mean()))
        sizes = made.covering.sizes(chance, confidence=0.8)
        assert bool((sizes > 0).all())  # 92 % have a match among their hits: .8 can always be promised
        inside = ((torch.arange(chance.shape[1]) < sizes.unsqueeze(1)) & right).any(1)
        fresh = order[1500:]
        covered.append(float(inside[fresh].double().mean()))
        alarms.append(float((presence[fresh] <= 0.05).double().mean()))
    assert broken <= binom.ppf(0.999, 200, 0.05)
    assert sum(gaps) / 200 < 0.08
    assert sum(covered) / 200 > 0.8 - 0.003
    assert sum(alarms) / 200 < 0.05 + 0.003
