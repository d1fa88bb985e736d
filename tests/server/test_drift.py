"""Drift: silent for queries like the calibration's, at the rate stated; loud for others; and it recovers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from doubtless.server.service.drift import FALSE_ALARM, LEVEL, STRIDE, WINDOW, Drift, different, looked
from doubtless.server.service.service import Service


def test_both_tests_are_those_of_scipy() -> None:
    draw = np.random.default_rng(0)
    first, second = draw.normal(0.3, 1, 120), draw.normal(0, 1, 400)
    for shift in (0.0, 0.1, 0.3):
        exact = stats.ks_2samp(first - shift, second, method="exact").pvalue
        assert exact <= different(first - shift, second) <= 1.3 * exact  # the limit, on the cautious side
    calibrated = np.sort(second)
    state = looked(first, calibrated)
    high = calibrated[int(np.ceil(0.95 * 400)) - 1]
    table = [[(first > high).sum(), (first <= high).sum()], [(second > high).sum(), (second <= high).sum()]]
    more = stats.fisher_exact(table, alternative="greater").pvalue
    assert state.p_value == pytest.approx(min(1, 2 * min(more, different(first, second))), rel=1e-9)
    assert state.above == (first > high).mean()


@pytest.mark.parametrize("law", ["uniform", "ties"])
def test_false_alarms_are_as_rare_as_stated(law: str) -> None:
    draw = np.random.default_rng(1)

    def doubts(count: int) -> np.ndarray:
        values = draw.random(count)
        return values if law == "uniform" else np.round(values, 1)

    alarms, looks, trials = 0, 0, 250
    for _ in range(trials):
        calibrated, stream, raised = np.sort(doubts(200)), doubts(1000), False
        for stop in range(STRIDE, 1001, STRIDE):
            state = looked(stream[max(0, stop - WINDOW) : stop], calibrated)
            raised |= state.alarm
            looks += 1
        alarms += raised
    # P(more than this | rate at most FALSE_ALARM) < 0.1 %
    assert alarms <= stats.binom.ppf(0.999, trials, FALSE_ALARM), (alarms, trials)
    assert looks * 2 * LEVEL == pytest.approx(trials * FALSE_ALARM)


@pytest.mark.parametrize(("strangers", "needed"), [(1.0, 50), (0.3, 150), (0.15, WINDOW)])
def test_strangers_are_noticed(strangers: float, needed: int) -> None:
    noticed = 0
    for seed in range(20):
        draw = np.random.default_rng(seed)
        drift = Drift(draw.beta(1, 8, 1000))
        for _ in range(needed):
            drift.watch([draw.beta(8, 2) if draw.random() < strangers else draw.beta(1, 8)])
        noticed += drift.state.alarm
    assert noticed >= 19


def test_it_recovers_and_waits_for_enough() -> None:
    draw = np.random.default_rng(0)
    drift = Drift(draw.random(500))
    drift.watch(np.full(STRIDE - 1, 2.0))
    assert not drift.state.alarm
    drift.watch([2.0])
    assert drift.state.alarm
    drift.watch(draw.random(WINDOW))
    assert not drift.state.alarm
    few = Drift(draw.random(10))
    few.watch(np.full(1000, 2.0))
    assert not few.state.alarm


def test_answers_carry_the_warning(service: Service) -> None:
    stranger = torch.randint(
        0, 256, (1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    stranger = 255 * (stranger > 250).to(torch.uint8)
    unwatched = service.answer_images([stranger] * 60, k=1, watched=False)[-1]
    assert not any("promises" in warning for warning in unwatched.warnings)
    assert service.drift is not None
    assert service.drift.state.queries == 0
    service.answer_images([stranger] * 60, k=1)
    last = service.answer_images([stranger], k=1)[0]
    assert any("its promises do not hold" in warning for warning in last.warnings)
    assert service.info()["drift"]["alarm"] is True
