"""A built wheel, installed into an empty environment, runs the demo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_wheel_brings_suites_and_configurations(tmp_path: Path) -> None:
    """Unpacked beside nothing else, it finds them: what a clone has elsewhere is in the package."""
    pytest.importorskip("hatchling", reason="needs hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    script = (
        "from doubtless.bench.suite import all_suites\n"
        "from doubtless.methods.configuration import load_config\n"
        "import doubtless\n"
        "print(doubtless.__file__, len(all_suites()), load_config('fashion-sample/triplet').method)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
    )
    place, suites, method = done.stdout.split()
    assert place.startswith(str(tmp_path / "installed"))
    assert int(suites) == len(list((ROOT / "benchmarks/suites").glob("*.yaml")))
    assert method == "triplet"


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
