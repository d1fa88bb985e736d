"""Every code block of docs/why-our-numbers-differ.md runs, each by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "why-our-numbers-differ.md"
SECTIONS = [
    (title.strip(), code)
    for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.M | re.S)
    for code in re.findall(r"^```python\n(.*?)^```", body, flags=re.M | re.S)
]


@pytest.mark.parametrize(("title", "code"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_example_holds(title: str, code: str) -> None:
    assert "assert " in code
    exec(compile(code, f"{PAGE.name}: {title}", "exec"), {"__name__": "example"})


def test_every_section_has_one_example() -> None:
    assert [title for title, _ in SECTIONS] == re.findall(r"^## (.+)$", PAGE.read_text(), flags=re.M)
