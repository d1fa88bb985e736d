"""Every row of every shipped suite can be built: its method, with its own backbone, for images of its own data.

Nothing is read or computed: networks are built on the meta device, without weights.
"""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from doubtless.bench import load_suite
from doubtless.bench.suite import Suite, tuned_path
from doubtless.config import Config
from doubtless.files import shipped
from doubtless.methods import DataSpec, base, method_class
from doubtless.methods.configuration import make_config
from doubtless.models import Encoder

FOLDER = Path(__file__).parents[2] / "benchmarks" / "suites"
PATHS = {path.stem: path for folder in (shipped("suites"), FOLDER) for path in sorted(folder.glob("*.yaml"))}
IMAGES = {
    # Source → channels, side where the files have one, classes in the training part.
    "fashion-sample": (1, 28, 10),
    "torchvision:FashionMNIST": (1, 28, 10),
    "npz:omniglot.npz": (1, 28, 964),
    "npz:cifar10.npz": (3, 32, 10),
    "folder:grocery": (3, None, 40),
    "cub200:CUB_200_2011": (3, None, 100),
    "cars196:cars196": (3, None, 98),
    "lfw:lfw": (3, 90, 4000),
    "sop:Stanford_Online_Products": (3, None, 11_318),
    "msls:msls": (3, None, 1),
}
RECORDS = {"cifar10-tried", "fashion-tried", "looks"}
"""Files in `tuned` that no suite reads: all that was tried, by hand."""


@cache
def encoder_of(name: str, **options: Any) -> Encoder:
    return Encoder(name, **options)


@pytest.fixture(autouse=True)
def cheap_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each network is built once, and copied; and `autocast` takes the meta device, which has no half precision."""
    real = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda kind, **options: nullcontext() if kind == "meta" else real(kind, **options)
    )
    monkeypatch.setattr(base, "Encoder", lambda name, **options: copy.deepcopy(encoder_of(name, **options)))


@pytest.fixture(params=PATHS)
def suite(request: pytest.FixtureRequest) -> Suite:
    return load_suite(PATHS[request.param])


def spec_of(config: Config) -> DataSpec:
    """What a method is told of the images of a configuration."""
    assert config.data.source in IMAGES, f"{config.data.source} is not in the table above"
    channels, size, classes = IMAGES[config.data.source]
    side = config.data.size or size
    assert side is not None, f"{config.data.source} has images of several sides, and data.size is not set"
    return DataSpec(config.data.channels or channels, side, [str(number) for number in range(classes)])


@cache
def built(text: str) -> str | None:
    """Builds a method and the stages it is made of; the error where it cannot be built."""
    config = make_config(json.loads(text))
    try:
        with torch.device("meta"):
            method = method_class(config.method)(config, spec_of(config))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    stages = {build_key(stage) for stage in method.stages().values()}
    return next((found for stage in stages if (found := built(stage))), None)


def build_key(config: Config) -> str:
    """All of a configuration that a network is built from, without weights; the same for rows that share it."""
    values = config.to_dict()
    values["model"] |= {"pretrained": False, "weights": None}
    values["data"] = {key: values["data"][key] for key in ("source", "channels", "size")}
    values["training"] = {"recipe": "scratch"}
    return json.dumps(
        {key: values[key] for key in values if key not in ("evaluation", "seed")}, sort_keys=True
    )


def test_every_row_can_be_built(suite: Suite) -> None:
    found = {row: built(build_key(suite.config(row, suite.seeds[0]))) for row in suite.methods}
    assert {row: error for row, error in found.items() if error is not None} == {}


def test_rows_that_are_named_exist(suite: Suite) -> None:
    for name, row in suite.methods.items():
        for other in (row.base, row.of, row.tuned_as):
            assert other is None or other in set(suite.methods) - {name}, f"{name} names {other}"
        if row.of is not None:
            assert suite.methods[row.of].of is None, f"{name} measures {row.of}, which is a measure itself"
        if row.tuned_as is not None:
            other = suite.methods[row.tuned_as]
            assert other.tuned_as is None, (
                f"{name} is tuned as {row.tuned_as}, which is tuned as {other.tuned_as}"
            )


def test_tuned_values_are_of_rows_that_take_them() -> None:
    tuned = {path.stem: path for path in (FOLDER / "tuned").glob("*.yaml")}
    assert set(tuned) <= set(PATHS) | RECORDS
    for name in set(tuned) & set(PATHS):
        suite = load_suite(PATHS[name])
        assert tuned_path(FOLDER / f"{name}.yaml") == tuned[name]
        rows = yaml.safe_load(tuned[name].read_text())
        assert set(rows) <= set(suite.methods), f"{name}: {set(rows) - set(suite.methods)} are no rows"
        for row in rows:
            assert suite.methods[row].of is None, f"{name}: {row} is measured again, not tuned"
            assert suite.methods[row].tuned_as is None, f"{name}: {row} is tuned as another row"


def test_a_row_that_cannot_be_built_is_found() -> None:
    config = load_suite(PATHS["fashion"]).config("mc-dropout", 0)
    model = config.model.model_copy(update={"backbone": "conv-fashoin"})
    wrong = built(build_key(config.model_copy(update={"model": model})))
    assert wrong is not None
    assert wrong.startswith("InputError: There is no backbone 'conv-fashoin'")
