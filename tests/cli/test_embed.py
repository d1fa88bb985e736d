"""`doubtless embed`: a folder of images into a folder of embeddings, killed and continued from the shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.ingest.shards import read_shards
from tests.ingest.pictures import tiny_images, write_folder


@pytest.fixture
def embed(command: Any) -> Any:
    return partial(command, "embed")


def test_help_has_an_example() -> None:
    found = CliRunner().invoke(app, ["embed", "--help"])
    assert "Example: doubtless embed" in " ".join(found.output.split())
    assert "--json" in found.output


def test_embed_again_and_say_what_was_done(embed, tiny_run: Path, tiny_npz: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", *tiny_images(tiny_npz, 12))
    (tmp_path / "photos" / "z.png").write_text("no")
    arguments = [tiny_run, tmp_path / "photos", "--out", tmp_path / "out", "--shard-size", 5, "--workers", 2]
    code, out, err = embed(*arguments)
    assert (code, err) == (0, "")
    assert "12 images embedded in 3 shards" in out
    assert f"1 bad images skipped: {tmp_path / 'out' / 'bad.csv'}" in out
    code, out, err = embed(*arguments, "--json")
    found = json.loads(out)
    assert found == {
        "folder": str(tmp_path / "out"), "images": 13, "items": 12, "bad": 1, "shards": 3, "found_shards": 3,
    }  # fmt: skip
    assert [len(shard) for shard in read_shards(tmp_path / "out")] == [5, 5, 2]
    for extra, sentence in [
        (["--batch-size", 3], "another batch size"),
        ([tmp_path / "none"], "There is no file or folder"),
        (["--image-column", "x"], None),
    ]:
        code, out, err = embed(*arguments, *extra)
        assert code == (0 if sentence is None else 2), err
        assert sentence is None or sentence in err
    code, _, err = embed(tmp_path, tmp_path / "photos", "--out", tmp_path / "other")
    assert code == 2
    assert "is not a run" in err
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
def test_kill_9_from_the_shell(tiny_run: Path, tmp_path: Path, attempt: int) -> None:
    """A real `doubtless embed` of the shipped sample, killed at three moments, then whole bit for bit."""

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "doubtless",
            "embed",
            str(tiny_run),
            "fashion-sample",
            "--out",
            str(out),
        ]
        return subprocess.Popen([*command, "--shard-size", "64"], stdout=subprocess.DEVNULL)

    for kill in range(3):
        process = start(tmp_path / "cut")
        wanted = 5 + 12 * kill + 3 * attempt
        while len(list((tmp_path / "cut").glob("part-*.json"))) < wanted:
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert start(tmp_path / "cut").wait() == 0
    assert start(tmp_path / "whole").wait() == 0
    for file in (tmp_path / "whole").iterdir():
        other = tmp_path / "cut" / file.name
        if file.suffix == ".safetensors":
            ours, theirs = load_file(file), load_file(other)
            assert all(value.equal(theirs[name]) for name, value in ours.items())
        else:
            assert file.read_bytes() == other.read_bytes()
    assert sorted(f.name for f in (tmp_path / "cut").iterdir()) == sorted(
        f.name for f in (tmp_path / "whole").iterdir()
    )
