"""Trials are counted and held to what a suite allows; settings are frozen in a commit, or said not to be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from doubtless.bench.budgets import budgets_of, check_budgets
from doubtless.bench.frozen import COMMIT, frozen_settings
from doubtless.bench.suite import Suite, load_suite
from doubtless.errors import InputError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "suites"


def some_suite(**more: object) -> Suite:
    return Suite.model_validate(
        {
            "name": "some",
            "title": "some",
            "seeds": [0],
            "base": {
                "method": "deterministic",
                "data": {"source": "fashion-sample"},
                "training": {"epochs": 7, "batch_size": 50},
            },
            "methods": {
                "first": {"set": {"data": {"augment": ["RandomHorizontalFlip"]}}},
                "second": {"base": "first", "tuned_as": "first", "set": {"method": "lam-posthoc"}},
                "by-hand": {"trials": 3},
                "raw": {"set": {"method": "pretrained", "features": {"head": "raw"}}},
            },
            "tried": {"first": 4},
            **more,
        }
    )


def test_rows_have_the_trials_of_the_row_they_take_values_from() -> None:
    found = budgets_of(some_suite())
    assert {name: entry.trials for name, entry in found.items()} == {
        "first": 4,
        "second": 4,
        "by-hand": 3,
        "raw": 0,
    }
    assert (found["second"].epochs, found["second"].batch) == (7, 50)
    assert found["second"].augmentation == ["RandomHorizontalFlip"]
    assert found["raw"].epochs == 0


def test_a_row_with_more_trials_than_allowed_is_refused() -> None:
    check_budgets(some_suite(trials=4), budgets_of(some_suite()))
    with pytest.raises(InputError, match="first was tried with 4 settings; the suite some allows 3"):
        check_budgets(some_suite(trials=3), budgets_of(some_suite()))


def test_what_was_tuned_is_counted() -> None:
    assert budgets_of(load_suite(FOLDER / "cifar10.yaml"))["pfe"].trials == 4


def test_settings_are_clean_until_they_are_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMIT, raising=False)
    file = tmp_path / "suite.yaml"
    file.write_text("a: 1\n")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert frozen_settings([file]) is None
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    frozen = frozen_settings([file])
    assert frozen is not None
    assert frozen["clean"] is True
    assert len(frozen["commit"]) == 40
    file.write_text("a: 2\n")
    assert frozen_settings([file]) == {**frozen, "clean": False}
    monkeypatch.setenv(COMMIT, "abc-dirty")
    assert frozen_settings([file]) == {"commit": "abc", "clean": False}
