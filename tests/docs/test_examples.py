"""The examples run as they stand, in a process of their own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_retrieves(path: Path) -> None:
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    recall = re.search(r"recall@1 (\d\.\d+)", done.stdout)
    assert recall is not None
    assert float(recall.group(1)) > 0.6
