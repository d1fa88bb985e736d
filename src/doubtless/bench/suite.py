"""A suite: which methods, with what settings, on what data, over which seeds. One YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from doubtless.config import Config, Section, sentence_of
from doubtless.errors import InputError, nearest
from doubtless.files import reading, shipped
from doubtless.methods.configuration import make_config

FOLDER = Path("benchmarks/suites")


class Published(Section):
    """Numbers a paper printed, to stand beside ours."""

    source: str
    """Paper and table."""
    methods: dict[str, dict[str, float]]
    """Row of the suite → metric → the paper's number."""
    not_comparable: dict[str, str] = {}
    """Metric or row → why the paper's number measures something else."""


class Row(Section):
    """One method of the suite: what differs from the suite's `base`, and what is to be tuned."""

    set: dict[str, Any] = {}
    """Sections and keys of a configuration that differ from `base`."""
    grid: dict[str, list[Any]] | None = None
    """Dotted keys → values to choose from on validation data; None: the suite's own grid, or nothing for a row
    that starts from another's run."""
    base: str | None = None
    """The row whose finished run of the same seed a two-stage method starts from."""
    of: str | None = None
    """The row whose finished run is measured here once more, with this row's `evaluation`; nothing is trained."""
    tuned_as: str | None = None
    """The row whose tuned values this one takes: variants of a method are tuned once."""
    trials: int = Field(default=0, ge=0)
    """Settings that were compared for this row outside of its grid: in another suite, or by hand."""


class Suite(Section):
    """Methods × seeds on one data set; `base` is the configuration they share.

    `tuned` is what `doubtless bench SUITE --tune` chose on validation data, kept in a file beside the suite.
    """

    name: str
    """What `doubtless bench` is called with, and what its results are called."""
    title: str
    """The heading of its page."""
    seeds: list[int] = Field(min_length=1)
    """One run of every row for each."""
    base: dict[str, Any]
    """The configuration that all rows share."""
    methods: dict[str, Row] = Field(min_length=1)
    """Rows by the names they have in tables."""
    grid: dict[str, list[Any]] = {}
    """Dotted keys → values that `--tune` chooses from on validation data, for rows without a grid of their own."""
    trials: int | None = Field(default=None, ge=0)
    """The most settings that any row was tried with; None: not counted."""
    untouched_ood: str | None = None
    """The out-of-distribution set on which nothing was ever chosen; None: there is none."""
    metrics: list[str] | None = None
    """Columns of the printed table; None: all."""
    published: Published | None = None
    """Numbers of a paper, to stand beside ours."""
    tuned: dict[str, dict[str, Any]] = {}
    """Row → dotted key → value; read from the file that `--tune` writes beside the suite."""
    tried: dict[str, int] = {}
    """Row → how many settings `--tune` compared for it; read from the same file as `tuned`."""

    def config(self, method: str, seed: int, *, extra: Mapping[str, Any] | None = None) -> Config:
        """The configuration of one run: base, then the method's own, then what was tuned, then `extra`."""
        row = self.methods[method]
        if row.of is not None:
            return self._measured_again(row.of, row, seed, extra)
        data = merge(self.base, row.set)
        for key, value in {**self.tuned.get(row.tuned_as or method, {}), **(extra or {})}.items():
            data = merge(data, _nested(key, value))
        return make_config({**data, "seed": seed})

    def _measured_again(self, first: str, row: Row, seed: int, extra: Mapping[str, Any] | None) -> Config:
        """The first row's configuration, but for how it is measured."""
        if set(row.set) - {"evaluation"}:
            raise InputError(
                f"A row `of: {first}` is the same run; it can only set evaluation, got {row.set}."
            )
        same = self.config(first, seed, extra=extra).to_dict()
        return make_config(merge(same, row.set))

    def grid_of(self, method: str) -> dict[str, list[Any]]:
        """The grid a method is tuned over; empty where another row's choice or run is taken."""
        row = self.methods[method]
        if row.tuned_as is not None or row.of is not None:
            return {}
        if row.grid is not None:
            return row.grid
        return {} if row.base is not None else self.grid

    @model_validator(mode="after")
    def _rows_that_are_named_exist(self) -> Suite:
        for name, row in self.methods.items():
            for other in (row.base, row.tuned_as, row.of):
                if other is not None and (other not in self.methods or other == name):
                    raise ValueError(f"{name} names {other!r}, which is no other row of the suite")
        return self


def load_suite(name: str | Path, *, folder: Path | None = None) -> Suite:
    """A suite by its name (looked for in benchmarks/suites and among those shipped) or its path."""
    path = find_suite(name, folder=folder)
    data = _read(path)
    tuned = tuned_path(path)
    if tuned.exists():
        choices = _read(tuned)
        with reading(tuned, "file of choices"):
            data["tuned"] = {method: choice["chosen"] for method, choice in choices.items()}
            data["tried"] = {method: len(choice.get("tried", [])) for method, choice in choices.items()}
    try:
        return Suite.model_validate(data)
    except ValidationError as error:
        raise InputError(f"In the suite {path}: {sentence_of(error, Suite)}") from None


def find_suite(name: str | Path, *, folder: Path | None = None) -> Path:
    """The file of a suite."""
    if Path(name).suffix in {".yaml", ".yml"}:
        if not Path(name).is_file():
            raise InputError(f"There is no suite {name}.")
        return Path(name)
    known = _known(folder)
    if str(name) in known:
        return known[str(name)]
    raise InputError(f"There is no suite {str(name)!r}{nearest(str(name), known)}")


def all_suites(*, folder: Path | None = None) -> list[tuple[str, Suite]]:
    """Name and suite of every one that `load_suite` finds by its name, those of a project before the shipped ones.

    >>> "demo" in dict(all_suites())
    True
    """
    return [(name, load_suite(path)) for name, path in sorted(_known(folder).items())]


def _known(folder: Path | None) -> dict[str, Path]:
    """Name → file, of the suites of this project and of those shipped."""
    places = [folder or FOLDER, shipped("suites")]
    return {path.stem: path for place in reversed(places) for path in sorted(place.glob("*.yaml"))}


def tuned_path(suite: Path) -> Path:
    """Where the choices of `--tune` are kept: a folder beside the suites."""
    return suite.parent / "tuned" / suite.name


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `change`, section by section.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}})
    {'a': {'x': 1, 'y': 3}}
    """
    result = dict(base)
    for key, value in change.items():
        inside = result.get(key)
        both = isinstance(value, Mapping) and isinstance(inside, Mapping)
        result[key] = merge(inside, value) if both and isinstance(inside, Mapping) else value
    return result


def _nested(key: str, value: Any) -> dict[str, Any]:
    first, _, rest = key.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _read(path: Path) -> dict[str, Any]:
    with reading(path, "YAML file"):
        data = yaml.safe_load(path.read_text())
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold keys and values.")
    return data
