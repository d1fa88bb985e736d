"""benchmarks/feedback.py counts what it says: shares, delays, precision and recall against plain loops."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = ("feedback", "feedback_page", "open_set", "open_set_measures", "open_set_page")


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("feedback")
        for name in (*NAMES, "divisions", "frozen_features", "shifted_features"):
            sys.modules.pop(name, None)


def asked(answered: list[int], wrong: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        answered=np.array(answered, bool), wrong=np.array(wrong, bool), predicted=np.full(len(wrong), 0.2)
    )


def test_streams_have_the_share_that_is_called_true(script: ModuleType) -> None:
    known, unknown = asked([1, 1, 0, 1], [0, 1, 1, 0]), asked([1, 0, 0], [1, 1, 1])
    for share in (0.0, 0.1, 0.5):
        stream = script.answers_of(known, unknown, share, 60_000, np.random.default_rng(0))
        assert len(stream["wrong"]) == len(stream["predicted"]) == 60_000
        assert stream["wrong"].mean() == pytest.approx(script.true_share(known, unknown, share), abs=0.01)
        covered = (1 - share) * 3 / 4 + share / 3
        assert stream["coverage"] == pytest.approx(covered, abs=0.01)
    assert script.true_share(known, unknown, 0.5) == pytest.approx((1 / 8 + 1 / 6) / (3 / 8 + 1 / 6))
    nobody = asked([0, 0], [1, 1])
    assert len(script.answers_of(nobody, nobody, 0.5, 10, np.random.default_rng(0))["wrong"]) == 0
    assert script.true_share(nobody, nobody, 0.5) is None


def test_alarms_are_counted_from_the_change_on(script: ModuleType) -> None:
    page = sys.modules["feedback_page"]
    streams = [{"all": None}, {"all": [310, 310]}, {"all": [350, 350]}, {"all": [20, 20]}]
    told = page.of_streams(streams, "all", 300)
    assert told == {
        "streams": 4,
        "raised": 0.75,
        "early": 0.25,
        "delay": 30.0,
        "late_delay": pytest.approx(46.0),
    }
    wrong = np.arange(900) >= 300
    found = script.alarms(wrong, np.full(900, 0.01), 0.1, np.random.default_rng(1))
    assert 300 < found["all"][0] < 320
    assert found["review"][1] < found["review"][0] < 340
    assert 300 < found["complaints"][0] < 340


def test_a_set_that_was_not_measured_anew_stays_and_is_named(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = sys.modules["feedback_page"]
    there = json.loads((script.RESULTS / "feedback.json").read_text())["sets"]
    for one in there.values():
        one.pop("older", None)
    (tmp_path / "feedback.json").write_text(json.dumps({"sets": {"cub": there["cub"]}}))
    monkeypatch.setattr(page, "read_sets", lambda folder: {"grocery": [{}]})
    monkeypatch.setattr(page, "summed", lambda divisions: there["grocery"])
    page.write_results(tmp_path / "measured", tmp_path)
    written = json.loads((tmp_path / "feedback.json").read_text())["sets"]
    assert written == {"cub": there["cub"] | {"older": True}, "grocery": there["grocery"]}
    words = (tmp_path / "README.md").read_text()
    assert "an earlier version, and not anew with the others: CUB" in words
    assert "Grocery" not in words.split("an earlier version")[1]


def test_what_is_listed_is_held_against_what_is_wrong(script: ModuleType) -> None:
    assert script._measured([4, 1, 9, 2], {1, 2, 3}) == {
        "wrong": 3, "listed": 4, "precision": 0.5, "recall": pytest.approx(2 / 3), "at": pytest.approx(1 / 3),
    }  # fmt: skip
    assert script._counted([[1, 2], [3, 4]], [[1, 2]])["precision"] == 0.5
    truth = {"wrong": [1, 2], "across": [[5, 9]]}
    assert script._found_at_all([1], [[5, 9]], truth) == pytest.approx(2 / 3)
