"""Bulk embedding: the same numbers as one image at a time, through kills, bad images and any order of batches."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import doubtless
from doubtless.data import decode_image
from doubtless.embedding import Embedding, read_embedding
from doubtless.errors import InputError
from doubtless.ingest.bulk import Embedded, embed_files, embed_unit, embedded, plan_work
from doubtless.ingest.decode import decode_all
from doubtless.ingest.progress import BulkProgress
from doubtless.ingest.shards import ShardStore, read_shards, write_shard
from doubtless.runs.model import Model
from tests.ingest.pictures import bomb, png, tiny_images, write_folder
from tests.reference.tensor_files import contents


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> Model:
    return doubtless.load(tiny_run)


@pytest.fixture(scope="module")
def photos(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """90 good images of six classes."""
    root = tmp_path_factory.mktemp("pictures") / "photos"
    write_folder(root, *tiny_images(tiny_npz, 90))
    return root


def whole(folder: Path) -> tuple[Embedding, list[str], list[str | None]]:
    parts = list(read_shards(folder))
    embedding = Embedding.cat([part.embedding for part in parts if part.embedding is not None])
    ids = [name for part in parts for name in part.ids]
    return embedding, ids, [label for part in parts for label in part.labels]


def test_a_folder_gives_what_the_model_gives(model: Model, photos: Path, tmp_path: Path) -> None:
    found = embed_files(model, photos, tmp_path / "out", shard_size=40, batch_size=16)
    assert found == Embedded(tmp_path / "out", images=90, items=90, bad=0, shards=3, found_shards=0)
    embedding, ids, labels = whole(tmp_path / "out")
    files = sorted(photos.rglob("*.png"))
    assert ids == [file.relative_to(photos).as_posix() for file in files]
    assert labels == [file.parent.name for file in files]
    torch.testing.assert_close(embedding.location, model.embed(files).location)
    stored = read_embedding(tmp_path / "out" / "part-00001.safetensors")
    assert stored.ids == ids[40:80]
    assert [part.paths for part in read_shards(tmp_path / "out")][2][0] == str(files[80])
    assert (tmp_path / "out" / "bad.csv").read_text() == "id,path,reason\n"


def test_an_image_does_not_depend_on_its_batch(model: Model, photos: Path, tmp_path: Path) -> None:
    """Bit for bit: alone, among others, and at another place of the batch."""
    files = sorted(photos.rglob("*.png"))
    first = next(iter(embedded(model, photos, batch_size=16, shard_size=90)))
    assert first.embedding is not None
    for number in (0, 7, 37, 89):
        alone = next(iter(embedded(model, files[number], batch_size=16)))
        assert alone.embedding is not None
        assert torch.equal(alone.embedding.location[0], first.embedding.location[number])
    shifted = next(iter(embedded(model, files[5:50], batch_size=16))).embedding  # one folder a file
    assert shifted is not None
    assert torch.equal(shifted.location[0], first.embedding.location[5])


def test_bad_images_are_skipped_counted_and_listed(model: Model, tiny_npz: Path, tmp_path: Path) -> None:
    images, _ = tiny_images(tiny_npz, 3)
    root = tmp_path / "mixed"
    root.mkdir()
    for name, pixels in zip("adg", images, strict=True):
        (root / f"{name}.png").write_bytes(png(pixels))
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), np.uint8).astype(np.uint8)).save(root / "b.jpg")
    (root / "b.jpg").write_bytes((root / "b.jpg").read_bytes()[:900])
    (root / "c.jpg").write_text("this is no image")
    (root / "e.png").write_bytes(bomb())
    (root / "e2.png").write_bytes(bomb(11_000, 11_000))  # below what Pillow refuses by itself
    (root / "f.png").write_bytes(b"")
    found = embed_files(model, root, tmp_path / "out", batch_size=4)
    assert (found.items, found.bad) == (3, 5)
    embedding, ids, labels = whole(tmp_path / "out")
    assert ids == ["a.png", "d.png", "g.png"]
    assert labels == [None, None, None]
    torch.testing.assert_close(embedding.location, model.embed([root / name for name in ids]).location)
    with (tmp_path / "out" / "bad.csv").open() as lines:
        bad = {row["id"]: row for row in csv.DictReader(lines)}
    assert list(bad) == ["b.jpg", "c.jpg", "e.png", "e2.png", "f.png"]
    assert "truncated" in bad["b.jpg"]["reason"]
    assert "no image" in bad["c.jpg"]["reason"]
    assert "more than the 89,478,485 pixels" in bad["e.png"]["reason"]
    assert "11000×11000 pixels" in bad["e2.png"]["reason"]
    assert bad["f.png"]["path"] == str(root / "f.png")


def test_a_part_of_bad_images_alone(model: Model, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    for number in range(4):
        (tmp_path / "bad" / f"{number}.jpg").write_text("nothing")
    found = embed_files(model, tmp_path / "bad", tmp_path / "out", shard_size=3)
    assert (found.items, found.bad, found.shards) == (0, 4, 2)
    assert [part.embedding for part in read_shards(tmp_path / "out")] == [None, None]
    again = embed_files(model, tmp_path / "bad", tmp_path / "out", shard_size=3)
    assert again.found_shards == 2


def test_units_may_be_done_in_any_order_by_anyone(model: Model, photos: Path, tmp_path: Path) -> None:
    """What Ray will do: the same files as one process makes, byte for byte."""
    embed_files(model, photos, tmp_path / "one", shard_size=25, batch_size=16)
    plan = plan_work(model, photos, shard_size=25, batch_size=16)
    embed_files(model, photos, tmp_path / "other", shard_size=25, batch_size=16)
    for unit in reversed(plan.units):
        part = embed_unit(model, unit, batch_size=plan.batch_size, workers=1)
        write_shard(tmp_path / "other", unit.number, part)
    assert ShardStore(tmp_path / "other").collect(len(plan.units)) == []
    assert contents(tmp_path / "one") == contents(tmp_path / "other")


def test_killed_and_continued_is_the_same_bit_for_bit(tiny_run: Path, photos: Path, tmp_path: Path) -> None:
    """kill -9 in the middle of a real process, and a torn temporary file beside."""
    script = (
        "import sys, time, doubtless\n"
        "from doubtless.ingest import bulk\n"
        "slow = bulk._Work.take\n"
        "def take(self, record, image):\n"
        "    time.sleep(0.01)\n"
        "    return slow(self, record, image)\n"
        "bulk._Work.take = take\n"
        "model = doubtless.load(sys.argv[1])\n"
        "bulk.embed_files(model, sys.argv[2], sys.argv[3], shard_size=10, batch_size=8)\n"
    )
    out = tmp_path / "cut"
    process = subprocess.Popen([sys.executable, "-c", script, str(tiny_run), str(photos), str(out)])
    began = time.monotonic()
    while parts_of(out) < 3:
        assert process.poll() is None, "it finished before it could be killed"
        assert time.monotonic() - began < 120
        time.sleep(0.005)
    time.sleep(0.03)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = parts_of(out)
    assert 3 <= before < 9
    (out / ".part-00008.json.torn").write_text('{"ite')
    kept = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*")}
    model = doubtless.load(tiny_run)
    found = embed_files(model, photos, out, shard_size=10, batch_size=8)
    assert found.found_shards == before
    finished = {f"part-{number:05d}.safetensors" for number in range(before)}
    assert all((out / name).stat().st_mtime_ns == kept[name] for name in finished)
    embed_files(model, photos, tmp_path / "whole", shard_size=10, batch_size=8)
    assert contents(out) == contents(tmp_path / "whole")


def test_another_model_or_source_in_the_same_folder_is_refused(
    model: Model, photos: Path, tiny_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    embed_files(model, photos, out)
    with pytest.raises(InputError, match="begun with other images"):
        embed_files(model, sorted(photos.rglob("*.png"))[:3], out)
    with pytest.raises(InputError, match="another shard size and another batch size"):
        embed_files(model, photos, out, shard_size=7, batch_size=3)
    other = doubtless.load(tiny_run)
    with torch.no_grad():
        other.method.head.bias[0] += 1e-3
    with pytest.raises(InputError, match="begun with another model"):
        embed_files(other, photos, out)
    with pytest.raises(InputError, match="exists already and is no embedding"):
        embed_files(model, photos, photos)
    (out / "part-00000.json").unlink()
    with pytest.raises(InputError, match="1 of 1 shards are missing"):
        read_shards(out)
    newer = json.loads((out / "embed.json").read_text()) | {"schema": 2}
    (out / "embed.json").write_text(json.dumps(newer))
    with pytest.raises(InputError, match="newer doubtless"):
        embed_files(model, photos, out)


def test_zero_and_nan_embeddings_are_bad(tiny_run: Path, photos: Path) -> None:
    model = doubtless.load(tiny_run)
    files = sorted(photos.rglob("*.png"))
    pixels = [model.preparation(decode_image(file)) for file in files[:4]]
    honest = model.method.embed

    def embed(images: torch.Tensor) -> Embedding:
        location = honest(images).location.clone()
        location[(images == pixels[1]).flatten(1).all(1)] = torch.nan
        location[(images == pixels[2]).flatten(1).all(1)] = 0
        return Embedding.point(location)

    model.method.embed = embed  # type: ignore[method-assign]
    (part,) = embedded(model, photos, batch_size=16)
    assert [image.id for image in part.bad] == [file.relative_to(photos).as_posix() for file in files[1:3]]
    assert "NaN" in part.bad[0].reason
    assert "no direction" in part.bad[1].reason
    assert len(part) == 88
    assert part.ids[:2] == [files[i].relative_to(photos).as_posix() for i in (0, 3)]


def test_decoding_stays_a_bounded_number_ahead(photos: Path, model: Model) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from doubtless.data.streams.folder import FolderStream

    read = 0

    def records():
        nonlocal read
        for record in FolderStream.open(photos).records():
            read += 1
            yield record

    with ThreadPoolExecutor(2) as pool:
        for taken, _ in enumerate(decode_all(records(), model.preparation, pool, ahead=5), start=1):
            assert read <= taken + 5
    assert read == 90


def test_progress_says_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    meter = BulkProgress(clock=lambda: now)
    with meter:
        meter.start(total=1000, done=400)
        for _ in range(200):
            now += 0.125
            meter.advance(1, bad=0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "480 of 1,000 images, 8.0 images/s, 1 min 5 s left"
    assert len(lines) == 2


def parts_of(folder: Path) -> int:
    return len(list(folder.glob("part-*.json")))
