"""The README is executed: its Python runs, its table is what was measured, its files exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, r"torch\.Size\(\[100, 32\]\)"), (1, r"^answer [01]\.\d+ The first hit is right")],
)
def test_python_examples_run(
    number: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 2
    exec(compile(BLOCKS[number], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(expected, printed), printed
    assert "nan" not in printed


def test_ten_lines_are_ten() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line]) == 10


def test_table_is_what_the_benchmark_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/results/demo.json").read_text())["table"]["cells"]
    rows = README.split("<!-- demo table -->")[1].split("\n\n")[0]
    shown = re.findall(
        r"^\| \**([\w-]+)\** \| \**\.(\d{3}) ± \.(\d{3})\** \| \**\.(\d{3})", rows, re.MULTILINE
    )
    names = {"ProxyAnchor": "proxy-anchor"}
    assert len(shown) == 3
    for name, recall, spread, precision in shown:
        cells = measured[names.get(name, name)]
        assert f"{cells['recall@1']['mean']:.3f}" == f"0.{recall}"
        assert f"{cells['recall@1']['std']:.3f}" == f"0.{spread}"
        assert f"{cells['map@r']['mean']:.3f}" == f"0.{precision}"


def test_files_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_commands_it_names_exist() -> None:
    from typer.main import get_command

    from doubtless.cli import app

    known = get_command(app).commands
    for verb in re.findall(r"^doubtless (\w+)", README, re.MULTILINE):
        assert verb in known
