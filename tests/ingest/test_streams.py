"""Where images come from: folders, tar shards in webdataset's manner, parquet as Hugging Face writes it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

import doubtless
from doubtless.data.streams.folder import FolderStream
from doubtless.data.streams.opening import open_streams
from doubtless.data.streams.records import Columns
from doubtless.errors import InputError
from doubtless.ingest.bulk import embedded, plan_work
from doubtless.runs.model import Model
from tests.ingest.pictures import png, tiny_images, write_folder, write_tar


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> Model:
    return doubtless.load(tiny_run)


def records(source: Path | str, **columns: str) -> list:
    return [
        record for stream in open_streams([source], columns=Columns(**columns)) for record in stream.records()
    ]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tar_and_parquet_give_what_the_folder_gives(
    model: Model, tiny_npz: Path, tmp_path: Path, mode: str
) -> None:
    """In parts that begin in the middle of a shard and of a row group."""
    images, labels = tiny_images(tiny_npz, 12)
    write_folder(tmp_path / "folder", images, labels)
    files = {}
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        files |= {f"{number:04d}.png": png(pixels), f"{number:04d}.cls": label.encode()}
    suffix = mode.partition(":")[2]
    tar = write_tar(tmp_path / f"shard-7.tar{'.' if suffix else ''}{suffix}", files, mode=mode)
    table = pyarrow.table({"image": [png(pixels) for pixels in images], "label": labels})
    parquet.write_table(table, tmp_path / "table.parquet", row_group_size=5)
    by_pixels = {}
    for source in (tmp_path / "folder", tar, tmp_path / "table.parquet"):
        parts = list(embedded(model, source, shard_size=7, batch_size=4))
        assert [len(part) for part in parts] == [7, 5]
        location = torch.cat([part.embedding.location for part in parts if part.embedding])
        ids = [name for part in parts for name in part.ids]
        found = [label for part in parts for label in part.labels]
        numbers = [int(Path(name).stem) for name in ids]
        assert found == [labels[number] for number in numbers]
        by_pixels[source.name] = location[torch.tensor(numbers).argsort()]
    one, *others = by_pixels.values()
    assert all(torch.equal(one, other) for other in others)


def test_tar_labels_and_metadata(tmp_path: Path) -> None:
    image = png(np.zeros((4, 4), np.uint8))
    tar = write_tar(
        tmp_path / "a.tar",
        {
            "x/1.mask.png": b"not this one",
            "x/1.jpg": image,
            "x/1.json": json.dumps({"label": 3, "shop": "Oslo", "price": 2.5, "tags": [1]}).encode(),
            "x/1.txt": b"a caption",
            "2.png": image,
            "2.txt": b" shoe \n",
            "3.json": b'{"label": "alone"}',
            "4.jpg": image,
            "4.json": b"{broken",
            "5.webp": image,
        },
    )
    found = {record.id: record for record in records(tar)}
    assert list(found) == ["a/x/1", "a/2", "a/3", "a/4", "a/5"]
    assert found["a/x/1"].label == "3"
    assert found["a/x/1"].data == image
    assert found["a/x/1"].path == f"{tar}#x/1.jpg"
    assert found["a/x/1"].metadata == {"shop": "Oslo", "price": 2.5}
    assert found["a/2"].label == "shoe"
    assert found["a/3"].problem == "it has no image"
    assert "label cannot be read" in found["a/4"].problem
    assert found["a/5"].label is None


def test_a_tar_cannot_reach_outside(model: Model, tmp_path: Path) -> None:
    """Names that climb, links and devices: nothing is followed, nothing is written."""
    image = png(np.full((12, 12), 9, np.uint8))
    secret = tmp_path / "secret.png"
    secret.write_bytes(image)
    path = tmp_path / "evil.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("../climb.png", "/absolute.png", "good.png"):
            member = tarfile.TarInfo(name)
            member.size = len(image)
            archive.addfile(member, io.BytesIO(image))
        for name, kind in (
            ("link.png", tarfile.SYMTYPE),
            ("hard.png", tarfile.LNKTYPE),
            ("dev.png", tarfile.CHRTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(secret)
            archive.addfile(member)
    before = sorted(file.name for file in tmp_path.parent.rglob("*"))
    (part,) = embedded(model, path)
    assert part.ids == ["evil/good"]
    assert {image.reason for image in part.bad} == {"its name leads out of the shard"}
    assert len(part.bad) == 2
    assert sorted(file.name for file in tmp_path.parent.rglob("*")) == before


def test_damaged_shards_are_sentences(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files = {f"{number}.png": png(rng.integers(0, 255, (40, 40), np.uint8)) for number in range(9)}
    for mode, name in (("w", "cut.tar"), ("w:gz", "cut.tar.gz")):
        path = write_tar(tmp_path / name, files, mode=mode)
        path.write_bytes(path.read_bytes()[:9000])
        with pytest.raises(InputError, match="damaged or cut short"):
            open_streams([path])
    (tmp_path / "no.tar").write_bytes(b"no tar at all" * 100)
    (tmp_path / "no.parquet").write_bytes(b"no parquet")
    write_tar(tmp_path / "empty.tar", {})
    (tmp_path / "bare").mkdir()
    (tmp_path / "text.txt").write_text("x")
    parquet.write_table(pyarrow.table({"image": [1, 2]}), tmp_path / "numbers.parquet")
    parquet.write_table(pyarrow.table({"a": [b"1"], "b": [b"2"]}), tmp_path / "two.parquet")
    for source, sentence in [
        ("no.tar", "no readable tar file"),
        ("no.parquet", "no readable parquet"),
        ("empty.tar", "no samples"),
        ("bare", "no images"),
        ("text.txt", "neither an image"),
        ("missing/x", "no file or folder"),
        ("numbers.parquet", "0 columns that may hold images"),
        ("two.parquet", r"2 columns that may hold images \(a, b\)"),
    ]:
        with pytest.raises(InputError, match=sentence):
            open_streams([tmp_path / source])
    with pytest.raises(InputError, match="There is no data source 'digitss'; did you mean 'digits'"):
        open_streams(["digitss"])
    with pytest.raises(InputError, match="no column 'imag'"):
        open_streams([tmp_path / "two.parquet"], columns=Columns(image="imag"))


def test_hugging_faces_parquet(tmp_path: Path) -> None:
    """{bytes, path} structs, names of classes in the file's own metadata, other columns as metadata."""
    image = png(np.zeros((4, 4), np.uint8))
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = pyarrow.table(
        {
            "image": pyarrow.array(
                [{"bytes": image, "path": "a.png"}, {"bytes": None, "path": "b.png"}, None], kind
            ),
            "label": [1, 0, None],
            "image_id": [70, 71, 72],
            "width": [4, None, 4],
            "box": [[1], [2], [3]],
        }
    )
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    parquet.write_table(table.replace_schema_metadata(about), tmp_path / "hf.parquet")
    first, second, third = records(tmp_path / "hf.parquet")
    assert (first.id, first.label, first.data, first.metadata) == ("70", "dog", image, {"width": 4})
    assert (second.id, second.problem) == ("71", "it has no bytes in this file")
    assert third.data is None
    with pytest.raises(InputError, match="no id in row 2"):
        records(tmp_path / "hf.parquet", id="label")
    named = records(tmp_path / "hf.parquet", label="width", id="image_id")[:2]
    assert [(record.id, record.label) for record in named] == [("70", "4"), ("71", None)]


def test_ids_must_differ(tiny_npz: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_folder(tmp_path / name, *tiny_images(tiny_npz, 3))
    with pytest.raises(InputError, match=r"comes twice, from .*one and from .*two"):
        open_streams([tmp_path / "one", tmp_path / "two"])
    assert len(open_streams([tmp_path])[0]) == 6  # the folder above them
    image = png(np.zeros((4, 4), np.uint8))
    with pytest.raises(InputError, match="The id 'twice/1' comes twice"):
        open_streams([write_tar(tmp_path / "twice.tar", {"1.png": image, "2.png": image, "1.jpg": image})])


def test_folders_of_shards_hidden_files_and_strange_names(tiny_npz: Path, tmp_path: Path) -> None:
    image = png(np.zeros((4, 4), np.uint8))
    shards = tmp_path / "shards"
    shards.mkdir()
    for name in ("b", "a"):
        write_tar(shards / f"{name}.tar", {"1.png": image})
    assert [record.id for record in records(shards)] == ["a/1", "b/1"]
    write_folder(tmp_path / "mixed", *tiny_images(tiny_npz, 2))
    write_tar(tmp_path / "mixed" / "a.tar", {"1.png": image})
    with pytest.raises(InputError, match="holds images and shards"):
        open_streams([tmp_path / "mixed"])
    odd = tmp_path / "odd" / "Schuhe & Söhne"
    (odd / ".thumbs").mkdir(parents=True)
    for name in (b"ok.PNG", b"b\xff.png", b".hidden.png", b".thumbs/x.png"):
        (odd / os.fsdecode(name)).write_bytes(image)
    bad, good = sorted(records(tmp_path / "odd"), key=lambda record: record.problem is None)
    assert (good.id, good.label) == ("Schuhe & Söhne/ok.PNG", "Schuhe & Söhne")
    assert bad.problem == "its name is not UTF-8"
    bad.id.encode()


def test_a_source_by_name_and_how_work_is_cut(model: Model) -> None:
    plan = plan_work(model, "digits", shard_size=1000)
    assert [len(unit.images) for unit in plan.units] == [1000, 797]
    second = list(plan.units[1].images.records())
    assert second[0].id == "digits/1000"
    assert second[0].data.shape == (1, 28, 28)
    assert list(plan.units[1].images.ids()) == [record.id for record in second]


def test_a_changed_file_is_another_source(tiny_npz: Path, tmp_path: Path) -> None:
    write_folder(tmp_path, *tiny_images(tiny_npz, 3))
    before = FolderStream.open(tmp_path).fingerprint()
    assert FolderStream.open(tmp_path).fingerprint() == before
    file = next(tmp_path.rglob("*.png"))
    os.utime(file, ns=(1, 1))
    assert FolderStream.open(tmp_path).fingerprint() != before


def test_readers_are_imported_when_there_is_something_to_read() -> None:
    """Opening a gallery and creating an index load neither formats nor frameworks they do not use."""
    script = (
        "import sys, doubtless.gallery, doubtless.ingest.create\n"
        "heavy = 'doubtless.data.streams.tar lightning pyarrow pymilvus faiss ray'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
