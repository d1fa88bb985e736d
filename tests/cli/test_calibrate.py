"""`doubtless calibrate` and `doubtless compare` from the command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from doubtless.calibration.evidence.surroundings import search_among
from doubtless.calibration.fit import Targets
from doubtless.calibration.pairs.answer import answer_pair
from doubtless.calibration.pairs.pairs import PairCalibrator
from doubtless.cli import app
from doubtless.errors import InputError
from doubtless.gallery import Gallery
from doubtless.gallery.pairs import surroundings
from doubtless.index.folder import FolderIndex
from tests.gallery.galleries import gallery

runner = CliRunner()


def made(path: Path, *, points: bool = False) -> Path:
    embedding, labels = gallery(200, points=points)
    with FolderIndex.create(path, family=embedding.family, dim=8, variances=None if points else 1) as index:
        index.add(embedding, [f"item {row}" for row in range(200)], labels=[str(x) for x in labels.tolist()])
    return path


@pytest.mark.parametrize("points", [False, True])
def test_calibrate_prints_and_keeps_its_figures(tmp_path: Path, points: bool) -> None:
    index = made(tmp_path / "index", points=points)
    found = runner.invoke(app, ["calibrate", str(index), "--target-error", "0.2", "--json"])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert record["labels"] == 30
    assert 0 <= record["match_ece"] <= 0.2
    assert 0.5 < record["none_auroc"] <= 1
    assert record["abstention"]["target_error"] == 0.2
    with FolderIndex.open(index) as opened:
        part = opened.attached("calibration")
        assert part is not None
        # By the stamp others see that it is another one, by the names of its parts that none is lost.
        beside = {name: part[1][name] for name in ("stamp", "parts")}
        assert part[1] == record | beside
        assert all(opened.attached(name) is not None for name in beside["parts"])
    kept = runner.invoke(app, ["stats", str(index), "--json"])
    assert json.loads(kept.stdout)["calibration"] == record
    assert "most probable label" in runner.invoke(app, ["stats", str(index)]).stdout
    shown = runner.invoke(app, ["calibrate", str(index)])
    assert "most probable label" in shown.stdout
    assert "confidence" in shown.stdout


def test_calibrate_on_pairs_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    index, pairs = made(tmp_path / "index"), tmp_path / "pairs.csv"
    lines = [
        f"item {row},item {(row + 30) % 200},1\nitem {row},item {(row + 1) % 200},0" for row in range(200)
    ]
    pairs.write_text("query,item,same\n" + "\n".join(lines) + "\n")
    found = runner.invoke(app, ["calibrate", str(index), "--pairs", str(pairs), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["pairs"] == 400
    for text, message in (
        ("query,item\na,b\n", "columns query, item and same"),
        ("query,item,same\nitem 1,nobody,1\n", "no item 'nobody'"),
        ("query,item,same\nitem 1,item 2,maybe\n", "same must be 1 or 0"),
    ):
        pairs.write_text(text)
        result = runner.invoke(app, ["calibrate", str(index), "--pairs", str(pairs)])
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)


def test_calibrate_with_queries_and_what_became_of_them(tmp_path: Path) -> None:
    index, place = made(tmp_path / "index"), tmp_path / "queries.safetensors"
    queries, asked = gallery(150, seed=4)
    asked[:40] = 77
    queries.save(place, labels=asked)
    found = runner.invoke(app, ["calibrate", str(index), "--queries", str(place), "--json"])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    assert (record["queries"], record["without_positive"]) == (110, 40)
    assert (record["given"]["unknown"], record["given"]["first_unknown_labels"]) == (40, ["77"])
    kept = runner.invoke(app, ["stats", str(index), "--json"])
    assert json.loads(kept.stdout)["calibration"] == record
    shown = " ".join(runner.invoke(app, ["stats", str(index)]).stdout.split())
    assert "110 queries from" in shown
    assert "40 queries of labels that the gallery does not have: '77'." in shown
    assert "features of the items' images" not in shown  # of which nothing was asked


def test_labels_of_queries_come_from_a_csv(tmp_path: Path) -> None:
    index = made(tmp_path / "index", points=True)
    queries, asked = gallery(60, seed=4, points=True)
    np.save(tmp_path / "queries.npy", queries.location.numpy())
    lines = [f"{row},{label}" for row, label in enumerate(asked.tolist())]
    (tmp_path / "labels.csv").write_text("\n".join(["id,label", *lines]))
    words = ["calibrate", str(index), "--labels", str(tmp_path / "labels.csv")]
    found = runner.invoke(app, [*words, "--queries", str(tmp_path / "queries.npy"), "--json"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["given"]["known"] == 60
    assert "name these with --queries" in str(runner.invoke(app, words).exception)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    index = str(made(tmp_path / "index"))
    for words, message in (
        (["--queries", "a", "--pairs", "b.csv"], "--queries or --pairs, and not both"),
        (["--queries", "a", "--novelty", "features"], "takes auto, directions or leverage"),
        (["--unknown", "1"], "must be at least 0 and below 1, got 1.0"),
        (["--unknown", "-0.1"], "must be at least 0 and below 1, got -0.1"),
    ):
        result = runner.invoke(app, ["calibrate", index, *words])
        assert isinstance(result.exception, InputError)
        assert message in str(result.exception)


@pytest.mark.parametrize(
    ("words", "share"), [([], 0.1), (["--unknown", "0"], 0.0), (["--unknown", "0.5"], 0.5)]
)
def test_the_share_of_unknown_queries_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], share: float
) -> None:
    asked: list[Targets] = []

    def remember(self: Gallery, targets: Targets, **options: object) -> dict[str, object]:
        asked.append(targets)
        return {}

    monkeypatch.setattr(Gallery, "calibrate", remember)
    done = runner.invoke(app, ["calibrate", str(made(tmp_path / "index")), "--json", *words])
    assert done.exit_code == 0, done.output
    assert asked == [Targets(unknown=share)]


def test_compare_two_items_of_an_embedding() -> None:
    embedding, labels = gallery(400)
    pairs = PairCalibrator.fit(embedding, labels)
    one = embedding[[0]]
    around = surroundings(search_among(embedding, labels), one, one)
    assert 0 not in around[0].row.tolist()[0]  # it is not its own neighbour
    alike = answer_pair(one, one, pairs, prior=0.5, around=around)
    assert alike.probability > 0.5  # type: ignore[operator]
    assert alike.decision == "cannot-tell"  # 30 labels are too few to promise 5 %
    assert alike.same is None
    assert "cannot be promised" in alike.reason
    allowed = answer_pair(one, one, pairs, prior=0.5, target_error=0.4, around=around)
    assert (allowed.decision, allowed.same) == ("same", True)
    assert alike.cosine == pytest.approx(1)
    doubtful = answer_pair(one, one, pairs, prior=1e-6, around=around)
    assert doubtful.probability < alike.probability  # type: ignore[operator]
    assert json.loads(json.dumps(asdict(alike)))["uncertainty"] == embedding.uncertainty[[0, 0]].tolist()  # type: ignore[index]


def test_compare_needs_a_model_and_a_calibration(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    Image.fromarray(torch.zeros(8, 8, dtype=torch.uint8).numpy()).save(picture)
    result = runner.invoke(app, ["compare", str(picture), str(picture)])
    assert isinstance(result.exception, InputError)
    assert "--index INDEX or --model RUN" in str(result.exception)
    result = runner.invoke(
        app, ["compare", str(picture), str(picture), "--index", str(made(tmp_path / "index"))]
    )
    assert "no calibration of pairs" in str(result.exception)
