"""The promise with unknown queries: R against loops, exact cases, edges, and promises counted over drawn labels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from scipy.stats import beta, binom, binomtest
from torch import Tensor

from doubtless.calibration.open_risk import OpenRisk, Terms, largest_rate, share_wrong, smallest_rate
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import SHARES, Promise, last_shown, starting_places
from doubtless.errors import InputError

NONE = torch.empty(0)
NO_LABEL = torch.empty(0, dtype=torch.long)


def simple(labels: int, photos: int, *, right: float = 1.0, absent: float = -1.0, seed: int = 0) -> Outcomes:
    """Known queries score within 0 and 1 and a share `right` is right; absent ones score up to `absent`."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(labels).repeat_interleave(photos)
    score, chance, other = torch.rand(3, len(label), generator=generator, dtype=torch.double)
    return Outcomes(score, chance < right, label, other * absent if absent > 0 else other - 2, label)


@given(
    some.integers(0, 2**32 - 1),
    some.sampled_from(["gallery", "drawn"]),
    some.sampled_from(["label", "query"]),
)
@settings(max_examples=30)
def test_shares_are_those_of_loops(seed: int, known: str, per: str) -> None:
    random = torch.Generator().manual_seed(seed)
    label, other = torch.randint(6, (2, 40), generator=random)
    score, absent = (torch.rand(2, 40, generator=random) * 10).round() / 10  # ties
    correct = torch.rand(40, generator=random) < 0.7
    outcomes = Outcomes(score, correct, label, absent, other)
    thresholds = outcomes.thresholds(7)
    assert sorted(set(thresholds), reverse=True) == list(thresholds)
    risk = OpenRisk(outcomes.counted(thresholds), Terms(unknown=0.3, known=known, per=per))
    both = set(label.tolist()) & set(other.tolist())
    for place, threshold in enumerate(thresholds):
        sums = np.zeros(6)
        for name in range(6):
            mine, left_out = label == name, other == name
            if known == "drawn" and name not in both:
                continue
            answered = score[mine].double() >= threshold
            e = int((answered & ~correct[mine]).sum())
            c, a = int(answered.sum()), int((absent[left_out].double() >= threshold).sum())
            n, m = int(mine.sum()), int(left_out.sum())
            if known == "gallery":
                weight, outside = n, (m if per == "query" else min(m, 1))
            else:
                weight = outside = n + m if per == "query" else 1
            shares = (
                weight * e / max(n, 1),
                weight * c / max(n, 1),
                weight,
                outside * a / max(m, 1),
                outside,
            )
            sums[:5] += shares
        e1, c1, a0 = sums[0] / sums[2], sums[1] / sums[2], sums[3] / sums[4]
        assert risk.estimate()[place] == pytest.approx(
            (0.7 * e1 + 0.3 * a0) / (0.7 * c1 + 0.3 * a0) if c1 + a0 else math.nan, nan_ok=True
        )
        assert risk.coverage()[place] == pytest.approx(0.7 * c1 + 0.3 * a0)


@given(some.integers(0, 50), some.integers(1, 50), some.floats(0.001, 0.4))
def test_rates_are_clopper_pearson(first: int, trials: int, level: float) -> None:
    count = min(first, trials)
    interval = binomtest(count, trials).proportion_ci(1 - 2 * level)
    assert float(largest_rate(count, trials, level)) == pytest.approx(interval.high, abs=1e-9)
    assert float(smallest_rate(count, trials, level)) == pytest.approx(interval.low, abs=1e-9)


@given(some.floats(0, 1), some.floats(0.01, 1), some.floats(0, 1), some.floats(0, 0.9), some.floats(0, 0.05))
def test_the_share_of_wrong_answers_rises_with_errors_and_unknowns(
    error: float, answered: float, absent: float, unknown: float, more: float
) -> None:
    def risk(e: float, a: float, p: float) -> float:
        return float(share_wrong(e * answered, answered, a, unknown=p))

    here = risk(error, absent, unknown)
    assert error - 1e-12 <= here <= 1 + 1e-12
    assert risk(min(1.0, error + more), absent, unknown) >= here - 1e-12
    assert risk(error, min(1.0, absent + more), unknown) >= here - 1e-12
    assert risk(error, absent, unknown + more) >= here - 1e-12
    assert risk(error, absent, 0.0) == pytest.approx(error)


def test_at_no_unknown_it_is_the_binomial_test() -> None:
    outcomes = simple(30, 60, right=0.97)
    terms = Terms(unknown=0.0)
    risk = OpenRisk(outcomes.counted(outcomes.thresholds()), terms)
    places = np.arange(len(risk.answered))
    shown = risk.shown(places, np.full(len(places), 0.05), np.full(len(places), 0.03))
    for place in places:
        errors, answered = round(risk.wrong[place] * 1800), round(risk.answered[place] * 1800)
        assert shown[place] == (binom.cdf(errors, answered, 0.05) <= 0.03)
    without = Outcomes(outcomes.score, outcomes.correct, outcomes.label, NONE, NO_LABEL)
    assert Promise.of(without, terms).threshold == Promise.of(outcomes, terms).threshold
    assert Promise.of(outcomes, terms).met


def test_what_no_mistake_at_all_can_promise() -> None:
    """59 labels left out and none answered show 5 % at most; then R is bounded in closed form."""
    outcomes = simple(59, 200)
    risk = OpenRisk(outcomes.counted(outcomes.thresholds()), Terms(unknown=0.5, target_error=0.1))
    last, total = np.array([len(risk.answered) - 1]), 59 * 200
    error, least = 1 - (0.3 * 0.05) ** (1 / total), (0.05 * 0.05) ** (1 / total)
    absent = 1 - (0.65 * 0.05) ** (1 / 59)
    bound = float(share_wrong(error * least, least, absent, unknown=0.5))
    for target, verdict in ((bound + 1e-6, True), (bound - 1e-6, False)):
        assert bool(risk.shown(last, np.array([target]), np.array([0.05]))[0]) is verdict
        assert bool(risk.possible(target, 0.05)[-1]) is verdict
    drawn = OpenRisk(risk.counts, Terms(unknown=0.5, target_error=0.1, known="drawn"))
    least_target = 1 / (1 + 0.5 / (0.05 ** (-1 / 59) - 1))
    for target, verdict in ((least_target + 1e-6, True), (least_target - 1e-6, False)):
        assert bool(drawn.shown(last, np.array([target]), np.array([0.05]))[0]) is verdict
        assert bool(drawn.possible(target, 0.05)[-1]) is verdict


def test_thresholds_and_starts_do_not_look_at_what_was_right() -> None:
    outcomes = simple(80, 15, right=0.9, absent=0.8)
    other = Outcomes(outcomes.score, ~outcomes.correct, outcomes.label, outcomes.absent_score, outcomes.label)
    terms = Terms()
    found = [OpenRisk(each.counted(each.thresholds()), terms) for each in (outcomes, other)]
    assert starting_places(found[0]) == starting_places(found[1])
    assert sum(SHARES) == pytest.approx(1)
    assert [place for place, _ in starting_places(found[0])] == sorted(
        p for p, _ in starting_places(found[0])
    )


class Scripted:
    """A risk whose tests pass as written: the least level at each place."""

    terms = Terms(confidence=0.9)

    def __init__(self, level: list[float]) -> None:
        self.answered, self.level = np.arange(len(level)) / len(level), np.array(level)

    def shown(self, place: np.ndarray, target: np.ndarray, level: np.ndarray) -> np.ndarray:
        return self.level[place] <= level + 1e-12


@pytest.mark.parametrize(
    ("level", "starts", "last"),
    [
        ([0.04, 0.04, 0.09, 0.09, 0.2], [(0, 0.5), (2, 0.5)], 3),  # arrives whole
        ([0.06, 0.04, 0.09, 0.09, 0.2], [(0, 0.5), (2, 0.5)], None),  # a half alone is too little
        ([0.06, 0.04, 0.04, 0.09, 0.2], [(0, 0.5), (2, 0.5)], 2),
        ([0.04, 0.06, 0.2, 0.2, 0.2], [(0, 0.5), (2, 0.5)], 0),
        ([0.1, 0.1, 0.1, 0.1, 0.1], [(0, 1.0), (4, 0.0)], 4),
        ([0.04, 0.04, 0.04, 0.04, 0.04], [(3, 0.5), (3, 0.5)], 4),
    ],
)
def test_sequences_join_and_break(
    level: list[float], starts: list[tuple[int, float]], last: int | None
) -> None:
    assert last_shown(Scripted(level), starts) == last  # type: ignore[arg-type]


@pytest.mark.parametrize("known", ["gallery", "drawn"])
@pytest.mark.parametrize("unknown", [0.0, 0.1, 0.5])
def test_all_right_all_wrong(known: str, unknown: float) -> None:
    terms = Terms(unknown=unknown, known=known, target_error=0.1)
    right = Promise.of(simple(400, 5), terms)
    assert right.met
    assert (right.known_answered, right.absent_answered, right.error) == (1, 0, 0)
    assert right.coverage == pytest.approx(1 - unknown)
    assert right.answers(torch.tensor([0.5, -torch.inf])).tolist() == [True, False]
    wrong = Promise.of(simple(400, 5, right=0.0), terms)
    assert (wrong.met, wrong.threshold, wrong.bound, wrong.coverage) == (False, math.inf, 1, 0)
    assert not bool(wrong.answers(torch.ones(3)).any())
    assert "nothing below 100%" in wrong.sentence()
    assert "would not help" in wrong.sentence()


@pytest.mark.parametrize("known", ["gallery", "drawn"])
def test_edges(known: str) -> None:
    full = simple(100, 10)
    nothing = Outcomes(NONE, NONE.bool(), NO_LABEL, full.absent_score, full.absent_label)
    no_absent = Outcomes(full.score, full.correct, full.label, NONE, NO_LABEL)
    empty = Outcomes(NONE, NONE.bool(), NO_LABEL, NONE, NO_LABEL)
    never = Outcomes(
        torch.full_like(full.score, -torch.inf), full.correct, full.label, full.score, full.label
    )
    for outcomes in (nothing, no_absent, empty, never, simple(1, 1), simple(1, 500)):
        promise = Promise.of(outcomes, Terms(known=known))
        assert not promise.met
        assert "cannot be promised" in promise.sentence()
    one = Promise.of(simple(1, 500), Terms(unknown=0.0, known=known))
    assert one.met == (known == "gallery")  # one label says nothing about others


def test_ties_are_answered_together() -> None:
    full = simple(300, 10, right=0.99)
    score = (full.score * 4).floor()
    promise = Promise.of(Outcomes(score, full.correct, full.label, score - 4, full.label))
    assert promise.met
    assert promise.threshold in (0, 1, 2, 3)
    assert promise.known_answered == float((score >= promise.threshold).double().mean())


def test_refused() -> None:
    full = simple(3, 2)
    with pytest.raises(InputError, match="NaN"):
        Outcomes(full.score * torch.nan, full.correct, full.label, full.score, full.label)
    with pytest.raises(InputError, match="absent queries"):
        Outcomes(full.score, full.correct, full.label, full.score / 0, full.label)
    with pytest.raises(InputError, match="one score and one label"):
        Outcomes(full.score[:2], full.correct, full.label, full.score, full.label)
    with pytest.raises(InputError, match="truth value"):
        Outcomes(full.score, full.correct.long(), full.label, full.score, full.label)
    with pytest.raises(InputError, match="whole numbers"):
        Outcomes(full.score, full.correct, full.label.float(), full.score, full.label)
    for wrong in (
        {"unknown": 1.0},
        {"unknown": -0.1},
        {"target_error": 0.0},
        {"known": "all"},
        {"per": "photo"},
    ):
        with pytest.raises(InputError):
            Terms(**wrong)  # type: ignore[arg-type]


def test_unmet_targets_say_what_can_be_met_and_what_would_help() -> None:
    outcomes = simple(60, 60, absent=0.5)
    promise = Promise.of(outcomes, Terms(unknown=0.5, target_error=0.02))
    assert not promise.met
    assert 0.02 < promise.bound < 1
    assert promise.error is not None
    assert promise.error < promise.bound
    assert promise.outlook.labels is not None
    assert f"about {promise.outlook.labels} labels" in promise.sentence()
    many = Promise.of(simple(2 * promise.outlook.labels, 60, absent=0.5), promise.terms)
    assert many.met
    fewer = promise.at(unknown=0.05)
    assert fewer.met
    assert promise.outlook.unknown is not None
    assert 0.05 < promise.outlook.unknown < 0.5
    assert promise.at(unknown=0.8 * promise.outlook.unknown).met


def test_saved_and_loaded_and_the_order_of_queries_does_not_matter() -> None:
    outcomes = simple(90, 20, right=0.98, absent=0.5)
    promise = Promise.of(outcomes, Terms(target_error=0.1, per="query"))
    assert promise.met
    again = Promise.from_state(*promise.state())
    order = torch.randperm(1800, generator=torch.Generator().manual_seed(1))
    shuffled = Outcomes(
        outcomes.score[order],
        outcomes.correct[order],
        outcomes.label[order],
        outcomes.absent_score.flip(0),
        outcomes.absent_label.flip(0),
    )
    for other in (again, Promise.of(shuffled, promise.terms)):
        assert (other.threshold, other.coverage) == (promise.threshold, promise.coverage)
        assert other.terms == promise.terms


def drawn_world(labels: int, photos: int, generator: np.random.Generator) -> tuple[Outcomes, Tensor]:
    """Known: score u uniform, wrong with chance u-independent q of the label; absent: score below 0 but for a rate.

    Of a label's absent queries a share from Beta(0.2, 3.8) scores like known ones, so a₀(t) = 0.05 (1 − t); errors
    among answers have the mean of the labels' q, from Beta(0.5, 24.5): 0.02 for labels drawn anew.
    """
    row = np.repeat(np.arange(labels), photos)
    error, taken = generator.beta(0.5, 24.5, labels), generator.beta(0.2, 3.8, labels)
    score, absent = generator.random((2, len(row)))
    correct = generator.random(len(row)) >= error[row]
    absent = np.where(generator.random(len(row)) < taken[row], absent, -1.0)
    label = torch.from_numpy(row)
    outcomes = Outcomes(
        torch.from_numpy(score), torch.from_numpy(correct), label, torch.from_numpy(absent), label
    )
    return outcomes, torch.from_numpy(error)


@pytest.mark.parametrize("known", ["gallery", "drawn"])
@pytest.mark.parametrize(("unknown", "target"), [(0.2, 0.0322), (0.0, 0.02)])
def test_the_promise_holds_as_often_as_it_says(known: str, unknown: float, target: float) -> None:
    """R is the same at every threshold: just at the target, or above or below it by the labels that were drawn."""
    broken, bounds, times = 0, [], 60
    generator = np.random.default_rng(5)
    for _ in range(times):
        outcomes, error = drawn_world(100, 6, generator)
        rate = float(error.mean()) if known == "gallery" else 0.02
        truth = float(share_wrong(rate, 1.0, 0.05, unknown=unknown))
        promise = Promise.of(
            outcomes, Terms(target_error=target, unknown=unknown, known=known, confidence=0.8)
        )
        broken += truth > promise.bound
        bounds.append(promise.bound)
    assert broken <= binom.ppf(0.999, times, 0.2)
    assert float(np.mean(bounds)) < 0.15  # and it is worth something


def test_queries_of_one_label_are_no_independent_evidence() -> None:
    """Labels answer all or nothing when left out: to count queries as drawn one by one would promise too much."""
    generator, naive, ours = np.random.default_rng(0), 0, 0
    for _ in range(60):
        label = torch.arange(40).repeat_interleave(25)
        twin = torch.from_numpy(generator.random(40) < 0.1)
        absent = torch.where(twin[label], 1.0, -1.0)
        outcomes = Outcomes(torch.ones(1000), torch.ones(1000).bool(), label, absent, label)
        promise = Promise.of(outcomes, Terms(target_error=0.05, unknown=0.5))
        ours += float(share_wrong(0, 1, 0.1, unknown=0.5)) > promise.bound
        answered = int(twin[label].sum())
        naive += bool(beta.ppf(0.95, answered + 1, 1000 - answered) < 0.1)
    assert ours <= binom.ppf(0.999, 60, 0.05)
    assert naive > 12
