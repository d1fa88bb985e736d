"""What people hand over in Python: numpy arrays of pictures and of vectors; anything else gets a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from doubtless import Gallery
from doubtless.errors import InputError
from tests.ingest.pictures import tiny_images


def vectors(count: int = 80) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 4
    return 3 * np.eye(4)[labels] + rng.normal(size=(count, 4)), labels


def test_vectors_as_numpy_arrays(tmp_path: Path) -> None:
    values, labels = vectors()
    with Gallery.create(tmp_path / "shop", embedding=values, labels=labels) as shop:
        assert shop.label_counts() == {"0": 20, "1": 20, "2": 20, "3": 20}
        shop.calibrate(target_error=0.2)
        others, their_labels = vectors(120)
        shop.calibrate(queries=others[80:], labels=their_labels[80:])
        answers = shop.ask(values[:3])
        assert len(answers) == 3
        assert shop.ask(torch.from_numpy(values[:3]))[0].hits[0].id == "0"
        shop.add(embedding=values[:2], ids=["a", "b"], labels=["x", "y"])
        assert shop.remove(where={"label": ["x"]}) == ["a"]


def test_labels_of_vectors_by_a_file(tmp_path: Path) -> None:
    values, _ = vectors(4)
    (tmp_path / "labels.csv").write_text("id,label,year\na,cat,1\nb,dog,2\nc,cat,3\nd,dog,4\n")
    with Gallery.create(tmp_path / "shop", embedding=values, labels=tmp_path / "labels.csv") as shop:
        assert [item.label for item in shop.items()] == ["cat", "dog", "cat", "dog"]
        assert shop.item("c").metadata == {"year": 3}


def test_pictures_as_numpy_arrays(tiny_npz: Path, tiny_run: Path, tmp_path: Path) -> None:
    images, labels = tiny_images(tiny_npz, 12)
    with Gallery.create(tmp_path / "shop", images, labels=labels, model=tiny_run) as shop:
        assert [item.label for item in shop.items()] == labels
        assert shop.ask(images[3]).hits[0].score == pytest.approx(
            1, abs=1e-5
        )  # one grey picture: (H, W) bytes
        assert len(shop.ask(images[:2, :, :, None])) == 2
        assert shop.ask(np.stack([images[3]] * 3, axis=-1)).hits[0].id == shop.ask(images[3]).hits[0].id


WRONG = [
    ("ask", 5, "got a int"),
    ("ask", None, "got a NoneType"),
    ("ask", {"a": 1}, "got a dict"),
    ("ask", np.zeros((2, 7)), "dimension 4, got embeddings of 7"),
    ("ask", np.zeros(4), r"shape \(n, D\), got \(4,\)"),
    ("ask", np.array([["a"]]), "model|array of numbers"),
    ("create", "vectors.npy", "import_file"),
    ("create", 3.5, "got a float"),
    ("create", np.zeros((3, 4), np.int64), "array \\(n, D\\) of floats"),
    ("create", [[1.0, 2.0]], "got a list"),
    ("calibrate", np.zeros((3, 4)), "labels|Labels"),
    ("labels", "cat", "no file cat"),
    ("labels", [1.5, 2.5], "word or a whole number"),
    ("labels", ["a"], "one entry per item"),
]


@pytest.mark.parametrize(("verb", "given", "sentence"), WRONG)
def test_wrong_types_get_a_sentence(verb: str, given: object, sentence: str, tmp_path: Path) -> None:
    values, labels = vectors(8)
    with Gallery.create(tmp_path / "shop", embedding=values, labels=labels) as shop:
        calls = {
            "create": lambda: Gallery.create(tmp_path / "other", embedding=given),
            "labels": lambda: Gallery.create(tmp_path / "other", embedding=values[:2], labels=given),
            "calibrate": lambda: shop.calibrate(queries=given),
            "ask": lambda: shop.ask(given),
        }
        with pytest.raises(InputError, match=sentence) as refused:
            calls[verb]()
        assert str(refused.value).endswith(".")
