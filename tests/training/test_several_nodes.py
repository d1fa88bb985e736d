"""Two processes on each of two "nodes" of this machine: the posterior, the mining and the metrics of one
process.

The nodes are two launchers that meet at a port, as in docs/several-nodes.md; SLURM's variables are set as
srun sets them, so that nothing is taken from there that torchrun says otherwise.
"""

from __future__ import annotations

import ast
import copy
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from doubtless.methods.configuration import make_config
from doubtless.runs import Run
from doubtless.runs.evaluation import RunEvaluation
from doubtless.training import train_run

NODES, PROCESSES = 2, 2
ROOT = Path(__file__).parents[2]
POSTERIOR = {"method": "lam-online", "laplace": {"tune": {"grid": 3}}}
MINED = {
    "method": "bayes-triplet",
    "mining": {"cache": 60, "refresh": 5, "negatives": 2, "tuples": 4},
    "loss": {"name": "triplet", "margin": 0.1},
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def train_on_nodes(config: dict[str, Any], folder: Path, *, evaluate: bool) -> Path:
    """The recipe: one torchrun a node, all with the same command."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    options = ["--set", f"training.devices={PROCESSES}", "--set", f"training.nodes={NODES}"]
    command = [
        "-m",
        "doubtless",
        "train",
        str(folder / "config.yaml"),
        "--out",
        str(folder / "run"),
        *options,
    ]
    launch_on_nodes([*command, *([] if evaluate else ["--no-evaluate"])])
    return folder / "run"


def launch_on_nodes(command: list[str]) -> None:
    port, launchers = free_port(), []
    for node in range(NODES):
        launch = [f"--nnodes={NODES}", f"--nproc-per-node={PROCESSES}", f"--node-rank={node}"]
        launch += ["--master-addr=127.0.0.1", f"--master-port={port}"]
        slurm = {"SLURM_JOB_NAME": "train", "SLURM_NTASKS": str(NODES), "SLURM_NTASKS_PER_NODE": "1"}
        slurm |= {"SLURM_PROCID": str(node), "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"}
        launchers.append(
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *launch, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, **slurm, "OMP_NUM_THREADS": "1"},
            )
        )
    said = [launcher.communicate(timeout=400)[0] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], "\n".join(text[-3000:] for text in said)


def train_alone(config: dict[str, Any], folder: Path) -> Path:
    train_run(make_config(config), folder, quiet=True)
    return folder


def assert_same_run(together: Path, alone: Path) -> None:
    ours, theirs = load_file(together / "model.safetensors"), load_file(alone / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(
            ours[name], value, atol=2e-4, rtol=1e-3, msg=lambda text, of=name: f"{of}: {text}"
        )
    for one, two in zip(Run(alone).log, Run(together).log, strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-5)
        assert two["validation_map@r"] == pytest.approx(one["validation_map@r"], abs=1e-3)


@pytest.mark.slow
def test_posterior_and_evaluation_are_those_of_one_process(
    tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    config = copy.deepcopy(tiny_config) | POSTERIOR
    config["training"]["epochs"] = 2
    together = train_on_nodes(config, tmp_path, evaluate=True)
    alone = train_alone(config, tmp_path / "alone")
    assert_same_run(together, alone)
    curvature = load_file(together / "model.safetensors")["laplace.curvature.weight"]
    assert float(curvature.max()) > 0
    RunEvaluation(Run.open(alone)).measure(report=False)
    found, expected = (json.loads((run / "metrics.json").read_text()) for run in (together, alone))
    for name, tolerance in (
        ("map@r", 1e-3),
        ("recall@1", 1.5 / 120),
        ("error_auroc", 0.01),
    ):  # 120 test images
        ours, theirs = (metrics["measures"][name]["value"] for metrics in (found, expected))
        assert ours == pytest.approx(theirs, abs=tolerance), name
    assert (together / "report.html").is_file()


ROLES = """
import sys
import torch
import torch.distributed as dist
from doubtless.distributed import gather, gather_objects, is_main
before = is_main()  # what is asked before the processes have found each other
dist.init_process_group("gloo")
rank = dist.get_rank()
rows = torch.full((2, 3), float(rank), requires_grad=True)
whole = gather(rows)
(whole.sum(1) * torch.arange(8.0)).sum().backward()
roles = gather_objects((before, is_main(), whole[:, 0].tolist(), rows.grad[:, 0].tolist()))
if is_main():
    open(sys.argv[1], "w").write(repr(roles))
dist.destroy_process_group()
"""


def test_four_processes_of_two_nodes_are_one_group(tmp_path: Path) -> None:
    """One process writes, known before and after they meet; rows come in the order of ranks, gradients go back."""
    (tmp_path / "roles.py").write_text(ROLES)
    launch_on_nodes([str(tmp_path / "roles.py"), str(tmp_path / "found")])
    roles = ast.literal_eval((tmp_path / "found").read_text())
    assert [(before, after) for before, after, _, _ in roles] == [(True, True)] + 3 * [(False, False)]
    for rank, (_, _, whole, gradient) in enumerate(roles):
        assert whole == [0, 0, 1, 1, 2, 2, 3, 3]
        assert gradient == [4 * 2 * rank, 4 * (2 * rank + 1)]  # summed over the four ranks


@pytest.mark.slow
def test_cache_mining_is_that_of_one_process(tiny_config: dict[str, Any], tmp_path: Path) -> None:
    config = copy.deepcopy(tiny_config) | MINED
    together = train_on_nodes(config, tmp_path, evaluate=False)
    assert_same_run(together, train_alone(config, tmp_path / "alone"))


def test_the_slurm_script_is_a_shell_script_that_starts_the_recipe() -> None:
    script = ROOT / "examples" / "slurm" / "train.sbatch"
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    text = script.read_text()
    assert "training.nodes=$SLURM_NNODES" in text
    assert "training.devices=$GPUS" in text
    page = (ROOT / "docs" / "several-nodes.md").read_text()
    assert "examples/slurm/train.sbatch" in page
