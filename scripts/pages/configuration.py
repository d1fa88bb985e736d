"""The reference of configurations: every key with its kind, default and meaning, from the pydantic classes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from doubtless.bench.suite import Published, Row, Suite
from doubtless.config import FINE_TUNING, Config, NamedConfig, Section
from doubtless.methods import all_methods

PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class Key:
    """One line of the reference; `place` is the dotted name, `laplace.tune.grid`."""

    place: str
    kind: str
    default: str
    meaning: str


@dataclass(frozen=True)
class Part:
    """A section with its keys; in the anchor of `head`, which two methods have, the method is named first."""

    name: str
    title: str
    about: str
    keys: tuple[Key, ...]
    anchor: str


def parts() -> list[Part]:
    """All sections: those of every configuration, those that methods add, those of suites of benchmarks."""
    sections = [_part("", "Every run", Config)]
    for name, field in Config.model_fields.items():
        kind = section_of(field.annotation)
        if kind is not None:
            sections += [_part(name, f"`{name}`", kind), *_below(name, kind)]
    of_methods = list(_of_methods())
    names = [name for name, _, _ in of_methods]
    for name, kind, methods in of_methods:
        shown = ", ".join(f"`{method}`" for method in methods)
        anchor = name if names.count(name) == 1 else f"{methods[0]}.{name}"
        sections += [_part(name, f"`{name}`, of {shown}", kind, anchor), *_below(name, kind)]
    suites = (("suite", "A suite of benchmarks", Suite), ("suite.methods.NAME", "A row of a suite", Row))
    sections += [_part(name, title, kind) for name, title, kind in suites]
    return [*sections, _part("suite.published", "What a paper printed", Published)]


def _of_methods() -> Iterator[tuple[str, type[Section], list[str]]]:
    """Sections that methods add, each once, with the methods that have it."""
    users: dict[tuple[str, type[Section]], list[str]] = {}
    for method, kind in all_methods().items():
        for name, section in kind.sections.items():
            users.setdefault((name, section), []).append(method)
    for (name, section), methods in sorted(users.items(), key=lambda user: user[0][0]):
        yield name, section, methods


def _below(name: str, kind: type[Section]) -> Iterator[Part]:
    """Sections within a section; a class by its name is the same wherever it stands."""
    for key, field in kind.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None and inner is not NamedConfig:
            yield _part(f"{name}.{key}", f"`{name}.{key}`", inner)


def _part(name: str, title: str, kind: type[Section], anchor: str | None = None) -> Part:
    meanings = meanings_of(kind)
    keys = tuple(
        Key(
            f"{name}.{key}" if name else key,
            kind_of(field),
            _default(name, key, field),
            meanings.get(key) or _about(section_of(field.annotation)),
        )
        for key, field in kind.model_fields.items()
    )
    about = inspect.cleandoc(kind.__doc__ or "")
    return Part(name, title, about, keys, (name if anchor is None else anchor).replace("NAME", "name"))


def _about(section: type[Section] | None) -> str:
    """What a section says of itself stands for its key, too."""
    return "" if section is None else inspect.cleandoc(section.__doc__ or "").split("\n\n")[0]


def meanings_of(kind: type[Section]) -> dict[str, str]:
    """What stands under each field of a class, its own or one it inherits."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not (issubclass(base, Section) and base is not Section):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                meanings[field.target.id] = inspect.cleandoc(str(below.value.value))
    return meanings


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field is of, or None."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = [one for one in members if isinstance(one, type) and issubclass(one, Section)]
    return kinds[0] if kinds else None


def kind_of(field: FieldInfo) -> str:
    """What a key accepts, in words.

    >>> from doubtless.config import DataConfig, TrainingConfig
    >>> kind_of(TrainingConfig.model_fields["clip"]), kind_of(DataConfig.model_fields["channels"])
    ('number > 0, or null', '1, 3, or null')
    """
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(limit, name)
    ]
    words = _words(field.annotation)
    before, null, _ = words.partition(", or null")
    return f"{before} {', '.join(limits)}{null}" if limits else words


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in PLAIN:
        return PLAIN[annotation]
    if origin is Literal:
        return ", ".join(str(one) if isinstance(one, int) else f"`{one}`" for one in arguments)
    if origin in (Union, UnionType):
        kinds = ", or ".join(_words(one) for one in arguments if one is not NoneType)
        return f"{kinds}, or null" if NoneType in arguments else kinds
    if origin is list:
        return f"list: {_words(arguments[0])}"
    if origin is dict:
        return f"name: {_words(arguments[1])}"
    if annotation is NamedConfig:
        return "`name` and `arguments`"
    return "section"


def _default(section: str, key: str, field: FieldInfo) -> str:
    """As it would be written; beside it that of fine-tuning, where it differs."""
    if section_of(field.annotation) is not None and not field.is_required():
        return "`null`" if field.default is None else ""
    if field.is_required():
        return "needed"
    written = yaml.safe_dump(field.default, default_flow_style=True).removesuffix("...\n").strip()
    tuned: Mapping[str, Any] = FINE_TUNING.get(section, {})
    if key not in tuned:
        return f"`{written}`"
    other = yaml.safe_dump(tuned[key], default_flow_style=True, width=999).removesuffix("...\n").strip()
    return f"`{written}`; fine-tuning `{other}`"


def as_markdown() -> str:
    """All sections as headings and tables; a section is an anchor, `#data`, and so is a key, `#data.source`."""
    return "\n\n".join(_section_text(part) for part in parts())


def _section_text(part: Part) -> str:
    lines = [
        f"## {part.title} {{ #{part.anchor} }}" if part.anchor else f"## {part.title}",
        "",
        part.about,
        "",
        "| key | accepts | default | what it is |",
        "|---|---|---|---|",
    ]
    for key in part.keys:
        name = key.place.rpartition(".")[2]
        meaning = " ".join(key.meaning.split()).replace("|", "\\|")
        lines.append(f"| `{name}`{{ #{anchor_of(part, key)} }} | {key.kind} | {key.default} | {meaning} |")
    return "\n".join(lines)


def anchor_of(part: Part, key: Key) -> str:
    """Where a key is found in the page; those of every run that are sections themselves stand below their name."""
    name = key.place.rpartition(".")[2]
    return f"{part.anchor}.{name}" if part.anchor else f"run.{name}"
