"""What a gallery reads, training reads too: lists, tar shards, parquet files, Hugging Face's datasets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from doubtless.data import open_source
from doubtless.data.streams.opening import open_streams
from doubtless.errors import InputError
from tests.ingest.pictures import png, tiny_images, write_folder, write_tar


@pytest.fixture
def pictures(tiny_npz: Path) -> tuple[list[bytes], list[str]]:
    images, labels = tiny_images(tiny_npz, 12)
    return [png(image) for image in images], labels


def as_dataset(path: Path, pictures: list[bytes], labels: list[str], *, parts: tuple[str, ...] = ()) -> Path:
    """What `save_to_disk` writes, of one part or of several."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value

    names = sorted(set(labels))
    features = Features({"image": Image(), "label": ClassLabel(names=names), "shop": Value("string")})
    rows = {
        "image": [{"bytes": data, "path": None} for data in pictures],
        "label": [names.index(label) for label in labels],
        "shop": ["Oslo"] * len(labels),
    }
    whole = Dataset.from_dict(rows, features=features)
    if not parts:
        whole.save_to_disk(str(path))
    else:
        half = len(whole) // 2
        cut = {parts[0]: whole.select(range(half)), parts[1]: whole.select(range(half, len(whole)))}
        DatasetDict(cut).save_to_disk(str(path))
    return path


def test_every_way_gives_the_same_images(pictures: tuple[list[bytes], list[str]], tmp_path: Path) -> None:
    data, labels = pictures
    files = {}
    for number, (picture, label) in enumerate(zip(data, labels, strict=True)):
        (tmp_path / f"{number:02d}.png").write_bytes(picture)
        files |= {f"{number:02d}.png": picture, f"{number:02d}.cls": label.encode()}
    rows = "".join(f"{number:02d}.png,{label},{number}\n" for number, label in enumerate(labels))
    (tmp_path / "list.csv").write_text(f"path,label,year\n{rows}")
    names = [f"{number:02d}.png" for number in range(len(labels))]
    parquet.write_table(pyarrow.table({"image": names, "label": labels}), tmp_path / "list.parquet")
    parquet.write_table(pyarrow.table({"image": data, "label": labels}), tmp_path / "whole.parquet")
    write_tar(tmp_path / "shard.tar", files)
    as_dataset(tmp_path / "set", data, labels)
    sources = [
        f"csv:{tmp_path}/list.csv", f"csv:{tmp_path}/list.parquet", f"parquet:{tmp_path}/whole.parquet",
        f"tar:{tmp_path}/shard.tar", f"hf:{tmp_path}/set",
    ]  # fmt: skip
    first = open_source(sources[0])
    for name in sources:
        source = open_source(name)
        assert source.label_names == sorted(set(labels))
        assert torch.equal(source.labels, first.labels)
        assert all(torch.equal(source.image(row), first.image(row)) for row in range(len(data)))


def test_parts_of_a_dataset_say_what_trains_and_what_tests(
    pictures: tuple[list[bytes], list[str]], tmp_path: Path
) -> None:
    data, labels = pictures
    as_dataset(tmp_path / "set", data, labels, parts=("train", "test"))
    source = open_source(f"hf:{tmp_path}/set")
    assert source.given_split is not None
    assert source.given_split.tolist() == [0] * 6 + [1] * 6
    assert len(open_source(f"hf:{tmp_path}/set#test")) == 6
    with pytest.raises(InputError, match="no part 'tset'; did you mean 'test'"):
        open_source(f"hf:{tmp_path}/set#tset")


def test_a_folder_of_parquet_is_a_dataset(pictures: tuple[list[bytes], list[str]], tmp_path: Path) -> None:
    data, labels = pictures
    (tmp_path / "set").mkdir()
    parquet.write_table(
        pyarrow.table({"image": data, "label": labels, "price": list(range(12))}),
        tmp_path / "set" / "train-00000.parquet",
    )
    (stream,) = open_streams([f"hf:{tmp_path}/set"])
    record = next(iter(stream.records()))
    assert (record.id, record.label, record.metadata) == ("train/0", labels[0], {"price": 0})


def test_a_dataset_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    with pytest.raises(InputError, match="cannot be opened"):
        open_source(f"hf:{tmp_path.name}/nothing")
    with pytest.raises(InputError, match="no file or folder"):
        open_source(f"tar:{tmp_path}/nothing.tar")


def test_what_cannot_be_trained_on_is_named(pictures: tuple[list[bytes], list[str]], tmp_path: Path) -> None:
    data = pictures[0]
    (tmp_path / "a.png").write_bytes(data[0])
    (tmp_path / "cut.png").write_bytes(data[1][:60])
    (tmp_path / "list.csv").write_text("path,label\na.png,cat\ncut.png,cat\ngone.png,dog\n")
    source = open_source(f"csv:{tmp_path}/list.csv")
    assert len(source) == 1
    assert [Path(line.split(":")[0]).name for line in source.skipped] == ["cut.png", "gone.png"]
    (tmp_path / "list.csv").write_text("path,label\na.png,\n")
    with pytest.raises(InputError, match="nobody says what it shows"):
        open_source(f"csv:{tmp_path}/list.csv")


def test_a_list_has_metadata_and_ids(pictures: tuple[list[bytes], list[str]], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_bytes(pictures[0][0])
    (tmp_path / "list.csv").write_text("id,image,class,shop,price\nfirst,photos/a.png,garlic,Oslo,2.5\n")
    (stream,) = open_streams([tmp_path / "list.csv"])
    (record,) = stream.records()
    assert (record.id, record.label, record.path) == ("first", "garlic", str(tmp_path / "photos" / "a.png"))
    assert record.metadata == {"shop": "Oslo", "price": 2.5}
    assert json.dumps(record.metadata)


def test_other_files_among_pictures_are_named(tiny_npz: Path, tmp_path: Path) -> None:
    """A telephone's film vanished without a word."""
    write_folder(tmp_path, *tiny_images(tiny_npz, 6))
    (tmp_path / "class-0" / "IMG_1.MOV").write_bytes(b"film")
    (tmp_path / "labels.csv").write_text("not a picture, and nobody thinks so")
    source = open_source(f"folder:{tmp_path}")
    assert [line.split(": ")[1] for line in source.skipped] == ["files of the kind .mov are not read"]
    (stream,) = open_streams([tmp_path])
    assert [record.id for record in stream.records() if record.problem] == ["class-0/IMG_1.MOV"]
    film = tmp_path / "films"
    film.mkdir()
    (film / "x.mov").write_bytes(b"film")
    with pytest.raises(InputError, match=r"files that are not read: 1 \.mov"):
        open_streams([film])


def test_numpy_images_of_every_layout_are_images() -> None:
    from doubtless.data import pixels_of

    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert pixels_of(grey).shape == (1, 3, 4)
    assert pixels_of(np.stack([grey] * 3, axis=-1)).shape == (3, 3, 4)
    assert pixels_of(np.ones((3, 5, 4), np.float64)).unique().tolist() == [255]
    for wrong, sentence in [
        (np.zeros((2, 5, 5)), r"got \(2, 5, 5\)"),
        (np.full((4, 4), 300), "0…255"),
        (np.array([["a"]]), "array of numbers"),
        (object(), "got a object"),
    ]:
        with pytest.raises(InputError, match=sentence):
            pixels_of(wrong)
