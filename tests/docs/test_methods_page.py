"""docs/methods.md lists every registered method, and only those."""

from __future__ import annotations

import re
from pathlib import Path

from doubtless.methods import all_methods

PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()


def test_every_method_has_its_row() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE, re.M)
    assert sorted(rows) == sorted(all_methods())
