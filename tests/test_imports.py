"""What asks a finished model does not wait for what trains one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ASKING = (
    "runs.model",
    "index.folder",
    "ingest.bulk",
    "server.http.app",
    "runs.evaluation",
    "methods.lam_online",
)
SLOW = {"lightning", "torchvision", "timm", "pytorch_metric_learning", "sklearn"}


def test_asking_a_model_imports_nothing_that_only_training_needs() -> None:
    """Lightning and torchvision take three times as long to import as torch."""
    lines = [f"import doubtless.{name}" for name in ASKING]
    code = "\n".join([*lines, f"import sys; print(*sorted({SLOW!r} & set(sys.modules)))"])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    names = {"pillow": "PIL", "faiss-cpu": "faiss", "scikit-learn": "sklearn", "pyyaml": "yaml"}
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    required = [re.split(r"[\[<>=! ]", line)[0] for line in project["dependencies"]]
    declared = {names.get(name, name.replace("-", "_")) for name in required}
    of_extras = {
        "fastapi",
        "starlette",
        "anyio",
        "h11",
        "uvicorn",
        "pyarrow",
        "ray",
        "onnx",
        "onnxruntime",
        "onnxscript",
    }
    of_extras |= {
        "pymilvus",
        "milvus_lite",
        "grpc",
        "psycopg",
        "qdrant_client",
        "lancedb",
        "pillow_heif",
        "datasets",
        "mcp",
        "opentelemetry",
        "prometheus_client",
        "torchmetrics",
    }
    imported: set[str] = set()
    for path in (root / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names - {"doubtless"} - of_extras == declared


def test_a_service_has_imported_what_its_first_picture_needs(tiny_run: Path, tmp_path: Path) -> None:
    """No asker waits for torchvision: pictures are prepared without it."""
    code = """
import sys, torch, doubtless
from doubtless.runs.data import preparation_of
from doubtless.server.service.service import Service
run, folder = sys.argv[1:]
index = doubtless.FolderIndex.create(folder, family="point", dim=8)
model = doubtless.load(run)
assert "torchvision" not in sys.modules
Service(doubtless.Gallery(index, model=model)).close()
preparation_of(model.method)(torch.zeros(3, 40, 50, dtype=torch.uint8))
assert "torchvision" not in sys.modules
"""
    command = [sys.executable, "-c", code, str(tiny_run), str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
