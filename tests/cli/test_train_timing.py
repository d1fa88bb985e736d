"""`doubtless train` says where the time went: in a line, in timing.json and on the page."""

import json
from pathlib import Path
from typing import Any

import yaml


def test_the_whole_command_is_accounted_for(command, tiny_config: dict[str, Any], tmp_path: Path) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(tiny_config))
    run = tmp_path / "run"
    code, printed, errors = command("train", config, "--out", run, "--set", "training.epochs=2")
    assert code == 0, errors
    assert "time: " in printed
    timing = json.loads((run / "timing.json").read_text())
    phases = timing["phases"]
    assert {"start", "data", "training", "validation", "embedding", "measuring", "report"} <= set(phases)
    assert timing["seconds"] >= timing["train_seconds"] > phases["training"]
    page = (run / "report.html").read_text()
    assert "Where the time went" in page
    assert "all epochs, without validation" in page
