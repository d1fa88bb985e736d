"""docs/extending.md: its blocks are a package, which is installed, found by its entry points, and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image

from tests.docs.pages import ROOT, Block, blocks_of

PAGE = ROOT / "docs" / "extending.md"
FILE = re.compile(r"# (shapes/\w+\.py|pyproject\.toml|length\.yaml)\n")

DRIVER = """
import sys
from pathlib import Path
from tests.docs.pages import PageRun, blocks_of

run = PageRun()
for block in blocks_of(Path(sys.argv[1])):
    if block.language in ("python", "sh") and not block.code.startswith("# shapes/"):
        run.run(type(block)(block.place, block.language, block.code))
        print("".join(run.printed[-9:]), flush=True)
        run.printed.clear()
"""


def files_of(blocks: list[Block]) -> dict[str, str]:
    """The blocks that are files, by their names."""
    return {found[1]: block.code for block in blocks if (found := FILE.match(block.code))}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as an installer leaves it, in a folder to be put on PYTHONPATH."""
    site = tmp_path_factory.mktemp("site")
    files = files_of(blocks_of(PAGE))
    for name, code in files.items():
        if name.endswith(".py"):
            (site / name).parent.mkdir(exist_ok=True)
            (site / name).write_text(code)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    information = site / f"{project['name']}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


def run_python(site: Path, folder: Path, *words: str) -> str:
    """A Python that has the package, in a folder; what it printed."""
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_registry_has_an_example() -> None:
    files = files_of(blocks_of(PAGE))
    groups = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    kinds = ("methods", "losses", "sources", "backbones", "metrics", "indexes")
    assert sorted(groups) == sorted(f"doubtless.{kind}" for kind in kinds)
    named = {value.partition(":")[0] for entries in groups.values() for value in entries.values()}
    assert {f"{module.replace('.', '/')}.py" for module in named} == {
        name for name in files if name.endswith(".py")
    }


def test_the_command_line_finds_plugins(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(run_python(installed, tmp_path, "-m", "doubtless", "methods", "--json"))
    assert [row["what it is"] for row in listed if row["method"] == "length"] == [
        "von Mises-Fisher distributions whose concentration is the embedding's length"
    ]


def test_the_page_runs_where_the_package_is_installed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "length.yaml").write_text(files_of(blocks_of(PAGE))["length.yaml"])
    picture = Image.new("L", (12, 12))
    picture.paste(255, (3, 3, 9, 9))
    picture.save(tmp_path / "square.png")
    printed = run_python(installed, tmp_path, "-c", DRIVER, str(PAGE))
    assert "shapes:COUNT" in printed
    assert re.search(r"images +120", printed)  # sources check
    assert '"reciprocal_rank"' in printed  # evaluate
    assert "30 items" in printed or re.search(r"items\W+30", printed)  # index
    assert re.search(r"1\W.*square", printed), printed  # search
    assert (tmp_path / "length.onnx").stat().st_size > 1000
    assert re.search(r"torch\.Size\(\[1, 32\]\)", printed)
    assert "module:shapes.own.ShapeNet" in (tmp_path / "runs" / "own" / "config.yaml").read_text()
    assert "module:shapes.own.drawings" in (tmp_path / "runs" / "own" / "config.yaml").read_text()
    assert "reciprocal_rank" in json.loads((tmp_path / "runs/length/metrics.json").read_text())["measures"]
    stored = json.loads((tmp_path / "drawings.json").read_text())
    assert stored["settings"]["family"] == "vmf"
