"""`check`, `backup`, `restore` and `salvage` as they are typed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from doubtless.index.settings import DATABASE
from tests.cli.test_commands import in_process


def test_from_a_copy_to_what_is_left(tmp_path: Path, monkeypatch, capsys) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        return in_process(monkeypatch, capsys, *words)

    shop, copy, back = (str(tmp_path / name) for name in ("shop", "copy", "back"))
    vectors = Embedding.point(torch.randn(30, 4, generator=torch.Generator().manual_seed(0)))
    Gallery.create(shop, embedding=vectors, labels=["leek", "garlic", "ginger"] * 10).close()
    assert run("check", shop)[:2] == (
        0,
        f"30 items, whole (a quick look; --thorough looks at every item): {shop}\n",
    )
    assert run("backup", shop, copy)[:2] == (0, f"30 items copied and checked: {copy}\n")
    assert run("backup", shop, copy)[0] == 2
    with sqlite3.connect(Path(shop) / DATABASE) as connection:
        connection.execute("UPDATE item SET label = 2 WHERE row = 3")
    connection.close()
    assert run("check", shop)[0] == 0  # a quick look does not see it
    code, told, _ = run("check", shop, "--thorough")
    assert code == 1
    assert "damage: The database of the index" in told
    code, told, _ = run("check", shop, "--thorough", "--json")
    assert (code, json.loads(told)["whole"]) == (1, False)
    code, _, told = run("show", shop, "3")
    assert code == 2
    assert f"doubtless salvage {shop} NEW" in told
    assert run("salvage", shop, str(tmp_path / "saved"))[1].startswith("29 items saved, 1 lost")
    shutil.rmtree(shop)
    assert run("restore", copy, back)[:2] == (0, f"30 items restored and checked: {back}\n")
    assert run("check", back, "--thorough")[0] == 0


@pytest.mark.parametrize("words", [("check",), ("backup",), ("restore", "a"), ("salvage", "a")])
def test_what_is_missing_is_a_sentence(words: tuple[str, ...], tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, told = in_process(monkeypatch, capsys, *words)
    assert code == 2
    code, _, told = in_process(
        monkeypatch, capsys, words[0], "nothing", *(["new"] if words[0] != "check" else [])
    )
    assert code == 2
    assert "nothing" in told
