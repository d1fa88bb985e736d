"""Files that nobody would write, given to every verb that reads one: a sentence and exit code 2, no traceback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from tests.cli.test_commands import in_process

YAML = {
    "alias": "&a [*a]",
    "unknown alias": "b: *c",
    "python": '!!python/object/apply:os.system ["ls"]',
    "a list": "- 1",
    "a number": "42",
    "digits": "method: deterministic\nseed: 1" + "0" * 5000,
    "nan": "method: deterministic\nseed: .nan",
    "too large": "method: deterministic\ntraining: {epochs: 1e400}",
    "method": "method: [1, 2]",
    "deep": "{" * 2000,
    "zero": "\x00",
    "dim": "method: deterministic\nmodel: {dim: 99999999999999999999}",
    "text labels": 'method: deterministic\ndata: {source: "npz:textlabels.npz"}\nmodel: {backbone: nothing}',
    "NaN labels": 'method: deterministic\ndata: {source: "npz:nanlabels.npz"}\nmodel: {dim: 8}',
    "bad zip": 'method: deterministic\ndata: {source: "npz:badzip.npz"}',
    "huge": 'method: deterministic\ndata: {source: "npz:huge.npz"}',
}
VECTORS = [
    "badzip.npz",
    "cut.npz",
    "short.npz",
    "huge.npz",
    "huge.npy",
    "negative.npy",
    "object.npy",
    "text.npy",
    "head.npy",
    "nan.npy",
    "zero.npy",
    "scalar.npy",
    "infinite.npy",
    "nanlabels2.npz",
    "long.safetensors",
    "odd.safetensors",
    "empty.safetensors",
    "wide.safetensors",
]


def header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    said = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said.encode()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    vectors = Embedding.point(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)))
    Gallery.create(folder / "shop", embedding=vectors, labels=["a", "b", "c"] * 20).close()
    good = np.random.default_rng(0).normal(size=(6, 4)).astype("f")
    np.save(folder / "good.npy", good)
    np.savez(folder / "good.npz", embeddings=good, labels=np.arange(6) % 2)
    images = {"x_train": np.zeros((6, 8, 8), np.uint8), "x_test": np.zeros((6, 8, 8), np.uint8)}
    for name, labels in {"textlabels": ["a", "b"] * 3, "nanlabels": [0, np.nan] * 3}.items():
        np.savez(folder / f"{name}.npz", **images, y_train=np.array(labels), y_test=np.array(labels))
    np.savez(folder / "nanlabels2.npz", embeddings=good, labels=np.array([0, np.nan] * 3))
    for name, value in {
        "nan": good * np.nan,
        "zero": good[:0],
        "scalar": good[0, 0],
        "infinite": good * np.inf,
    }.items():
        np.save(folder / f"{name}.npy", value)
    with zipfile.ZipFile(folder / "huge.npz", "w") as archive:
        for name in ("embeddings", "x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", header((10**12, 128)))
    wide = b'{"location":{"dtype":"F32","shape":[1000000000000,128],"data_offsets":[0,16]}}'
    files = {
        "badzip.npz": b"PK\x03\x04" + bytes(range(100)),
        "cut.npz": b"",
        "short.npz": (folder / "good.npz").read_bytes()[:200],
        "huge.npy": header((10**9, 128_000)),  # 466 TiB
        "negative.npy": header((-5, 4)),
        "object.npy": header((5, 4), "|O"),
        "text.npy": header((5, 4), "<U5") + bytes(400),
        "head.npy": b"\x93NUMPY\x01\x00\xff\x00" + b"x" * 255,
        "long.safetensors": (2**60).to_bytes(8, "little") + b"{}",
        "odd.safetensors": (20).to_bytes(8, "little") + b'{"a":1}'.ljust(20),
        "empty.safetensors": b"",
        "wide.safetensors": len(wide).to_bytes(8, "little") + wide + bytes(16),
        "zeros.csv": b"id,label\n" + bytes(10),
        "bytes.csv": b"id,label\n\xff\xff,x\n",
        "open.csv": b'id,label\n"a',
        "nothing.csv": b"",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    for name, text in YAML.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def calls() -> list[list[str]]:
    made = [["train", f"{name}.yaml", "--out", "run"] for name in YAML]
    for file in VECTORS:
        made += [
            ["create", "new", "--embeddings", file],
            ["ask", "shop", file],
            ["add", "shop", "--embeddings", file],
        ]
        made += [["calibrate", "shop", "--queries", file], ["evaluate", "--embeddings", file]]
        made += [["create", "new", "--embeddings", "good.npy", "--variance", file]]
    for file in ("zeros.csv", "bytes.csv", "open.csv", "nothing.csv"):
        made += [["create", "new", "--embeddings", "good.npy", "--labels", file]]
        made += [["calibrate", "shop", "--queries", file]]
    ask = ["ask", "shop", "good.npy"]
    made += [[*ask, "-k", "9" * 25], [*ask, "--where", "a=" + "9" * 5000], [*ask, "--where", "a=1e999"]]
    made += [["calibrate", "shop", "--target-error", "nan"], ["calibrate", "shop", "--seed", "9" * 30]]
    made += [
        ["show", "shop", "\ud800"],
        ["remove", "shop", "--from", "good.npy"],
        ["relabel", "shop", "0", "--label", "\0"],
    ]
    made += [["stats", "x" * 5000], ["create", "x" * 5000, "--embeddings", "good.npy"], ["check", "x" * 5000]]
    made += [
        ["create", "a\0b", "--embeddings", "good.npy"],
        ["stats", "a\0b"],
        ["backup", "shop", "shop/inside"],
    ]
    made += [["serve", "shop", "--max-upload", "1e400"], ["serve", "shop", "--decode-seconds", "nan"]]
    made += [
        ["restore", "good.npy", "new"],
        ["salvage", "good.npy", "new"],
        ["create", "new", "--faiss", "badzip.npz"],
    ]
    return made


def refuse(home: Path, words: list[str], monkeypatch, capsys) -> None:
    monkeypatch.chdir(home)
    code, _, told = in_process(monkeypatch, capsys, *words)
    assert code == 2, (words, told)
    assert told.startswith("doubtless: "), (words, told)
    for name in ("new", "run"):
        assert not (home / name).exists(), words


@pytest.mark.parametrize("part", range(4))
def test_a_sentence_and_exit_code_2(part: int, home: Path, monkeypatch, capsys) -> None:
    """One in three, in four parts; `slow` calls all of them."""
    for words in calls()[part::12]:
        refuse(home, words, monkeypatch, capsys)


@pytest.mark.slow
def test_all_of_them(home: Path, monkeypatch, capsys) -> None:
    assert len(calls()) > 140
    for words in calls():
        refuse(home, words, monkeypatch, capsys)


def test_a_full_standard_output_is_a_sentence(home: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("Nothing here is always full.")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "doubtless", "methods", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, cwd=home)
    assert (done.returncode, done.stderr) == (2, "doubtless: No space left on device.\n")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """What is started may be interrupted, also where these tests are a shell's background job, which may not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("seconds", [0.5, 0.7, 1.0, 1.5, 2.5, 4.0, 6.0])
def test_ctrl_c_in_training_is_130_with_a_sentence(seconds: float, tmp_path: Path) -> None:
    """Also while libraries are imported, which may make anything of it."""
    command = [sys.executable, "-m", "doubtless", "train", "fashion-sample/deterministic", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert (process.returncode, "doubtless: Stopped" in told, "Traceback" in told) == (130, True, False), told
