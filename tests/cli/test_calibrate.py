"""`doubtless calibrate` and `doubtless compare` from the command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from doubtless.calibration.pair_answer import answer_pair
from doubtless.calibration.pairs import PairCalibrator
from doubtless.calibration.surroundings import search_among
from doubtless.cli import app
from doubtless.errors import InputError
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
def test_calibrate_prints_and_keeps_both_kinds_of_figures(tmp_path: Path, points: bool) -> None:
    index = made(tmp_path / "index", points=points)
    found = runner.invoke(app, ["calibrate", str(index), "--target-error", "0.2", "--json"])
    assert found.exit_code == 0, found.output
    record = json.loads(found.stdout)
    for kind in ("exchangeable", "class_disjoint"):
        assert 0 <= record[kind]["match_ece"] <= 1
        assert 0 <= record[kind]["match_brier"] <= 0.25
    assert record["abstention"]["target_error"] == 0.2
    with FolderIndex.open(index) as opened:
        part = opened.attached("calibration")
        assert part is not None
        assert part[1] == record
    kept = runner.invoke(app, ["index", "stats", str(index), "--json"])
    assert json.loads(kept.stdout)["calibration"] == record
    assert "class-disjoint" in runner.invoke(app, ["index", "stats", str(index)]).stdout
    shown = runner.invoke(app, ["calibrate", str(index)])
    assert "class-disjoint" in shown.stdout
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
