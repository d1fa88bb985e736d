"""Two processes over gloo and one process with the same global batch: the same gradient, the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from safetensors.torch import load_file
from torch.nn.parallel import DistributedDataParallel

from doubtless.config import make_config
from doubtless.data import Batch
from doubtless.methods import DataSpec, Method, method_class
from doubtless.training import Run, embed_images, open_run_data
from doubtless.training.validation import validation_scores

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


class _LossOnly(torch.nn.Module):
    """DDP averages what its module's forward made: let that be the loss."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.method.loss(batch).total


def _worker(rank: int, port: str, loss: str, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    method, batch = a_method(loss), a_batch()
    own = Batch(*(value[4 * rank : 4 * rank + 4] for value in batch))
    parallel = DistributedDataParallel(_LossOnly(method))  # kept: its hooks die with it
    total = parallel(own)
    total.backward()
    gradients = {name: value.grad for name, value in method.named_parameters()}
    torch.save({"loss": total.detach(), "gradients": gradients}, f"{folder}/{rank}.pt")
    del parallel  # before the group it holds: a reducer that outlives it can hang the process's end
    dist.destroy_process_group()


@pytest.mark.parametrize("loss", list(LOSSES))
def test_gradient_is_that_of_one_process(loss: str, tmp_path: Path) -> None:
    method = a_method(loss)
    alone = method.loss(a_batch()).total
    alone.backward()
    port = str(29600 + list(LOSSES).index(loss) + os.getpid() % 300)
    torch.multiprocessing.spawn(_worker, (port, loss, str(tmp_path)), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(found["loss"], alone.detach(), atol=1e-6, rtol=0)
        for name, parameter in method.named_parameters():
            difference = (found["gradients"][name] - parameter.grad).abs().max()
            assert difference <= 1e-6 * max(1.0, float(parameter.grad.abs().max())), name


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
