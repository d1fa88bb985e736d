"""Every example in a docstring of the package is run, each module's in a folder of its own."""

from __future__ import annotations

import doctest
import importlib
import io
from pathlib import Path

import pytest

from tests.docs.pages import Furnish

SRC = Path(__file__).parents[2] / "src"


def _dotted(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [_dotted(path) for path in sorted(SRC.rglob("*.py")) if ">>> " in path.read_text()]


FURNITURE = ("runs/first", "photos", "photo.jpg", "shoe.jpg", "vectors.npy", "gallery")
"""What examples find in their folder, as far as they name it."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name: str, furnish: Furnish) -> None:
    module = importlib.import_module(name)
    tests = [test for test in doctest.DocTestFinder().find(module, name) if test.examples]
    assert tests, f"{name} has lines that begin with >>> in no docstring"
    sources = [example.source for test in tests for example in test.examples if not _is_skipped(example)]
    furnish(thing for thing in FURNITURE if f'"{thing}"' in "".join(sources))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failures = io.StringIO()
    for test in tests:
        runner.run(test, out=failures.write)
    assert runner.failures == 0, failures.getvalue()


def _is_skipped(example: doctest.Example) -> bool:
    return bool(example.options.get(doctest.SKIP))


@pytest.mark.parametrize("name", MODULES)
def test_examples_that_are_not_run_say_why(name: str) -> None:
    for test in doctest.DocTestFinder().find(importlib.import_module(name), name):
        for example in filter(_is_skipped, test.examples):
            comments = example.source.partition("# doctest: +SKIP")[0].partition("#")[2]
            assert len(comments.split()) > 1, f"{test.name}: {example.source} gives no reason"
