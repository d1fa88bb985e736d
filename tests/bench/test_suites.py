"""The suites with all methods in one table: every row is a configuration, every paper's number has a row."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest

from doubtless.bench import load_suite
from doubtless.bench.suite import Suite
from doubtless.config import Config
from doubtless.methods import all_methods
from doubtless.metrics.catalogue import OTHER, meaning

FOLDER = Path(__file__).parents[2] / "benchmarks" / "suites"
EVERY = sorted(path.stem for path in FOLDER.glob("*.yaml"))
CLOSED, OPEN = ["fashion", "cifar10"], ["omniglot-equal", "grocery-lite0"]
PHOTOGRAPHS = ["grocery-lite0", "cub-lite0", "lfw-lite0"]
EQUAL = ["fashion-equal", "cifar10-equal", "omniglot-equal"]
"""All of whose rows share recipe and number of trials, but for those that follow a paper or its code."""
FROM_PAPERS = {"lam-online-as-printed", "lam-online-as-coded"}
TRAINED_OTHERWISE = {
    "fashion": {"lam-online"},
    "cifar10": {"lam-online-ratio-1", "lam-online-as-printed", "lam-online-kronecker"},
}
EPOCHS = {"cifar10": 60, "grocery-lite0": 14}
"""20 in the other tables."""
NOT_IN_CLOSED = {"pretrained", "triplet"}
"""Not in tables of closed sets: untrained features, and `triplet`, which in batches is `deterministic`."""


@pytest.fixture(params=CLOSED + OPEN)
def suite(request: pytest.FixtureRequest) -> Suite:
    return load_suite(FOLDER / f"{request.param}.yaml")


def configs(suite: Suite) -> dict[str, Config]:
    return {row: suite.config(row, suite.seeds[0]) for row in suite.methods}


@pytest.mark.parametrize("name", EVERY)
def test_every_row_is_a_configuration(name: str) -> None:
    suite = load_suite(FOLDER / f"{name}.yaml")
    assert suite.name == name
    assert all(config.seed == suite.seeds[0] for config in configs(suite).values())


def test_all_methods_are_in_one_table(suite: Suite) -> None:
    missing = set(all_methods()) - {config.method for config in configs(suite).values()}
    assert missing <= (NOT_IN_CLOSED if suite.name in CLOSED else {"triplet"})
    assert len(suite.seeds) == 5


def test_rows_share_data_size_and_length(suite: Suite) -> None:
    """But for those that the suite's own text says are trained otherwise."""
    found = configs(suite)
    found.pop("recommended", None)  # free in all of these
    assert len({(config.data.source, *config.data.ood) for config in found.values()}) == 1
    assert len({(config.model.backbone, config.model.dim) for config in found.values()}) == 1
    alike = [config for row, config in found.items() if row not in TRAINED_OTHERWISE.get(suite.name, ())]
    assert len({config.training.batch_size for config in alike}) == 1
    assert {config.training.epochs for config in alike} - {0} == {EPOCHS.get(suite.name, 20)}
    text = (FOLDER / f"{suite.name}.yaml").read_text().partition("name:")[0]
    assert all(row in text for row in TRAINED_OTHERWISE.get(suite.name, ()))


def test_a_second_stage_has_the_settings_of_its_first(suite: Suite) -> None:
    for name, row in suite.methods.items():
        if row.base is None:
            continue
        first = suite.methods[row.base]
        assert row.tuned_as == (row.base if suite.grid_of(row.base) else None)
        assert suite.config(name, 0).loss == suite.config(row.base, 0).loss
        assert first.base is None


@pytest.mark.parametrize("name", EQUAL)
def test_rows_share_the_recipe_where_that_is_said(name: str) -> None:
    suite = load_suite(FOLDER / f"{name}.yaml")
    found = {row: config for row, config in configs(suite).items() if row not in FROM_PAPERS}
    recipes = {
        (
            config.training.epochs,
            config.training.batch_size,
            config.training.optimizer,
            str(config.data.augment),
        )
        for config in found.values()
    }
    assert len(recipes) == 1
    assert {config.method for config in found.values()} >= set(all_methods()) - {"triplet"}
    assert all(config.evaluation.scale == "tuned" for config in configs(suite).values())


@pytest.mark.parametrize("name", EQUAL)
def test_trained_rows_are_tried_alike(name: str) -> None:
    """Each with as many settings as any other, but those that take what another row was given."""
    suite = load_suite(FOLDER / f"{name}.yaml")
    for row, options in suite.methods.items():
        if grid := suite.grid_of(row):
            assert prod(map(len, grid.values())) == suite.trials, row
        else:
            untrained = suite.config(row, 0).method == "pretrained"
            assert options.tuned_as or row in FROM_PAPERS or untrained, row


@pytest.mark.parametrize("name", EVERY)
def test_no_row_may_be_tried_with_more_settings_than_its_table_allows(name: str) -> None:
    suite = load_suite(FOLDER / f"{name}.yaml")
    if suite.trials is not None:
        grids = [suite.grid_of(row) for row in suite.methods]
        assert max((prod(map(len, grid.values())) for grid in grids if grid), default=0) <= suite.trials


@pytest.mark.parametrize("name", EQUAL)
def test_one_out_of_distribution_set_is_untouched(name: str) -> None:
    suite = load_suite(FOLDER / f"{name}.yaml")
    assert suite.untouched_ood is not None
    sets = {ood.lower().rpartition(":")[2].removesuffix(".npz") for ood in suite.base["data"]["ood"]}
    assert suite.untouched_ood in sets


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_nothing_is_tuned_on_photographs_again(name: str) -> None:
    suite = load_suite(FOLDER / f"{name}.yaml")
    assert not any(suite.grid_of(row) for row in suite.methods)


@pytest.mark.parametrize("name", CLOSED)
def test_papers_numbers_are_of_rows_and_metrics_that_exist(name: str) -> None:
    suite = load_suite(FOLDER / f"{name}.yaml")
    assert suite.published is not None
    assert set(suite.published.methods) <= set(suite.methods)
    named = {metric for numbers in suite.published.methods.values() for metric in numbers}
    assert all(meaning(metric).group != OTHER for metric in named)
    assert set(suite.published.not_comparable) <= named
    sets = {"fashion": "mnist", "cifar10": "svhn_test_small"}
    assert {metric.partition("/")[2] for metric in named} == {"", sets[name]}


def test_auprc_stands_beside_the_papers_at_its_set_sizes() -> None:
    suite = load_suite(FOLDER / "cifar10.yaml")
    assert {config.evaluation.ood_ratio for config in configs(suite).values()} == {26_032 / 10_000}
    assert suite.published is not None
    plain, reweighted = (f"ood_{kind}/svhn_test_small" for kind in ("auprc", "auprc_reweighted"))
    pairs = {(numbers.get(plain), numbers.get(reweighted)) for numbers in suite.published.methods.values()}
    assert (0.85, 0.85) in pairs
    assert all(one == other for one, other in pairs)
    assert plain in suite.published.not_comparable
    assert reweighted not in suite.published.not_comparable
