"""Code beside a formula: `<!-- code: doubtless.losses.triplet -->` becomes the function as it is."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from typing import Any


def found(name: str) -> Any:
    """The object of a dotted name.

    >>> found("doubtless.losses.triplet_loss").__name__
    'triplet_loss'
    """
    words = name.split(".")
    for count in range(len(words) - 1, 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            thing = getattr(thing, word)
        return thing
    raise AttributeError(f"There is no {name}.")


def code_of(name: str) -> str:
    """The source of a function, method or class, without its docstring."""
    text = textwrap.dedent(inspect.getsource(inspect.unwrap(found(name))))
    lines = text.splitlines()
    definition = ast.parse(text).body[0]
    assert isinstance(definition, (ast.FunctionDef, ast.ClassDef))
    if ast.get_docstring(definition) is not None:
        docstring = definition.body[0]
        assert docstring.end_lineno is not None
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    return "\n".join(lines).strip("\n")


def block(name: str) -> str:
    """The same as a block of a page."""
    return f'```python title="{name}"\n{code_of(name)}\n```'
