"""What the library says when it refuses: sentences that begin with a capital and end with a full stop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import doubtless

HOME = Path(doubtless.__file__).parent
OURS = {
    "InputError", "FileError", "RunError", "StoreError", "DoubtlessError", "NotFoundError", "ConflictError",
    "ReadOnlyError", "OverloadedError", "ImageError", "UnsupportedImageError", "LargeImageError",
}  # fmt: skip
FIRST = re.compile(r"[^a-z]|k\b|[a-z]+[_.-]\w|λ|τ|κ|doubtless\b|pytorch|torch|timm|milvus:")
"""A capital, a sign or a value; or what begins small by its nature: names of parameters, methods and packages."""


def messages() -> Iterator[tuple[str, str, str]]:
    """Place, beginning and end of every message that is raised as a literal; values in it stand as ⟨⟩."""
    for path in sorted(HOME.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in OURS and isinstance(node.args[0], ast.Constant | ast.JoinedStr):
                text = written(node.args[0])
                if text:
                    yield f"{path.relative_to(HOME)}:{node.lineno}", text[:60], text[-60:]


def written(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    assert isinstance(node, ast.JoinedStr)
    return "".join(value.value if isinstance(value, ast.Constant) else "⟨⟩" for value in node.values)


def test_messages_begin_with_a_capital() -> None:
    wrong = [f"{place}: {begins}" for place, begins, _ in messages() if not FIRST.match(begins)]
    assert wrong == []


def test_messages_end_with_a_full_stop() -> None:
    wrong = [f"{place}: {ends}" for place, _, ends in messages() if not ends.endswith((".", "?", "⟨⟩"))]
    assert wrong == []


def test_there_are_messages_to_look_at() -> None:
    assert len(list(messages())) > 300
