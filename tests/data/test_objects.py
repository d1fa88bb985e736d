"""Sources from Python objects, and kinds of sources that others register."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from doubtless.data import (
    SOURCES,
    ImageSet,
    Preparation,
    SourceKind,
    as_source,
    make_split,
    open_source,
    source_kind,
)
from doubtless.data import objects as objects_module
from doubtless.data.check import check_source
from doubtless.errors import InputError


class Squares(Dataset[tuple[Tensor, int]]):
    """Grey squares whose sides differ; like many, it never raises an IndexError."""

    classes = ("none", "small", "large")

    def __init__(self, count: int = 12) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 8 + index % 2, 8), index / 20), 1 + index % 2


def squares() -> Squares:
    return Squares()


def pairs() -> list[tuple[Tensor, str]]:
    return [(torch.full((3, 4, 4), number, dtype=torch.uint8), "ab"[number % 2]) for number in range(6)]


def wrong() -> int:
    return 5


def test_images_of_one_shape_are_one_tensor() -> None:
    source = as_source(pairs(), name="mine")
    assert source.pixels is not None
    assert source.pixels.shape == (6, 3, 4, 4)
    assert source.label_names == ["a", "b"]
    assert source.labels.tolist() == [0, 1] * 3
    assert source.name == "mine"


def test_a_dataset_of_other_sizes_is_asked_when_needed() -> None:
    source = as_source(squares())
    assert (source.pixels, source.paths, source.channels) == (None, None, 1)
    assert source.label_names == ["small", "large"]
    assert source.image(3).shape == (1, 9, 8)
    assert source.image(3).unique().tolist() == [38]
    images = ImageSet(source, torch.arange(12), Preparation(channels=3, size=8)).in_memory()
    assert images is not None
    assert images.shape == (12, 3, 8, 8)
    split = make_split(source, "closed", validation=0.2, test=0.2, seed=0)
    assert split.fingerprint == as_source(Squares()).fingerprint()
    assert split.fingerprint != as_source(Squares(11)).fingerprint()


def test_large_images_of_one_shape_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "IN_MEMORY", 200)
    source = as_source(pairs())
    assert source.pixels is None
    assert torch.equal(source.image(5), pairs()[5][0])


def test_files_stay_files(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        Image.new("RGB", (5, 4)).save(tmp_path / name)
    source = as_source([(tmp_path / "a.png", 7), (str(tmp_path / "b.png"), 30)])
    assert source.paths == [tmp_path / "a.png", tmp_path / "b.png"]
    assert source.label_names == ["7", "30"]
    assert as_source([tmp_path / "a.png"], labels=["x"]).paths is not None


def test_pillow_images_and_labels_apart() -> None:
    images = [Image.new("L", (6, 6), 10), torch.rand(3, 6, 6), torch.zeros(1, 9, 9, dtype=torch.uint8)]
    source = as_source(images, labels=torch.tensor([2, 10, 2]))
    assert source.label_names == ["2", "10"]
    assert source.channels == 3
    assert [tuple(source.image(number).shape) for number in range(3)] == [(3, 6, 6), (3, 6, 6), (1, 9, 9)]


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "mine has no images"),
        (5, "mine must be a Source, a Dataset with a length or a list"),
        (Endless(), "Dataset with a length"),
        ([torch.zeros(1, 4, 4)], r"must give \(image, label\) pairs, number 0 is a Tensor"),
        (
            [(torch.zeros(1, 4, 4), 1), (torch.full((1, 4, 4), torch.nan), 1)],
            r"Image number 1 of mine .* NaN",
        ),
        ([(torch.zeros(2, 4, 4), 1)], r"must be \(1 or 3, H, W\)"),
        ([(torch.zeros(1, 4, 4, dtype=torch.long), 1)], "of torch.int64"),
        ([(object(), 1)], "got a object"),
        ([(torch.zeros(1, 4, 4), 1), (torch.zeros(1, 4, 4), "a")], "got int, str"),
        ([(torch.zeros(1, 4, 4), 0.5)], "got float"),
    ],
)
def test_what_is_no_data_is_a_sentence(data: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        as_source(data, name="mine")


def test_labels_must_be_as_many_as_images() -> None:
    with pytest.raises(InputError, match="1 images but 2 labels"):
        as_source([torch.zeros(1, 4, 4)], labels=[1, 2])


def test_a_function_is_a_source_by_its_import_path() -> None:
    name = f"module:{__name__}.pairs"
    source = open_source(name)
    assert (source.name, len(source)) == (name, 6)
    assert open_source(name).fingerprint() == source.fingerprint()
    assert check_source(name).counts == {"images": 6, "classes": 2}
    with pytest.raises(InputError, match="got a int"):
        open_source(f"module:{__name__}.wrong")
    assert "has no nothing" in check_source(f"module:{__name__}.nothing").problems[0]


def test_data_that_was_an_object_cannot_be_opened_by_name() -> None:
    with pytest.raises(InputError, match="given as a Python object"):
        open_source("python")


def test_a_kind_of_source_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SOURCES, "_items", dict(SOURCES._items))

    @source_kind("noise:COUNT", "so many images of noise")
    def noise(request: Any) -> Any:
        return [(torch.zeros(1, 4, 4), number % 2) for number in range(int(request.rest))]

    assert isinstance(noise, SourceKind)
    assert (len(open_source("noise:4")), open_source("noise:4").name) == (4, "noise:4")
    with pytest.raises(InputError, match="noise is written noise:COUNT, got 'noise'"):
        open_source("noise")
    with pytest.raises(InputError, match="digits is written digits, got 'digits:3'"):
        open_source("digits:3")
    with pytest.raises(InputError, match="'folder' is taken"):
        source_kind("folder:PATH", "another")(noise.open)
    with pytest.raises(InputError, match="form begins with its name"):
        SOURCES.register("other", noise)
