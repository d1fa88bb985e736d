"""`doubtless ask`: images and vectors against an index, filtered, as a table and as JSON."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import doubtless as library
from doubtless.cli import app
from doubtless.embedding import Embedding
from doubtless.index.folder import FolderIndex
from doubtless.ingest.create import create_index, create_index_of_images
from doubtless.ingest.vectors import imported
from tests.ingest.pictures import tiny_images, write_folder


@pytest.fixture
def ask(command: Any) -> Any:
    return partial(command, "ask")


@pytest.fixture(scope="module")
def photos(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ask") / "photos"
    write_folder(root, *tiny_images(tiny_npz, 36))
    return root


@pytest.fixture(scope="module")
def gallery(tiny_run: Path, photos: Path) -> Path:
    path = photos.parent / "gallery"
    create_index_of_images(path, library.load(tiny_run), photos)
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors with variances and metadata, no model: `gallery`, `v.npy`, `q.npz` in one folder."""
    folder, rng = tmp_path_factory.mktemp("bare"), np.random.default_rng(0)
    np.save(folder / "v.npy", rng.normal(size=(40, 5)))
    np.save(folder / "s.npy", rng.uniform(0.1, 1, size=(40, 5)))
    rows = [f"n{i},{'ab'[i % 2]},{2000 + i // 10},{'true' if i < 20 else 'false'}" for i in range(40)]
    (folder / "labels.csv").write_text("\n".join(["id,label,year,new", *rows]))
    options = {"labels": folder / "labels.csv", "variance": folder / "s.npy"}
    create_index(folder / "gallery", imported(folder / "v.npy", **options))
    np.savez(folder / "q.npz", location=rng.normal(size=(3, 5)), variance=rng.uniform(0.1, 1, size=(3, 5)))
    return folder


def test_help_has_an_example() -> None:
    found = CliRunner().invoke(app, ["ask", "--help"])
    assert "Example: doubtless ask" in " ".join(found.output.split())
    assert "--json" in found.output


def test_an_image_finds_itself_first(ask, gallery: Path, photos: Path) -> None:
    files = sorted(photos.rglob("*.png"))[3:5]
    code, out, err = ask(gallery, *files, "--k", 3, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["score"] == "direction"
    for query, file in zip(found["queries"], files, strict=True):
        first = query["hits"][0]
        assert (query["query"], first["id"]) == (str(file), file.relative_to(photos).as_posix())
        assert (first["rank"], first["label"], first["image"]) == (1, file.parent.name, str(file))
        assert first["score"] == pytest.approx(1, abs=1e-5)
        assert first["expected_squared_distance"] == pytest.approx(0, abs=1e-5)
        assert len(query["hits"]) == 3
        assert query["uncertainty"] is None
    code, out, err = ask(gallery, files[0], "--k", 2)
    assert code == 0, err
    assert files[0].name in out
    assert "expected distance" not in out  # of points it says what the score says


def test_vectors_give_what_the_index_gives(ask, bare: Path) -> None:
    queries = library.Embedding.load(bare / "q.npz")
    for score in ("direction", "expected-distance"):
        code, out, err = ask(
            bare / "gallery", "--embedding", bare / "q.npz", "-k", 4, "--score", score, "--json"
        )
        assert code == 0, err
        with FolderIndex.open(bare / "gallery") as index:
            hits = index.search(queries, 4, score=score)
            for row, query in enumerate(json.loads(out)["queries"]):
                assert [hit["id"] for hit in query["hits"]] == index.ids(hits.row[row])
                distances = [hit["expected_squared_distance"] for hit in query["hits"]]
                expected = queries[row].pairwise_expected_squared_distance(index.embedding(hits.row[row]))[0]
                np.testing.assert_allclose(distances, expected, rtol=1e-5)
                assert query["uncertainty"] == pytest.approx(float(queries.uncertainty[row]))


def test_filters(ask, bare: Path) -> None:
    def ids(*where: str, k: int = 40) -> set[str]:
        words = [word for condition in where for word in ("--where", condition)]
        code, out, err = ask(bare / "gallery", "--embedding", bare / "q.npz", "-k", k, *words, "--json")
        assert code == 0, err
        return {hit["id"] for hit in json.loads(out)["queries"][0]["hits"]}

    assert ids("label=a") == {f"n{i}" for i in range(0, 40, 2)}
    assert len(ids("label=a", "label=b")) == 40
    assert ids("year=2001") == {f"n{i}" for i in range(10, 20)}
    assert ids("year=2001", "year=2002", "new=true", "label=b") == {f"n{i}" for i in range(11, 20, 2)}
    assert ids("year=1900") == set()
    code, _, _ = ask(bare / "gallery", "--embedding", bare / "q.npz", "--where", "year=1900")
    assert code == 0


def test_what_all_are_warned_of_is_said_once(ask, bare: Path) -> None:
    code, out, err = ask(bare / "gallery", "--embedding", bare / "q.npz", "--json")
    assert code == 0, err
    queries = json.loads(out)["queries"]
    assert len(queries) > 1
    (warning,) = queries[0]["warnings"]
    assert all(query["warnings"] == [warning] for query in queries)
    code, out, err = ask(bare / "gallery", "--embedding", bare / "q.npz")
    assert code == 0, err
    assert " ".join(out.split()).count(warning) == 1
    assert out.startswith(f"warning, of all {len(queries)}: ")


def test_a_narrow_terminal_cuts_names_and_never_numbers(
    ask, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "36")
    code, out, err = ask(bare / "gallery", "--embedding", bare / "q.npz", "-k", 3)
    assert code == 0, err
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert rows
    assert len(rows) % 3 == 0
    numbers = [float(cell) for row in rows for cell in row[2:]]  # a cut one does not read as a number
    assert len(numbers) == len(rows) * (len(rows[0]) - 2)


def test_a_run_that_moved_is_named(ask, tiny_run: Path, photos: Path, tmp_path: Path) -> None:
    run, file = tmp_path / "run", next(photos.rglob("*.png"))
    shutil.copytree(tiny_run, run)
    create_index_of_images(tmp_path / "gallery", library.load(run), photos)
    run.rename(tmp_path / "moved")
    code, _, err = ask(tmp_path / "gallery", file, "--json")  # it has kept the model
    assert code == 0, err
    shutil.rmtree(tmp_path / "gallery" / "model")  # as galleries of earlier versions
    code, _, err = ask(tmp_path / "gallery", file)
    assert code == 2
    assert f"{run}, which is not there; name it with --model" in err
    code, _, err = ask(tmp_path / "gallery", file, "--model", tmp_path / "moved", "--json")
    assert code == 0, err
    model = library.load(tiny_run)
    with torch.no_grad():
        model.method.head.bias[0] += 1
    create_index_of_images(tmp_path / "other", model, photos)
    code, _, err = ask(tmp_path / "other", file, "--model", tiny_run)
    assert code == 2
    assert "embeddings of another model" in err


def test_bad_calls_are_one_sentence(ask, gallery: Path, bare: Path, photos: Path, tmp_path: Path) -> None:
    file = next(photos.rglob("*.png"))
    (tmp_path / "broken.jpg").write_text("no image")
    Embedding.point(torch.ones(2, 7)).save(tmp_path / "seven.safetensors")
    np.save(bare / "points.npy", np.ones((2, 5)))
    cases = [
        ([gallery], "Name images to ask about"),
        ([gallery, file, "--embedding", bare / "q.npz"], "and not both"),
        ([gallery, tmp_path / "broken.jpg"], "cannot be read as an image"),
        ([gallery, tmp_path / "none.jpg"], "none.jpg"),
        ([bare / "gallery", file], "does not say which model"),
        ([gallery, "--embedding", tmp_path / "seven.safetensors"], "dimension 8"),
        ([bare / "gallery", "--embedding", bare / "points.npy"], "holds gaussian embeddings, got point"),
        ([gallery, file, "--where", "label"], "key=value"),
        ([gallery, file, "--score", "distance"], "no score 'distance'"),
        ([tmp_path / "nowhere", file], "nowhere"),
    ]
    for arguments, sentence in cases:
        code, out, err = ask(*arguments)
        assert code == 2, (arguments, out, err)
        assert sentence in err, (arguments, err)
        assert err.startswith("doubtless: ")
