"""From where users are: vectors and a CSV, npz with ids, folders of embed, FAISS indexes."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

import doubtless
from doubtless.data.streams.tables import read_labels
from doubtless.embedding import Embedding, save_embedding
from doubtless.errors import InputError, StoreError
from doubtless.index.database.lock import WriterLock
from doubtless.index.folder import FolderIndex
from doubtless.ingest.bulk import embed_files
from doubtless.ingest.create import MODEL, create_index, create_index_of_images, fill
from doubtless.ingest.vectors import imported, joined, read_faiss, read_vectors
from doubtless.runs.model import Model, model_fingerprint
from tests.ingest.pictures import tiny_images, write_folder


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> Model:
    return doubtless.load(tiny_run)


def vectors(count: int = 50, dim: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def write_labels(path: Path, ids: list[str], extra: str = "") -> Path:
    rows = [f"{name},class {number % 4},{number},{number / 2},0{number},x" for number, name in enumerate(ids)]
    path.write_text("\ufeffid,label,year,price,code,path\n" + "\n".join(rows) + "\n" + extra)
    return path


def test_npy_and_csv_row_by_row(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", vectors().astype(np.float64))
    table = write_labels(tmp_path / "labels.csv", [f"item {i}" for i in range(50)])
    done = create_index(tmp_path / "gallery", imported(tmp_path / "v.npy", labels=table))
    assert (done.items, done.bad) == (50, [])
    with FolderIndex.open(tmp_path / "gallery") as index:
        assert (index.family, index.dim, len(index)) == ("point", 6, 50)
        hits = index.search(Embedding.point(torch.from_numpy(vectors()[7:8])), 1)
        (item,) = index.items(hits.row[0])
        assert (item.id, item.label, item.path) == ("item 7", "class 3", "x")
        assert item.metadata == {"year": 7, "price": 3.5, "code": "07"}
        assert torch.equal(index.embedding().location, torch.from_numpy(vectors()))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["gallery", "labels.csv", "v.npy"]


@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 6)])
@pytest.mark.parametrize("family", [None, "projected-gaussian"])
def test_variances_beside_means(tmp_path: Path, shape: tuple[int, ...], family: str | None) -> None:
    np.save(tmp_path / "v.npy", vectors())
    doubt = np.random.default_rng(1).uniform(0.1, 1, shape)
    np.save(tmp_path / "s.npy", doubt)
    create_index(tmp_path / "i", imported(tmp_path / "v.npy", variance=tmp_path / "s.npy", family=family))
    with FolderIndex.open(tmp_path / "i") as index:
        assert index.family == (family or "gaussian")
        stored = index.embedding()
        assert stored.parameters["variance"].shape == (50, shape[1] if len(shape) > 1 else 1)
        np.testing.assert_allclose(stored.parameters["variance"], doubt.reshape(50, -1), rtol=1e-6)


def test_vectors_with_ids_are_joined_by_id(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(50)]
    np.savez(tmp_path / "v.npz", location=vectors(), ids=np.array(names))
    save_embedding(
        tmp_path / "v.safetensors", Embedding.vmf(torch.from_numpy(vectors()), torch.ones(50)), ids=names
    )
    shuffled = [names[i] for i in np.random.default_rng(3).permutation(50)]
    table = write_labels(tmp_path / "labels.csv", shuffled, extra="too much,class 9,1,1,1,x\n")
    for file in ("v.npz", "v.safetensors"):
        (shard,) = imported(tmp_path / file, labels=table)
        assert shard.ids == names
        assert shard.labels == [f"class {shuffled.index(name) % 4}" for name in names]
    write_labels(tmp_path / "short.csv", names[:45])
    with pytest.raises(InputError, match=r"no row for 5 of the vectors.*'n45', 'n46', 'n47' and 2 more"):
        imported(tmp_path / "v.npz", labels=tmp_path / "short.csv")
    np.savez(tmp_path / "own.npz", location=vectors(), labels=np.arange(50) % 3)
    (shard,) = imported(tmp_path / "own.npz")
    assert shard.ids[:2] == ["0", "1"]
    assert shard.labels[:4] == ["0", "1", "2", "0"]


def test_bad_files_are_sentences_and_leave_nothing(tmp_path: Path) -> None:
    here = tmp_path / "files"
    here.mkdir()
    good, ids = here / "v.npy", [str(i) for i in range(50)]
    np.save(good, vectors())
    np.save(here / "flat.npy", np.zeros(4))
    np.save(here / "ints.npy", np.zeros((4, 2), int))
    np.save(here / "nan.npy", np.full((50, 6), np.nan))
    np.save(here / "zero.npy", np.zeros((50, 6)))
    np.save(here / "short.npy", np.ones(49))
    np.savez(here / "twice.npz", location=vectors(2), ids=np.array(["a", "a"]))
    (here / "broken.npy").write_bytes(b"no")
    write_labels(here / "ok.csv", ids)
    write_labels(here / "few.csv", ids[:49])
    write_labels(here / "twice.csv", [*ids[:49], "7"])
    (here / "name.csv").write_text("name,label\n")
    (here / "klass.csv").write_text("id,klass\n")
    (here / "empty.csv").write_text("")
    (here / "cells.csv").write_text("id,label\na,b\nc\n")
    (here / "blank.csv").write_text("id,label\n,b\n")
    (here / "latin.csv").write_bytes("id,label\nä,b\n".encode("latin-1"))
    cases = [
        ({"embeddings": here / "none.npy"}, "no file"),
        ({"embeddings": here / "flat.npy"}, "must hold floats"),
        ({"embeddings": here / "ints.npy"}, "must hold floats"),
        ({"embeddings": here / "broken.npy"}, "no readable .npy"),
        ({"embeddings": here / "nan.npy"}, "NaN"),
        ({"embeddings": here / "zero.npy"}, "no direction"),
        ({"embeddings": here / "twice.npz"}, "'a' more than once"),
        ({"embeddings": here}, "no embed.json"),
        ({"embeddings": good, "variance": here / "short.npy"}, "variance must have shape"),
        ({"embeddings": good, "family": "gaussian"}, "needs --variance"),
        ({"embeddings": good, "variance": here / "v.npy", "family": "vmf"}, "got family 'vmf'"),
        ({"embeddings": here / "twice.npz", "variance": good}, "go with .npy"),
        ({"embeddings": good, "labels": here / "few.csv"}, "49 rows for 50 vectors"),
        ({"embeddings": good, "labels": here / "twice.csv"}, "'7' more than once"),
        ({"embeddings": good, "labels": here / "name.csv"}, "no column 'id'"),
        ({"embeddings": good, "labels": here / "klass.csv"}, "no column 'label'"),
        ({"embeddings": good, "labels": here / "empty.csv"}, "no column 'id'"),
        ({"embeddings": good, "labels": here / "cells.csv"}, "Line 3 .* has 1 cells, its heading 2"),
        ({"embeddings": good, "labels": here / "blank.csv"}, "empty id in row 1"),
        ({"embeddings": good, "labels": here / "latin.csv"}, "no readable CSV"),
    ]
    for arguments, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            create_index(tmp_path / "gallery", imported(**arguments))
        assert sorted(file.name for file in tmp_path.iterdir()) == ["files"], arguments


def test_rows_are_named_by_the_first_column_that_may(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label,id,path\na,1,x.png\nb,2,y.png\n")
    table = read_labels(tmp_path / "t.csv", named_by=("path", "image", "id"))
    assert table.ids == ["x.png", "y.png"]
    assert table.labels == ["a", "b"]
    assert table.metadata == [{"id": 1}, {"id": 2}]
    assert read_labels(tmp_path / "t.csv").paths == ["x.png", "y.png"]
    with pytest.raises(
        InputError, match="no column 'image'; its first line must name the columns image, label"
    ):
        read_labels(tmp_path / "t.csv", named_by=("image",))


def test_an_existing_index_is_left_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", vectors())
    create_index(tmp_path / "gallery", imported(tmp_path / "v.npy"))
    before = contents(tmp_path / "gallery")
    for path in (tmp_path / "gallery", tmp_path / "v.npy", tmp_path):
        with pytest.raises(InputError, match="exists already"):
            create_index(path, imported(tmp_path / "v.npy"))
    assert contents(tmp_path / "gallery") == before


def test_a_second_creation_at_the_same_time_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", vectors())
    (tmp_path / ".gallery.creating").mkdir()
    lock = WriterLock(tmp_path / ".gallery.creating" / "creating.lock")
    with pytest.raises(StoreError, match=r"gallery\.creating has a writer already"):
        create_index(tmp_path / "gallery", imported(tmp_path / "v.npy"))
    lock.release()
    (tmp_path / ".gallery.creating" / "index").mkdir()
    (tmp_path / ".gallery.creating" / "index" / "index.sqlite").write_text("torn")
    create_index(tmp_path / "gallery", imported(tmp_path / "v.npy"))
    assert not (tmp_path / ".gallery.creating").exists()


def test_embedded_folder_and_images_give_the_same_index(model: Model, tiny_npz: Path, tmp_path: Path) -> None:
    ids = write_folder(tmp_path / "photos", *tiny_images(tiny_npz, 20))
    (tmp_path / "photos" / "broken.png").write_text("no")
    embed_files(model, tmp_path / "photos", tmp_path / "out", batch_size=8, shard_size=8)
    create_index(tmp_path / "a", imported(tmp_path / "out"))
    done = create_index_of_images(tmp_path / "b", model, tmp_path / "photos", batch_size=8, shard_size=8)
    assert (done.items, len(done.bad)) == (20, 1)
    assert "broken.png" in (tmp_path / "b" / "bad.csv").read_text()
    with FolderIndex.open(tmp_path / "a") as a, FolderIndex.open(tmp_path / "b") as b:
        assert a.ids() == b.ids() == ids
        assert [item.label for item in b.items(b.rows)] == [name.split("/")[0] for name in ids]
        assert torch.equal(a.embedding().location, b.embedding().location)
        assert b.model == model_fingerprint(model.method)
        assert b.attached(MODEL)[1]["run"] == str(model.method.folder.absolute())  # type: ignore[index]
        assert a.attached(MODEL) is None
    assert not (tmp_path / ".b.creating").exists()


def test_creation_from_images_stopped_and_repeated_goes_on(
    model: Model, tiny_npz: Path, tmp_path: Path
) -> None:
    write_folder(tmp_path / "photos", *tiny_images(tiny_npz, 60))
    gallery, workshop = tmp_path / "gallery", tmp_path / ".gallery.creating" / "embedded"
    with pytest.raises(KeyboardInterrupt):
        create_index_of_images(
            gallery, model, tmp_path / "photos", shard_size=10, batch_size=8, meter=Watch(stop_at=25)
        )
    assert not gallery.exists()
    kept = {file.name: file.stat().st_mtime_ns for file in workshop.glob("part-*.json")}
    assert sorted(kept) == ["part-00000.json", "part-00001.json"]
    with pytest.raises(InputError, match="begun with another batch size"):
        create_index_of_images(gallery, model, tmp_path / "photos", shard_size=10, batch_size=4)
    assert {name: (workshop / name).stat().st_mtime_ns for name in kept} == kept
    np.save(tmp_path / "v.npy", vectors())
    with pytest.raises(InputError, match="holds images that were embedded for this index"):
        create_index(gallery, imported(tmp_path / "v.npy"))
    assert {name: (workshop / name).stat().st_mtime_ns for name in kept} == kept
    watch = Watch()
    done = create_index_of_images(
        gallery, model, tmp_path / "photos", shard_size=10, batch_size=8, meter=watch
    )
    assert done.items == 60
    assert (watch.total, watch.found, watch.seen) == (60, 20, 40)
    assert not workshop.parent.exists()


def test_only_bad_images_make_no_index(model: Model, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("no")
    with pytest.raises(InputError, match="of 1 images none could be used, the first: it is no image"):
        create_index_of_images(tmp_path / "gallery", model, tmp_path / "photos")
    assert not (tmp_path / "gallery").exists()


def test_filling_refuses_skips_or_updates_what_is_there(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", vectors())
    create_index(tmp_path / "gallery", imported(tmp_path / "v.npy"))
    other = tmp_path / "w.npz"
    np.savez(other, location=vectors(3, seed=9), ids=np.array(["48", "49", "50"]))
    with FolderIndex.open(tmp_path / "gallery", writable=True) as index:
        with pytest.raises(InputError, match="'48', '49' already"):
            fill(index, imported(other))
        assert len(index) == 50
        done = fill(index, imported(other), existing="skip")
        assert (done.items, done.skipped, len(index)) == (1, 2, 51)
        done = fill(index, imported(other), existing="update")
        assert (done.items, len(index)) == (3, 51)
        stored = dict(zip(index.ids(), index.embedding().location, strict=True))
        np.testing.assert_array_equal(stored["49"], vectors(3, seed=9)[1])
        with pytest.raises(InputError, match="refuse, skip or update"):
            fill(index, imported(other), existing="overwrite")


class Watch:
    """A meter that counts, and stops the work like Ctrl-C does."""

    def __init__(self, *, stop_at: int = 1000) -> None:
        self.stop_at, self.total, self.found, self.seen = stop_at, 0, 0, 0

    def start(self, total: int, done: int) -> None:
        self.total, self.found = total, done

    def advance(self, images: int, bad: int) -> None:
        self.seen += images
        if self.seen >= self.stop_at:
            raise KeyboardInterrupt


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# -- FAISS ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize(
    "factory", ["Flat", "IVF4,Flat", "HNSW8,Flat", "IDMap,Flat", "IDMap2,IVF4,Flat", "RFlat"]
)
def test_faiss_vectors_ids_and_neighbours(tmp_path: Path, factory: str, metric: int, unit: bool) -> None:
    """The vectors bit for bit, and the neighbours that the FAISS index itself finds."""
    given = vectors(80)
    if unit:
        given /= np.linalg.norm(given, axis=1, keepdims=True)
    own = faiss.index_factory(6, "PQ3x4,RFlat" if factory == "RFlat" else factory, metric)
    own.train(given)
    ids = np.random.default_rng(5).permutation(1000)[:80]
    has_ids = factory.startswith("IDMap")
    if has_ids:
        own.add_with_ids(given, ids)
    else:
        own.add(given)
        ids = np.arange(80)
    faiss.write_index(own, str(tmp_path / "my.index"))
    found = read_faiss(tmp_path / "my.index")
    assert (found.vectors.ids is not None) == has_ids
    names = found.vectors.ids or [str(i) for i in range(80)]
    stored = dict(zip(names, found.vectors.embedding.location.numpy(), strict=True))
    assert all(np.array_equal(stored[str(number)], row) for number, row in zip(ids, given, strict=True))
    if metric == faiss.METRIC_INNER_PRODUCT and not unit:
        assert "ranked by cosine" in found.notes[0]
        return
    create_index(tmp_path / "gallery", joined(found.vectors, None), score=found.score)
    exact = faiss.IndexIDMap(faiss.IndexFlat(6, metric))
    exact.add_with_ids(given, ids)
    queries = vectors(5, seed=8)
    _, expected = exact.search(queries, 4)
    embedding = Embedding.point(torch.from_numpy(queries))
    if found.score == "expected-distance":
        embedding = Embedding.gaussian(torch.from_numpy(queries), torch.zeros(5, 1))
    with FolderIndex.open(tmp_path / "gallery") as index:
        rows = index.search(embedding, 4).row
        assert [index.ids(row) for row in rows] == [[str(i) for i in row] for row in expected]


def test_ivf_with_ids_of_its_own(tmp_path: Path) -> None:
    own = faiss.index_factory(6, "IVF4,Flat")
    own.train(vectors(80))
    ids = np.arange(80) * 3 + 7
    own.add_with_ids(vectors(80), ids)
    faiss.write_index(own, str(tmp_path / "my.index"))
    found = read_faiss(tmp_path / "my.index").vectors
    assert found.ids == [str(number) for number in ids]
    assert torch.equal(found.embedding.location, torch.from_numpy(vectors(80)))
    (tmp_path / "labels.csv").write_text("id,label\n" + "".join(f"{i},c{i % 5}\n" for i in ids[::-1]))
    (shard,) = joined(found, read_labels(tmp_path / "labels.csv"))
    assert shard.labels == [f"c{number % 5}" for number in ids]


@pytest.mark.parametrize(
    ("factory", "metric", "sentence"),
    [
        ("PQ3x4", faiss.METRIC_L2, "IndexPQ, which does not hold the vectors"),
        ("IVF4,PQ3x4", faiss.METRIC_L2, "IndexIVFPQ, which does not hold"),
        ("SQ8", faiss.METRIC_L2, "IndexScalarQuantizer, which does not hold"),
        ("PCA3,Flat", faiss.METRIC_L2, "IndexPreTransform, which does not hold"),
        ("HNSW8,SQ8", faiss.METRIC_L2, "which does not hold"),
        ("Flat", faiss.METRIC_L1, "L2 and inner product"),
    ],
)
def test_faiss_that_lost_the_vectors_is_refused(
    tmp_path: Path, factory: str, metric: int, sentence: str
) -> None:
    own = faiss.index_factory(6, factory, metric)
    own.train(vectors(80))
    own.add(vectors(80))
    faiss.write_index(own, str(tmp_path / "my.index"))
    with pytest.raises(InputError, match=sentence):
        read_faiss(tmp_path / "my.index")


def test_faiss_files_that_cannot_be_read(tmp_path: Path) -> None:
    faiss.write_index(faiss.IndexFlatL2(6), str(tmp_path / "empty.index"))
    binary = faiss.IndexBinaryFlat(8)
    faiss.write_index_binary(binary, str(tmp_path / "binary.index"))
    (tmp_path / "broken.index").write_bytes(b"IxF2" + b"\0" * 9)
    for name, sentence in [
        ("none.index", "no file"),
        ("empty.index", "no vectors"),
        ("binary.index", "no readable FAISS index of float vectors"),
        ("broken.index", "no readable FAISS index of float vectors"),
    ]:
        with pytest.raises(InputError, match=sentence):
            read_faiss(tmp_path / name)


def test_the_fingerprint_tells_models_apart(tiny_run: Path, tmp_path: Path) -> None:
    import shutil

    first = model_fingerprint(doubtless.load(tiny_run).method)
    copy = tmp_path / "copy"
    shutil.copytree(tiny_run, copy)
    assert model_fingerprint(doubtless.load(copy).method) == first
    changed = doubtless.load(tiny_run).method
    with torch.no_grad():
        changed.encoder.get_parameter(next(name for name, _ in changed.encoder.named_parameters())).view(-1)[
            0
        ] += 1e-6
    assert model_fingerprint(changed) != first
    newer = doubtless.load(tiny_run).method
    type(newer).version += 1
    try:
        assert model_fingerprint(newer) != first
    finally:
        type(newer).version -= 1


def test_read_vectors_keeps_the_family(tmp_path: Path) -> None:
    whole = Embedding.empirical(torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)))
    whole.save(tmp_path / "s.safetensors", ids=list("abcde"))
    create_index(tmp_path / "gallery", imported(tmp_path / "s.safetensors"))
    assert read_vectors(tmp_path / "s.safetensors").embedding.family == "empirical"
    with FolderIndex.open(tmp_path / "gallery") as index:
        assert (index.family, len(index)) == ("vmf", 5)
