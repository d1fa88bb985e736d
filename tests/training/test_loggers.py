"""`training.loggers`: the figures of log.csv, read back from each package's own files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import doubtless
from doubtless.errors import DoubtlessError


def trained(config: dict[str, Any], folder: Path, logger: str) -> list[dict[str, float]]:
    """Rows of log.csv of a training that was logged elsewhere as well."""
    training = {**config["training"], "epochs": 2, "loggers": [logger]}
    run = doubtless.train({**config, "training": training}, folder, quiet=True)
    with (run.path / "log.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_tensorboard_has_the_figures_of_the_log(tiny_config: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = trained(tiny_config, tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name in ("train_loss", "validation_recall@1", "validation_map@r"):
        told = events.Scalars(name)
        assert [one.step for one in told] == [0, 1]
        assert [one.value for one in told] == pytest.approx([row[name] for row in rows], rel=1e-5)


def test_mlflow_has_the_figures_of_the_log(
    tiny_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    place = f"file:{tmp_path / 'tracked'}"  # files: its database needs packages of its own
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    rows = trained(tiny_config, tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient(tracking_uri=place)
    experiment = client.get_experiment_by_name("doubtless")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["training/epochs"] == "2"
    told = client.get_metric_history(found.info.run_id, "train_loss")
    assert [one.value for one in told] == pytest.approx([row["train_loss"] for row in rows], rel=1e-5)


def test_weights_and_biases_has_the_figures_of_the_log(
    tiny_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    rows = trained(tiny_config, tmp_path / "run", "wandb")
    assert wandb.run is not None
    told = dict(wandb.run.summary)
    wandb.finish()
    assert told["train_loss"] == pytest.approx(rows[-1]["train_loss"], rel=1e-5)
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_loggers_that_are_not_there_are_refused_before_anything_is_trained(
    tiny_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DoubtlessError, match="tensorbord"):
        trained(tiny_config, tmp_path / "a", "tensorbord")
    monkeypatch.setattr("doubtless.training.loggers.find_spec", lambda _: None)
    with pytest.raises(DoubtlessError, match="pip install wandb"):
        trained(tiny_config, tmp_path / "b", "wandb")
    assert not (tmp_path / "b").exists()


def test_without_the_key_nothing_is_written_beside_the_log(tiny_run: Path) -> None:
    assert not (tiny_run / "tensorboard").exists()
    assert (tiny_run / "log.csv").exists()
