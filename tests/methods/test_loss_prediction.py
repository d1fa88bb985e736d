"""Loss prediction: the head ranks losses, of the part it should, and its variance keeps the order."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from doubtless.losses import neighbor_loss_per_image
from doubtless.methods.configuration import make_config
from doubtless.methods.loss_prediction import FEWEST, FOLDS, _folds, _Lesson, positive
from doubtless.metrics.uncertainty import error_auroc
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.search.neighbors import nearest
from doubtless.training import train_run


def config_of(tiny_config: dict[str, Any], base: Path, **head: Any) -> Any:
    return make_config(
        {**copy.deepcopy(tiny_config), "method": "loss-prediction", "base": str(base), "head": head}
    )


@pytest.fixture(scope="module")
def noisy_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blobs as in the tiny data set, each with a noise of its own strength: what is hard can be seen."""
    import numpy as np

    rng = np.random.default_rng(1)
    centers = rng.uniform(0, 1, (6, 12, 12))
    arrays = {}
    for part, count in (("train", 120), ("test", 60)):
        labels = np.repeat(np.arange(6), count)
        strength = rng.uniform(0.1, 0.9, (len(labels), 1, 1))
        noisy = centers[labels] + strength * rng.normal(0, 1, (len(labels), 12, 12))
        arrays |= {f"x_{part}": (noisy.clip(0, 1) * 255).astype(np.uint8), f"y_{part}": labels}
    path = tmp_path_factory.mktemp("noisy") / "noisy.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def run(tiny_config: dict[str, Any], noisy_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = {**copy.deepcopy(tiny_config), "method": "loss-prediction"}
    config["data"] = {**config["data"], "source": f"npz:{noisy_npz}", "ood": [], "validation": 0.4}
    return train_run(make_config(config), tmp_path_factory.mktemp("prediction") / "run", quiet=True)


def test_uncertainty_knows_which_unseen_images_go_wrong(run: Run) -> None:
    data = open_run_data(run.config, split=run.split)
    embedding = embed_images(run.load_method(), data.test)
    first = nearest(embedding.direction, embedding.direction, k=1, exclude=torch.arange(len(embedding))).index
    correct = data.test.labels[first[:, 0]] == data.test.labels
    assert 10 < int((~correct).sum()) < len(correct) - 10
    assert error_auroc(embedding.uncertainty, correct) > 0.65


def test_head_ranks_the_losses_it_was_given(run: Run) -> None:
    data = open_run_data(run.config, split=run.split)
    targets = json.loads((run.path / "model.json").read_text())["record"]["targets"]
    given = {"train": data.train, "validation": data.validation}[targets]
    embedding = embed_images(run.load_method(), given)
    loss = neighbor_loss_per_image(embedding.location, given.labels)
    ranks = torch.stack([value.argsort().argsort().double() for value in (loss, embedding.uncertainty)])
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.8


def test_of_two_teachers_the_better_one_is_chosen_and_trying_leaves_no_trace(
    run: Run, tmp_path: Path
) -> None:
    """`auto` ends with the very head that naming its choice gives."""
    record = json.loads((run.path / "model.json").read_text())["record"]
    agreement = record["agreement"]
    assert agreement.keys() == {"train", "validation"}
    assert all(-1 <= value <= 1 for value in agreement.values())
    assert record["targets"] == max(agreement, key=lambda name: agreement[name])
    values = {**run.config.to_dict(), "base": str(run.path / "base")}
    named = train_run(
        make_config({**values, "head": {**values["head"], "targets": record["targets"]}}),
        tmp_path / "named",
        quiet=True,
    )
    heads = [made.load_method().second.state_dict() for made in (run, named)]
    assert all(torch.equal(value, heads[1][name]) for name, value in heads[0].items())
    assert "agreement" not in json.loads((named.path / "model.json").read_text())["record"]


def test_folds_share_no_label_in_an_open_set() -> None:
    labels = torch.arange(12).repeat_interleave(4)
    for seed in range(5):
        fold = _folds(labels, whole_labels=True, seed=seed)
        assert all(len(set(fold[labels == label].tolist())) == 1 for label in range(12))
        assert sorted(fold.bincount().tolist()) == [8, 8, 8, 12, 12]
    assert sorted(_folds(labels, whole_labels=False, seed=0).bincount().tolist()) == [9, 9, 10, 10, 10]


def test_of_few_validation_images_nothing_is_said(run: Run) -> None:
    method = run.load_method()
    few = FOLDS * FEWEST - 1
    lesson = _Lesson(torch.zeros(few, 4), torch.zeros(few))
    assert method._agreements(lesson, lesson, torch.arange(few) % 2) == {}


def test_targets_decide_what_is_learned_and_are_recorded(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    found = {}
    for targets in ("train", "validation"):
        made = train_run(
            config_of(tiny_config, tiny_run, targets=targets, epochs=2), tmp_path / targets, quiet=True
        )
        assert json.loads((made.path / "model.json").read_text())["record"]["targets"] == targets
        found[targets] = made.load_method().state_dict()["second.3.weight"]
    assert not torch.equal(found["train"], found["validation"])


@given(st.floats(-(2.0**60), 2.0**60, width=32))
def test_positive_is_positive_and_finite_in_single_precision(value: float) -> None:
    found = positive(torch.tensor(value))
    assert 0 < float(found) < float("inf")
    expected = (value + (value * value + 4) ** 0.5) / 2
    if value > -1e3:
        assert float(found) == pytest.approx(expected, rel=1e-5)


def test_positive_keeps_the_order_and_has_a_gradient() -> None:
    values = torch.linspace(-3000, 3000, 2001, requires_grad=True)
    found = positive(values)
    assert bool((found.diff() > 0).all())
    found.sum().backward()
    assert torch.isfinite(values.grad).all()
    assert bool((values.grad > 0).all())
