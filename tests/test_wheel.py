"""A built wheel, installed into an empty environment, runs the demo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_wheel_runs_the_demo_in_an_empty_environment(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT], check=True)
    wheel = next(tmp_path.glob("*.whl"))
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", "uv"], check=True)
    constraints = ["--constraint", ROOT / "constraints.txt"]
    subprocess.run(
        [venv / "bin/uv", "pip", "install", "-q", "--python", venv / "bin/python", *constraints, wheel],
        check=True,
    )
    done = subprocess.run(
        [venv / "bin/doubtless", "demo", "--json", "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert json.loads(done.stdout)["measures"]["recall@1"]["value"] > 0.78
    assert (tmp_path / "run" / "report.html").exists()
