"""Replayed steps are those that would have been taken: the same weights and log, the same after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from doubtless.methods import DataSpec, all_methods, method_class
from doubtless.methods.configuration import make_config
from doubtless.runs.run import Run
from doubtless.training import loop, train_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRIPLET = {"loss": {"name": "triplet"}}
LOSSES = dict.fromkeys(("triplet", "triplet-regression", "bayes-triplet", "bayes-triplet-vmf"), TRIPLET)
REPLAYED = [
    "deterministic",
    "mc-dropout",
    "lam-posthoc",
    "lam-online",
    "hib",
    "dvml",
    *LOSSES,
]
# Sums whose order the device chooses differ in their last digits, and mining may then pick another triplet: the
# steps are small, so that what becomes of such a difference stays far below what training does.
LR = 1e-4


@pytest.fixture
def config(tiny_config: dict[str, Any]) -> dict[str, Any]:
    training = {**tiny_config["training"], "accelerator": "gpu", "epochs": 2, "lr": LR, "lr_decay": 0.5}
    return {**tiny_config, "training": training}


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "rmsprop", "sgd"])
def test_every_optimizer_replays(config, tmp_path: Path, monkeypatch, optimizer: str) -> None:
    lr = 1e-2 if optimizer == "sgd" else LR
    config = {**config, "training": {**config["training"], "optimizer": optimizer, "lr": lr}}
    assert _apart_by(config, tmp_path, monkeypatch) < 0.02


@pytest.mark.parametrize("name", REPLAYED)
def test_every_method_that_says_so_replays(config, tmp_path: Path, monkeypatch, name: str) -> None:
    config = {**config, "method": name, **LOSSES.get(name, {})}
    assert _apart_by(config, tmp_path, monkeypatch) < 0.02


@pytest.mark.parametrize("approximation", ["positive", "full"])
def test_cross_terms_of_few_outputs_replay(config, tmp_path: Path, monkeypatch, approximation: str) -> None:
    config = {**config, "method": "lam-online", "laplace": {"approximation": approximation}}
    assert _apart_by(config, tmp_path, monkeypatch) < 0.02


def test_half_precision_replays(config, tmp_path: Path, monkeypatch) -> None:
    config = {**config, "training": {**config["training"], "precision": "bf16"}}
    assert _apart_by(config, tmp_path, monkeypatch) < 0.1


def test_a_warm_up_and_clipped_gradients_replay(config, tmp_path: Path, monkeypatch) -> None:
    """What the optimiser keeps of the encoder begins after the warm-up: not at every replay."""
    tuned = {"recipe": "fine-tuning", "epochs": 3, "warmup": 1, "clip": 0.1, "batch_size": 12, "lr": LR}
    config = {**config, "training": {**config["training"], **tuned}}
    assert _apart_by(config, tmp_path, monkeypatch) < 0.02


def test_proxies_of_a_metric_loss_replay(config, tmp_path: Path, monkeypatch) -> None:
    loss = {"name": "ProxyAnchorLoss", "margin": 0.1, "lr_factor": 10}
    assert _apart_by({**config, "loss": loss}, tmp_path, monkeypatch) < 0.02


def test_no_method_says_so_untested(config) -> None:
    spec = DataSpec(channels=1, size=12, label_names=[str(number) for number in range(6)])
    for name in all_methods():
        method = method_class(name)(make_config({**config, "method": name, **LOSSES.get(name, {})}), spec)
        assert method.repeats_its_step == (name in REPLAYED), name


def test_a_resumed_run_is_the_unbroken_one(config, tmp_path: Path) -> None:
    """It draws its heads from the same numbers: draws of others would be far off."""
    config = {**config, "method": "lam-online", "laplace": {"tune": {"criterion": "none"}}}
    whole = train_run(make_config(config), tmp_path / "whole", quiet=True)
    short = {**config, "training": {**config["training"], "epochs": 1}}
    train_run(make_config(short), tmp_path / "parts", quiet=True)
    for name in ("model.json", "model.safetensors"):
        (tmp_path / "parts" / name).unlink()
    (tmp_path / "parts" / "config.yaml").write_text(make_config(config).to_yaml())
    parts = train_run(make_config(config), tmp_path / "parts", resume=True, quiet=True)
    assert parts.log[1]["train_loss"] == pytest.approx(whole.log[1]["train_loss"], rel=1e-3)
    assert _distance(parts, whole) < 0.02


def _apart_by(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """How far replayed and launched training end apart; their logs are compared here."""
    replayed = train_run(make_config(config), tmp_path / "replayed", quiet=True)
    monkeypatch.setattr(loop, "_replays", lambda method: False)
    launched = train_run(make_config(config), tmp_path / "launched", quiet=True)
    for first, second in zip(replayed.log, launched.log, strict=True):
        assert first["train_loss"] == pytest.approx(second["train_loss"], rel=1e-2, abs=1e-4)
        assert first["lr"] == second["lr"]
    return _distance(replayed, launched)


def _distance(first: Run, second: Run) -> float:
    """Between two trained networks, relative to how far training has moved the second."""
    torch.manual_seed(second.config.seed)
    start = method_class(second.config.method)(second.config, second.load_method().spec).state_dict()
    ends = [load_file(run.path / "model.safetensors") for run in (first, second)]
    names = [name for name in start if name.startswith(("encoder.", "head."))]
    apart = sum(float((ends[0][name] - ends[1][name]).double().square().sum()) for name in names)
    moved = sum(float((ends[1][name] - start[name]).double().square().sum()) for name in names)
    return (apart / moved) ** 0.5
