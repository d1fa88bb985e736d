"""One of every kind of file that is read from outside: how it is made, and who reads it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from doubtless.bench.suite import load_suite
from doubtless.cli.calibrate import read_pairs
from doubtless.cli.posterior import _arrays
from doubtless.data import decode_image, open_source
from doubtless.data.splits import Split
from doubtless.data.streams.opening import open_streams
from doubtless.data.streams.tables import read_labels
from doubtless.embedding import Embedding
from doubtless.embedding.storage import save_embedding
from doubtless.evaluation.from_files import evaluate_files
from doubtless.evaluation.result import Evaluation
from doubtless.evaluation.url import read_human_labels
from doubtless.gallery.content import import_faiss, import_file
from doubtless.gallery.feedback.store import FeedbackStore, Shown
from doubtless.ingest.shards import BadImage, EmbeddedShard, ShardStore, write_bad
from doubtless.methods.configuration import load_config
from doubtless.models.backbones import load_weights
from doubtless.models.onnx import OnnxNetwork
from doubtless.runs.pretrained import load_saved, save_method
from doubtless.runs.run import Run, read_checkpoint
from doubtless.runs.timing import phases_of
from doubtless.server.service.decoder import Limits, decode
from tests.ingest.pictures import png, write_tar
from tests.reference import paper_trees

VECTORS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
LABELS = ["cat", "dog"] * 3
IDS = [f"photo-{number}" for number in range(6)]


@dataclass(frozen=True)
class Kind:
    """A kind of file: `make` writes it, and what lies around it, into a folder; `read` reads it there."""

    file: str
    make: Callable[[Path, Path], object]  # the folder, and a run to copy
    read: Callable[[Path], object]


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, kind)
    return file.getvalue()


def written(file: str, data: Callable[[], bytes]) -> Callable[[Path, Path], object]:
    return lambda folder, _: (folder / file).write_bytes(data())


def of_pictures() -> dict[str, Kind]:
    """Both ways that pictures are read: by whoever has them, and by a server to which strangers send them."""
    kinds = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"]

    def looked_at(file: Path) -> None:
        decode_image(file)

    made = {
        kind.lower(): Kind(
            f"a.{kind.lower()}", written(f"a.{kind.lower()}", lambda kind=kind: picture(kind)), looked_at
        )
        for kind in kinds
    }
    uploads = {
        f"{kind.lower()} sent": Kind("a", written("a", lambda kind=kind: picture(kind)), sent)
        for kind in ("JPEG", "PNG", "WEBP", "GIF", "AVIF")
    }
    return made | uploads


def sent(file: Path) -> None:
    decode(file.read_bytes(), Limits(pixels=1_000_000))


def saved_array(name: str, array: Any) -> Callable[[Path, Path], object]:
    return lambda folder, _: np.save(folder / name, array)


def saved_arrays(name: str, **arrays: Any) -> Callable[[Path, Path], object]:
    return lambda folder, _: np.savez(folder / name, **arrays)


def saved_embedding(folder: Path, _: Path) -> None:
    location, variance = torch.from_numpy(VECTORS), torch.full((6, 1), 0.5)
    embedding = Embedding.gaussian(location, variance)
    save_embedding(folder / "a.safetensors", embedding, ids=IDS, labels=torch.arange(6) % 2)


def table(folder: Path, name: str, **columns: Any) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), folder / name)


def faiss_index(recipe: str) -> Callable[[Path, Path], object]:
    def make(folder: Path, _: Path) -> None:
        import faiss

        values = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float32)
        index = faiss.index_factory(3, recipe)
        index.train(values)
        index.add_with_ids(values, np.arange(60) + 7) if "IDMap" in recipe else index.add(values)
        faiss.write_index(index, str(folder / "a.index"))

    return make


def shards(format: str) -> Callable[[Path, Path], object]:
    """What `doubtless embed` leaves: a manifest and two shards, one of which has a bad image."""

    def make(folder: Path, _: Path) -> None:
        store = ShardStore(folder, format)  # type: ignore[arg-type]
        embedding = Embedding.projected_gaussian(torch.from_numpy(VECTORS), torch.full((6, 1), 0.5))
        nothing: list[None] = [None] * 3
        for number, rows in enumerate((slice(0, 3), slice(3, 6))):
            bad = [BadImage("photo-9", "a.png", "it is no image")] if number else []
            about = [{"year": 1, "kind": "shoe"}] * 3
            shard = EmbeddedShard(embedding[rows], IDS[rows], LABELS[rows], nothing, about, bad)
            store.write(number, shard)
        manifest = {"parts": 2, "model": "0123", "run": "runs/first", "format": format}
        (folder / "embed.json").write_text(json.dumps(manifest))
        write_bad(folder, [])

    return make


def of_vectors() -> dict[str, Kind]:
    def taken(file: Path) -> None:
        for shard in import_file(file).shards:
            assert len(shard.ids) == len(shard.labels)

    def with_variance(file: Path) -> None:
        np.save(file.parent / "location.npy", VECTORS)
        list(import_file(file.parent / "location.npy", variance=file).shards)

    def measured(file: Path) -> None:
        evaluate_files(file)

    def labelled(file: Path) -> None:
        np.save(file.parent / "location.npy", VECTORS)
        evaluate_files(file.parent / "location.npy", labels=file)

    def features(file: Path) -> None:
        np.save(file.parent / "labels.npy", np.arange(6) % 2)
        _arrays(file, file.parent / "labels.npy")

    npz = saved_arrays("a.npz", embeddings=VECTORS, labels=np.arange(6) % 2, ids=np.array(IDS))
    rows = {"id": IDS, "label": LABELS, "vector": VECTORS.tolist()}
    parquet = Kind("a.parquet", lambda folder, _: table(folder, "a.parquet", **rows), taken)
    of_faiss = {
        f"faiss {recipe}": Kind("a.index", faiss_index(recipe), lambda file: list(import_faiss(file).shards))
        for recipe in ("Flat", "IDMap,Flat", "IVF2,Flat", "HNSW4,Flat")
    }
    of_shards = {
        f"shard {file}": Kind(file, shards(format), lambda file: taken(file.parent))
        for format, files in {
            "safetensors": ("embed.json", "part-00000.safetensors", "part-00001.json"),
            "parquet": ("part-00001.parquet",),
        }.items()
        for file in files
    }
    return {
        "npy": Kind("a.npy", saved_array("a.npy", VECTORS), taken),
        "npz": Kind("a.npz", npz, taken),
        "npz measured": Kind("a.npz", npz, measured),
        "safetensors": Kind("a.safetensors", saved_embedding, taken),
        "safetensors measured": Kind("a.safetensors", saved_embedding, measured),
        "parquet of vectors": parquet,
        "variance": Kind("v.npy", saved_array("v.npy", np.ones(6, np.float32)), with_variance),
        "labels measured": Kind("l.npy", saved_array("l.npy", np.arange(6) % 2), labelled),
        "people's labels": Kind("h.npy", saved_array("h.npy", np.ones((6, 2))), read_human_labels),
        "features": Kind("f.npy", saved_array("f.npy", VECTORS), features),
        **of_faiss,
        **of_shards,
    }


def of_tables() -> dict[str, Kind]:
    labels = b"id,label,path,year\nphoto-0,cat,a.png,1\nphoto-1,dog,b.png,2\n"
    pairs = b"query,item,same\na,b,1\nc,d,false\n"
    rows: dict[str, Any] = {"id": IDS, "label": LABELS, "year": list(range(6))}
    return {
        "csv": Kind("a.csv", written("a.csv", lambda: labels), read_labels),
        "parquet of labels": Kind(
            "a.parquet", lambda folder, _: table(folder, "a.parquet", **rows), read_labels
        ),
        "pairs": Kind("a.csv", written("a.csv", lambda: pairs), read_pairs),
    }


def of_images() -> dict[str, Kind]:
    """Lists, archives and tables of images, and everything that is in them, up to the pixels."""

    def streamed(file: Path | str) -> None:
        for stream in open_streams([str(file)]):
            stream.fingerprint()
            assert len(list(stream.records())) == len(stream)

    def opened(file: Path) -> None:
        open_source(f"npz:{file}").fingerprint()

    def files() -> dict[str, bytes]:
        found = {}
        for number, name in enumerate(IDS):
            image = png(np.full((4, 4), number, np.uint8))
            about = {"label": "cat", "year": 3, "more": [1]}
            found |= {f"{name}.png": image, f"{name}.json": json.dumps(about).encode()}
        return found

    def listed(folder: Path, _: Path) -> None:
        for name in IDS:
            (folder / f"{name}.png").write_bytes(png(np.zeros((4, 4), np.uint8)))
        lines = [["path", "label", "year"], *([f"{name}.png", "cat", 3] for name in IDS)]
        with (folder / "list.csv").open("w", newline="") as file:
            csv.writer(file).writerows(lines)

    def images(folder: Path, _: Path) -> None:
        table(folder, "a.parquet", image=[png(np.zeros((4, 4), np.uint8))] * 6, label=LABELS)

    def dataset(folder: Path, _: Path) -> None:
        from datasets import Dataset

        rows = {"image": [b"1", b"2"], "label": ["cat", "dog"]}
        Dataset.from_dict(rows).save_to_disk(str(folder / "set"))

    pixels = np.zeros((8, 6, 6), np.uint8)
    arrays = saved_arrays("a.npz", x_train=pixels, y_train=np.arange(8), x_test=pixels, y_test=np.arange(8))
    of_datasets = {
        f"dataset {file}": Kind(f"set/{file}", dataset, lambda path: streamed(f"hf:{path.parent}"))
        for file in ("state.json", "dataset_info.json", "data-00000-of-00001.arrow")
    }
    return {
        "tar": Kind("a.tar", lambda folder, _: write_tar(folder / "a.tar", files()), streamed),
        "tar.gz": Kind(
            "a.tar.gz", lambda folder, _: write_tar(folder / "a.tar.gz", files(), mode="w:gz"), streamed
        ),
        "parquet of images": Kind("a.parquet", images, streamed),
        "list of images": Kind("list.csv", listed, streamed),
        "npz of images": Kind("a.npz", arrays, opened),
        **of_datasets,
    }


def of_papers() -> dict[str, Kind]:
    """The lists of published data sets."""
    trees: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
        "cub200": (
            lambda path: paper_trees.write_cub200(path, classes=4, each=2),
            [f"CUB_200_2011/{name}.txt" for name in ("images", "image_class_labels", "classes")],
        ),
        "cars196": (lambda path: paper_trees.write_cars196(path, classes=4, each=2), ["cars_annos.mat"]),
        "sop": (
            lambda path: paper_trees.write_sop(path, each=1),
            [f"Stanford_Online_Products/Ebay_{name}.txt" for name in ("train", "test")],
        ),
        "lfw": (lambda path: paper_trees.write_lfw(path, each=2), ["lfw/peopleDevTrain.txt"]),
        "msls": (
            lambda path: paper_trees.write_msls(path, stops=2),
            [f"train_val/sf/query/{name}.csv" for name in ("postprocessed", "raw", "subtask_index")],
        ),
    }

    def reader(name: str, file: str) -> Callable[[Path], object]:
        depth = file.count("/")
        return lambda path: open_source(f"{name}:{path.parents[depth]}")

    return {
        f"{name} {Path(file).name}": Kind(
            file, lambda folder, _, write=write: write(folder), reader(name, file)
        )
        for name, (write, files) in trees.items()
        for file in files
    }


def of_models() -> dict[str, Kind]:
    """Runs, saved models, weights and ONNX files."""

    def loaded(file: Path) -> None:
        method = Run.open(file.parent).load_method()
        method.embed(torch.zeros(2, method.spec.channels, 12, 12, dtype=torch.uint8))

    def saved(folder: Path, run: Path) -> None:
        save_method(Run.open(run).load_method(), folder)

    def weighed(file: Path) -> None:
        load_weights(torch.nn.Linear(3, 2), file)

    def onnx(folder: Path, _: Path) -> None:
        from onnx import TensorProto, helper, save_model

        shapes = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, 4, 4])
            for name in ("images", "location")
        ]
        graph = helper.make_graph(
            [helper.make_node("Relu", ["images"], ["location"])], "g", shapes[:1], shapes[1:]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        save_model(model, str(folder / "a.onnx"))

    def weights(folder: Path, _: Path) -> None:
        from safetensors.torch import save_file

        save_file(torch.nn.Linear(3, 2).state_dict(), folder / "w.safetensors")

    def measured(folder: Path, _: Path) -> None:
        np.savez(folder / "a.npz", embeddings=VECTORS, labels=np.arange(6) % 2)
        evaluate_files(folder / "a.npz")[0].save(folder / "metrics.json")

    def copied(folder: Path, run: Path) -> None:
        shutil.copytree(run, folder, dirs_exist_ok=True)
        (folder / "timing.json").write_text(json.dumps({"seconds": 3.5, "phases": {"training": 3.5}}))

    of_run: dict[str, Callable[[Path], object]] = {
        "config.yaml": loaded,
        "model.json": loaded,
        "model.safetensors": loaded,
        "split.json": Split.load,
        "log.csv": lambda file: Run.open(file.parent).log,
        "timing.json": lambda file: phases_of(file.parent),
        "last.ckpt": read_checkpoint,
    }
    of_saved = ("config.json", "model.safetensors")
    return {
        **{f"run {file}": Kind(file, copied, read) for file, read in of_run.items()},
        **{f"saved {file}": Kind(file, saved, lambda path: load_saved(path.parent)) for file in of_saved},
        "weights": Kind("w.safetensors", weights, weighed),
        "onnx": Kind("a.onnx", onnx, OnnxNetwork.read),
        "metrics": Kind("metrics.json", measured, Evaluation.load),
    }


def of_settings() -> dict[str, Kind]:
    config = b"method: deterministic\nseed: 3\ndata: {source: digits}\ntraining: {epochs: 2, lr: 1.0e-3}\n"
    suite = (
        b"name: small\ntitle: A test\nseeds: [0, 1]\nbase: {data: {source: digits}}\nmetrics: [recall@1]\n"
        b"grid: {training.lr: [0.1, 0.2]}\nmethods:\n  one: {set: {method: deterministic}}\n  two: {of: one}\n"
    )
    tuned = b"one: {chosen: {training.lr: 0.1}, tried: [1, 2]}\n"

    def planned(file: Path) -> None:
        read = load_suite(file)
        for name in read.methods:
            read.config(name, read.seeds[0])

    def with_choices(folder: Path, _: Path) -> None:
        (folder / "suite.yaml").write_bytes(suite)
        (folder / "tuned").mkdir()
        (folder / "tuned" / "suite.yaml").write_bytes(tuned)

    return {
        "configuration": Kind("a.yaml", written("a.yaml", lambda: config), load_config),
        "suite": Kind("a.yaml", written("a.yaml", lambda: suite), planned),
        "choices": Kind(
            "tuned/suite.yaml", with_choices, lambda file: planned(file.parents[1] / "suite.yaml")
        ),
    }


def of_galleries() -> dict[str, Kind]:
    """What lies in a gallery beside its index, whose faults have a test of their own."""

    def judged(folder: Path, _: Path) -> None:
        store = FeedbackStore(folder)
        labels = (("leek", 0.9), ("onion", 0.1))
        for number in range(20):
            shown = Shown(f"a{number}", "p", 1.0, "answer", "leek", 0.9, 0.05, labels, drawn=True)
            store.keep(shown, numbers=b"1234")
            store.say(shown, "wrong" if number % 2 else "right", label=None if number % 3 else "leek")

    def looked_at(file: Path) -> None:
        store = FeedbackStore(file.parent)
        store.entries(), store.answers("p"), store.checked(), store.given("p"), store.find("a1")

    return {"feedback": Kind("feedback.sqlite", judged, looked_at)}


def kinds() -> dict[str, Kind]:
    """All of them, by name."""
    parts = (of_pictures, of_vectors, of_tables, of_images, of_papers, of_models, of_settings, of_galleries)
    return {name: kind for part in parts for name, kind in part().items()}
