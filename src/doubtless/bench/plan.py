"""The runs of a suite: one a method and seed, each with a key that changes when its result would."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import product
from pathlib import Path
from typing import Any

from doubtless.bench.suite import Suite
from doubtless.config import Config
from doubtless.data import open_source
from doubtless.data.locate import locate
from doubtless.methods import method_class

# What does not change a result: where data lies, how many hands load it, what device computes.
INDIFFERENT = {"data": ("root", "workers"), "training": ("accelerator", "devices", "nodes", "compile")}

# Keys younger than the first results, with the value that is what was done before there was such a key.
YOUNGER: dict[tuple[str, ...], Any] = {
    ("evaluation", "data"): None,
    ("evaluation", "ood_ratio"): None,
    ("loss", "pairs"): "all",
    ("laplace", "tune", "meant_for"): None,
    ("laplace", "refit"): False,
}


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    method: str  # the suite's name for it
    seed: int
    config: Config
    folder: Path
    tuning: Mapping[str, Any] = field(default_factory=dict)
    """Grid values, for the runs of `--tune`."""
    base: Path | None = None
    """The run that must be finished before this one can start."""
    measures: bool = False
    """Nothing is trained: the base is measured once more, in another way."""

    @property
    def name(self) -> str:
        values = ", ".join(f"{key.rsplit('.', 1)[-1]} {_shown(value)}" for key, value in self.tuning.items())
        return f"{self.method} · {values}" if values else f"{self.method} · seed {self.seed}"

    @property
    def is_done(self) -> bool:
        """Tuning runs need their log only, the others what was measured."""
        return (self.folder / ("model.json" if self.tuning else "queries.safetensors")).exists()


def plan_jobs(suite: Suite, work: Path, *, root: str | None = None) -> list[Job]:
    """Every method with every seed, seeds outermost, so that a first comparison stands early."""
    return [_job(suite, method, seed, work, root) for seed, method in product(suite.seeds, suite.methods)]


def plan_tuning(suite: Suite, work: Path, *, root: str | None = None, with_base: bool = False) -> list[Job]:
    """Every point of every method's grid, with the suite's first seed.

    Rows that start from another row's run come `with_base`, a second time round: their bases, which are runs of
    the suite as any others, are then made with the values chosen for them and stand first in the plan.
    """
    seed = suite.seeds[0]
    chosen = [name for name, row in suite.methods.items() if (row.base is not None) == with_base]
    grids = {name: grid for name in chosen if (grid := suite.grid_of(name))}
    bases = {base: None for name in grids if (base := suite.methods[name].base) is not None}
    bare = suite.model_copy(
        update={"tuned": {name: suite.tuned[name] for name in bases if name in suite.tuned}}
    )
    tuning = [
        _job(bare, name, seed, work, root, dict(zip(grid, point, strict=True)))
        for name, grid in grids.items()
        for point in product(*grid.values())
    ]
    return [_job(suite, base, seed, work, root) for base in bases] + tuning


def _job(
    suite: Suite,
    method: str,
    seed: int,
    work: Path,
    root: str | None,
    tuning: Mapping[str, Any] | None = None,
) -> Job:
    extra = {**(tuning or {}), **({"data.root": root} if root else {})}
    row = suite.methods[method]
    first = row.base or row.of
    base = None if first is None else _job(suite, first, seed, work, root).folder
    if row.base is not None:
        extra["base"] = str(base)
    config = suite.config(method, seed, extra=extra)
    place = work / "tuning" if tuning else work
    folder = place / suite.name / f"{method}-{run_key(config)}"
    return Job(method, seed, config, folder, dict(tuning or {}), base, measures=row.of is not None)


def run_key(config: Config) -> str:
    """A hash of configuration, data and method version: equal keys give equal results."""
    plain = config.to_dict()
    if config.base is not None:  # a run's folder is named by its own key, wherever it lies
        plain["base"] = Path(config.base).name
    for section, keys in INDIFFERENT.items():
        for key in keys:
            plain[section].pop(key, None)
    for (*sections, key), before in YOUNGER.items():
        inside = reduce(lambda found, section: found.get(section, {}), sections, plain)
        if key in inside and inside[key] == before:
            del inside[key]
    if config.training.precision == "auto":  # as much as the device allows: no other result is meant
        plain["training"]["precision"] = "32"
    data = config.data
    sources = [data.source, *data.ood]
    if config.evaluation.data is not None:
        sources.append(config.evaluation.data)
    parts = {
        "config": plain,
        "version": method_class(config.method).version,
        "data": [_fingerprint(name, data.root) for name in sources],
        "weights": _file_hash(str(locate(config.model.weights, data.root))) if config.model.weights else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


@cache
def _fingerprint(source: str, root: str | None) -> str:
    return open_source(source, root=root).fingerprint()


@cache
def _file_hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
