"""Parquet shards: every family comes back bit for bit, other programs read them, a folder is continued and
kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pyarrow import parquet

import doubtless
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.ingest.bulk import embed_files
from doubtless.ingest.create import create_index
from doubtless.ingest.shards import (
    BadImage,
    EmbeddedShard,
    ShardStore,
    decode_shard,
    encode_shard,
    read_shards,
)
from doubtless.ingest.vectors import imported
from doubtless.runs.model import Model
from tests.ingest.pictures import tiny_images, write_folder

GENERATOR = torch.Generator().manual_seed(0)
LOCATION, VARIANCE = torch.randn(3, 4, generator=GENERATOR), torch.rand(3, 4, generator=GENERATOR)
EMBEDDINGS = {
    "point": Embedding.point(LOCATION),
    "gaussian": Embedding.gaussian(LOCATION.double(), VARIANCE.double()),
    "isotropic": Embedding.gaussian(LOCATION, VARIANCE[:, :1]),
    "half": Embedding.point(LOCATION.half()),
    "projected-gaussian": Embedding.projected_gaussian(LOCATION, VARIANCE),
    "vmf": Embedding.vmf(LOCATION, VARIANCE[:, 0]),
    "empirical": Embedding.empirical(torch.randn(5, 3, 4, generator=GENERATOR)),
}


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> Model:
    return doubtless.load(tiny_run)


@pytest.mark.parametrize("name", list(EMBEDDINGS))
def test_a_shard_comes_back_bit_for_bit(name: str) -> None:
    embedding = EMBEDDINGS[name]
    metadata = [{"shop": "Ål", "price": 3.5}, {}, {"seen": True}]
    bad = [BadImage("z", None, "it is no image")]
    shard = EmbeddedShard(embedding, ["a", "b", "é"], ["x", None, "y"], [None, "p", "q"], metadata, bad)
    found = decode_shard(encode_shard(shard))
    assert found.embedding is not None
    assert found.embedding.family == embedding.family
    for key, value in embedding.parameters.items():
        assert torch.equal(found.embedding.parameters[key], value), key
        assert found.embedding.parameters[key].dtype == value.dtype
    assert (found.ids, found.labels, found.paths) == (shard.ids, shard.labels, shard.paths)
    assert (found.metadata, found.bad) == (metadata, bad)


def test_a_shard_of_bad_images_alone() -> None:
    shard = EmbeddedShard(None, [], [], [], [], [BadImage("z", "p", "broken")])
    assert decode_shard(encode_shard(shard)) == shard


def test_a_newer_shard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doubtless.ingest.shards.SCHEMA", 2)
    data = encode_shard(EmbeddedShard(None, [], [], [], []))
    monkeypatch.undo()
    with pytest.raises(InputError, match="schema 2, this doubtless reads up to 1"):
        decode_shard(data)


def test_parquet_holds_what_safetensors_hold_and_other_programs_read_it(
    model: Model, tiny_npz: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    write_folder(photos, *tiny_images(tiny_npz, 23))
    (photos / "class-0" / "broken.png").write_text("no")
    found = embed_files(model, photos, tmp_path / "parquet", shard_size=10, batch_size=8, format="parquet")
    assert (found.items, found.bad, found.shards, found.found_shards) == (23, 1, 3, 0)
    embed_files(model, photos, tmp_path / "plain", shard_size=10, batch_size=8)
    pairs = zip(read_shards(tmp_path / "parquet"), read_shards(tmp_path / "plain"), strict=True)
    for ours, theirs in pairs:
        assert (ours.ids, ours.labels, ours.paths, ours.bad) == (
            theirs.ids,
            theirs.labels,
            theirs.paths,
            theirs.bad,
        )
        assert torch.equal(ours.embedding.location, theirs.embedding.location)
    assert (tmp_path / "parquet" / "bad.csv").read_bytes() == (tmp_path / "plain" / "bad.csv").read_bytes()
    tables = [parquet.read_table(file) for file in sorted((tmp_path / "parquet").glob("*.parquet"))]
    assert sum(len(table) for table in tables) == 23
    assert tables[0].column_names == ["id", "label", "path", "metadata", "location"]
    assert len(tables[0]["location"][0]) == 8


def test_a_stopped_folder_is_continued_in_its_own_format(
    model: Model, tiny_npz: Path, tmp_path: Path
) -> None:
    write_folder(tmp_path / "photos", *tiny_images(tiny_npz, 12))
    out = tmp_path / "out"
    arguments = {"shard_size": 4, "batch_size": 4}
    embed_files(model, tmp_path / "photos", out, **arguments, format="parquet")
    whole = {file.name: file.read_bytes() for file in out.iterdir()}
    (out / "part-00001.parquet").unlink()
    with pytest.raises(InputError, match="1 of 3 shards are missing"):
        read_shards(out)
    assert embed_files(model, tmp_path / "photos", out, **arguments, format="parquet").found_shards == 2
    assert {file.name: file.read_bytes() for file in out.iterdir()} == whole
    with pytest.raises(InputError, match="was begun as parquet; continue it as it was begun"):
        ShardStore(out).must_fit()
    with pytest.raises(InputError, match=r"no format 'csv'; accepted: safetensors, parquet"):
        ShardStore(out, "csv")  # type: ignore[arg-type]


def test_an_index_is_made_of_a_folder_of_parquet(model: Model, tiny_npz: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", *tiny_images(tiny_npz, 12))
    embed_files(model, [tmp_path / "photos"], tmp_path / "shards", shard_size=5, format="parquet")
    create_index(tmp_path / "index", imported(tmp_path / "shards"))
    with doubtless.FolderIndex.open(tmp_path / "index") as index:
        assert len(index) == 12
        assert set(index.label_names) == {path.name for path in (tmp_path / "photos").iterdir()}
