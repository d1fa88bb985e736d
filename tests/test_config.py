"""Configurations: defaults, overrides, roundtrip; wrong keys and values are sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from doubtless.bench import load_suite
from doubtless.config import with_overrides
from doubtless.errors import InputError
from doubtless.methods.configuration import load_config, make_config

CONFIGS = Path(__file__).parents[1] / "configs"
RECOMMENDED = sorted(CONFIGS.rglob("recommended.yaml"))
MINIMAL = {"method": "deterministic", "data": {"source": "fashion-sample"}}


def test_roundtrip_through_yaml() -> None:
    config = make_config(MINIMAL)
    assert make_config(yaml.safe_load(config.to_yaml())) == config


def test_overrides_do_not_touch_the_original() -> None:
    data = {"training": {"epochs": 20}}
    assert with_overrides(data, ["training.lr=1e-3", "loss.miner.name=X"]) == {
        "training": {
            "epochs": 20,
            "lr": "1e-3",
        },  # YAML 1.1 reads it as text; the check below makes it a number
        "loss": {"miner": {"name": "X"}},
    }
    assert data == {"training": {"epochs": 20}}


def test_numbers_without_a_dot_are_numbers() -> None:
    config = make_config(with_overrides(MINIMAL, ["training.lr=1e-3"]))
    assert config.training.lr == 1e-3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"metod": 1}, "no configuration key 'metod'; did you mean 'method'"),
        ({"training": {"epoch": 3}}, "no configuration key 'training.epoch'; did you mean 'epochs'"),
        ({"loss": {"miner": {"nam": "x", "name": "y"}}}, "'loss.miner.nam'; did you mean 'name'"),
        ({"training": {"epochs": "many"}}, "'training.epochs' cannot be 'many'"),
        ({"training": {"lr": -1}}, "'training.lr' cannot be -1"),
        ({"data": {}}, "lacks the key 'data.source'"),
        ({"method": "x"}, "There is no method 'x'"),
        ({"method": None}, "needs the key method"),
        ({"model": 3}, "'model' cannot be 3"),
    ],
)
def test_wrong_values_are_sentences(change: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_config({**MINIMAL, **change})


def test_every_shipped_config_is_valid() -> None:
    paths = set(CONFIGS.rglob("*.yaml")) - set(RECOMMENDED)
    assert paths
    for path in paths:
        assert load_config(path).method == path.stem.split("+")[0]


@pytest.mark.parametrize(
    "path",
    [path for path in RECOMMENDED if path.parent.name != "photographs"],
    ids=lambda path: path.parent.name,
)
def test_what_is_recommended_is_what_was_measured(path: Path) -> None:
    suite = load_suite(CONFIGS.parent / "benchmarks" / "suites" / f"{path.parent.name}.yaml")
    assert load_config(path) == suite.config("recommended", 0)


def test_what_is_recommended_for_photographs_is_what_was_measured_on_birds() -> None:
    suite = load_suite(CONFIGS.parent / "benchmarks" / "suites" / "cub-lite0.yaml")
    measured, recommended = (
        suite.config("lam-posthoc-proxy-anchor", 0),
        load_config(CONFIGS / "photographs" / "recommended.yaml"),
    )
    for section in ("method", "model", "loss", "training", "laplace"):
        assert getattr(recommended, section) == getattr(measured, section), section
    assert (recommended.data.size, recommended.data.augment, recommended.evaluation.size) == (
        measured.data.size,
        measured.data.augment,
        measured.evaluation.size,
    )


def test_online_lam_at_the_papers_sizes_is_what_was_measured() -> None:
    suites = CONFIGS.parent / "benchmarks" / "suites"
    of_fashion = load_suite(suites / "fashion.yaml").config("lam-online", 0)
    assert load_config(CONFIGS / "fashion/lam-online.yaml") == of_fashion
    of_cifar = load_suite(suites / "cifar10.yaml")
    trained, chosen = of_cifar.config("lam-online-ratio-1", 0), of_cifar.config("lam-online", 0)
    # One row trains, the other chooses τ and λ again: together they are one run.
    assert load_config(CONFIGS / "cifar10/lam-online.yaml") == chosen.model_copy(
        update={"training": trained.training}
    )


def test_the_demo_is_the_shipped_config() -> None:
    from doubtless.cli.demo import DEMO

    assert make_config(DEMO) == load_config(CONFIGS / "fashion-sample/deterministic.yaml")


@pytest.mark.parametrize(("split", "share"), [("closed", 0.1), ("open", 0.2), ("given", 0.2)])
def test_the_share_that_validates_is_a_number_where_none_is_named(split: str, share: float) -> None:
    """So that a run that says the number is the same as one that is silent, as a base or resumed."""
    for unsaid in ({}, {"validation": None}):
        config = make_config({**MINIMAL, "data": {"source": "digits", "split": split, **unsaid}})
        assert config.data.validation == share
    named = make_config({**MINIMAL, "data": {"source": "digits", "split": split, "validation": 0.3}})
    assert named.data.validation == 0.3
