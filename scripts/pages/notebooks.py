"""Notebooks as pages of the site, from the outputs that are kept in them.

`python -m scripts.pages.notebooks` runs them anew.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.pages.places import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"
KEPT = ("image/svg+xml", "image/png", "text/plain")
"""Forms of an output, the one that is shown first."""


@dataclass
class Drawn:
    """A page's text, and pictures by their names beside it."""

    text: str = ""
    pictures: dict[str, bytes] = field(default_factory=dict)


def drawn(file: Path) -> Drawn:
    """The cells of a notebook as Markdown: texts, code, and what was printed or drawn."""
    content = json.loads(file.read_text())
    page, pieces = Drawn(), []
    for place, cell in enumerate(content["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(text)
            continue
        pieces.append(f"```python\n{text}\n```")
        for count, output in enumerate(cell["outputs"]):
            pieces.append(_shown(output, f"{file.stem}-{place}-{count}", page))
    where = f"examples/notebooks/{file.name}"
    pieces.append(
        f"*This page is a notebook of the repository, `{where}`, with what it printed when it was run last.*"
    )
    page.text = "\n\n".join(piece for piece in pieces if piece)
    return page


def _shown(output: Mapping[str, Any], name: str, page: Drawn) -> str:
    """One output; a picture is kept under a name of its own."""
    if output["output_type"] == "stream":
        return _printed("".join(output["text"]))
    data = output.get("data", {})
    form = next((form for form in KEPT if form in data), None)
    if form is None or form == "text/plain":
        return _printed("".join(data.get("text/plain", "")))
    text = "".join(data[form])
    ending, content = ("svg", text.encode()) if "svg" in form else ("png", base64.b64decode(text))
    page.pictures[f"{name}.{ending}"] = content
    return f"![Drawn by the cell above]({name}.{ending})"


def _printed(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def run(file: Path, folder: Path) -> dict[str, Any]:
    """The notebook, run from its first cell to its last in a folder, with its new outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return _without_traces(json.loads(nbformat.writes(notebook)))


def _without_traces(content: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from run to run and from machine to machine: times, counts, names of kernels."""
    content["metadata"] = {"language_info": {"name": "python"}}
    for cell in content["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            for output in cell["outputs"]:
                output.pop("execution_count", None)
                output["metadata"] = {} if "metadata" in output else output.get("metadata")
                if output["metadata"] is None:
                    del output["metadata"]
    return content


def main(names: list[str]) -> None:
    """Runs the notebooks that are named, or all, and keeps what they print."""
    import tempfile

    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and file.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            content = run(file, Path(folder))
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        print(file.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
