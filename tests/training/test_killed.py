"""kill -9 at random moments of a real `doubtless train`, then --resume: the unbroken run's weights, bit for bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file


def train(config: Path, run: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "doubtless",
        "train",
        str(config),
        "--out",
        str(run),
        "--no-evaluate",
        *options,
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_three_kills_change_nothing(tiny_config, tmp_path: Path, attempt: int) -> None:
    config = tmp_path / "config.yaml"
    longer = {**tiny_config, "training": {**tiny_config["training"], "epochs": 60}}
    config.write_text(yaml.safe_dump(longer))
    assert train(config, tmp_path / "whole").wait() == 0
    rng = random.Random(attempt)
    killed_while_training = 0
    for kill in range(3):
        process = train(
            config, tmp_path / "cut", *(["--resume"] if (tmp_path / "cut" / "config.yaml").exists() else [])
        )
        began, before = time.monotonic(), _epochs(tmp_path / "cut")
        while _epochs(tmp_path / "cut") <= before + (kill > 0) and process.poll() is None:
            assert time.monotonic() - began < 120
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.5))
        process.send_signal(signal.SIGKILL)
        killed_while_training += process.wait() == -signal.SIGKILL
    assert killed_while_training == 3
    assert train(config, tmp_path / "cut", "--resume").wait() == 0
    whole, cut = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())


def _epochs(run: Path) -> int:
    log = run / "log.csv"
    return len(log.read_text().splitlines()) - 1 if log.exists() else -1
