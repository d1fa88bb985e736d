"""Nothing has a label: the mixture of scores against known distributions, the promise against exact bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from doubtless.calibration.pairs import asked as asked_pairs
from doubtless.calibration.pairs.asked import OTHER, SAME, UNSAID, AskedPairs, capital
from doubtless.calibration.pairs.unlabelled import (
    HitChance,
    refuse_few,
    share_wrong,
    stands_out,
    unrelated,
)
from doubtless.errors import InputError
from doubtless.search.hits import Hits


def test_extremes_of_unrelated_items_are_those_of_normal_samples() -> None:
    items, cosine = 2000, 0.1 * torch.randn(300, 1500, generator=torch.Generator().manual_seed(0))
    drawn = unrelated(cosine, items, generator=torch.Generator().manual_seed(1))
    rng = np.random.default_rng(0)
    twenty = np.sort(0.1 * rng.standard_normal((2000, items)), axis=1)[:, -20:]
    true = np.quantile(twenty[:, -1] - twenty[:, 0], [0.1, 0.5, 0.9])
    found = np.quantile(drawn.numpy(), [0.1, 0.5, 0.9])
    # The tail is laid through a share of a tenth or so and continued to one in two thousand.
    np.testing.assert_allclose(found, true, rtol=0.25)


def test_the_share_that_is_wrong_is_that_of_two_normal_scores() -> None:
    """The larger of two independent normal numbers: which of them it was has a known probability."""
    generator = torch.Generator().manual_seed(0)
    other, own = torch.randn(2, 200_000, generator=generator, dtype=torch.double)
    own = own + 1.5
    seen, drawn = torch.maximum(other, own), torch.randn(200_000, generator=generator, dtype=torch.double)
    middle, wrong = share_wrong(seen, drawn.sort().values)
    s = middle.numpy()
    of_other = norm.pdf(s) * norm.cdf(s - 1.5)
    of_own = norm.pdf(s - 1.5) * norm.cdf(s)
    inner = slice(2, -1)  # the outermost bins are wide
    np.testing.assert_allclose(wrong.numpy()[inner], (of_other / (of_other + of_own))[inner], atol=0.05)
    chance = HitChance.fit(seen, drawn.sort().values)
    assert float(chance.of(seen).mean()) == pytest.approx(float((own > other).double().mean()), abs=0.03)


@pytest.mark.parametrize("cosine", [torch.zeros(60, 50), torch.ones(60, 50), torch.eye(60)[:, :50]])
def test_zero_vectors_and_identical_items_give_numbers(cosine: torch.Tensor) -> None:
    drawn = unrelated(cosine, 59, generator=torch.Generator().manual_seed(0))
    assert bool(drawn.isfinite().all())
    chance = HitChance.fit(torch.zeros(60, dtype=torch.double), drawn)
    assert 0 <= float(chance.of(torch.tensor(0.0))) <= 1


def test_a_gallery_of_one_item_is_refused_and_a_query_without_hits_has_no_chance() -> None:
    with pytest.raises(InputError, match="50 of them, got 1"):
        refuse_few(1)
    nothing = Hits(torch.full((1, 3), -1), torch.full((1, 3), -torch.inf), torch.full((1, 3), torch.inf))
    assert stands_out(nothing).tolist() == [[-torch.inf] * 3]
    assert HitChance(0.0, 1.0, 1.0, 0.0).probability(nothing).tolist() == [[0.0] * 3]


def test_answers_put_the_mixture_right() -> None:
    seen = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    believed = HitChance(0.5, 0.3, 1.0, 3.0)  # nearly all the same
    same = seen > 0.6
    told = believed.corrected(seen, seen[:200], same[:200])
    before, after = ((chance.of(seen) - same.double()).square().mean() for chance in (believed, told))
    assert float(after) < 0.5 * float(before)
    assert believed.corrected(seen, seen[:0], same[:0]) is believed
    of_all = told.of(seen.sort().values)
    assert bool((of_all.diff() >= 0).all())


def test_the_capital_is_the_likelihood_ratio_of_its_bets_and_no_gain_to_be_had() -> None:
    rng = np.random.default_rng(0)
    wrong, rate = (rng.random(40) < 0.1).astype(float), np.array([0.1, 0.3])
    after, count = 0.0, 0.0
    for number, one in enumerate(wrong):
        bet = min((count + 0.1 * rate[1] * 20) / (number + 20), 0.999 * rate[1])
        after += np.log(bet / rate[1]) if one else np.log((1 - bet) / (1 - rate[1]))
        count += one
    assert capital(wrong, rate)[-1, 1] == pytest.approx(after)
    # All outcomes of ten answers, weighed by a share of wrong ones of exactly 0.3.
    outcomes = np.array(np.meshgrid(*[[0.0, 1.0]] * 10)).reshape(10, -1).T
    grown = np.array([np.exp(capital(one, rate[1:])[-1, 0]) for one in outcomes])
    weight = np.prod(np.where(outcomes > 0, 0.3, 0.7), axis=1)
    assert float(weight @ grown) == pytest.approx(1.0)


def test_a_bound_lies_above_the_exact_one_for_a_fixed_number_and_not_far() -> None:
    said = torch.full((400,), SAME)
    said[torch.tensor([30, 170])] = OTHER
    # One level only: everything is as near.
    asked = AskedPairs(torch.zeros(400), said, confidence=0.95)
    (level,) = asked.levels
    exact = next(r for r in np.linspace(0.001, 0.1, 1000) if binom.cdf(2, 400, r) <= 0.05)
    assert exact < level.bound < 2 * exact
    assert (level.judged, level.wrong) == (400, 2)


def made_up(seed: int, items: int = 1500) -> tuple[torch.Tensor, torch.Tensor]:
    """What hits stand out by, and whether they are the same: the more they do, the more often."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.rand(items, generator=generator, dtype=torch.double)
    return out, torch.rand(items, generator=generator) < 0.5 + 0.5 * out.sqrt()


def judged(out: torch.Tensor, same: torch.Tensor, answers: int, target: float) -> AskedPairs:
    """After so many answers to what was asked next, twenty at a time."""
    said, believed = torch.full((len(out),), UNSAID), HitChance(0.5, 0.3, 0.5, 0.0)
    asked = AskedPairs(1 - believed.of(out), said, target_error=target)
    while asked.answered < answers and (places := asked.next(20)):
        said = said.clone()
        said[places] = torch.where(same[places], SAME, OTHER)
        known = said != UNSAID
        chance = believed.corrected(out, out[known], said[known] == SAME)
        asked = AskedPairs(1 - chance.of(out), said, target_error=target)
    return asked


def test_a_promise_of_chosen_questions_is_broken_in_few_of_many_galleries() -> None:
    """Whatever is asked next by all that was said, and whichever level it ends at: against the true shares."""
    broken = made = 0
    for seed in range(120):
        out, same = made_up(seed)
        asked = judged(out, same, 120, 0.15)
        if asked.kept is not None:
            accepted = float(out[asked.answers(asked.doubt)].min())
            true = 0.5 - 0.5 * (1 - accepted**1.5) / (
                1.5 * (1 - accepted)
            )  # mean of 1 − P over (accepted, 1)
            made += 1
            broken += true > float(asked.bound or 1.0)
    assert made > 60
    assert broken <= 0.05 * 120


def test_what_is_asked_for_needs_fewer_answers_than_chance() -> None:
    kept, drawn = [], []
    for seed in range(20):
        out, same = made_up(seed)
        kept.append(judged(out, same, 160, 0.1))
        said = torch.where(same, SAME, OTHER)
        said[160:] = UNSAID
        drawn.append(AskedPairs(1 - out, said, target_error=0.1))
    chosen, by_chance = ([one.coverage if one.met else 0.0 for one in told] for told in (kept, drawn))
    assert np.mean(chosen) > 1.5 * np.mean(by_chance)


def test_nothing_is_promised_without_answers_or_when_all_are_wrong() -> None:
    out, _ = made_up(0, items=300)
    silent = AskedPairs(1 - out, torch.full((300,), UNSAID))
    assert (silent.bound, silent.met, silent.coverage, silent.queries) == (None, False, 0.0, 0)
    assert silent.threshold == -np.inf
    assert silent.answers(torch.tensor([0.2, 0.8])).tolist() == [True, False]  # the likelier
    assert silent.sentence().code == "nothing-answered"
    wrong = AskedPairs(1 - out, torch.full((300,), OTHER))
    assert wrong.kept is None
    assert wrong.next(5) == []  # everybody was asked


def test_what_nobody_said_ends_what_counts() -> None:
    said = torch.full((400,), SAME)
    said[10] = UNSAID
    asked = AskedPairs(torch.zeros(400), said)
    assert asked.levels[0].judged == 10
    assert asked.next(3) == [10]


def test_hits_that_stand_out_alike_are_accepted_alike() -> None:
    out = torch.tensor([0.5, 0.1] * 150)
    said = torch.where(out > 0.3, SAME, OTHER)
    asked = AskedPairs(1 - out, said, target_error=0.2)
    assert [level.items for level in asked.levels] == [150, 300]
    assert asked.coverage == 0.5


def test_another_target_is_read_off_the_same_answers() -> None:
    out, same = made_up(3)
    asked = judged(out, same, 200, 0.15)
    looser = asked.at(target_error=0.3)
    assert looser.coverage >= asked.coverage
    assert looser.answered == asked.answered
    assert looser.sentence().startswith("At most 30.0% of accepted hits")
    with pytest.raises(InputError, match="target_error"):
        asked.at(target_error=1.0)


def test_levels_share_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one level only the same answers show more."""
    out, same = made_up(1)
    said = torch.where(same, SAME, OTHER)
    several = AskedPairs(1 - out, said, target_error=0.2).levels[-1]
    monkeypatch.setattr(asked_pairs, "LEVELS", (1.0,))
    (alone,) = AskedPairs(1 - out, said, target_error=0.2).levels
    assert alone.bound <= several.bound
    assert alone.capital == several.capital
