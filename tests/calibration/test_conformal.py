"""Covering sets and presence: exact conformal laws, edges, promises counted on fresh queries."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from doubtless.calibration.conformal import CoveringSets, Presence, evidence
from doubtless.errors import InputError
from doubtless.search.hits import Hits
from tests.gallery.galleries import gallery, known


def drawn(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Probabilities (n, 6) that are none (squared), and outcomes."""
    chance = torch.rand(count, 6, generator=generator, dtype=torch.double)
    return chance.square(), torch.rand(count, 6, generator=generator, dtype=torch.double) < chance


def covered(sets: CoveringSets, chance: Tensor, right: Tensor, confidence: float) -> Tensor:
    sizes = sets.sizes(chance, confidence=confidence)
    return ((torch.arange(chance.shape[1]) < sizes.unsqueeze(1)) & right).any(1)


@pytest.mark.parametrize("confidence", [0.7, 0.9])
def test_sets_cover_on_average_what_they_promise(confidence: float) -> None:
    """Split conformal covers 1 − α to 1 − α + 1/(n + 1) on average, apart from ties; 300 calibrations of 99."""
    generator = torch.Generator().manual_seed(0)
    hit = 0
    for _ in range(300):
        sets = CoveringSets.fit(*drawn(99, generator))
        chance, right = drawn(100, generator)
        hit += int(covered(sets, chance, right, confidence).sum())
    share = hit / 30_000
    slack = 3.5 * math.sqrt(confidence * (1 - confidence) * (1 / 30_000 + 1 / (300 * 101)))
    assert share > confidence - slack
    if confidence == 0.9:  # below recall@1 a set cannot be smaller than one hit
        assert share < confidence + 0.01 + slack


def test_a_set_is_the_smallest_that_reaches_the_level() -> None:
    generator = torch.Generator().manual_seed(1)
    sets = CoveringSets.fit(*drawn(500, generator))
    chance, _ = drawn(50, generator)
    level = sets.level(0.9)
    for row, size in zip(chance, sets.sizes(chance, confidence=0.9).tolist(), strict=True):
        total, count = 0.0, 0
        for p in row.tolist():
            total, count = total - math.log1p(-p), count + 1
            if total > level:
                break
        assert size == count
    sizes = torch.stack([sets.sizes(chance, confidence=c) for c in (0.3, 0.6, 0.9, 0.95)])
    assert bool((sizes.diff(dim=0) >= 0).all())  # more confidence, no smaller set


def test_the_calibration_covers_itself_exactly_as_often_as_counted() -> None:
    chance, right = drawn(200, torch.Generator().manual_seed(2))
    sets = CoveringSets.fit(chance, right)
    for confidence in (0.5, 0.8, 0.9, 0.95):
        needed = math.ceil(201 * confidence)
        assert int(covered(sets, chance, right, confidence).sum()) >= needed


def test_more_than_all_hits_hold_is_not_promised() -> None:
    chance = torch.full((100, 4), 0.5, dtype=torch.double)
    right = torch.zeros(100, 4, dtype=torch.bool)
    right[:80, 3] = True
    sets = CoveringSets.fit(chance, right)
    assert sets.reach == pytest.approx(80 / 101)
    assert sets.sizes(chance[:1], confidence=0.75).tolist() == [4]
    assert sets.sizes(chance[:1], confidence=0.85).tolist() == [0]
    assert sets.level(0.85) == math.inf
    empty = CoveringSets.fit(chance[:0], right[:0])
    assert empty.sizes(chance[:2], confidence=0.5).tolist() == [0, 0]
    one = CoveringSets.fit(torch.ones(1, 1), torch.ones(1, 1).bool())  # certain: the evidence stays finite
    assert one.sizes(torch.ones(1, 1), confidence=0.5).tolist() == [1]
    assert bool(torch.isfinite(evidence(torch.ones(2, 3))).all())
    with pytest.raises(InputError, match="between 0 and 1"):
        sets.level(1.0)
    with pytest.raises(InputError, match=r"shape \(queries, k\)"):
        CoveringSets.fit(chance, right[:, :2])


def test_sets_saved_and_loaded() -> None:
    sets = CoveringSets.fit(*drawn(60, torch.Generator().manual_seed(3)))
    again = CoveringSets.from_state(*sets.state())
    assert [again.level(c) for c in (0.2, 0.9, 0.97)] == [sets.level(c) for c in (0.2, 0.9, 0.97)]


def scored(score: Tensor) -> Hits:
    column = score.view(-1, 1)
    return Hits(torch.zeros_like(column, dtype=torch.long), column, 2 - 2 * column)


def test_p_values_are_conformal() -> None:
    calibration = torch.tensor([0.1, 0.2, 0.2, 0.5])
    test = Presence.fit(scored(calibration)).calibrated(scored(calibration))
    asked = scored(torch.tensor([0.0, 0.1, 0.2, 0.4, 0.9]))
    assert test.p_value(asked).tolist() == [0.2, 0.4, 0.8, 0.8, 1.0]


def test_false_alarms_stay_below_the_level() -> None:
    """Fresh queries that are in the gallery; 100 calibrations of 99, level 10 %, with a learned statistic."""
    whole = known(*gallery(2000, classes=40))
    generator = torch.Generator().manual_seed(0)
    alarms = 0
    for _ in range(100):
        order = torch.randperm(2000, generator=generator)
        fit, held, fresh = whole[order[:100]], whole[order[100:199]], whole[order[199:299]]
        test = Presence.fit(fit.hits, fit.absent).calibrated(held.hits, false_alarm=0.1)
        alarms += int((test.p_value(fresh.hits) <= 0.1).sum())
    # each calibration's own rate is beta distributed: twice the variance of a binomial
    low, high = (10_000 * 0.1 + z * math.sqrt(2 * 10_000 * 0.09) for z in (-3.5, 3.5))
    assert low < alarms < high


def test_queries_whose_class_is_gone_are_noticed_and_a_learned_statistic_helps() -> None:
    whole = known(*gallery(2000, classes=40, noise=0.4))
    fit, held = whole[torch.arange(1000)], whole[torch.arange(1000, 2000)]
    learned = Presence.fit(fit.hits, fit.absent).calibrated(held.hits, held.absent)
    plain = Presence.fit(fit.hits).calibrated(held.hits, held.absent)
    assert learned.logistic is not None
    assert plain.names == ("similarity",)
    assert learned.record["detected"] > plain.record["detected"] > 0.05
    assert learned.record["auroc"] > plain.record["auroc"]
    again = Presence.from_state(*learned.state())
    assert torch.equal(again.p_value(held.hits), learned.p_value(held.hits))
    assert again.false_alarm == 0.05


def test_queries_that_were_not_asked_again_are_left_aside() -> None:
    whole = known(*gallery(400))
    assert whole.absent is not None
    row = whole.absent.row.clone()
    row[200:] = -1
    some = Hits(
        row,
        whole.absent.score,
        whole.absent.expected_squared_distance,
        label=whole.absent.label,
        uncertainty=whole.absent.uncertainty,
        query_uncertainty=whole.absent.query_uncertainty,
    )
    few = Presence.fit(whole.hits, some).calibrated(whole.hits, some)
    assert "detected" in few.record
    none = Presence.fit(whole.hits, some[torch.arange(200, 400)]).calibrated(whole.hits)
    assert none.logistic is None
    with pytest.raises(InputError, match="false_alarm"):
        none.calibrated(whole.hits, false_alarm=0.0)


def test_binomial_bounds_are_what_the_benchmark_prints() -> None:
    """The range in which shares of test queries lie for a perfect coin: the benchmark's must not be narrower."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[2] / "benchmarks" / "guarantee.py"
    spec = importlib.util.spec_from_file_location("guarantee", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    low, high = module.covering_range(3500, 8180, 0.9)
    assert low < binom.ppf(0.005, 8180, 0.9) / 8180 < 0.9 < binom.ppf(0.995, 8180, 0.9) / 8180 < high


def test_presence_needs_the_neighbourhood_only() -> None:
    whole = known(*gallery(300))
    test = Presence.fit(whole.hits, whole.absent).calibrated(whole.hits)
    assert torch.equal(test.statistic(whole.hits), test.statistic(whole.hits.first(10)))


def test_a_tie_at_the_level_is_inside() -> None:
    """Isotonic probabilities come in steps: many queries share their evidence to the last bit."""
    steps = torch.tensor([0.11, 0.23, 0.37, 0.61])
    generator = torch.Generator().manual_seed(0)
    chance = steps[torch.randint(4, (2000, 6), generator=generator)]
    right = torch.rand(2000, 6, generator=generator) < chance
    sets = CoveringSets.fit(chance, right)
    for confidence in (0.3, 0.5, 0.7, 0.8):
        sizes = sets.sizes(chance, confidence=confidence)
        inside = ((torch.arange(6) < sizes.unsqueeze(1)) & right).any(1)
        assert float(inside.double().mean()) >= confidence  # on the very queries it was calibrated on
