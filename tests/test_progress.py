import time

import pytest

from doubtless.progress import (
    Stopwatch,
    describe_phases,
    describe_seconds,
    measuring,
    phase,
    process_age,
    running,
)


class Clock:
    """Time that passes only when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_phase_within_a_phase_is_taken_off_the_outer_one(clock: Clock) -> None:
    watch = Stopwatch(before=2.0)
    clock.wait(1)
    with watch.phase("training"):
        clock.wait(10)
        for _ in range(2):
            with watch.phase("validation"):
                clock.wait(3)
        clock.wait(0.5)
    clock.wait(4)
    with watch.phase("report"):
        clock.wait(5)
    assert watch.total == pytest.approx(28.5)
    assert watch.seconds == {"start": 3, "training": 10.5, "validation": 6, "other": 4, "report": 5}


def test_a_phase_that_fails_has_taken_its_time(clock: Clock) -> None:
    watch = Stopwatch()

    @watch.phase("tuning")
    def fail() -> None:
        clock.wait(2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    clock.wait(1)
    assert watch.total == pytest.approx(3)
    assert watch.seconds["tuning"] == 2


def test_deep_code_counts_on_whoever_measures(clock: Clock) -> None:
    @phase("tuning")
    def tune() -> str:
        clock.wait(2)
        return "tuned"

    assert tune() == "tuned"  # nobody measures
    with measuring(Stopwatch()) as watch:
        assert running() is watch
        tune()
        tune()
    assert running() is None
    assert watch.seconds["tuning"] == 4


def test_the_age_of_this_process_grows() -> None:
    before = process_age()
    assert before > 0
    assert before <= process_age() < before + 600


def test_durations_as_one_says_them() -> None:
    assert [describe_seconds(value) for value in (0, 9.94, 9.96, 89.4, 91, 3600 * 2)] == [
        "0.0 s", "9.9 s", "10 s", "89 s", "2 min", "2 h",
    ]  # fmt: skip
    assert (
        describe_phases({"start": 0.1, "training": 50, "report": 50}) == "2 min: training 50 s, report 50 s"
    )
