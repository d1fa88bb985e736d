"""A small index that can be served, made once, and copies of it that a test may change."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import doubtless
from doubtless.calibration.fit import Targets
from doubtless.gallery import Gallery
from doubtless.index.folder import FolderIndex
from doubtless.ingest.create import create_index_of_images
from doubtless.server.service.service import Service
from tests.ingest.pictures import png, tiny_images, write_folder
from tests.server.visiting import Served, pictures_of, serving


@pytest.fixture(scope="session")
def served_index(tiny_run: Path, tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 images of six classes with labels, calibrated; tests must not write into it."""
    folder = tmp_path_factory.mktemp("served")
    write_folder(folder / "pictures", *tiny_images(tiny_npz, 120))
    create_index_of_images(folder / "index", doubtless.load(tiny_run), [folder / "pictures"])
    with FolderIndex.open(folder / "index", writable=True) as index:
        Gallery(index).calibrate(Targets(target_error=0.3))
    return folder / "index"


@pytest.fixture
def own_index(served_index: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(served_index, tmp_path / "index"))


@pytest.fixture
def service(own_index: Path) -> Iterator[Service]:
    with Service.open(own_index) as opened:
        yield opened


@pytest.fixture(scope="session")
def picture(tiny_npz: Path) -> bytes:
    """An image of class-0 as a PNG file."""
    return png(tiny_images(tiny_npz, 1)[0][0])


HOSTILE = "<img src=x onerror=window.hurt=1>"
"""A label that would be a script, were it ever taken for markup."""


@pytest.fixture(scope="session")
def page_gallery(tiny_run: Path, tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes, one of them named by a stranger; a picture that is there twice, one under a wrong name."""
    folder = tmp_path_factory.mktemp("page")
    images, labels = tiny_images(tiny_npz, 120)
    names = [HOSTILE if label == "class-5" else label for label in labels]
    wrong = names.index("class-1", 40)
    names[wrong] = "class-2"
    write_folder(folder / "pictures", [*images, images[0]], [*names, "class-3"])
    create_index_of_images(folder / "index", doubtless.load(tiny_run), [folder / "pictures"])
    with FolderIndex.open(folder / "index", writable=True) as index:
        Gallery(index).calibrate(Targets(target_error=0.3))
    return folder / "index"


@pytest.fixture(scope="module")
def page(page_gallery: Path, tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The demo's page over a copy of that gallery, which tests may add to."""
    folder = tmp_path_factory.mktemp("visited")
    service = Service.open(shutil.copytree(page_gallery, folder / "index"))
    files = pictures_of(service, tiny_npz, folder)
    examples = [(name, files[name].read_bytes()) for name in ("answer", "abstain", "not-in-gallery")]
    with serving(service, files, demo=examples) as served:
        yield served
