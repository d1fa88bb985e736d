"""The README is executed: its Python runs, its table is what was measured, its files exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_python_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 1
    assert len([line for line in blocks[0].splitlines() if line]) == 10
    exec(compile(blocks[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "torch.Size([100, 32])" in printed
    assert "nan" not in printed


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
