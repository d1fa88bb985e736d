"""Nothing without its entry: public names, keys, commands, metrics, routes, each enumerated from the code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import doubtless
from doubtless.bench.suite import Published, Row, Suite
from doubtless.cli import app
from doubtless.config import Config, NamedConfig, Section
from doubtless.methods import all_methods
from doubtless.metrics import METRICS
from scripts.pages import configuration
from tests.docs.built import Site
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


def public_names() -> Iterator[str]:
    """Names that the package and its rooms give, and what the classes among them have of their own."""
    rooms = [room.name for room in pkgutil.iter_modules(doubtless.__path__, "doubtless.") if room.ispkg]
    for module in ("doubtless", *rooms):
        if module == "doubtless.cli":  # its names are commands
            continue
        given = importlib.import_module(module)
        for name in getattr(given, "__all__", ()):
            if name.startswith("__"):
                continue
            yield f"{module}.{name}"
            thing = getattr(given, name)
            if (
                inspect.isclass(thing) and module != "doubtless"
            ):  # the front door leads to the entry in the room
                yield from (f"{module}.{name}.{member}" for member in members(thing))


def members(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            yield name


def keys_of(kind: type[Section]) -> Iterator[tuple[type[Section], str]]:
    """Every key of a section and of the sections in it, with the class it is a key of."""
    for name, field in kind.model_fields.items():
        yield kind, name
        for inner in re.findall(r"[\w.]+", str(field.annotation)):
            found = next((one for one in sections() if f"{one.__module__}.{one.__qualname__}" == inner), None)
            if found not in (None, kind, NamedConfig):
                yield from keys_of(found)


def sections() -> list[type[Section]]:
    """All classes of configurations that are imported; methods and suites are."""
    found: list[type[Section]] = []
    waiting = [Section]
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        found += [one for one in below if one.__module__.startswith("doubtless.")]
    return found


def configuration_keys() -> set[tuple[type[Section], str]]:
    added = [section for method in all_methods().values() for section in method.sections.values()]
    return {key for kind in (Config, Suite, Row, Published, *added) for key in keys_of(kind)}


def commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """Every command that is shown, by its words."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, *words, name)
        else:
            yield " ".join((*words, name)), command


def routes(tmp_path: Path) -> list[str]:
    """What a server's OpenAPI document names."""
    pytest.importorskip("fastapi", reason="needs the extra serve")
    import torch

    from doubtless.server.http.app import create_app
    from doubtless.server.service.service import Service

    doubtless.Gallery.create(
        tmp_path / "gallery", embedding=doubtless.Embedding.point(torch.eye(4)), labels=["a", "a", "b", "b"]
    ).close()
    with Service.open(str(tmp_path / "gallery")) as service:
        paths: dict[str, dict[str, Any]] = create_app(service, page=False).openapi()["paths"]
    return [f"{method.upper()} {path}" for path, operations in paths.items() for method in operations]


def entry(page: str, heading: str) -> str | None:
    """What stands below a heading of a Markdown page, up to the next of its rank."""
    found = re.search(rf"^### `{re.escape(heading)}`\n(.*?)(?=^###? |\Z)", page, re.MULTILINE | re.DOTALL)
    return None if found is None else found[1]


def lacking(page: str, name: str) -> list[str]:
    """What a metric's entry lacks."""
    below = entry(page, name)
    if below is None:
        return ["entry"]
    parts = {
        "direction": rf"^<!-- metric: {re.escape(name)} -->$",  # drawn from the metric: its sentence and its arrow
        "range": r"^Range: .+",
        "formula": r"^```text\n.+",
        "example": r"^```python\n(?:.*\n)*?assert ",
    }
    return [part for part, pattern in parts.items() if re.search(pattern, below, re.MULTILINE) is None]


def without_example(page: str, name: str) -> bool:
    below = entry(page, f"doubtless {name}")
    return below is None or re.search(rf"^doubtless {name}\b", below, re.MULTILINE) is None


def test_every_public_name_has_its_entry(site: Site) -> None:
    places: set[str] = set()
    for path in (site.folder / "reference" / "python").glob("*.html"):
        places |= site.pages[path].anchors
    names = list(public_names())
    assert len(names) > 400
    assert [name for name in names if name not in places] == []


def test_every_configuration_key_has_its_entry(site: Site) -> None:
    described = {(part.title, key.place): key for part in configuration.parts() for key in part.keys}
    assert all(key.kind and key.meaning for key in described.values()), [
        key.place for key in described.values() if not (key.kind and key.meaning)
    ]
    anchors = site.page("reference/configuration.html").anchors
    places = [configuration.anchor_of(part, key) for part in configuration.parts() for key in part.keys]
    assert len(set(places)) == len(places)
    assert set(places) <= anchors
    kinds = {kind for kind, _ in configuration_keys()}
    ends = sorted(place.rpartition(".")[2] for place in places)
    # A class that is used in two places, as phases of DVML are, has its keys in both.
    assert {key for _, key in configuration_keys()} == set(ends)
    assert len(places) >= sum(len(kind.model_fields) for kind in kinds)


def test_every_command_has_its_entry_and_an_example(site: Site) -> None:
    page = (REFERENCE / "commands.md").read_text()
    names = [name for name, _ in commands(get_command(app))]
    assert len(names) > 25
    assert [name for name in names if without_example(page, name)] == []
    anchors = site.page("reference/commands.html").anchors
    assert {f"doubtless-{name.replace(' ', '-')}" for name in names} <= anchors


def test_every_option_is_in_the_table_of_its_command(site: Site) -> None:
    sections = site.text("reference/commands.html").split('<h3 id="doubtless-')[1:]
    tables = {part.partition('"')[0]: re.sub(r"<[^>]+>", "", part) for part in sections}
    for name, command in commands(get_command(app)):
        for parameter in command.params:
            if parameter.name == "help" or getattr(parameter, "hidden", False):
                continue
            option = parameter.opts[0].startswith("-")
            shown = parameter.opts[0] if option else (parameter.metavar or parameter.name.upper())
            assert shown in tables[name.replace(" ", "-")], (name, shown)


def test_every_metric_has_formula_direction_range_and_example(site: Site) -> None:
    page = (REFERENCE / "metrics.md").read_text()
    assert {name: parts for name in METRICS if (parts := lacking(page, name))} == {}
    shown = re.sub(r"<[^>]+>", "", site.text("reference/metrics.html"))
    assert shown.count("Range: ") == len(METRICS)
    assert shown.count("is better.") == len(METRICS)


def test_every_route_has_its_entry(site: Site, tmp_path: Path) -> None:
    shown = site.text("reference/http.html")
    named = routes(tmp_path)
    assert len(named) > 20
    assert [route for route in named if f"<code>{route}</code>" not in shown] == []


def test_every_method_has_a_page_with_all_that_is_asked() -> None:
    pages = {path: path.read_text() for path in (ROOT / "docs" / "methods").glob("*.md")}
    for name in all_methods():
        if name in {"deterministic", "triplet", "pretrained"}:  # no paper's uncertainty
            continue
        own = [path for path, text in pages.items() if f"`{name}`" in text.partition("\n## ")[0]]
        assert own, name
    for path, text in pages.items():
        headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
        for wanted in ("the idea", "differ from what is right", "what it gives"):
            assert any(wanted in heading.lower() for heading in headings), (path.name, wanted)
        idea = text.partition("## The idea\n")[2].partition("\n## ")[0]
        assert len(re.findall(r"[.!?](?:\s|$)", idea)) == 5, path.name
        assert re.search(r"^<!-- measured: |, measured$", text, re.MULTILINE), path.name
        assert "<!-- code: " in text, path.name


def test_entries_that_are_missing_are_found_out() -> None:
    page = (REFERENCE / "metrics.md").read_text()
    assert lacking(page, "nmi") == []
    assert lacking(page.replace("### `nmi`", "### nmi"), "nmi") == ["entry"]
    whole = entry(page, "nmi")
    assert whole is not None
    cut = page.replace(whole, whole.replace("Range: ", "").replace("assert ", ""))
    assert lacking(cut, "nmi") == ["range", "example"]
    text = (REFERENCE / "commands.md").read_text()
    assert not without_example(text, "salvage")
    assert without_example(text.replace("doubtless salvage shop", "doubtless check shop"), "salvage")
    assert without_example(text, "nonsense")
