"""`doubtless demo --serve`: a finished run becomes a calibrated gallery with pictures to ask about."""

from __future__ import annotations

import asyncio
import io
import shutil
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.cli.demo import KEPT_OUT, ask_about, five_of, make_gallery, some_of_each, tally
from doubtless.data import open_source
from doubtless.gallery import Gallery
from doubtless.runs import Run
from doubtless.server.http.app import create_app
from doubtless.server.service.service import Service


@pytest.fixture(scope="module")
def finished(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("demo") / "run"
    shutil.copytree(tiny_run, folder)
    return Run.open(folder)


def test_the_gallery_is_the_test_part_without_what_is_asked(finished: Run) -> None:
    made = make_gallery(finished)
    with Gallery.open(made.index) as gallery:
        assert len(gallery) == 6 * (20 - KEPT_OUT)
        assert gallery.status()["promise"]["target_error"] == 0.1
    assert [name for name, _ in made.examples] == ["0", "1", "2", "3", "4", "5", "0", "1", "2", "3"]
    assert "%" in made.promise
    with Service.open(made.index, read_only=True) as service:
        answers = service.answer_images([picture for _, picture in made.examples])
        # a picture that was kept out has no twin in the gallery
        assert all(answer.hits[0].score < 1 - 1e-6 for answer in answers)
        assert service.image_of(answers[0].hits[0].id).media_type == "image/png"
    assert make_gallery(finished) == made, "what is there is taken as it is"


def test_the_demo_says_that_it_is_one_and_shows_what_to_ask(finished: Run) -> None:
    made = make_gallery(finished)

    async def talk(app: FastAPI) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            addresses = ("/v1/info", "/v1/examples", "/v1/examples/9/image", "/v1/examples/10/image")
            return [await client.get(address) for address in addresses]

    with Service.open(made.index, read_only=True) as service:
        info, examples, last, beyond = asyncio.run(talk(create_app(service, demo=made.examples)))
        assert info.json()["demo"] is True
        assert not asyncio.run(talk(create_app(service)))[0].json()["demo"]
    told = examples.json()
    assert [one["name"] for one in told["pictures"]] == [name for name, _ in made.examples]
    assert told["pictures"][9]["image"] == "/v1/examples/9/image"
    assert len(told["items"]) == 6
    assert (last.headers["content-type"], last.content) == ("image/png", made.examples[9][1])
    assert beyond.status_code == 404


def test_some_of_each_are_the_first_of_every_class() -> None:
    source = open_source("digits")
    rows = list(range(100, 400))
    found = some_of_each(source, rows, 2)
    assert [int(source.labels[row]) for row in found] == [*range(10), *range(10)]
    for row in found[:10]:
        assert not any(int(source.labels[other]) == int(source.labels[row]) for other in range(100, row))
    assert not set(found[:10]) & set(found[10:])


def test_pictures_that_were_kept_out_are_asked_about(finished: Run) -> None:
    made = make_gallery(finished)
    asked = ask_about(finished, made)
    assert len(asked) == 6 * KEPT_OUT + 4
    assert all(one.file.is_file() for one in asked)
    assert tally(asked).startswith(f"Of {6 * KEPT_OUT} garments that the gallery has not seen ")
    shown = five_of(asked)
    answered = [one for one in shown if one.answer.decision == "answer"]
    assert len({one.answer.label for one in answered}) == len(answered) <= 3
    assert all(one.truth.startswith("the digit") for one in shown if one.answer.decision == "not-in-gallery")


def test_a_terminal_draws_pictures_and_a_file_names_them(finished: Run) -> None:
    from rich.console import Console

    from doubtless.cli.shown import HALF, ROWS, print_shown

    shown = five_of(ask_about(finished, make_gallery(finished)))
    drawn, plain = io.StringIO(), io.StringIO()
    print_shown(shown, Console(file=drawn, force_terminal=True, color_system="truecolor", width=100))
    print_shown(shown, Console(file=plain, width=100))
    assert drawn.getvalue().count(HALF) == len(shown) * 2 * ROWS * ROWS
    assert HALF not in plain.getvalue()
    words = " ".join(plain.getvalue().split())
    for one in shown:
        assert one.file.name in plain.getvalue().replace("\n", "")
        assert " ".join(one.answer.reason.split()) in words


def test_json_and_serve_exclude_each_other() -> None:
    found = CliRunner().invoke(app, ["demo", "--serve", "--json"])
    assert found.exit_code != 0
    assert "Give one of the two" in str(found.exception)
