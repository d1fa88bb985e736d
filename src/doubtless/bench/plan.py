"""The runs of a suite: one per method and seed, each with a key that changes when its result would.

Hyper-parameters are chosen on validation data, once per method, and written down with all that was tried. How
long a suite will take is known from runs that are done, else from a few training steps measured now.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from doubtless.bench.suite import Suite
from doubtless.config import Config
from doubtless.data import open_source
from doubtless.data.source import locate
from doubtless.errors import InputError
from doubtless.files import write_text
from doubtless.methods import method_class
from doubtless.runs import Run
from doubtless.runs.data import open_run_data
from doubtless.runs.model import best_device
from doubtless.runs.timing import read_timing
from doubtless.training.estimate import estimate_epoch

# What does not change a result: where data lies, how many hands load it, what device computes.
INDIFFERENT = {
    "data": ("root", "workers"),
    "training": ("accelerator", "devices", "nodes", "timeout", "compile", "loggers"),
}

# Keys younger than the first results, with the value that is what was done before there was such a key.
YOUNGER: dict[tuple[str, ...], Any] = {
    ("evaluation", "data"): None,
    ("evaluation", "ood_ratio"): None,
    ("evaluation", "size"): None,
    ("evaluation", "open_set"): None,
    ("evaluation", "scale"): "as is",
    ("evaluation", "disturbed"): None,
    ("loss", "pairs"): "all",
    ("loss", "reduction"): "all",
    ("loss", "distance"): "squared",
    ("model", "frozen_stages"): 0,
    ("model", "batch_norm"): "trained",
    ("model", "feature_norm"): "none",
    ("model", "dropout"): 0.0,
    ("training", "recipe"): "auto",
    ("training", "schedule"): "decay",
    ("training", "lr_step"): 10,
    ("training", "warmup"): 0,
    ("training", "backbone_lr"): 1.0,
    ("training", "head_lr"): 1.0,
    ("training", "clip"): None,
    ("training", "patience"): None,
    ("training", "decayed"): "all",
    ("laplace", "tune", "meant_for"): None,
    ("laplace", "refit"): False,
    ("head", "temperature"): 0.1,
    ("head", "first_scale"): 1e-4,
    ("head", "first_shift"): -7.0,
    ("hib", "start"): "fixed",
    ("hib", "negative_weight"): 1.0,
    ("hib", "unit_means"): False,
    ("proxy", "start"): "fixed",
    ("proxy", "gap"): None,
    ("laplace", "reduction"): None,
    ("laplace", "covariance"): "diagonal",
    ("laplace", "refactor"): 100,
}

# Keys that are no more, with the value that they had: runs keep the names they have.
RETIRED: dict[tuple[str, str], Any] = {("proxy", "freeze_batch_norm"): False}


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
    trained: Path | None = None
    """Where `--tune` leaves the same network, if this is one of the settings it compares."""

    @property
    def name(self) -> str:
        """Method and seed, or the grid values of a tuning run."""
        values = ", ".join(f"{key.rsplit('.', 1)[-1]} {_shown(value)}" for key, value in self.tuning.items())
        return f"{self.method} · {values}" if values else f"{self.method} · seed {self.seed}"

    @property
    def is_done(self) -> bool:
        """Tuning runs need their log only, the others what was measured."""
        return (self.folder / ("model.json" if self.tuning else "queries.safetensors")).exists()


def plan_jobs(suite: Suite, work: Path, *, root: str | None = None) -> list[Job]:
    """Every method with every seed, seeds outermost, so that a first comparison stands early."""
    return [_job(suite, method, seed, work, root) for seed, method in product(suite.seeds, suite.methods)]


def plan_tuning(
    suite: Suite,
    work: Path,
    *,
    root: str | None = None,
    with_base: bool = False,
    rows: Collection[str] | None = None,
) -> list[Job]:
    """Every point of every method's grid, or of those of some `rows`, with the suite's first seed.

    Rows that start from another row's run come `with_base`, a second time round: their bases, which are runs of
    the suite as any others, are then made with the values chosen for them and stand first in the plan.
    """
    seed = suite.seeds[0]
    chosen = [
        name
        for name, row in suite.methods.items()
        if (row.base is not None) == with_base and (rows is None or name in rows)
    ]
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
    name = f"{method}-{run_key(config)}"
    in_tuning, in_table = (place / suite.name / name for place in (work / "tuning", work))
    return Job(
        method,
        seed,
        config,
        in_tuning if tuning else in_table,
        dict(tuning or {}),
        base,
        measures=row.of is not None,
        trained=None if tuning or row.of is not None else in_tuning,
    )


def run_key(config: Config) -> str:
    """A hash of configuration, data and method version: equal keys give equal results."""
    plain = config.to_dict()
    if config.base is not None:  # a run's folder is named by its own key, wherever it lies
        plain["base"] = Path(config.base).name
    for section, keys in INDIFFERENT.items():
        for key in keys:
            plain[section].pop(key, None)
    for (*sections, key), before in YOUNGER.items():
        inside = reduce(lambda inner, section: inner.get(section, {}), sections, plain)
        if key in inside and inside[key] == before:
            del inside[key]
    for (section, key), before in RETIRED.items():
        if section in plain:
            plain[section][key] = before
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
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"There are no weights at {path} ({error.strerror}); put the file there, or below --data FOLDER or "
            "$DOUBTLESS_DATA."
        ) from error


def choose(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Method → the grid values of its best validation score, and every value tried with its score.

    The score is the best epoch's, by the metric that `training.monitor` names. Test data is not looked at.
    """
    choices: dict[str, dict[str, Any]] = {}
    for job in jobs:
        log = Run(job.folder).log
        if not job.is_done or not log:
            continue
        monitor = f"validation_{job.config.training.monitor}"
        score = max(row[monitor] for row in log)
        entry = choices.setdefault(job.method, {"chosen": {}, "score": -1.0, "by": monitor, "tried": []})
        entry["tried"].append({**job.tuning, "score": round(score, 5)})
        if score > entry["score"]:
            entry |= {"chosen": dict(job.tuning), "score": round(score, 5)}
    return choices


def save_choices(path: Path, choices: dict[str, dict[str, Any]]) -> None:
    """Writes what `choose` gave beside the suite."""
    header = (
        "# Chosen on validation data by `doubtless bench --tune`; everything that was tried is below each.\n"
    )
    write_text(path, header + yaml.safe_dump(choices, sort_keys=False))


EVALUATION_SECONDS = 20.0  # start of a process, embedding, metrics and intervals of a thousand queries


def estimate_seconds(jobs: Sequence[Job]) -> dict[str, float]:
    """Method → seconds per run, on this machine, one run at a time."""
    seconds: dict[str, float] = {}
    for job in jobs:
        timing = read_timing(job.folder)
        if "seconds" in timing:
            seconds[job.method] = timing["seconds"]
        elif "train_seconds" in timing:  # all that older runs have
            seconds[job.method] = timing["train_seconds"] + EVALUATION_SECONDS
    for job in jobs:
        if job.method not in seconds:
            seconds[job.method] = _probe(job.config) + EVALUATION_SECONDS
    return seconds


def _probe(config: Config) -> float:
    """Steps of the real method on batches of the real shape, times their number; and those of its stages."""
    data = open_run_data(config)
    method = method_class(config.method)(config, data.spec)
    stages = list(method.stages().values())
    seconds = 0.0
    if method.trains and config.training.epochs > 0:
        method.to(best_device(config.training.accelerator))
        seconds = estimate_epoch(method, data).epoch * config.training.epochs
    return seconds + (len(stages) * _probe(stages[0]) if stages else 0.0)  # members are alike
