"""Wheel and sdist, built and installed into empty environments: the demo runs, every extra brings what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import doubtless

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "parquet": ["pyarrow.parquet"],
    "heic": ["pillow_heif"],
    "hf": ["datasets"],
    "serve": ["fastapi", "uvicorn", "multipart", "prometheus_client"],
    "milvus": ["pymilvus", "milvus_lite"],
    "postgres": ["psycopg"],
    "qdrant": ["qdrant_client"],
    "lancedb": ["lancedb"],
    "ray": ["ray.data"],
    "mcp": ["mcp.server"],
    "otel": ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"],
    "onnx": ["onnx", "onnxscript", "onnxruntime"],
    "docs": ["mkdocs", "material", "mkdocstrings"],
    "peers": ["laplace", "dlib"],
    "dev": [],
}
"""Extra → what can be imported with it."""


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


@dataclass(frozen=True)
class Environment:
    """An empty one, but for what was installed into it."""

    folder: Path

    def install(self, *what: str) -> str:
        """What uv says of it; the pair of torch and torchvision is the one that is tested."""
        words = [self.folder / "bin/uv", "pip", "install", "--python", self.folder / "bin/python"]
        done = subprocess.run(
            [*words, "--constraint", ROOT / "constraints.txt", *what], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def run(self, program: str, *words: str | Path) -> str:
        done = subprocess.run(
            [self.folder / "bin" / program, *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def empty_environment(folder: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "-q", "uv"], check=True)
    return Environment(folder)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """sdist, and the wheel that is built from it, by their endings."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    return {path.suffix: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def environment(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel and what it needs, nothing more."""
    made = empty_environment(tmp_path_factory.mktemp("wheel") / "venv")
    made.install(str(built[".whl"]))
    return made


@pytest.mark.slow
def test_wheel_runs_the_demo_in_an_empty_environment(environment: Environment, tmp_path: Path) -> None:
    told = environment.run("doubtless", "demo", "--json", "--out", tmp_path / "run")
    assert json.loads(told)["measures"]["recall@1"]["value"] > 0.78
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_sdist_is_installed_into_an_empty_environment(built: dict[str, Path], tmp_path: Path) -> None:
    made = empty_environment(tmp_path / "venv")
    made.install(str(built[".gz"]))
    assert doubtless.__version__ in made.run("doubtless", "--version").split()
    places = "import doubtless, pathlib; print(pathlib.Path(doubtless.__file__).parent)"
    folder = Path(made.run("python", "-c", places).strip())
    for name in ("py.typed", "configs/fashion-sample/triplet.yaml", "server/page/static/index.html"):
        assert (folder / name).is_file()
    assert len(list((folder / "bench/suites").glob("*.yaml"))) == len(
        list((ROOT / "benchmarks/suites").glob("*.yaml"))
    )


def test_every_extra_is_known_to_this_test() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(declared) == set(EXTRAS)


@pytest.mark.slow
@pytest.mark.parametrize("extra", list(EXTRAS))
def test_every_extra_is_installed_and_imported(
    environment: Environment, built: dict[str, Path], extra: str
) -> None:
    """One environment for all, so that they go together; `dev`, all of them at once, is only resolved."""
    wheel = f"{built['.whl']}[{extra}]"
    if extra == "dev":
        assert "Would" in environment.install("--dry-run", wheel)
        return
    environment.install(wheel)
    environment.run("python", "-c", f"import doubtless, {', '.join(EXTRAS[extra])}")
