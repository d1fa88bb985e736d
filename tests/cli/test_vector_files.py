"""Vectors from any file, by every command alike: .npy, .npz, safetensors, parquet; labels as names or numbers."""

from __future__ import annotations

import json
from pathlib import Path

import faiss
import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import save_file

from doubtless.embedding import Embedding, read_embedding
from doubtless.errors import InputError
from tests.cli.conftest import Command

NAMES = ["garlic", "leek", "onion", "shallot"]


def vectors(count: int, seed: int) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    return (3 * np.eye(6)[labels] + rng.normal(size=(count, 6))).astype(np.float32), [
        NAMES[i] for i in labels
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gallery.* and queries.* in every form; labels beside those that have none."""
    folder = tmp_path_factory.mktemp("vectors")
    for name, count, seed in (("gallery", 120, 0), ("queries", 60, 1)):
        values, labels = vectors(count, seed)
        np.save(folder / f"{name}.npy", values)
        np.savez(folder / f"{name}.npz", embeddings=values, labels=np.array(labels))
        save_file({"features": torch.from_numpy(values)}, folder / f"{name}.safetensors")
        table = pyarrow.table({"vector": [row.tolist() for row in values], "label": labels})
        parquet.write_table(table, folder / f"{name}.parquet")
        rows = "".join(f"{name}-{number},{label}\n" for number, label in enumerate(labels))
        (folder / f"{name}.csv").write_text(f"id,label\n{rows}")
    return folder


FORMS = ["npy", "npz", "safetensors", "parquet"]


def beside(files: Path, name: str, form: str) -> list[object]:
    return ["--labels", files / f"{name}.csv"] if form in ("npy", "safetensors") else []


@pytest.mark.parametrize("form", FORMS)
def test_every_command_takes_every_form(form: str, files: Path, tmp_path: Path, command: Command) -> None:
    shop, queries = tmp_path / "shop", files / f"queries.{form}"
    code, _, err = command(
        "create", shop, "--embeddings", files / f"gallery.{form}", *beside(files, "gallery", form)
    )
    assert code == 0, err
    assert json.loads(command("stats", shop, "--json")[1])["label_counts"] == dict.fromkeys(NAMES, 30)
    code, _, err = command("calibrate", shop, "--queries", queries, *beside(files, "queries", form))
    assert code == 0, err
    answered = json.loads(command("ask", shop, "--embedding", queries, "-k", 1, "--json")[1])["queries"]
    labels = [answer["hits"][0]["label"] for answer in answered]
    assert np.mean([label == name for label, name in zip(labels, vectors(60, 1)[1], strict=True)]) > 0.7
    code, out, err = command(
        "evaluate", "--embeddings", queries, *beside(files, "queries", form), "--bootstrap", 0,
        "--out", tmp_path / "measured", "--json",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["measures"]["recall@1"]["value"] == pytest.approx(recall())


def recall() -> float:
    """Whether the nearest other query by cosine carries the same label, in plain numpy."""
    values, labels = vectors(60, 1)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosine = unit @ unit.T - 2 * np.eye(60)
    return float(
        np.mean([labels[near] == label for near, label in zip(cosine.argmax(1), labels, strict=True)])
    )


def test_names_stand_for_the_same_in_queries_and_gallery(
    files: Path, tmp_path: Path, command: Command
) -> None:
    """Codes of one file are not those of another: the gallery here knows a label less."""
    values, labels = vectors(120, 0)
    fewer = [row for row, label in enumerate(labels) if label != "garlic"]
    np.savez(tmp_path / "fewer.npz", x=values[fewer], y=np.array(labels)[fewer])
    code, out, err = command(
        "evaluate", "--embeddings", files / "queries.npz", "--gallery", tmp_path / "fewer.npz",
        "--bootstrap", 0, "--out", tmp_path / "measured", "--json",
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(out)
    assert found["counts"]["without_positive"] == 15
    assert found["measures"]["recall@1"]["value"] > 0.7


def test_an_l2_index_is_searched_with_plain_vectors(files: Path, tmp_path: Path, command: Command) -> None:
    values, _ = vectors(120, 0)
    index = faiss.IndexFlatL2(6)
    index.add(values)
    faiss.write_index(index, str(tmp_path / "l2.faiss"))
    shop = tmp_path / "shop"
    code, _, err = command(
        "create", shop, "--faiss", tmp_path / "l2.faiss", "--labels", files / "gallery.csv"
    )
    assert code == 0, err
    queries = np.load(files / "queries.npy")
    found = json.loads(command("ask", shop, "--embedding", files / "queries.npy", "-k", 5, "--json")[1])
    distances, rows = index.search(queries, 5)
    for answer, near, row in zip(found["queries"], distances, rows, strict=True):
        assert [hit["id"] for hit in answer["hits"]] == [f"gallery-{number}" for number in row]
        squared = [hit["expected_squared_distance"] for hit in answer["hits"]]
        assert squared == pytest.approx(near.tolist(), rel=1e-3)
    assert command("calibrate", shop, "--queries", files / "queries.npz")[0] == 0
    assert (
        command("add", shop, "--embeddings", files / "queries.npy", "--labels", files / "queries.csv")[0] == 0
    )


def test_labels_as_an_array_beside(files: Path, tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "y.npy", np.arange(60) % 4)
    code, out, _ = command(
        "evaluate", "--embeddings", files / "queries.npy", "--labels", tmp_path / "y.npy",
        "--bootstrap", 0, "--out", tmp_path / "measured", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["measures"]["recall@1"]["value"] == pytest.approx(recall())


def test_wrong_files_are_sentences(files: Path, tmp_path: Path, command: Command) -> None:
    np.save(tmp_path / "few.npy", np.arange(3))
    np.save(tmp_path / "flat.npy", np.zeros(3, np.float32))
    np.savez(tmp_path / "two.npz", a=np.zeros((3, 2)), b=np.zeros((3, 2)))
    parquet.write_table(pyarrow.table({"a": [1, 2]}), tmp_path / "no.parquet")
    ragged = pyarrow.table({"vector": [[1.0, 2.0], [1.0]]})
    parquet.write_table(ragged, tmp_path / "ragged.parquet")
    np.savez(tmp_path / "odd.npz", location=np.zeros((3, 2)), labels=np.array([0.5, 1.5, 2.5]))
    for arguments, sentence in [
        (["--embeddings", files / "queries.npy"], "Give them beside it: --labels"),
        (
            ["--embeddings", files / "queries.npy", "--labels", tmp_path / "few.npy"],
            "has 3 labels for the 60",
        ),
        (["--embeddings", tmp_path / "flat.npy"], "must hold floats (n, D)"),
        (["--embeddings", tmp_path / "two.npz"], "lacks location"),
        (["--embeddings", tmp_path / "no.parquet"], "no column of vectors"),
        (["--embeddings", tmp_path / "ragged.parquet"], "vectors of differing lengths"),
        (["--embeddings", tmp_path / "odd.npz"], "whole numbers or names"),
    ]:
        code, _, err = command("evaluate", *arguments)
        assert code == 2, arguments
        assert sentence in err, err


def test_shards_that_embed_wrote_as_parquet_are_vectors(tmp_path: Path) -> None:
    from doubtless.ingest.shards import EmbeddedShard, encode_shard

    embedding = Embedding.gaussian(torch.randn(3, 4), torch.rand(3, 1))
    shard = EmbeddedShard(embedding, ["a", "b", "c"], ["x", "y", "x"], [None] * 3, [{}] * 3)
    (tmp_path / "part.parquet").write_bytes(encode_shard(shard))
    stored = read_embedding(tmp_path / "part.parquet")
    assert stored.embedding.family == "gaussian"
    assert torch.equal(stored.embedding.parameters["variance"], embedding.parameters["variance"])
    assert (stored.ids, stored.label_words()) == (["a", "b", "c"], ["x", "y", "x"])
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(InputError, match="no readable parquet"):
        read_embedding(tmp_path / "bad.parquet")
