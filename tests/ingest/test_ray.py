"""Embedding on a local Ray: what one process gives, bit for bit, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from PIL import Image

import doubtless
from doubtless.errors import InputError
from doubtless.ingest.bulk import embed_files, plan_work
from doubtless.ingest.ray import RayOptions, SentUnit, _sent, _worker_error, embed_with_ray
from doubtless.runs.model import Model
from tests.ingest.pictures import png, tiny_images, write_folder, write_tar
from tests.reference.tensor_files import contents

MEMORY = 100 << 20  # of the object store
ONE = RayOptions(cpus=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two cores, no dashboard, nothing asked of any other machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=MEMORY)
        yield
        ray.shutdown()


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> Model:
    return doubtless.load(tiny_run)


@pytest.fixture(scope="module")
def sources(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder, a tar shard and a parquet file, with two bad images among them."""
    import pyarrow
    from pyarrow import parquet

    root = tmp_path_factory.mktemp("sources")
    images, labels = tiny_images(tiny_npz, 60)
    write_folder(root / "photos", images[:25], labels[:25])
    (root / "photos" / "class-0" / "broken.png").write_text("no image")
    files = {f"{n:03d}.png": png(pixels) for n, pixels in enumerate(images[25:40])}
    shard = write_tar(root / "shard.tar", files | {"zz.jpg": b"neither"})
    table = {"image": [png(pixels) for pixels in images[40:]], "label": labels[40:], "price": list(range(20))}
    parquet.write_table(pyarrow.table(table), root / "rows.parquet", row_group_size=7)
    return [root / "photos", shard, root / "rows.parquet"]


@pytest.mark.slow  # starting Ray and one worker: half a minute of two idle cores
def test_folders_shards_and_parquet_are_bit_for_bit_those_of_one_process(
    cluster: None, model: Model, sources: list[Path], tmp_path: Path
) -> None:
    alone = embed_files(model, sources, tmp_path / "one", shard_size=10, batch_size=8)
    found = embed_with_ray(model, sources, tmp_path / "ray", shard_size=10, batch_size=8, options=ONE)
    assert (found.images, found.items, found.bad, found.shards) == (62, 60, 2, 7)
    assert (found.items, found.bad) == (alone.items, alone.bad)
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
    again = embed_with_ray(model, sources, tmp_path / "ray", shard_size=10, batch_size=8, options=ONE)
    assert again.found_shards == 7  # nothing was left to do


@pytest.mark.slow
def test_begun_here_and_continued_there(
    cluster: None, model: Model, sources: list[Path], tmp_path: Path
) -> None:
    """A folder of one process is continued by Ray; shards that are there are not made again."""
    embed_files(model, sources, tmp_path / "out", shard_size=10, batch_size=8)
    expected = contents(tmp_path / "out")
    for number in (1, 4):
        (tmp_path / "out" / f"part-{number:05d}.json").unlink()
    kept = (tmp_path / "out" / "part-00000.safetensors").stat().st_mtime_ns
    found = embed_with_ray(model, sources, tmp_path / "out", shard_size=10, batch_size=8, options=ONE)
    assert found.found_shards == 5
    assert (tmp_path / "out" / "part-00000.safetensors").stat().st_mtime_ns == kept
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
def test_a_source_in_memory_and_parquet_out(cluster: None, model: Model, tmp_path: Path) -> None:
    embed_with_ray(model, "digits", tmp_path / "ray", shard_size=400, format="parquet", options=ONE)
    embed_files(model, "digits", tmp_path / "one", shard_size=400, format="parquet")
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")


@pytest.fixture
def large_photos(tmp_path: Path) -> Path:
    """Images that take a while to decode."""
    rng, folder = np.random.default_rng(0), tmp_path / "large"
    folder.mkdir()
    for number in range(24):
        Image.fromarray(rng.integers(0, 256, (1500, 1500), np.uint8)).save(folder / f"{number:02d}.png")
    return folder


@pytest.mark.slow
def test_a_dead_workers_unit_is_done_again(
    cluster: None, model: Model, large_photos: Path, tmp_path: Path
) -> None:
    """kill -9 on a worker in the middle of its work, more than once."""
    import psutil

    killed: list[int] = []
    done = threading.Event()

    def kill() -> None:
        while not done.wait(0.02) and len(killed) < 2:
            if len(list((tmp_path / "out").glob("part-*.json"))) > 3 * len(killed):
                for process in psutil.Process().children(recursive=True):
                    if "UnitEmbedder" in " ".join(process.cmdline()) and process.pid not in killed:
                        process.kill()
                        killed.append(process.pid)
                        break

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        options = RayOptions(cpus=1, workers=2, decoders=1)
        found = embed_with_ray(
            model, large_photos, tmp_path / "out", shard_size=2, batch_size=2, options=options
        )
    finally:
        done.set()
        killer.join()
    assert len(killed) == 2
    assert (found.items, found.shards) == (24, 12)
    embed_files(model, large_photos, tmp_path / "one", shard_size=2, batch_size=2)
    assert contents(tmp_path / "out") == contents(tmp_path / "one")


@pytest.mark.slow
def test_a_killed_driver_continues(tiny_run: Path, model: Model, large_photos: Path, tmp_path: Path) -> None:
    """The command with a Ray of its own, kill -9, and the same command again."""
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "doubtless",
        "embed",
        str(tiny_run),
        str(large_photos),
        "--out",
        str(out),
    ]
    command += [
        "--ray",
        "local",
        "--shard-size",
        "2",
        "--batch-size",
        "2",
        "--workers",
        "1",
        "--ray-cpus",
        "1",
    ]
    command += ["--ray-workers", "1", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    began = time.monotonic()
    while len(list(out.glob("part-*.json"))) < 2:
        assert process.poll() is None
        assert time.monotonic() - began < 300
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = len(list(out.glob("part-*.json")))
    assert before < 12
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)
    assert finished.returncode == 0, finished.stderr
    import json

    said: dict[str, Any] = json.loads(finished.stdout)
    assert (said["items"], said["shards"], said["found_shards"]) == (24, 12, before)
    embed_files(model, large_photos, tmp_path / "one", shard_size=2, batch_size=2)
    assert contents(out) == contents(tmp_path / "one")


@pytest.mark.slow
def test_what_a_worker_says_reaches_the_user(
    cluster: None, tiny_run: Path, sources: list[Path], tmp_path: Path
) -> None:
    changed = doubtless.load(tiny_run)
    changed.method.head.bias.data[0] += 1  # the run on disk is another model
    with pytest.raises(InputError, match=r"holds another model on a worker .* must see the same folder"):
        embed_with_ray(changed, sources, tmp_path / "out", options=ONE)
    assert not list((tmp_path / "out").glob("part-*"))


def test_units_do_not_carry_the_arrays_they_share(model: Model, sources: list[Path]) -> None:
    plan, shared = plan_work(model, "digits", shard_size=100), []
    sent = [_sent(unit, shared) for unit in plan.units]
    assert len(sent) == 18
    assert len(shared) == 1
    for unit, other in zip(plan.units, sent, strict=True):
        assert other.images is None
        assert list(other.unit(shared.__getitem__).images.ids()) == list(unit.images.ids())
    folder = plan_work(model, sources[0], shard_size=10).units[0]
    assert _sent(folder, shared) == SentUnit(folder.number, folder.images)
    assert len(shared) == 1


def test_sentences(model: Model, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"There is no format 'csv'; accepted: safetensors, parquet"):
        embed_with_ray(model, "digits", tmp_path / "out", format="csv")  # type: ignore[arg-type]
    loose = doubtless.load(tiny_run)
    loose.method.folder = None
    with pytest.raises(InputError, match="belongs to no run"):
        embed_with_ray(loose, "digits", tmp_path / "out")
    lost = _worker_error(RuntimeError("lost\nin space"))
    assert "(RuntimeError: in space); what is done is kept" in str(lost)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs ray: pip install 'doubtless\[ray\]'"):
        embed_with_ray(model, "digits", tmp_path / "out")
