"""The suites of the papers' data sets, planned whole and run in part on small trees with a small network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from doubtless.bench import load_suite, plan_jobs
from doubtless.bench.plan import Job
from doubtless.bench.suite import Suite, merge
from doubtless.bench.worker import make_run, measure_again
from tests.reference import paper_trees as trees

SUITES = Path(__file__).parents[2] / "benchmarks" / "suites"
SMALL = {
    "data": {"size": 16, "workers": 0, "validation": 0.4},
    "model": {"backbone": "conv-fashion", "pretrained": False, "pooling": "auto", "dim": 8},
    "training": {"epochs": 1, "batch_size": 8, "per_class": 4, "precision": "32", "accelerator": "cpu"},
}
FEW = {"cache": 40, "refresh": 3, "negatives": 2, "tuples": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every tree where the suites look for it."""
    folder = tmp_path_factory.mktemp("data")
    trees.write_cub200(folder)
    trees.write_cars196(folder / "cars196")
    trees.write_sop(folder)
    trees.write_lfw(folder)
    trees.write_msls(folder / "msls")
    return folder


def small(name: str) -> Suite:
    """The shipped suite with a small network, one epoch and a small cache; data, losses and methods are its own."""
    suite = load_suite(SUITES / f"{name}.yaml")
    rows = {}
    for method, row in suite.methods.items():
        changed = dict(row.set)
        if row.of is None:
            changed = merge(changed, {"training": {**SMALL["training"]}, "model": {**SMALL["model"]}})
        if "mining" in changed:
            changed["mining"] = FEW
        rows[method] = row.model_copy(update={"set": changed})
    ks = {"evaluation": {"ks": [1, 2]}}
    return suite.model_copy(
        update={"methods": rows, "base": merge(merge(suite.base, SMALL), ks), "seeds": [0]}
    )


def finish(jobs: dict[str, Job], method: str, folder: Path) -> dict:
    """Makes one run of the plan, in this process, and reads what was measured."""
    job = jobs[method]
    config = folder / f"{method}.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(job.config.to_yaml())
    if job.measures:
        assert job.base is not None
        measure_again(config, job.folder, job.base)
    else:
        make_run(config, job.folder)
    assert job.is_done
    return json.loads((job.folder / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("cub200", ["deterministic", "lam-posthoc", "bayes-triplet", "bayes-triplet-on-cars"]),
        ("cars196", ["dvml-triplet"]),
        ("sop", ["contrastive"]),
        ("lfw", ["deterministic", "posthoc-euclidean-fixed"]),
        ("msls", ["deterministic", "bayes-triplet"]),
    ],
)
def test_suites_run_on_small_trees(name: str, rows: list[str], data: Path, tmp_path: Path) -> None:
    suite = small(name)
    jobs = {job.method: job for job in plan_jobs(suite, tmp_path / "work", root=str(data))}
    assert set(jobs) == set(suite.methods)
    assert len({job.folder for job in jobs.values()}) == len(jobs)
    found = {row: finish(jobs, row, tmp_path / "configs") for row in rows}
    for measured in found.values():
        assert 0 <= measured["measures"]["recall@1"]["value"] <= 1
    if name == "cub200":
        assert found["bayes-triplet"]["counts"]["queries"] == 36
        assert "ood_auroc/cars196" in found["bayes-triplet"]["measures"]
        on_cars = found["bayes-triplet-on-cars"]
        assert on_cars["counts"]["queries"] == 30  # the five test classes of cars, by a network of birds
        assert not any("/" in metric for metric in on_cars["measures"])
    if name == "msls":
        assert found["bayes-triplet"]["protocol"]["right"] == "within 25 m"
        assert found["bayes-triplet"]["counts"]["queries"] == 15
        assert found["bayes-triplet"]["counts"]["gallery"] == 30


def test_numbers_of_a_paper_that_belong_to_other_data_say_so() -> None:
    from doubtless.evaluation import Evaluation
    from doubtless.metrics import Measure
    from doubtless.report import MethodResult, compare_methods

    published = load_suite(SUITES / "msls.yaml").published
    assert published is not None
    rows = [
        MethodResult(name, [Evaluation({"recall@1": Measure(0.5)})]) for name in ("triplet", "deterministic")
    ]
    numbers = {row.name: published.methods[row.name] for row in rows}
    table = compare_methods(rows, published=numbers, not_comparable=published.not_comparable)
    assert "six other cities" in str(table.cells["triplet"]["recall@1"].not_comparable)
    assert table.cells["deterministic"]["recall@1"].not_comparable is None
    assert torch.tensor(table.cells["triplet"]["recall@1"].published) == pytest.approx(0.35)
