"""Intervals: against resampling by hand, and whether 95 % are 95 %."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics import bootstrap
from doubtless.metrics.bootstrap import interval, mean_form, measures, paired_bootstrap, resample
from doubtless.metrics.ood import auroc, detection_form
from doubtless.metrics.uncertainty import error_auroc, selective_form


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_replicates_draw_as_many_as_there_are() -> None:
    counts = resample(50, 400, generator=seeded())
    assert counts.shape == (400, 50)
    assert (counts.sum(1) == 50).all()
    assert counts.mean(0).sub(1).abs().max() < 0.25  # every item is drawn once on average
    assert float(counts.var()) == pytest.approx(1 - 1 / 50, abs=0.05)  # binomial(50, 1/50)


def test_the_mean_has_the_intervals_of_its_standard_error() -> None:
    values = torch.randn(400, generator=seeded(1)).double()
    found = measures(mean_form({"mean": values}), [400], replicates=4000, generator=seeded())["mean"]
    assert found.value == pytest.approx(float(values.mean()))
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * float(values.std()) / 20
    assert found.high - found.value == pytest.approx(half, rel=0.08)
    assert found.value - found.low == pytest.approx(half, rel=0.08)


def test_rank_metrics_equal_resampling_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    uncertainty = torch.randint(8, (60,), generator=seeded(2)).double()
    correct = torch.rand(60, generator=seeded(3)) > uncertainty / 10
    monkeypatch.setitem(bootstrap.CHUNK, "cpu", 60 * 7)  # chunks that do not divide the replicates
    found = measures(selective_form(uncertainty, correct), [60], replicates=50, generator=seeded())
    values = []
    generator = seeded()
    for size in [7] * 7 + [1]:
        for counts in resample(60, size, generator=generator).long():
            rows = torch.arange(60).repeat_interleave(counts)
            values.append(error_auroc(uncertainty[rows], correct[rows]))
    low, high = interval(torch.tensor(values, dtype=torch.double))
    assert (found["error_auroc"].low, found["error_auroc"].high) == pytest.approx((low, high), abs=1e-12)


def test_ood_draws_both_sets() -> None:
    inside, outside = torch.randn(80, generator=seeded(4)), torch.randn(15, generator=seeded(5)) + 1
    found = measures(detection_form(inside, outside), [80, 15], replicates=600, generator=seeded())["auroc"]
    values, generator = [], seeded(9)
    for _ in range(600):
        rows = torch.randint(80, (80,), generator=generator), torch.randint(15, (15,), generator=generator)
        values.append(auroc(inside[rows[0]], outside[rows[1]]))
    low, high = interval(torch.tensor(values))
    assert low is not None
    assert high is not None
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)


def test_95_percent_intervals_hold_the_truth_about_95_percent_of_the_time() -> None:
    held = 0
    for seed in range(200):
        values = (torch.rand(150, generator=seeded(seed)) < 0.7).double()
        found = measures(mean_form({"mean": values}), [150], replicates=300, generator=seeded(seed))["mean"]
        held += found.low <= 0.7 <= found.high  # type: ignore[operator]
    assert 180 <= held <= 199


def test_replicates_without_a_value_do_not_count() -> None:
    correct = torch.ones(10, dtype=torch.bool)
    found = measures(selective_form(torch.arange(10.0), correct), [10], replicates=20, generator=seeded())
    assert math.isnan(found["error_auroc"].value)
    assert found["error_auroc"].low is None
    assert found["ausc"].low == 1
    correct[0] = False  # drawn in about two of three replicates
    found = measures(selective_form(torch.arange(10.0), correct), [10], replicates=20, generator=seeded())
    assert found["error_auroc"].low == 0


def test_the_same_seed_gives_the_same_interval() -> None:
    form = mean_form({"mean": torch.rand(30, generator=seeded(6))})
    first, second = (measures(form, [30], replicates=100, generator=seeded(7)) for _ in range(2))
    assert first == second


def test_pairing_sees_what_separate_intervals_cannot() -> None:
    hard = torch.rand(2000, generator=seeded(8)) * 0.8  # queries differ much more than the methods do
    first = hard + 0.01 + 0.02 * torch.randn(3, 2000, generator=seeded(9))
    second = hard + 0.02 * torch.randn(3, 2000, generator=seeded(10))
    found = paired_bootstrap(first, second, generator=seeded())
    assert found.difference == pytest.approx(float(first.mean() - second.mean()), abs=1e-6)
    assert found.significant
    assert found.p < 0.01
    assert found.high - found.low < 0.006  # the queries' own spread would give .03
    same = paired_bootstrap(first, first, generator=seeded())
    assert same.difference == 0
    assert not same.significant


def test_seeds_are_drawn_too() -> None:
    """Three seeds that differ by .2 each leave a difference of .05 open, however many queries there are."""
    level = torch.tensor([[0.3], [0.5], [0.7]])
    first, second = level.expand(3, 5000) + 0.05, level.expand(3, 5000)
    found = paired_bootstrap(first, second, generator=seeded())
    assert found.difference == pytest.approx(0.05)
    assert not found.significant
    assert found.high - found.low > 0.3


def test_paired_rank_metrics() -> None:
    correct = torch.rand(500, generator=seeded(11)) > 0.3
    noise = torch.randn(2, 500, generator=seeded(12))

    def error_form(uncertainty: Tensor):  # type: ignore[no-untyped-def]
        form = selective_form(uncertainty, correct)
        return lambda weights: form(weights)["error_auroc"]

    good = [error_form((~correct).double() + row) for row in noise]
    poor = [error_form(row) for row in noise]
    found = paired_bootstrap(good, poor, queries=500, replicates=300, generator=seeded())
    expected = sum(
        error_auroc((~correct).double() + row, correct) - error_auroc(row, correct) for row in noise
    )
    assert found.difference == pytest.approx(expected / 2)
    assert found.significant


def test_no_false_alarms_between_equals() -> None:
    alarms = 0
    for seed in range(100):
        values = (torch.rand(2, 200, generator=seeded(seed)) < 0.6).double()
        alarms += paired_bootstrap(values[0], values[1], replicates=300, generator=seeded(seed)).significant
    assert alarms <= 12  # 5 % expected


def test_unequal_queries_are_refused() -> None:
    with pytest.raises(InputError, match="paired over the same queries"):
        paired_bootstrap(torch.zeros(3), torch.zeros(4), generator=seeded())
