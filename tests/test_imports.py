"""What asks a finished model does not wait for what trains one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASKING = (
    "runs.model",
    "index.folder",
    "ingest.bulk",
    "server.http.app",
    "runs.evaluation",
    "methods.lam_online",
)
SLOW = {"lightning", "torchvision", "timm", "pytorch_metric_learning", "sklearn", "matplotlib", "gradio"}


def test_asking_a_model_imports_nothing_that_only_training_needs() -> None:
    """Lightning and torchvision take three times as long to import as torch."""
    lines = [f"import doubtless.{name}" for name in ASKING]
    code = "\n".join([*lines, f"import sys; print(*sorted({SLOW!r} & set(sys.modules)))"])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == []


def test_a_service_has_imported_what_its_first_picture_needs(tiny_run: Path, tmp_path: Path) -> None:
    """So the first asker does not wait for torchvision."""
    code = """
import sys, doubtless
from doubtless.server.service.service import Service
run, folder = sys.argv[1:]
index = doubtless.FolderIndex.create(folder, family="point", dim=8)
model = doubtless.load(run)
assert "torchvision" not in sys.modules
Service(index, model=model).close()
assert "torchvision" in sys.modules
"""
    command = [sys.executable, "-c", code, str(tiny_run), str(tmp_path / "index")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
