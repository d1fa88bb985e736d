import json
from pathlib import Path

import pytest

from doubtless.progress import Stopwatch, measuring, phase
from doubtless.report.timing import timing_section
from doubtless.runs.timing import phases_of, read_timing, recorded, write_timing


def test_what_was_measured_is_written_and_written_anew(tmp_path: Path) -> None:
    with recorded(tmp_path, before=5.0) as watch:
        with phase("training"):
            pass
        write_timing(tmp_path, watch, trained=True)
        with phase("report"):
            pass
    timing = json.loads((tmp_path / "timing.json").read_text())
    assert list(timing["phases"]) == ["start", "training", "other", "report"]
    assert timing["phases"]["start"] >= 5
    assert 5 <= timing["train_seconds"] <= timing["seconds"] + 0.01
    assert timing["seconds"] == pytest.approx(sum(timing["phases"].values()))

    watch = Stopwatch()
    watch.seconds = {"start": 1.0, "report": 70.0}
    write_timing(tmp_path, watch)
    again = read_timing(tmp_path)
    assert again["train_seconds"] == timing["train_seconds"]
    assert again["phases"]["report"] == 70
    assert again["phases"]["training"] == timing["phases"]["training"]


def test_within_another_it_adds_to_that(tmp_path: Path) -> None:
    with measuring(Stopwatch()) as outer, recorded(tmp_path) as watch:
        assert watch is outer
    assert not (tmp_path / "timing.json").exists()


def test_nothing_is_written_of_what_failed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), recorded(tmp_path):
        _ = 1 / 0
    assert read_timing(tmp_path) == {}


def test_older_runs_have_no_phases(tmp_path: Path) -> None:
    (tmp_path / "timing.json").write_text('{"train_seconds": 12.5}')
    assert phases_of(tmp_path) == {}
    assert timing_section(phases_of(tmp_path)) == ""


def test_the_page_has_a_row_for_every_phase() -> None:
    drawn = timing_section({"start": 10.0, "training": 30.0, "<new>": 0.0})
    assert "The run took 40 s" in drawn
    assert "0.75" in drawn
    assert "30 s" in drawn
    assert "&lt;new&gt;" in drawn
    assert "<new>" not in drawn
