"""A hundred wrong calls of the command line: one sentence and exit code 2 each, and no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from doubtless import Gallery
from tests.cli.conftest import Command

# What is written between braces is a file of `things` below.
CALLS = """
frobnicate                                                  | No such command
--frobnicate                                                | No such option
demo --jobs 3                                               | No such option
demo --json --serve                                         | Give one of the two
demo --port 99999                                           | '--port'
demo --port many                                            | '--port'
create                                                      | lacks the argument
create {new}                                                | Name one of
create {new} {photos} --embeddings {vectors}                | Name one of
create {new} nowhere/photos --model {run}                   | nowhere/photos
create {new} {photos} --model nowhere/run                   | nowhere/run
create {new} {photos} --model timm:resnet5O                 | resnet5O
create {new} {empty} --model {run}                          | holds no images
create {new} {text} --model {run}                           | neither an image
create {new} nosuchsource --model {run}                     | nosuchsource
create {new} {photos} --model {run} --labels nowhere.csv    | There is no file nowhere.csv
create {new} {photos} --model {run} --labels {strange}      | knows none of the
create {new} {photos} --model {run} --labels {unnamed}      | has no column 'label'
create {new} {photos} --model {run} --batch-size 0          | --batch-size
create {new} {photos} --model {run} --workers 0             | --workers
create {new} {photos} --model {run} --score cosine          | cosine
create {new} hf:{empty} --model {run}                       | cannot be opened
create {new} {badcsv} --model {run}                         | cells
create {new} {badparquet} --model {run}                     | no readable parquet
create {new} {badtar} --model {run}                         | no readable tar
create {new} --embeddings nowhere.npy                       | There is no file nowhere.npy
create {new} --embeddings {text}                            | safetensors
create {new} --embeddings {flat}                            | must hold floats
create {new} --embeddings {nothing}                         | must hold floats
create {new} --embeddings {vectors} --labels {short}        | one each, in order
create {new} --embeddings {vectors} --labels {twice}        | more than once
create {new} --embeddings {vectors} --family gaussian       | needs --variance
create {new} --embeddings {vectors} --variance {flat}       | The variance must have shape
create {new} --embeddings {vectors} --kind hsnw             | did you mean 'hnsw'
create {new} --embeddings {vectors} --score directions      | did you mean 'direction'
create {new} --faiss {vectors}                              | no readable FAISS index
create {new} --faiss nowhere.index                          | There is no file
create {new} {photos} --variance {flat}                     | --variance
create {gallery} --embeddings {vectors}                     | already
create {text} --embeddings {vectors}                        | already
add                                                         | lacks the argument
add nowhere --embeddings {vectors}                          | nowhere
add {gallery}                                               | Name one of
add {gallery} --embeddings {vectors}                        | already
add {gallery} --embeddings {vectors} --existing keep        | refuse, skip or update
add {gallery} {photos}                                      | model
add {gallery} --embeddings {vectors} --label leek           | --label says what images show
ask                                                         | lacks the argument
ask nowhere photo.jpg                                       | nowhere
ask {gallery}                                               | Name images to ask about
ask {gallery} {photo} --embedding {vectors}                 | not both
ask {gallery} {photo}                                       | model
ask {gallery} --embedding nowhere.npy                       | There is no file
ask {gallery} --embedding {other}                           | dimension
ask {gallery} --embedding {vectors} -k 0                    | -k
ask {gallery} --embedding {vectors} -k ten                  | '-k'
ask {gallery} --embedding {vectors} --where leek            | key=value
ask {gallery} --embedding {vectors} --score cosine          | cosine
ask {gallery} --embedding {vectors} --confidence 1.5        | between 0 and 1
ask {gallery} --embedding {vectors} --json --csv            | not both
ask {photos} {photo}                                        | .
ask {text} {photo}                                          | .
calibrate nowhere                                           | nowhere
calibrate {gallery} --queries nowhere                       | nowhere
calibrate {gallery} --pairs nowhere.csv                     | nowhere.csv
calibrate {gallery} --pairs {strange}                       | columns query, item and same
calibrate {gallery} --queries {vectors} --pairs {strange}   | not both
calibrate {gallery} --labels {strange}                      | --queries
calibrate {gallery} --target-error 2                        | 2
calibrate {gallery} --unknown -1                            | -1
calibrate {gallery} --confidence 0                          | 0
calibrate {gallery} --most 3                                | --most
calibrate {gallery} --novelty colours                       | colours
compare {photo}                                             | lacks the argument
compare {photo} {photo}                                     | needs --index INDEX or --model RUN
compare {photo} nowhere.jpg --model {run}                   | nowhere.jpg
compare {photo} {text} --model {run}                        | cannot be read as an image
list nowhere                                                | nowhere
list {gallery} --start -1                                   | --start
list {gallery} --limit 0                                    | --limit
list {gallery} --json --csv out.csv                         | give one of them
list {gallery} --csv {text}/out.csv                         | cannot be written
show {gallery}                                              | lacks the argument
show {gallery} 4711                                         | has no item '4711'; the nearest are
show nowhere 1                                              | nowhere
relabel {gallery} 1                                         | --label
relabel {gallery} --label leek                              | Name the items
relabel {gallery} 4711 --label leek                         | no items '4711'
remove {gallery}                                            | Name the items to remove
remove {gallery} 4711                                       | no items '4711'
remove {gallery} --from nowhere.txt                         | There is no file
remove {gallery} 1 --where label=leek                       | Name the items to remove
stats                                                       | lacks the argument
stats nowhere                                               | nowhere
stats {photos}                                              | .
compact nowhere                                             | nowhere
migrate {gallery}                                           | lacks the argument
migrate nowhere {new}                                       | nowhere
migrate {gallery} {gallery}                                 | .
serve nowhere                                               | nowhere
serve {gallery} --port -1                                   | --port
serve {gallery} --host 0.0.0.0                              | DOUBTLESS_TOKEN
serve {gallery} --max-pixels 0                              | --max-pixels
train                                                       | lacks the argument
train nowhere.yaml                                          | no configuration nowhere.yaml
train {text}                                                | keys and values
train {config} --set epochs=3 --out {new}                   | epochs
train {config} --set training.epochs=many --out {new}       | training.epochs
train {config} --set training.epochs --out {new}            | key=value
train {config} --set method=lamm --out {new}                | lam
train {config} --set data.source=folder:nowhere --out {new} | There is no folder nowhere
train {config} --out {photos}                               | exists already
train {config} --out {new} --resume                         | no run folder
evaluate                                                    | either a run folder or --embeddings
evaluate nowhere                                            | no run folder
evaluate {photos}                                           | is not a run
evaluate {run} --embeddings {vectors}                       | not both
evaluate {run} --labels {strange}                           | go with --embeddings
evaluate {run} --data folder:nowhere                        | There is no folder nowhere
evaluate {run} --score cosine                               | cosine
evaluate --embeddings {vectors}                             | has no labels
evaluate --embeddings {vectors} --labels {short}            | 2 labels for the 40 vectors
evaluate --embeddings {vectors} --bootstrap -1              | --bootstrap
report nowhere                                              | no run folder
posterior                                                   | Name either a run
posterior nowhere                                           | no run folder
posterior --features nowhere.npy                            | --labels
embed {run} {photos}                                        | --out
embed nowhere {photos} --out {new}                          | nowhere
embed {run} nowhere/x --out {new}                           | no file or folder
embed {run} {photos} --out {new} --format csv               | format
export nowhere                                              | nowhere
export {run} --out {new} --input int8                       | int8
bench nosuchsuite                                           | no suite 'nosuchsuite'
bench nowhere.yaml                                          | no suite nowhere.yaml
bench demo --only nosuchmethod                              | no method 'nosuchmethod'
bench demo --jobs 0                                         | --jobs
sources check                                               | lacks the argument
sources chekc                                               | No such command
methods --json --csv                                        | not both
"""


def listed() -> list[tuple[str, str]]:
    lines = [line for line in CALLS.strip().splitlines() if line]
    return [(call.strip(), sentence.strip()) for call, sentence in (line.split("|") for line in lines)]


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory, tiny_run: Path) -> dict[str, str]:
    """A gallery of vectors, photographs, and files with something wrong in each."""
    root = tmp_path_factory.mktemp("things")
    rng = np.random.default_rng(0)
    for name in ("photos", "empty"):
        (root / name).mkdir()
    Image.fromarray(rng.integers(0, 255, (12, 12), dtype=np.uint8)).save(root / "photos" / "a.png")
    (root / "text.txt").write_text("just words")
    np.save(root / "vectors.npy", rng.normal(size=(40, 4)).astype(np.float32))
    np.save(root / "other.npy", rng.normal(size=(5, 3)).astype(np.float32))
    np.save(root / "flat.npy", np.zeros(3, np.float32))
    np.save(root / "nothing.npy", np.zeros((0, 4), np.float32))
    (root / "short.csv").write_text("id,label\na,leek\nb,garlic\n")
    (root / "twice.csv").write_text("id,label\n" + "a,leek\n" * 40)
    (root / "strange.csv").write_text("id,label\nnobody,leek\n")
    (root / "unnamed.csv").write_text("id,name\na.png,leek\n")
    (root / "bad.csv").write_text("path,label\na.png\n")
    (root / "bad.parquet").write_bytes(b"no parquet")
    (root / "bad.tar").write_bytes(b"no tar" * 200)
    (root / "config.yaml").write_text("method: deterministic\ndata: {source: digits}\n")
    labels = [f"label {number % 4}" for number in range(40)]
    Gallery.create(root / "gallery", embedding=np.load(root / "vectors.npy"), labels=labels).close()
    files = {
        "text": "text.txt", "vectors": "vectors.npy", "other": "other.npy", "flat": "flat.npy",
        "nothing": "nothing.npy", "short": "short.csv", "twice": "twice.csv", "strange": "strange.csv",
        "unnamed": "unnamed.csv", "badcsv": "bad.csv", "badparquet": "bad.parquet", "badtar": "bad.tar",
        "config": "config.yaml", "photo": "photos/a.png", "photos": "photos", "empty": "empty",
        "gallery": "gallery", "new": "new",
    }  # fmt: skip
    return {"run": str(tiny_run)} | {name: str(root / file) for name, file in files.items()}


def words_of(call: str, things: dict[str, str]) -> list[str]:
    return [re.sub(r"{(\w+)}", lambda found: things[found[1]], word) for word in call.split()]


def test_there_are_a_hundred() -> None:
    calls = [call for call, _ in listed()]
    assert len(set(calls)) == len(calls) >= 100


@pytest.mark.parametrize(("call", "sentence"), listed(), ids=[call for call, _ in listed()])
def test_a_wrong_call_is_one_sentence(
    call: str,
    sentence: str,
    things: dict[str, str],
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = command(*words_of(call, things))
    assert code == 2, (out, err)
    assert sentence in err
    assert err.startswith("doubtless: ")
    assert err.endswith((".\n", "?\n"))
    assert err.count("\n") == 1
    assert "Traceback" not in out + err
    begins = err.removeprefix("doubtless: ")
    assert begins[0] == begins[0].upper() or begins.split()[0] in words_of(
        call, things
    )  # a capital, or what was given
    assert not Path(things["new"]).exists()


@pytest.mark.parametrize("call", ["frobnicate", "ask nowhere photo.jpg", "create", "train nowhere.yaml"])
def test_so_it_is_in_a_process_of_its_own(call: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "doubtless", *call.split()], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("doubtless: ")
