"""One run on two hosts, the cable between them pulled in the middle: what comes out is that of a whole one."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.reference.hosts import Host, several_hosts
from tests.reference.tensor_files import tensor_bytes
from tests.reference.waiting import wait_until

pytestmark = pytest.mark.slow
EPOCHS = 40
TIMEOUT = 10
"""Seconds: more than it takes to find each other, less than a test may wait for."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with several_hosts(["first-machine", "second-machine"], tmp_path_factory.mktemp("hosts")) as both:
        yield both


@pytest.fixture(scope="module")
def config(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = copy.deepcopy(tiny_config) | {"method": "lam-online", "laplace": {"tune": {"grid": 3}}}
    config["training"] |= {"epochs": EPOCHS, "nodes": 2, "timeout": TIMEOUT}
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


class Training:
    """The line of docs/several-nodes.md on both hosts, under way."""

    def __init__(self, hosts: list[Host], config: Path, run: Path, *options: str) -> None:
        self.run = run
        self.said = [run.parent / f"{host.name}{''.join(options)}.log" for host in hosts]
        self.launchers = []
        for rank, (host, place) in enumerate(zip(hosts, self.said, strict=True)):
            launch = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={rank}"]
            launch += ["--master-addr=first-machine", "--master-port=29500", "-m", "doubtless", "train"]
            command = [sys.executable, "-m", "torch.distributed.run", *launch, str(config)]
            command += ["--out", str(run), "--no-evaluate", *options]
            with place.open("w") as said:
                self.launchers.append(host.start(command, said=said, OMP_NUM_THREADS="1"))

    def epochs(self) -> int:
        log = self.run / "log.csv"
        return len(log.read_text().splitlines()) - 1 if log.exists() else 0

    def wait_for(self, epochs: int) -> None:
        wait_until(lambda: self.epochs() >= epochs or self.ended(), 120)
        assert not self.ended(), self.words()

    def ended(self) -> bool:
        return all(launcher.poll() is not None for launcher in self.launchers)

    def codes(self, seconds: float) -> list[int]:
        wait_until(self.ended, seconds)
        return [launcher.returncode for launcher in self.launchers]

    def tensors(self) -> dict[str, bytes]:
        return tensor_bytes(self.run / "model.safetensors")

    def words(self) -> str:
        return "\n".join(place.read_text()[-3000:] for place in self.said)


@pytest.fixture(scope="module")
def whole(hosts: list[Host], config: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The run that nothing disturbed."""
    training = Training(hosts, config, tmp_path_factory.mktemp("whole") / "run")
    assert training.codes(200) == [0, 0], training.words()
    return training.tensors()


@pytest.fixture
def joined(hosts: list[Host]) -> Iterator[None]:
    """Whatever a test pulls out is put in again."""
    yield
    for host in hosts:
        host.bring_back()


def test_cut_off_for_a_moment(
    hosts: list[Host], config: Path, whole: dict[str, bytes], tmp_path: Path, joined: None
) -> None:
    """What was sent arrives later, and training goes on."""
    training = Training(hosts, config, tmp_path / "run")
    training.wait_for(5)
    hosts[1].cut_off()
    time.sleep(0.5)
    stands = training.epochs()
    time.sleep(1.5)
    assert training.epochs() == stands  # neither goes on by itself
    hosts[1].bring_back()
    assert training.codes(200) == [0, 0], training.words()
    assert training.tensors() == whole


@pytest.mark.parametrize("lost", [0, 1], ids=["first", "second"])
def test_cut_off_for_good_and_resumed(
    hosts: list[Host], config: Path, whole: dict[str, bytes], tmp_path: Path, joined: None, lost: int
) -> None:
    """Both sides end by themselves with a sentence; the same line with --resume goes on as if nothing had been."""
    training = Training(hosts, config, tmp_path / "run")
    training.wait_for(5)
    hosts[lost].cut_off()
    assert all(training.codes(8 * TIMEOUT)), training.words()
    assert training.epochs() < EPOCHS
    for said in training.said:
        assert "Another process of this run has ended or is out of reach" in said.read_text()
        assert "[rank" not in said.read_text()  # a sentence instead of a traceback
    hosts[lost].bring_back()
    again = Training(hosts, config, tmp_path / "run", "--resume")
    assert again.codes(200) == [0, 0], again.words()
    assert again.tensors() == whole
