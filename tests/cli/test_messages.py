"""What the command line says when something is missing, wrong or stopped; each was seen to say something worse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from doubtless.cli import app
from doubtless.errors import InputError
from doubtless.methods.configuration import load_config, make_config
from doubtless.runs import Run
from doubtless.training import train_run
from tests.cli.conftest import Command


@pytest.fixture
def config(tiny_config: dict[str, Any], tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(tiny_config))
    return file


def wrong(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["model.backbone=resnet5O"], "There is no backbone 'resnet5O'; the nearest are 'resnet50'"),
        (["model.weights=gone.safetensors"], "There are no weights at gone.safetensors"),
        (["data.source=folder:gone"], "There is no folder gone"),
        (["data.source=npz:gone.npz"], "There is no file gone.npz"),
        (["training.accelerator=gpu"], "torch finds none here; accepted here: cpu or auto"),
        (["data.size=4"], "."),
        (["loss.name=triplett"], "triplet"),
    ],
)
def test_a_failed_training_is_a_sentence_and_blocks_nothing(
    settings: list[str], sentence: str, config: Path, tmp_path: Path, command: Command
) -> None:
    if settings == ["training.accelerator=gpu"]:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    run = tmp_path / "run"
    code, out, err = command("train", config, "--out", run, *wrong(*settings))
    assert code == 2, err
    assert sentence in err
    assert "Traceback" not in out + err
    assert not run.exists()


def test_an_unknown_backbone_names_five(config: Path, tmp_path: Path, command: Command) -> None:
    _, _, err = command(
        "train", config, "--out", tmp_path / "run", "--set", "model.backbone=efficientnet_lite"
    )
    assert err.count("'") == 2 + 2 * 5


def test_after_a_failure_the_same_folder_trains(config: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    assert command("train", config, "--out", run, "--set", "data.source=npz:gone.npz")[0] == 2
    code, _, err = command("train", config, "--out", run, "--set", "training.epochs=1", "--no-evaluate")
    assert code == 0, err
    assert command("train", config, "--out", run, "--set", "data.source=npz:gone.npz")[0] == 2
    assert Run(run).is_finished  # a failure beside a finished run takes nothing away


def test_more_epochs_continue_a_finished_run(tiny_config: dict[str, Any], tmp_path: Path) -> None:
    """As if it had been begun with so many: what comes after depends on what came before alone."""
    short = make_config({**tiny_config, "training": {**tiny_config["training"], "epochs": 2}})
    longer = make_config({**tiny_config, "training": {**tiny_config["training"], "epochs": 4}})
    train_run(short, tmp_path / "run", quiet=True)
    train_run(longer, tmp_path / "run", resume=True, quiet=True)
    train_run(longer, tmp_path / "whole", quiet=True)
    assert Run(tmp_path / "run").is_finished
    assert Run(tmp_path / "run").config.training.epochs == 4
    ours, whole = Run(tmp_path / "run").log, Run(tmp_path / "whole").log
    assert len(ours) == 4
    measured = [{key: value for key, value in row.items() if "seconds" not in key} for row in ours]
    assert measured == [{key: value for key, value in row.items() if "seconds" not in key} for row in whole]
    with pytest.raises(InputError, match="began with 4 epochs, and cannot be resumed with 2"):
        train_run(short, tmp_path / "run", resume=True, quiet=True)
    with pytest.raises(InputError, match=r"nothing to resume\. More epochs: --set training\.epochs=8"):
        train_run(longer, tmp_path / "run", resume=True, quiet=True)


def test_bench_without_weights_is_a_sentence(
    tiny_npz: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOUBTLESS_DATA", raising=False)
    suite = {
        "name": "mine",
        "title": "Mine",
        "seeds": [0],
        "base": {
            "method": "deterministic",
            "data": {"source": f"npz:{tiny_npz}"},
            "model": {"backbone": "resnet18", "weights": "gone.safetensors"},
        },
        "methods": {"plain": {}},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(suite))
    code, _, err = command("bench", tmp_path / "mine.yaml", "--dry-run")
    assert code == 2
    assert err.startswith("doubtless: There are no weights at gone.safetensors")
    assert err.count("\n") == 1


def test_bench_lists_its_suites_from_anywhere(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("bench", "--csv")
    assert code == 0
    names = [line.split(",")[0] for line in out.splitlines()[1:]]
    assert {"demo", "cub-lite0", "grocery-lite0"} <= set(names)
    code, _, err = command("bench", "dmeo")
    assert (code, "did you mean 'demo'" in err) == (2, True)


def test_shipped_configurations_are_found_by_name(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("fashion-sample/triplet").method == "triplet"
    assert load_config("configs/fashion-sample/triplet.yaml").method == "triplet"
    _, _, err = command("train", "fashion-sample/tripplet")
    assert "the nearest are 'fashion-sample/triplet'" in err


def commands() -> list[list[str]]:
    from typer.main import get_command

    def below(group: Any, words: list[str]) -> list[list[str]]:
        found = [words]
        for name, inner in getattr(group, "commands", {}).items():
            found += below(inner, [*words, name])
        return found

    return below(get_command(app), [])


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_h_is_help_everywhere(words: list[str], command: Command) -> None:
    code, out, err = command(*words, "-h")
    assert (code, err) == (0, "")
    assert "Usage:" in out
    assert out == command(*words, "--help")[1]


def test_ctrl_c_says_how_to_go_on(config: Path, tmp_path: Path) -> None:
    """A real process, stopped by a real signal: once an epoch is over, and before."""
    run = tmp_path / "run"
    arguments = ["train", str(config), "--out", str(run), "--set", "training.epochs=5000"]
    # Where tests run in the background the signal is off, and processes inherit that.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{listening}; from doubtless.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    began = time.monotonic()
    while not (run / "last.ckpt").exists() and time.monotonic() - began < 300:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("doubtless: Stopped. Go on from the last whole epoch: doubtless train ")
    assert last.endswith("--set training.epochs=5000 --resume")


def test_ctrl_c_before_an_epoch_is_resumed_from_the_beginning(
    config: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from doubtless.training import loop

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_fitted", stopped)
    code, _, err = command("train", config, "--out", tmp_path / "run")
    assert code == 130
    assert "Stopped. Go on from its beginning: doubtless train " in err
    assert err.strip().endswith("--resume")
    monkeypatch.undo()
    code, _, err = command("train", config, "--out", tmp_path / "run", "--resume", "--no-evaluate")
    assert code == 0, err


def test_other_commands_say_it_too(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tiny_run: Path
) -> None:
    from doubtless.ingest import bulk

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bulk, "embed_unit", stopped)
    code, _, err = command("embed", tiny_run, "digits", "--out", tmp_path / "out")
    assert (code, err) == (130, "doubtless: Stopped: the same command goes on where it was.\n")


def test_what_is_skipped_is_named_by_train(
    tiny_npz: Path, tiny_config: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    from tests.ingest.pictures import tiny_images, write_folder

    images, labels = tiny_images(tiny_npz, 60)
    write_folder(tmp_path / "photos", images, labels)
    (tmp_path / "photos" / labels[0] / "film.mov").write_bytes(b"film")
    (tmp_path / "photos" / labels[0] / "cut.png").write_bytes(b"\x89PNG")
    settings = {
        **tiny_config,
        "data": {"source": f"folder:{tmp_path / 'photos'}", "size": 12, "validation": 0.2},
    }
    settings["training"] = {**tiny_config["training"], "epochs": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    code, out, err = command("train", tmp_path / "config.yaml", "--out", tmp_path / "run")
    assert code == 0, err
    assert f"2 files skipped, listed in {tmp_path / 'run' / 'skipped.txt'}" in out.replace("\n", "")
    assert "files of the kind .mov are not read" in out
    assert "it is no image that Pillow knows" in out


def test_a_training_by_tar_and_dataset(
    tiny_npz: Path, tiny_config: dict[str, Any], tmp_path: Path, command: Command
) -> None:
    from tests.ingest.pictures import png, tiny_images, write_tar

    images, labels = tiny_images(tiny_npz, 60)
    files = {}
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        files |= {f"{number:02d}.png": png(pixels), f"{number:02d}.cls": label.encode()}
    write_tar(tmp_path / "shard.tar", files)
    settings = {**tiny_config, "data": {"source": f"tar:{tmp_path}/shard.tar", "size": 12, "validation": 0.2}}
    settings["training"] = {**tiny_config["training"], "epochs": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    code, _, err = command("train", tmp_path / "config.yaml", "--out", tmp_path / "run", "--no-evaluate")
    assert code == 0, err
    assert Run(tmp_path / "run").is_finished


def test_an_evaluation_prints_as_ten_lines() -> None:
    import torch

    from doubtless import Embedding
    from doubtless.evaluation import EvaluationOptions, evaluate

    labels = torch.arange(80) % 4
    vectors = 2 * torch.eye(4)[labels] + torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    unsure = Embedding.gaussian(vectors, torch.rand(80, 1))
    found = evaluate(unsure, labels, options=EvaluationOptions(bootstrap=20))
    lines = str(found).splitlines()
    assert len(lines) == 10
    assert lines[0] == "80 queries, 80 in the gallery, 4 labels, leave-one-out"
    assert lines[1].split()[0] == "recall@1"
    assert f"{found['recall@1']:.4f}" in lines[1]
    assert lines[-1].endswith("more in .measures, baselines in .baselines")
    assert max(map(len, lines)) < 80


def test_the_covering_set_is_shown(tmp_path: Path, command: Command) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    labels = np.arange(400) % 4
    np.savez(
        tmp_path / "v.npz",
        x=(2 * np.eye(6)[labels] + rng.normal(size=(400, 6))).astype(np.float32),
        y=np.array(["garlic", "leek", "onion", "shallot"])[labels],
    )
    command("create", tmp_path / "shop", "--embeddings", tmp_path / "v.npz")
    assert command("calibrate", tmp_path / "shop", "--target-error", "0.3")[0] == 0
    np.save(tmp_path / "q.npy", np.array([[1, 1, 0, 0, 0, 0], [0, 0, 3, 0, 0, 0]], np.float32))
    code, out, _ = command("ask", tmp_path / "shop", "--embedding", tmp_path / "q.npy", "--confidence", "0.8")
    assert code == 0
    assert "it is one of these, with 80 % confidence: " in " ".join(out.split())
    table = command("ask", tmp_path / "shop", "--embedding", tmp_path / "q.npy", "--csv")[1].splitlines()
    assert table[0] == "query,decision,label,probability,none,doubt,covering_set,reason"
    assert len(table) == 3
