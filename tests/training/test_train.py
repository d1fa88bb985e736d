"""Training: it learns, picks its best epoch, resumes bit for bit, and says what is wrong."""

from __future__ import annotations

import copy
import csv
import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import doubtless
from doubtless.errors import InputError, RunError
from doubtless.methods.configuration import make_config
from doubtless.methods.deterministic import Deterministic
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.training import train_run
from doubtless.training.module import validation_scores
from tests.reference.stopped import train_until


def with_values(config: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    for name, values in sections.items():
        changed[name] = {**changed.get(name, {}), **values} if isinstance(values, dict) else values
    return changed


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def assert_bit_equal(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_run_folder_is_complete_and_the_model_learned(tiny_run: Path) -> None:
    run = Run.open(tiny_run)
    assert {"config.yaml", "split.json", "model.safetensors", "model.json", "last.ckpt", "log.csv"} <= {
        file.name for file in tiny_run.iterdir()
    }
    data = open_run_data(run.config, split=run.split)
    trained = validation_scores(embed_images(run.load_method(), data.test).direction, data.test.labels)
    torch.manual_seed(0)
    fresh = Deterministic(run.config, data.spec)
    untrained = validation_scores(embed_images(fresh, data.test).direction, data.test.labels)
    assert trained["map@r"] > untrained["map@r"] + 0.1


def test_best_epoch_of_validation_is_kept(tiny_run: Path) -> None:
    run = Run.open(tiny_run)
    best = max(row["validation_map@r"] for row in run.log)
    data = open_run_data(run.config, split=run.split)
    found = validation_scores(
        embed_images(run.load_method(), data.validation).direction, data.validation.labels
    )
    assert found["map@r"] == pytest.approx(best, abs=1e-6)


def test_log_has_a_row_an_epoch(tiny_run: Path) -> None:
    rows = list(csv.DictReader((tiny_run / "log.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert {"train_loss", "validation_map@r", "validation_recall@1", "lr", "seconds"} <= set(rows[0])
    assert all(0 <= float(row["seconds_validating"]) <= float(row["seconds"]) for row in rows)


def test_same_seed_same_weights_other_seed_other_weights(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    train_run(make_config(tiny_config), tmp_path / "again", quiet=True)
    assert_bit_equal(tiny_run, tmp_path / "again")
    train_run(make_config({**tiny_config, "seed": 1}), tmp_path / "other", quiet=True)
    assert not torch.equal(weights(tiny_run)["head.weight"], weights(tmp_path / "other")["head.weight"])


@pytest.mark.parametrize("step", [4, 9, 17])
def test_stopped_in_mid_epoch_and_resumed_is_bit_equal(
    tiny_config, tiny_run: Path, tmp_path: Path, step: int
) -> None:
    """The process dies at a step of epoch 0, 1 or 2; resuming repeats that epoch."""
    train_until(step, tiny_config, tmp_path / "run")
    assert not Run(tmp_path / "run").is_finished
    torch.rand(5)  # whatever else drew numbers in between
    train_run(make_config(tiny_config), tmp_path / "run", resume=True, quiet=True)
    assert_bit_equal(tiny_run, tmp_path / "run")
    log, whole = (
        [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in run.log]
        for run in (Run(tmp_path / "run"), Run(tiny_run))
    )
    assert log == whole


def test_augmented_training_through_workers_is_reproducible(tiny_config, tmp_path: Path) -> None:
    config = with_values(
        tiny_config, data={"augment": "crop-flip", "size": 12, "workers": 2}, training={"epochs": 1}
    )
    train_run(make_config(config), tmp_path / "a", quiet=True)
    config["data"]["workers"] = 0
    train_run(make_config(config), tmp_path / "b", quiet=True)
    assert_bit_equal(tmp_path / "a", tmp_path / "b")


def test_frozen_encoder_trains_the_head_on_features(tiny_config, tmp_path: Path) -> None:
    config = make_config(with_values(tiny_config, model={"freeze": True}, training={"epochs": 1}))
    run = train_run(config, tmp_path / "run", quiet=True)
    spec = run.load_method().spec
    torch.manual_seed(config.seed)
    fresh = Deterministic(config, spec)
    kept = weights(tmp_path / "run")
    assert torch.equal(kept["encoder.backbone.0.weight"], fresh.encoder.state_dict()["backbone.0.weight"])
    assert not torch.equal(kept["head.weight"], fresh.head.weight)


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "triplet", "margin": 0.2},
        {"name": "ProxyAnchorLoss", "arguments": {"alpha": 16}, "lr_factor": 100},
        {"name": "TripletMarginLoss", "miner": {"name": "TripletMarginMiner", "arguments": {"margin": 0.2}}},
        {"name": "MultiSimilarityLoss"},
    ],
)
def test_other_losses_train(tiny_config, tmp_path: Path, loss: dict[str, Any]) -> None:
    run = train_run(make_config(with_values(tiny_config, loss=loss)), tmp_path / "run", quiet=True)
    losses = [row["train_loss"] for row in run.log]
    assert losses[-1] < losses[0]
    assert run.load_method() is not None


def test_open_split_trains_on_other_classes(tiny_config, tmp_path: Path) -> None:
    """Labels of the training batches are 0 … classes−1 whatever classes were left: proxies need it."""
    import numpy as np

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 12)
    images = (rng.uniform(0, 1, (10, 12, 12))[labels] * 255).astype(np.uint8)
    np.savez(tmp_path / "ten.npz", x=images, y=labels)
    config = with_values(
        tiny_config,
        data={"source": f"npz:{tmp_path}/ten.npz", "split": "open", "ood": []},
        loss={"name": "ProxyAnchorLoss"},
        training={"epochs": 1, "batch_size": 12},
    )
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    assert run.load_method().spec.classes == 3
    assert run.load_method().metric_loss.peer.proxies.shape[0] == 3


def test_bf16_trains(tiny_config, tmp_path: Path) -> None:
    run = train_run(
        make_config(with_values(tiny_config, training={"precision": "bf16"})), tmp_path / "run", quiet=True
    )
    assert all(
        value.dtype == torch.float32 for value in weights(run.path).values() if value.is_floating_point()
    )
    assert run.log[-1]["validation_map@r"] > 0.3


def test_a_loss_that_explodes_is_a_sentence(tiny_config, tmp_path: Path) -> None:
    config = with_values(tiny_config, training={"lr": 1e30, "optimizer": "sgd", "epochs": 2})
    with pytest.raises((RunError, InputError), match=r"training\.lr|finite"):
        train_run(make_config(config), tmp_path / "run", quiet=True)


def test_existing_folder_is_not_overwritten(tiny_config, tiny_run: Path) -> None:
    with pytest.raises(RunError, match="exists already"):
        train_run(make_config(tiny_config), tiny_run, quiet=True)


def test_resume_refuses_what_it_cannot_do(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run folder"):
        train_run(make_config(tiny_config), tmp_path / "none", resume=True, quiet=True)
    with pytest.raises(InputError, match="finished already"):
        train_run(make_config(tiny_config), tiny_run, resume=True, quiet=True)
    with pytest.raises(InputError, match="another configuration"):
        train_run(make_config({**tiny_config, "seed": 5}), tiny_run, resume=True, quiet=True)
    patient = with_values(tiny_config, training={"timeout": 60})  # how long is waited may be another
    with pytest.raises(InputError, match="finished already"):
        train_run(make_config(patient), tiny_run, resume=True, quiet=True)


def broken_run(tiny_run: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "broken"
    shutil.copytree(tiny_run, copied)
    return copied


def test_truncated_checkpoint_is_a_sentence(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    run = broken_run(tiny_run, tmp_path)
    (run / "model.json").unlink()
    whole = (run / "last.ckpt").read_bytes()
    (run / "last.ckpt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match="damaged and cannot be resumed"):
        train_run(make_config(tiny_config), run, resume=True, quiet=True)


def test_checkpoint_of_the_future_is_a_sentence(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    run = broken_run(tiny_run, tmp_path)
    (run / "model.json").unlink()
    state = torch.load(run / "last.ckpt", weights_only=True)
    state["doubtless"]["schema"] = 99
    torch.save(state, run / "last.ckpt")
    with pytest.raises(RunError, match="schema 99"):
        train_run(make_config(tiny_config), run, resume=True, quiet=True)


def test_damaged_models_are_sentences(tiny_run: Path, tmp_path: Path) -> None:
    run = broken_run(tiny_run, tmp_path)
    whole = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").write_bytes(whole[:1000])
    with pytest.raises(RunError, match="damaged or of another model"):
        doubtless.load(run)
    about = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps({**about, "schema": 99}))
    with pytest.raises(RunError, match="update doubtless"):
        doubtless.load(run)
    (run / "model.json").write_text("{")
    with pytest.raises(RunError, match="damaged or no JSON"):
        doubtless.load(run)
    (run / "model.json").unlink()
    with pytest.raises(RunError, match="no finished model"):
        doubtless.load(run)
    with pytest.raises(RunError, match="not a run"):
        doubtless.load(tmp_path)


FULL_DISK = """
import resource, signal, sys
from doubtless.methods.configuration import load_config
from doubtless.training import train_run
from doubtless.errors import FileError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    train_run(load_config(sys.argv[1]), sys.argv[3], resume=True, quiet=True)
except FileError as error:
    print(error)
    sys.exit(7)
"""


def test_full_disk_keeps_the_previous_checkpoint(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    """No file may grow past a limit below a checkpoint's size: the real error, from the real write."""
    train_until(12, tiny_config, tmp_path / "run")
    checkpoint = tmp_path / "run" / "last.ckpt"
    before = checkpoint.read_bytes()
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tiny_config))
    command = [
        sys.executable,
        "-c",
        FULL_DISK,
        str(tmp_path / "c.yaml"),
        str(len(before) // 2),
        str(tmp_path / "run"),
    ]
    stopped = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert stopped.returncode == 7, stopped.stderr
    assert "cannot be written" in stopped.stdout
    assert "previous file is untouched" in stopped.stdout
    assert checkpoint.read_bytes() == before
    assert not list((tmp_path / "run").glob(".last.ckpt*"))
    train_run(make_config(tiny_config), tmp_path / "run", resume=True, quiet=True)
    assert_bit_equal(tiny_run, tmp_path / "run")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
