"""The same picture gets the same answer from Python, from the command line and over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from httpx import ASGITransport, AsyncClient
from typer.testing import CliRunner

import doubtless
from doubtless.cli import app
from doubtless.errors import InputError
from doubtless.server.http.app import create_app
from doubtless.server.service.service import Service
from tests.ingest.pictures import tiny_images, write_folder

runner = CliRunner()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, tiny_npz: Path) -> Path:
    folder = tmp_path_factory.mktemp("three-ways") / "photos"
    write_folder(folder, *tiny_images(tiny_npz, 120))
    return folder


@pytest.fixture(scope="module")
def gallery(tiny_run: Path, photos: Path) -> Path:
    """Made and calibrated from Python."""
    place = photos.parent / "gallery"
    with doubtless.Gallery.create(place, photos, model=tiny_run) as made:
        record = made.calibrate(target_error=0.3)
    assert record["novelty_of"] == "features"
    return place


def from_python(gallery: Path, photo: Path) -> dict[str, Any]:
    with doubtless.open(gallery) as opened:
        return opened.ask(photo, k=3).to_json()


def from_command_line(gallery: Path, photo: Path) -> dict[str, Any]:
    done = runner.invoke(app, ["ask", str(gallery), str(photo), "--k", "3", "--json"])
    assert done.exit_code == 0, done.output
    (told,) = json.loads(done.stdout)["queries"]
    assert told.pop("query") == str(photo)
    return told


def over_http(gallery: Path, photo: Path) -> dict[str, Any]:
    async def ask(service: Service) -> dict[str, Any]:
        transport = ASGITransport(app=create_app(service, page=False))
        async with AsyncClient(transport=transport, base_url="http://localhost") as client:
            reply = await client.post("/v1/search", files={"image": photo.read_bytes()}, data={"k": 3})
        assert reply.status_code == 200, reply.text
        return reply.json()

    with Service.open(gallery, read_only=True) as service:
        return asyncio.run(ask(service))


def without_places(answer: dict[str, Any]) -> dict[str, Any]:
    """Where pictures lie is a path here and an address there."""
    for hit in answer["hits"]:
        assert hit.pop("image")
        assert hit.pop("has_image", True)
    return answer


def test_python_command_line_and_http_say_the_same(gallery: Path, photos: Path) -> None:
    photo = sorted(photos.rglob("*.png"))[7]
    wanted = without_places(from_python(gallery, photo))
    assert wanted["decision"] in {"answer", "abstain", "not-in-gallery"}
    assert wanted["doubt"] is not None
    assert json.loads(json.dumps(wanted)) == wanted
    for told in (from_command_line(gallery, photo), over_http(gallery, photo)):
        assert list(told) == list(wanted)
        assert _close(without_places(told), wanted)


def _close(told: Any, wanted: Any) -> bool:
    """Equal, numbers to what a batch of another size may round differently."""
    if isinstance(wanted, dict):
        return list(told) == list(wanted) and all(_close(told[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(told) == len(wanted) and all(map(_close, told, wanted))
    return told == (pytest.approx(wanted, rel=1e-4, abs=1e-6) if isinstance(wanted, float) else wanted)


def test_calibrating_from_the_command_line_fits_the_same_doubt(
    gallery: Path, photos: Path, tmp_path: Path, tiny_run: Path
) -> None:
    doubtless.Gallery.create(tmp_path / "other", photos, model=tiny_run).close()
    done = runner.invoke(app, ["calibrate", str(tmp_path / "other"), "--target-error", "0.3", "--json"])
    assert done.exit_code == 0, done.output
    with doubtless.open(gallery) as opened:
        assert json.loads(done.stdout) == json.loads(json.dumps(opened.status()["calibration"]))
    photo = sorted(photos.rglob("*.png"))[7]
    assert from_python(tmp_path / "other", photo) == from_python(gallery, photo)


def test_vectors_of_another_model_than_the_one_named_are_refused(
    gallery: Path, tiny_run: Path, tmp_path: Path
) -> None:
    with doubtless.open(gallery) as opened:
        embedding = opened.index.embedding()
    place = tmp_path / "vectors"
    with doubtless.Gallery.create(place, embedding=embedding, model=tiny_run) as made:
        assert made.index.model is not None
        model = made.model
        with torch.no_grad():
            model.method.head.bias += 1  # another one from here on
    changed = doubtless.Gallery.open(place, model=model, writable=True)
    with changed, pytest.raises(InputError, match="holds embeddings of another model"):
        changed.add(embedding=embedding[:1], ids=["new"])
    with doubtless.Gallery.open(place, model=tiny_run, writable=True) as opened:
        assert opened.add(embedding=embedding[:1], ids=["new"]).items == 1
