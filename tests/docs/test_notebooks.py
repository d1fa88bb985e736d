"""The notebooks run from top to bottom, and what is kept in them, and shown in the site, is what they print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scripts.pages.notebooks import NOTEBOOKS, drawn, run

FILES = sorted(NOTEBOOKS.glob("*.ipynb"))
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def said(cell: dict[str, Any]) -> list[str]:
    """What a cell printed, without numbers, which another processor rounds otherwise, and forms of its pictures."""
    words = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            words += [NUMBER.sub("#", line).split() for line in output["text"]]
        else:
            words.append(sorted(output["data"]))
    return [" ".join(line) for line in words]


def test_there_are_some() -> None:
    readme = (NOTEBOOKS / "README.md").read_text()
    assert len(FILES) >= 4
    assert all(f"]({file.name})" in readme for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_is_kept_is_of_a_whole_run(file: Path) -> None:
    cells = code_cells(json.loads(file.read_text()))
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert "error" not in kinds
    assert kinds
    assert "Traceback" not in drawn(file).text


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_they_run_and_say_what_is_kept(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="needs nbclient")
    kept = json.loads(file.read_text())
    again = run(file, tmp_path)
    for before, now in zip(code_cells(kept), code_cells(again), strict=True):
        assert "".join(before["source"]) == "".join(now["source"])
        assert said(before) == said(now), "".join(before["source"])
