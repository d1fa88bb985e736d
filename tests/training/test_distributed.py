"""Two processes over gloo and one process with the same global batch: the same gradient, the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from doubtless.data import Batch
from doubtless.methods import DataSpec, Method, method_class
from doubtless.methods.configuration import make_config
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.training.loop import _is_out_of_reach
from doubtless.training.module import validation_scores
from tests.reference.two_processes import TwoProcesses, assert_same_step, loss_and_gradients, share_of

LOSSES = {
    "contrastive": {"name": "contrastive", "margin": 0.7},
    "triplet": {"name": "triplet"},
    "proxies": {"name": "ProxyAnchorLoss"},
}


def a_method(loss: str) -> Method:
    torch.manual_seed(0)
    config = make_config(
        {
            "method": "deterministic",
            "data": {"source": "digits"},
            "model": {"backbone": "conv-fashion", "dim": 6},
            "loss": LOSSES[loss],
        }
    )
    return method_class("deterministic")(config, DataSpec(channels=1, size=12, label_names=list("abcd")))


def a_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])  # most positive pairs span the ranks
    return Batch(torch.rand(8, 1, 12, 12, generator=generator), labels, torch.arange(8))


def _steps_of_rank(rank: int) -> dict[str, tuple[Tensor, dict[str, Tensor]]]:
    return {loss: loss_and_gradients(a_method(loss), share_of(a_batch(), rank)) for loss in LOSSES}


def test_gradient_is_that_of_one_process(two_processes: TwoProcesses) -> None:
    of_ranks = two_processes(_steps_of_rank)
    for loss in LOSSES:
        alone = loss_and_gradients(a_method(loss), a_batch())
        for found in of_ranks:
            assert_same_step(found[loss], alone, within=1e-6)


def train_with(processes: int, config: dict[str, Any], folder: Path) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    launch = [f"--nproc-per-node={processes}", f"--master-port={29950 + os.getpid() % 40}"]
    command = [sys.executable, "-m", "torch.distributed.run", *launch, "-m", "doubtless", "train"]
    options = ["--out", str(folder / "run"), "--set", f"training.devices={processes}", "--no-evaluate"]
    done = subprocess.run(
        [*command, str(folder / "config.yaml"), *options],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_whole_run_is_that_of_one_process(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    train_with(2, {**tiny_config, "training": {**tiny_config["training"]}}, tmp_path)
    alone, together = (
        load_file(tiny_run / "model.safetensors"),
        load_file(tmp_path / "run" / "model.safetensors"),
    )
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, atol=2e-4, rtol=1e-3)
    run = Run(tmp_path / "run")
    for one, two in zip(Run(tiny_run).log, run.log, strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-5)
    # What two processes have validated together is what one finds with their best weights.
    validation = open_run_data(run.config, split=run.split).validation
    found = validation_scores(embed_images(run.load_method(), validation).direction, validation.labels)
    best = max(run.log, key=lambda row: row["validation_map@r"])
    for name, value in found.items():
        assert best[f"validation_{name}"] == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (
            RuntimeError("[…/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv"),
            True,
        ),
        (RuntimeError("Application timeout caused pair closure"), True),
        (RuntimeError("Connection closed by peer [10.77.0.2]:29500"), True),
        (torch.distributed.DistBackendError("NCCL error in: …"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (8x4 and 5x2)"), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
    ],
)
def test_errors_of_lost_processes_are_told_from_others(error: RuntimeError, is_lost: bool) -> None:
    """Words as torch said them; with cables pulled: test_several_hosts."""
    assert _is_out_of_reach(error) == is_lost
