"""`doubtless feedback`, `review` and `status`, as one would type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from doubtless.gallery import Gallery
from tests.cli.conftest import Command
from tests.gallery.galleries import gallery as made_up


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("said") / "shop"
    embedding, labels = made_up(600, noise=0.35, points=True)
    labels[:6] = (labels[:6] + 1) % 30
    with Gallery.create(place, embedding=embedding, labels=[f"class {label}" for label in labels]) as made:
        made.calibrate(target_error=0.2)
        made.keep(made.ask(made_up(12, seed=4, points=True)[0]), seed=0)
    return place


def test_what_was_drawn_is_listed_and_what_is_said_is_kept(
    shop: Path, command: Command, tmp_path: Path
) -> None:
    code, out, _ = command("review", shop, "--kind", "answer", "--json")
    assert code == 0
    (first, second, *_) = json.loads(out)["questions"]
    code, out, _ = command(
        "review", shop, "--answer", f"{first['id']}=right", "--answer", f"{second['id']}=class 2"
    )
    assert code == 0
    assert f"Answer {first['id'].removeprefix('answer:')} was right" in out
    id = second["id"].removeprefix("answer:")
    code, out, _ = command("feedback", shop, "--answer", id, "--wrong", "--who", "Ada", "--json")
    assert (code, json.loads(out)[0]["verdict"]) == (0, "wrong")
    code, out, _ = command("feedback", shop, "--export", tmp_path / "said.csv")
    assert (code, out.split()[0]) == (0, "3")
    assert len((tmp_path / "said.csv").read_text().splitlines()) == 4
    code, out, _ = command("feedback", shop)
    assert (code, len(out.splitlines())) == (0, 3)
    code, out, _ = command("status", shop)
    assert code == 0
    assert "Too little was said" in out
    code, out, _ = command("status", shop, "--json")
    assert json.loads(out)["watch"]["standing"] == "too little was said"


def test_labels_are_listed_and_put_right(shop: Path, command: Command) -> None:
    code, out, _ = command("review", shop, "--kind", "label", "--most", "3")
    assert code == 0
    assert "label" in out
    code, out, _ = command("review", shop, "--answer", "item:0=class 0")
    assert (code, "Item 0 is class 0 now" in out) == (0, True)
    with Gallery.open(shop) as opened:
        item = opened.item("0")
        assert item is not None
        assert item.label == "class 0"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("feedback", "--right"), "Name what is judged"),
        (("feedback", "--answer", "x", "--right", "--wrong"), "and not both"),
        (("feedback", "--answer", "x", "--right"), "No answer 'x' was kept"),
        (("feedback", "--answer", "x"), "one of the two"),
        (("review", "--answer", "item:0"), "takes ID=LABEL"),
        (("review", "--kind", "lable"), "did you mean 'label'"),
    ],
)
def test_what_is_meant_otherwise_is_a_sentence(
    shop: Path, command: Command, arguments: tuple[str, ...], told: str
) -> None:
    verb, *rest = arguments
    code, _, errors = command(verb, shop, *rest)
    assert code == 2
    assert told in errors
    assert "Traceback" not in errors
