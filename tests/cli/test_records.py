"""`--csv` beside `--json`: every verb has both, and both say the same."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest
import typer
from PIL import Image

from doubtless.cli import app
from doubtless.cli.records import flat
from doubtless.gallery import Gallery
from tests.cli.conftest import Command
from tests.gallery.galleries import gallery as made_up


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Every command, groups too, with what one types."""
    yield name, command
    for inner, found in getattr(command, "commands", {}).items():
        yield from commands(found, f"{name} {inner}")


def test_every_verb_with_json_has_csv() -> None:
    options = {
        name: {word for option in found.params for word in option.opts}
        for name, found in commands(typer.main.get_command(app), "doubtless")
    }
    with_json = {name for name, words in options.items() if "--json" in words}
    assert {
        f"doubtless {verb}" for verb in ("stats", "calibrate", "sources check", "index stats")
    } <= with_json
    assert [name for name in with_json if "--csv" not in options[name]] == []


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("records") / "shop"
    embedding, labels = made_up(300, noise=0.35, points=True)
    labels[:6] = (labels[:6] + 1) % 30
    with Gallery.create(place, embedding=embedding, labels=[f"class {label}" for label in labels]) as made:
        made.calibrate(target_error=0.2)
        made.keep(made.ask(made_up(12, seed=4, points=True)[0]), seed=0)
    return place


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def words(record: dict[str, object]) -> dict[str, str]:
    """A record as CSV says it."""
    return {name: "" if value is None else str(value) for name, value in flat(record).items()}


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("stats", ()),
        ("status", ()),
        ("calibrate", ("--target-error", "0.2")),
        ("recalibrate", ()),
        ("show", ("7", "-k", "2")),
        ("compact", ()),
        ("relabel", ("7", "--label", "class 7")),
    ],
)
def test_one_record_is_a_heading_and_a_line(
    shop: Path, command: Command, verb: str, more: tuple[str, ...]
) -> None:
    code, as_json, err = command(verb, shop, *more, "--json")
    assert code == 0, err
    code, as_csv, err = command(verb, shop, *more, "--csv")
    assert code == 0, err
    (line,) = read(as_csv)
    said = words(json.loads(as_json))
    changing = {name for name in said if name.rpartition(".")[2] in CHANGING}
    assert {name: line[name] for name in said if name not in changing} == {
        name: value for name, value in said.items() if name not in changing
    }
    assert set(line) == set(said)


CHANGING = {"bytes", "bytes_before", "seconds"}
"""Columns that differ from one call to the next."""


def test_nested_records_are_flat_columns(shop: Path, command: Command) -> None:
    (line,) = read(command("stats", shop, "--csv")[1])
    assert line["items"] == "300"
    assert line["label_counts.class 9"] == "10"
    assert float(line["calibration.abstention.target_error"]) == 0.2
    (line,) = read(command("status", shop, "--csv")[1])
    assert line["watch.standing"] == "too little was said"


def test_questions_and_what_was_said_are_a_line_each(shop: Path, command: Command) -> None:
    assert read(command("feedback", shop, "--csv")[1]) == []
    questions = json.loads(command("review", shop, "--json")[1])["questions"]
    told = command("review", shop, "--csv")[1]
    assert told.splitlines()[0] == "id,kind,tells,question,label,options,other"
    assert [line["id"] for line in read(told)] == [one["id"] for one in questions]
    assert json.loads(read(told)[0]["options"] or "[]") == questions[0]["options"]
    answer = next(one["id"] for one in questions if one["kind"] == "answer").removeprefix("answer:")
    (line,) = read(command("feedback", shop, "--answer", answer, "--wrong", "--who", "Ada", "--csv")[1])
    assert (line["who"], line["verdict"], line["shown.id"]) == ("Ada", "wrong", answer)


def test_two_images_compared_are_a_line(tiny_run: Path, tmp_path: Path, command: Command) -> None:
    draw = np.random.default_rng(0)
    for name in ("a.png", "b.png"):
        Image.fromarray(draw.integers(0, 255, (16, 16), dtype=np.uint8)).save(tmp_path / name)
    code, out, err = command("compare", tmp_path / "a.png", tmp_path / "b.png", "--model", tiny_run, "--csv")
    assert code == 0, err
    (line,) = read(out)
    assert line["first"] == str(tmp_path / "a.png")
    assert 0 <= float(line["probability"]) <= 1
    assert line["decision"]


def test_what_was_made_and_taken_out_is_a_line(tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    (line,) = read(command("create", tmp_path / "shop", "--embeddings", tmp_path / "v.npy", "--csv")[1])
    assert (line["items"], line["bad"]) == ("20", "0")
    (line,) = read(command("remove", tmp_path / "shop", "0", "1", "--csv")[1])
    assert (line["removed"], line["items"]) == ("2", "18")
    (line,) = read(command("migrate", tmp_path / "shop", tmp_path / "copy", "--csv")[1])
    assert line["items"] == "18"


@pytest.mark.parametrize(
    "verb", ["stats", "calibrate", "status", "review", "feedback", "remove", "recalibrate"]
)
def test_both_at_once_are_refused_before_anything_is_done(shop: Path, command: Command, verb: str) -> None:
    code, out, err = command(verb, shop, "--json", "--csv")
    assert (code, out) == (2, "")
    assert err == "doubtless: Give --json or --csv, and not both.\n"
