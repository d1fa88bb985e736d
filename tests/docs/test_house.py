"""scripts/house.py draws the plan from imports as they are written, lazy ones and those for types included."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import doubtless

ROOT = Path(__file__).parents[2]
HOME = ROOT / "src" / "doubtless"


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


def told(title: str) -> list[tuple[str, str]]:
    """Files and functions of a walk of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    _, _, section = text.partition(f"## {title}\n")
    assert section, f"docs/architecture.md has no section {title!r}"
    return re.findall(r"^\| `(\S+\.py)` \| `(\w+)` \|", section.partition("\n## ")[0], re.MULTILINE)


def follows(walk: list[tuple[str, str]], real: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What of a walk is not called in its order."""
    rest = iter(real)
    return [step for step in walk if step not in rest]


def test_the_walk_of_a_query_is_what_a_question_takes(
    house: ModuleType, tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    photo = house.write_photos(tmp_path / "photos")
    run = doubtless.train(tiny_config | {"method": "lam-posthoc"}, tmp_path / "run", quiet=True)
    with doubtless.Gallery.create(tmp_path / "g", images=tmp_path / "photos", model=run.path) as gallery:
        gallery.calibrate(target_error=0.2)
        gallery.ask(photo)  # what is read and built once is no part of the walk
        real = house.walk_of(lambda: gallery.ask(photo), HOME)
    walk = told("The walk of one query")
    assert len(walk) > 10
    assert not follows(walk, [(step.file, step.function) for step in real])


def test_the_walk_of_a_training_step_is_what_a_step_takes(
    house: ModuleType, tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    config = tiny_config | {"method": "lam-online"}
    real = house.walk_of(lambda: doubtless.train(config, tmp_path / "run", quiet=True), HOME)
    walk = told("The walk of one training step")
    assert len(walk) > 5
    called = [(step.file, step.function) for step in real]
    epoch = called.index(("training/module.py", "on_train_epoch_start"))  # before it, methods try a batch
    first = dict.fromkeys(called[epoch:])
    assert not follows([step for step in walk if step in first], list(first))
    assert set(walk) <= set(called)


def test_no_rooms_import_each_other(house: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    house.print_plan(ROOT / "src")
    assert "cycles of rooms: none" in capsys.readouterr().out
