"""scripts/house.py draws the plan from imports as they are written, lazy ones and those for types included."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "scripts" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their own types
    spec.loader.exec_module(module)
    return module


def test_examples_hold(house: ModuleType) -> None:
    assert doctest.testmod(house).failed == 0


def test_imports_are_found_wherever_they_stand(house: ModuleType) -> None:
    modules = {f"doubtless{name}": Path() for name in ("", ".a", ".b", ".b.c", ".d")}
    text = (
        "import torch\nimport doubtless.a\nfrom doubtless.b import c, something\n"
        "if TYPE_CHECKING:\n    from doubtless.d import Type\n"
        "def late():\n    from doubtless import d\n"
    )
    imports = {
        (entry.imported, entry.kind) for entry in house.imports_of("doubtless.e", ast.parse(text), modules)
    }
    assert imports == {
        ("doubtless.a", "top"),
        ("doubtless.b", "top"),
        ("doubtless.b.c", "top"),
        ("doubtless.d", "typing"),
        ("doubtless.d", "lazy"),
    }


def test_a_walk_has_every_function_once_in_the_order_of_first_calls(house: ModuleType) -> None:
    home = Path(__file__).parent

    def inner() -> None: ...

    def outer() -> None:
        for _ in range(3):
            inner()
        [inner() for _ in range(2)]

    assert [step.function for step in house.walk_of(outer, home)] == ["outer", "inner"]


def test_no_rooms_import_each_other(house: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    house.print_plan(ROOT / "src")
    assert "cycles of rooms: none" in capsys.readouterr().out
