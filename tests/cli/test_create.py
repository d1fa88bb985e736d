"""`doubtless create`, `add`, `remove`, `stats` and `compact`, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.index.folder import FolderIndex
from tests.ingest.pictures import tiny_images, write_folder


@pytest.fixture
def doubtless(command: Any) -> Any:
    return command


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "v.npy", rng.normal(size=(30, 5)))
    np.save(tmp_path / "s.npy", rng.uniform(0.1, 1, size=30))
    rows = [f"n{i},class {i % 3},{2000 + i}" for i in range(30)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,label,year", *rows]))
    return tmp_path


@pytest.mark.parametrize("verb", ["create", "add", "remove", "stats", "compact"])
def test_help_has_an_example(verb: str) -> None:
    found = CliRunner().invoke(app, [verb, "--help"])
    assert found.exit_code == 0
    assert f"Example: doubtless {verb}" in " ".join(found.output.split())
    assert "--json" in found.output


def test_names_of_earlier_versions_still_work(command: Any, files: Path) -> None:
    code, out, _ = command("index", "create", files / "gallery", "--embeddings", files / "v.npy", "--json")
    assert (code, json.loads(out)["items"]) == (0, 30)
    assert command("index", "stats", files / "gallery", "--json")[0] == 0
    assert command("search", files / "gallery", "--embedding", files / "v.npy", "--json")[0] == 0
    shown = CliRunner().invoke(app, ["--help"]).output
    assert not {"index", "search"} & {line.split()[0] for line in shown.splitlines() if line.split()}


def test_a_life_of_vectors(doubtless, files: Path) -> None:
    gallery = files / "gallery"
    options = [
        "--embeddings",
        files / "v.npy",
        "--labels",
        files / "labels.csv",
        "--variance",
        files / "s.npy",
    ]
    code, out, err = doubtless("create", gallery, *options, "--score", "expected-distance")
    assert (code, err) == (0, "")
    assert "30 items created" in out
    code, out, err = doubtless("create", gallery, *options)
    assert code == 2
    assert "exists already" in err
    code, out, _ = doubtless("stats", gallery, "--json")
    found = json.loads(out)
    assert (found["items"], found["family"], found["dim"], found["labels"]) == (30, "gaussian", 5, 3)
    assert found["score"] == "expected-distance"
    (files / "gone.txt").write_text("n3\nn4\n")
    code, out, err = doubtless("remove", gallery, "n0", "--from", files / "gone.txt", "--json")
    assert json.loads(out) == {"index": str(gallery), "removed": 3, "items": 27}
    code, out, err = doubtless("remove", gallery, "n0", "n1")
    assert code == 2
    assert "no items 'n0'" in err
    code, out, _ = doubtless("add", gallery, *options, "--existing", "skip", "--json")
    assert (json.loads(out)["items"], json.loads(out)["skipped"]) == (3, 27)
    code, out, _ = doubtless("add", gallery, *options, "--existing", "update")
    assert "30 items added" in out
    code, out, _ = doubtless("compact", gallery, "--json")
    assert json.loads(out)["items"] == 30
    code, out, _ = doubtless("stats", gallery)
    assert "expected-distance" in out
    with FolderIndex.open(gallery) as index:
        assert index.items(index.rows)[0].metadata == {"year": 2000}


def test_from_faiss(doubtless, files: Path) -> None:
    own = faiss.IndexFlatL2(5)
    own.add(np.load(files / "v.npy").astype(np.float32))
    faiss.write_index(own, str(files / "my.index"))
    code, out, err = doubtless(
        "create", files / "gallery", "--faiss", files / "my.index", "--labels", files / "labels.csv", "--json"
    )
    assert (code, err) == (0, "")
    assert "ranks by L2 distance" in json.loads(out)["notes"][0]
    with FolderIndex.open(files / "gallery") as index:
        assert index.settings.score == "expected-distance"
        assert index.ids()[:2] == ["n0", "n1"]


def test_images_create_and_add(doubtless, tiny_run: Path, tiny_npz: Path, tmp_path: Path) -> None:
    images, labels = tiny_images(tiny_npz, 24)
    write_folder(tmp_path / "first", images[:12], labels[:12])
    write_folder(tmp_path / "more", images[12:], [f"new {label}" for label in labels[12:]])
    (tmp_path / "more" / "broken.jpg").write_text("no image")
    gallery = tmp_path / "gallery"
    code, _, err = doubtless("create", gallery, "--model", tiny_run, "--images", tmp_path / "first")
    assert (code, err) == (0, "")
    code, out, err = doubtless("add", gallery, "--images", tmp_path / "more", "--json")
    assert (code, err) == (0, "")
    assert (json.loads(out)["items"], json.loads(out)["bad"]) == (12, 1)
    assert "broken.jpg" in Path(json.loads(out)["bad_list"]).read_text()
    code, out, err = doubtless("add", gallery, "--images", tmp_path / "more")
    assert code == 2
    assert "already" in err
    code, out, _ = doubtless("stats", gallery, "--json")
    assert json.loads(out)["run"] == str(tiny_run)
    assert json.loads(out)["items"] == 24


def test_another_model_is_refused(doubtless, tiny_run: Path, tiny_npz: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_folder(tmp_path / "photos", *tiny_images(tiny_npz, 6))
    other = tmp_path / "other"
    other.mkdir()
    for file in ("config.yaml", "model.json"):
        (other / file).write_bytes((tiny_run / file).read_bytes())
    weights = load_file(tiny_run / "model.safetensors")
    save_file(weights | {"head.bias": weights["head.bias"] + 1}, other / "model.safetensors")
    gallery = tmp_path / "gallery"
    assert doubtless("create", gallery, "--model", tiny_run, "--images", tmp_path / "photos")[0] == 0
    code, _, err = doubtless("add", gallery, "--images", tmp_path / "photos", "--model", other)
    assert code == 2
    assert "embeddings of another model" in err


def test_bad_calls_are_one_sentence(doubtless, files: Path, tiny_run: Path) -> None:
    gallery, vectors = files / "gallery", ["--embeddings", files / "v.npy"]
    (files / "empty").mkdir()
    cases = [
        (["create", gallery], "one of images, --embeddings and --faiss"),
        (["create", gallery, *vectors, "--images", "digits"], "one of images, --embeddings and --faiss"),
        (["create", gallery, "--images", files / "empty", "--model", tiny_run], "holds no images"),
        (
            ["create", gallery, "--images", "digits", "--labels", "x.csv", "--model", tiny_run],
            "There is no file x.csv",
        ),
        (["create", gallery, "--faiss", files / "v.npy", "--family", "gaussian"], "go with --embeddings"),
        (["create", gallery, "--faiss", files / "v.npy"], "no readable FAISS index"),
        (["create", gallery, *vectors, "--kind", "hsnw"], "did you mean 'hnsw'"),
        (["create", gallery, *vectors, "--score", "directions"], "did you mean 'direction'"),
        (["create", gallery, "--embeddings", files / "none.npy"], "There is no file"),
        (["add", files / "nowhere", *vectors], "nowhere"),
        (["remove", gallery], "There is no gallery"),
        (["remove", gallery, "--from", files / "none.txt"], "There is no gallery"),
        (["stats", files / "nowhere"], "nowhere"),
        (["compact", files / "nowhere"], "nowhere"),
    ]
    for arguments, sentence in cases:
        code, out, err = doubtless(*arguments)
        assert code == 2, (arguments, out, err)
        assert sentence in err, (arguments, err)
        assert err.startswith("doubtless: ")
        assert not gallery.exists()
        assert not (files / ".gallery.creating").exists()
