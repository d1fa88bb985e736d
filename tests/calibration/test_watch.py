"""The test of a promise in use: its capital is a supermartingale, silence helps nobody, and it finds what broke."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.calibration import watch
from doubtless.calibration.watch import (
    LEVEL,
    NOT_ASKED,
    RIGHT,
    UNSAID,
    WRONG,
    Counted,
    Drawn,
    capital_against,
    capital_counted,
    capital_for,
    share_asked,
    verdict,
)

RATES = (0.02, 0.1, 0.25)


def thinned(said: np.ndarray, predicted: np.ndarray) -> Drawn:
    return Drawn(said.astype(np.int8), predicted, share_asked(predicted), np.ones(len(said), dtype=bool))


@pytest.mark.parametrize("rate", RATES)
def test_no_history_makes_either_capital_grow_on_average(rate: float) -> None:
    """All histories of seven answers: the mean over the next one is the capital before, where the chance is r."""
    for history in itertools.product((RIGHT, WRONG), repeat=7):
        before = Drawn.of(history)
        right, wrong = Drawn.of([*history, RIGHT]), Drawn.of([*history, WRONG])
        for capital in (capital_against, capital_for):
            now = math.exp(capital(before, rate)[-1])
            after = [math.exp(capital(one, rate)[-1]) for one in (right, wrong)]
            assert (1 - rate) * after[0] + rate * after[1] == pytest.approx(now, rel=1e-9)
        assert capital_against(wrong, rate)[-1] > capital_against(right, rate)[-1]
        assert capital_for(wrong, rate)[-1] < capital_for(right, rate)[-1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.sampled_from(RATES),
)
def test_predictions_however_wrong_leave_the_mean_as_it_is(
    predicted: list[float], chance: list[float], rate: float
) -> None:
    """Three kinds of answers, equally likely, some asked for: the capital's mean is that of plain ones."""
    guess, wrong = np.array(predicted), np.array(chance)
    share, mean = share_asked(guess), {}
    for capital in (capital_against, capital_for):
        total = 0.0
        for kind in range(3):
            for said, likely in (
                (NOT_ASKED, 1 - share[kind]),
                (WRONG, share[kind] * wrong[kind]),
                (RIGHT, share[kind] * (1 - wrong[kind])),
            ):
                one = thinned(np.array([said]), guess[kind : kind + 1])
                total += likely * math.exp(capital(one, rate)[-1]) / 3
        mean[capital] = total
    # One step is linear in x: the mean capital is that of x = the mean chance.
    excess = float(wrong.mean()) - rate
    staked = 1 - (1 - watch.AT_ONCE) / math.log2(3)
    grows = staked * float(watch.AGAINST.mean()) * excess / (rate + watch.SURE)
    assert mean[capital_against] == pytest.approx(1 + grows, abs=1e-9)
    falls = float(watch.FOR.mean()) * excess / (1 / watch.LEAST_SHARE - rate)
    assert mean[capital_for] == pytest.approx(1 - falls, abs=1e-9)


@given(st.floats(0, 1), st.sampled_from(RATES))
def test_no_answer_takes_more_than_was_staked(predicted: float, rate: float) -> None:
    for said in (RIGHT, WRONG, UNSAID, NOT_ASKED):
        one = thinned(np.array([said]), np.array([predicted]))
        assert np.isfinite(capital_against(one, rate)).all()
        assert np.isfinite(capital_for(one, rate)).all()


def test_parts_of_the_capital_that_begin_later_are_what_a_loop_says() -> None:
    rng, rate = np.random.default_rng(0), 0.1
    said = (rng.random(80) < 0.2).astype(int)
    places = watch.places(len(said)).tolist()
    for count in (0, 1, 17, 80):
        total, waiting = 0.0, 1.0
        for number, begin in enumerate(place for place in places if place <= count):
            stake = waiting - 0.5 / math.log2(number + 3)
            waiting -= stake
            for bet in watch.AGAINST / rate:
                grown = math.prod(1 + bet * (wrong - rate) for wrong in said[begin:count])
                total += stake * grown / len(watch.AGAINST)
        wanted = total + waiting
        assert math.exp(capital_against(Drawn.of(said), rate)[count]) == pytest.approx(wanted, rel=1e-9)


def test_places_are_the_same_for_every_length() -> None:
    longest = watch.places(3000)
    for count in (1, 31, 32, 33, 64, 65, 500, 2999):
        assert watch.places(count).tolist() == [place for place in longest if place <= count]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.sampled_from(RATES))
def test_silence_helps_neither(answers: list[tuple[bool, bool]], rate: float) -> None:
    truth = np.array([wrong for wrong, _ in answers]).astype(int)
    spoke = np.array([spoken for _, spoken in answers])
    known, heard = Drawn.of(truth), Drawn.of(np.where(spoke, truth, UNSAID))
    assert (capital_against(heard, rate) <= capital_against(known, rate) + 1e-9).all()
    assert (capital_for(heard, rate) <= capital_for(known, rate) + 1e-9).all()
    everyone, some = (
        capital_counted(Counted(len(truth), np.flatnonzero(wrong)), rate)[0]
        for wrong in (truth == 1, (truth == 1) & spoke)
    )
    assert (some <= everyone + 1e-9).all()


def test_counting_all_answers_is_drawing_all_of_them_at_the_places_where_both_look() -> None:
    rng = np.random.default_rng(1)
    said = (rng.random(32) < 0.3).astype(int)  # so far every answer is a place
    capital, after = capital_counted(Counted(32, np.flatnonzero(said)), 0.1)
    assert after.tolist() == list(range(33))
    np.testing.assert_allclose(capital, capital_against(Drawn.of(said), 0.1), atol=1e-12)


def complaints(rng: np.random.Generator, wrong: np.ndarray) -> np.ndarray:
    """Who complains complains of nine wrong answers in ten, and says of one right one in fifty that it is right."""
    return rng.random(len(wrong)) < np.where(wrong, 0.9, 0.02)


def test_complaints_alone_raise_no_false_alarm_and_find_what_is_broken() -> None:
    rng, rate = np.random.default_rng(2), 0.1
    false = found = fooled = 0
    for _ in range(200):
        kept, broken = rng.random(1500) < rate, rng.random(1500) < 0.2
        for wrong, is_broken in ((kept, False), (broken, True)):
            spoke = complaints(rng, wrong)
            by_complaints = Counted(len(wrong), np.flatnonzero(wrong & spoke))
            standing = verdict(Drawn.of([]), by_complaints, rate=rate).standing
            assert standing != "holds"
            if not is_broken:  # what they judged, taken for a random sample
                naive = verdict(Drawn.of(wrong[spoke].astype(int)), rate=rate).standing
                fooled += naive == "no longer holds"
            false += not is_broken and standing == "no longer holds"
            found += is_broken and standing == "no longer holds"
    assert false <= 200 * LEVEL
    assert found == fooled == 200


@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_neither_verdict_is_given_wrongly_more_often_than_stated(rate: float) -> None:
    """Looked at after every answer, stopped at the first that suits; sure answers are asked for less often."""
    rng, streams = np.random.default_rng(3), 300
    false = {capital_against: 0, capital_for: 0}
    for _ in range(streams):
        predicted = rng.beta(0.3, 2.7, 800)
        chance = np.clip(predicted * rate / 0.1, 0, 1)  # mean: the rate
        said = np.where(rng.random(800) < share_asked(predicted), rng.random(800) < chance, NOT_ASKED)
        drawn = thinned(said, predicted)
        for capital in false:
            false[capital] += bool((capital(drawn, rate) >= -math.log(LEVEL)).any())
    for count in false.values():
        assert count <= streams * LEVEL + 2 * math.sqrt(streams * LEVEL)


def test_what_broke_late_is_found_soon_and_dated() -> None:
    rng, delays = np.random.default_rng(4), []
    for _ in range(30):
        wrong = rng.random(2400) < np.where(np.arange(2400) < 2000, 0.02, 0.3)
        told = verdict(Drawn.of(wrong.astype(int)), rate=0.05)
        assert told.standing == "no longer holds"
        assert told.since is not None
        assert told.noticed is not None
        assert told.noticed > 2000
        assert 1900 <= told.since <= 2060
        delays.append(told.noticed - 2000)
    assert np.median(delays) < 90


def test_what_is_said_to_be_needed_is_what_is_needed() -> None:
    for said in ([], [RIGHT] * 20, [WRONG, *[RIGHT] * 40], [RIGHT, UNSAID, RIGHT]):
        told = verdict(Drawn.of(said), rate=0.1)
        assert told.standing == "too little was said"
        assert told.more is not None
        assert verdict(Drawn.of([*said, *[RIGHT] * told.more]), rate=0.1).standing == "holds"
        assert verdict(Drawn.of([*said, *[RIGHT] * (told.more - 1)]), rate=0.1).standing != "holds"


def test_what_holds_no_longer_holds_when_errors_come() -> None:
    good = [RIGHT] * 200
    assert verdict(Drawn.of(good), rate=0.1).standing == "holds"
    later = verdict(Drawn.of([*good, *[WRONG] * 30]), rate=0.1)
    assert (later.standing, later.by) == ("no longer holds", "drawn")
    assert later.since == 200
    assert later.share == pytest.approx(30 / 230)
