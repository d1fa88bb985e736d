"""Bulk embedding over several hosts: what is cut off is done again elsewhere, and works on when it is back."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import doubtless
from doubtless.ingest.bulk import embed_files
from tests.reference.hosts import Host, several_hosts
from tests.reference.tensor_files import contents
from tests.reference.waiting import wait_until

PORT = 6379
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
RAY += ["--object-store-memory=100000000"]
WORKER = "UnitEmbedder"  # what Ray calls the processes that embed
SETTINGS = {
    # Noticed within some 3 s, instead of the 15 s to 65 s of Ray's own settings.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0123456789abcdef" * 2,
}
LONG = 8.0
"""Seconds without a cable after which Ray has given a host up."""
UNITS = 400

pytestmark = pytest.mark.slow  # three Rays on one machine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    """A head, which only leads, and two hosts with a worker each; Ray is started again where it ends."""
    place = tmp_path_factory.mktemp("cluster")
    with several_hosts(["head", "one", "two"], place, private=["/tmp/ray"]) as hosts:
        head, *others = hosts
        with (place / "said").open("w") as said:
            own = [f"--node-ip-address={head.address}", "--head", f"--port={PORT}", "--num-cpus=0"]
            head.start([*RAY, *own, "--include-dashboard=false"], said=said, **SETTINGS)
            for host in others:
                own = [
                    f"--node-ip-address={host.address}",
                    f"--address={head.address}:{PORT}",
                    "--num-cpus=1",
                ]
                again = ["bash", "-c", 'while :; do "$@"; sleep 1; done', "start", *RAY, *own]
                host.start(again, said=said, **SETTINGS)
            wait_until(lambda: all(host.processes("raylet/raylet") for host in hosts), 120)
            yield hosts


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names enough that the work takes a minute; large pictures, of which there are only a few."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("photos")
    for number in range(2 * UNITS):
        photo = folder / f"{number:03d}.png"
        if number < 5:
            Image.fromarray(rng.integers(0, 256, (2500, 2500), np.uint8)).save(photo)
        else:
            os.link(folder / f"{number % 5:03d}.png", photo)
    return folder


@pytest.fixture(scope="module")
def alone(tiny_run: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What one process makes of them."""
    out = tmp_path_factory.mktemp("alone")
    embed_files(doubtless.load(tiny_run), photos, out, shard_size=2, batch_size=2)
    return contents(out)


class Embedding:
    """The command on the head, under way."""

    def __init__(self, head: Host, run: Path, photos: Path, out: Path) -> None:
        self.out = out
        options = ["--out", str(out), "--shard-size", "2", "--batch-size", "2", "--workers", "1"]
        options += ["--ray", f"{head.address}:{PORT}", "--ray-cpus", "1", "--json"]
        self.said, self.errors = out.parent / "embed.json", out.parent / "errors.log"
        with self.said.open("w") as said, self.errors.open("w") as errors:
            command = [sys.executable, "-m", "doubtless", "embed", str(run), str(photos), *options]
            self.process = head.start(command, said=said, errors=errors, OMP_NUM_THREADS="1", **SETTINGS)

    def shards(self) -> int:
        return len(list(self.out.glob("part-*.json")))

    def wait_for_work_on(self, *hosts: Host) -> None:
        """Until all of them have a worker, and some shards are there."""
        wait_until(lambda: all(host.processes(WORKER) for host in hosts), 120)
        self.wait_for(6)

    def wait_for(self, shards: int, seconds: float = 120) -> None:
        wait_until(lambda: self.shards() >= shards or self.process.poll() is not None, seconds)
        assert self.process.poll() is None, self.errors.read_text()

    def finish(self, seconds: float = 300) -> dict[str, Any]:
        assert self.process.wait(timeout=seconds) == 0, self.errors.read_text()
        found: dict[str, Any] = json.loads(self.said.read_text())
        return found


@pytest.fixture
def embedding(cluster: list[Host], tiny_run: Path, photos: Path, tmp_path: Path) -> Iterator[Embedding]:
    under_way = Embedding(cluster[0], tiny_run, photos, tmp_path / "out")
    yield under_way
    under_way.process.kill()
    for host in cluster:
        host.bring_back()


def test_a_host_that_is_cut_off_and_comes_back(
    cluster: list[Host], embedding: Embedding, alone: dict[str, object]
) -> None:
    """Its units are done by the other one; Ray on it begins anew and is given work again."""
    two = cluster[2]
    embedding.wait_for_work_on(two)
    lost = set(two.processes(WORKER))
    two.cut_off()
    stood = embedding.shards()
    time.sleep(LONG)
    embedding.wait_for(stood + 12)  # the other one goes on alone
    two.bring_back()
    wait_until(lambda: set(two.processes(WORKER)) - lost, 120)
    assert embedding.process.poll() is None  # it came back to work that was not done
    found = embedding.finish()
    assert (found["items"], found["bad"], found["shards"]) == (2 * UNITS, 0, UNITS)
    assert contents(embedding.out) == alone


def test_a_host_that_never_comes_back(
    cluster: list[Host], embedding: Embedding, alone: dict[str, object]
) -> None:
    """What it was given is done elsewhere, and nobody waits for it."""
    two = cluster[2]
    embedding.wait_for_work_on(two)
    two.cut_off()
    assert embedding.finish()["items"] == 2 * UNITS
    assert contents(embedding.out) == alone


def test_all_workers_cut_off_for_a_moment(
    cluster: list[Host], embedding: Embedding, alone: dict[str, object]
) -> None:
    """Too short to be noticed: what was sent arrives later."""
    embedding.wait_for_work_on(*cluster[1:])
    before, stood = [host.processes(WORKER) for host in cluster[1:]], embedding.shards()
    for host in cluster[1:]:
        host.cut_off()
    time.sleep(1)
    for host in cluster[1:]:
        host.bring_back()
    embedding.wait_for(stood + 24)
    assert [host.processes(WORKER) for host in cluster[1:]] == before  # nobody was given up
    assert embedding.finish()["items"] == 2 * UNITS
    assert contents(embedding.out) == alone
