"""`doubtless demo --serve`: a finished run becomes a calibrated gallery with pictures to ask about."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.cli.demo import make_gallery, one_of_each
from doubtless.data import open_source
from doubtless.gallery import Gallery
from doubtless.runs import Run
from doubtless.server.page.question import bytes_of
from doubtless.server.service.decoder import Limits
from doubtless.server.service.service import Service


@pytest.fixture(scope="module")
def finished(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("demo") / "run"
    shutil.copytree(tiny_run, folder)
    return Run.open(folder)


def test_the_gallery_is_the_test_part_without_what_is_asked(finished: Run) -> None:
    made = make_gallery(finished)
    with Gallery.open(made.index) as gallery:
        assert len(gallery) == 6 * 20 - 6
        assert gallery.status()["promise"]["target_error"] == 0.1
    assert [name for name, _ in made.examples] == ["0", "1", "2", "3", "4", "5", "0", "1", "2", "3"]
    assert "%" in made.promise
    with Service.open(made.index, read_only=True) as service:
        asked = [bytes_of(address, Limits()) for _, address in made.examples]
        answers = service.answer_images(asked)
        # a picture that was kept out has no twin in the gallery
        assert all(answer.hits[0].score < 1 - 1e-6 for answer in answers)
        assert service.image_of(answers[0].hits[0].id).media_type == "image/png"
    assert make_gallery(finished) == made, "what is there is taken as it is"


def test_one_of_each_is_the_first_of_every_class() -> None:
    source = open_source("digits")
    rows = list(range(100, 400))
    found = one_of_each(source, rows)
    assert [int(source.labels[row]) for row in found] == list(range(10))
    for row in found:
        assert not any(int(source.labels[other]) == int(source.labels[row]) for other in range(100, row))


def test_json_and_serve_exclude_each_other() -> None:
    found = CliRunner().invoke(app, ["demo", "--serve", "--json"])
    assert found.exit_code != 0
    assert "Give one of the two" in str(found.exception)
