"""The command line that a report records."""

from __future__ import annotations

import pytest

from doubtless.cli.tables import recorded_command


def test_folders_of_this_machine_are_left_out() -> None:
    words = ["bench", "demo", "--out", "/home/me/out", "--jobs", "2", "--work", "/tmp/work", "-o", "x"]
    assert recorded_command(words) == "doubtless bench demo --jobs 2"


def test_words_with_spaces_can_be_typed_again() -> None:
    assert recorded_command(["evaluate", "my run"]) == "doubtless evaluate 'my run'"


def test_without_words_it_is_what_started_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/doubtless", "report", "runs/first"])
    assert recorded_command() == "doubtless report runs/first"
