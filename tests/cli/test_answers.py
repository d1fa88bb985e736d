"""An index of images, calibrated: `ask` then says what to think of what it found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import doubtless as library
from doubtless.cli import app
from doubtless.doubt.doubt import ATTACHMENT, Doubt
from doubtless.errors import InputError
from doubtless.gallery import Gallery
from doubtless.gallery.calibration.fit import ItemFeatures, images_are_there
from doubtless.index.folder import FolderIndex
from doubtless.ingest.create import create_index_of_images
from tests.ingest.pictures import tiny_images, write_folder

runner = CliRunner()


@pytest.fixture(scope="module")
def photos(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("answers") / "photos"
    write_folder(root, *tiny_images(tiny_npz, 120))
    return root


@pytest.fixture(scope="module")
def gallery(tiny_run: Path, photos: Path) -> Path:
    path = photos.parent / "gallery"
    create_index_of_images(path, library.load(tiny_run), photos)
    with FolderIndex.open(path, writable=True) as index:
        index.attach("model", {}, {"run": str(tiny_run)})
    return path


def called(*arguments: object) -> dict[str, Any]:
    found = runner.invoke(app, [*map(str, arguments), "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_novelty_is_of_features_where_images_can_be_found(
    gallery: Path, photos: Path, tiny_run: Path
) -> None:
    record = called("calibrate", gallery, "--target-error", 0.3)
    assert record["novelty_of"] == "features"
    with FolderIndex.open(gallery) as index:
        assert images_are_there(index)
        doubt = Doubt.from_state(*index.attached(ATTACHMENT))
        model = library.load(tiny_run)
        features = ItemFeatures(index, model)(index.rows[:5])
    assert doubt.wants_features
    assert doubt.novelty.narrow.shape[0] == features.shape[1]  # wide ones are narrowed
    expected = model.method.encode(
        torch.stack(
            [model.preparation(library.data.decode_image(Path(item.path))) for item in _items(gallery, 5)]
        )
    )
    torch.testing.assert_close(features, expected.detach().cpu())
    torch.testing.assert_close(doubt.novelty.distance(features), torch.zeros(5), atol=2e-3, rtol=0)

    image = next(photos.rglob("*.png"))
    asked = called("ask", gallery, image, "--k", 3)["queries"][0]
    assert asked["decision"] in {"answer", "abstain", "not-in-gallery"}
    assert [0 <= hit["probability"] <= 1 for hit in asked["hits"]] == [True] * 3
    assert set(asked["parts"]) == {"image", "gallery", "distance", "novelty"}  # no model's own doubt
    assert not any("vector" in warning for warning in asked["warnings"])
    shown = runner.invoke(app, ["ask", str(gallery), str(image)])
    assert asked["reason"].split(".")[0] in " ".join(shown.stdout.split())


def test_a_vector_is_told_that_its_image_was_not_seen(gallery: Path) -> None:
    called("calibrate", gallery, "--target-error", 0.3)
    with FolderIndex.open(gallery) as index:
        answers = Gallery(index).ask(index.embedding(index.rows[:4]), k=2)
        told = list(answers)
    assert all("Asked with a vector" in answer.warnings[-1] for answer in told)
    assert bool(torch.isfinite(answers.total_doubt).all())


def test_directions_serve_where_they_are_asked_for(gallery: Path) -> None:
    record = called("calibrate", gallery, "--target-error", 0.3, "--novelty", "directions")
    assert record["novelty_of"] == "directions"
    with FolderIndex.open(gallery) as index:
        told = list(Gallery(index).ask(index.embedding(index.rows[:4]), k=2))
    assert not any("vector" in warning for answer in told for warning in answer.warnings)
    refused = runner.invoke(app, ["calibrate", str(gallery), "--novelty", "guesses"])
    assert isinstance(refused.exception, InputError)


def test_another_score_than_the_calibrated_one_has_no_probability(gallery: Path, photos: Path) -> None:
    called("calibrate", gallery, "--target-error", 0.3)
    image = next(photos.rglob("*.png"))
    asked = called("ask", gallery, image, "--score", "expected-distance")["queries"][0]
    assert asked["probability"] is None
    assert {hit["probability"] for hit in asked["hits"]} == {None}
    assert asked["warnings"] == [
        "Ranked by expected-distance, for which nothing was calibrated: no probability, and no refusal."
    ]


def _items(gallery: Path, count: int) -> list[Any]:
    with FolderIndex.open(gallery) as index:
        return index.items(index.rows[:count])
