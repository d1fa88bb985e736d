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
from doubtless.methods.loss_prediction import positive
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
    embedding = embed_images(run.load_method(), data.validation)
    loss = neighbor_loss_per_image(embedding.location, data.validation.labels)
    ranks = torch.stack([value.argsort().argsort().double() for value in (loss, embedding.uncertainty)])
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.8


@pytest.mark.parametrize(
    ("split", "chosen", "expected"),
    [
        ("closed", "auto", "validation"),
        ("given", "auto", "train"),
        ("open", "auto", "train"),
        ("closed", "train", "train"),
        ("open", "validation", "validation"),
    ],
)
def test_targets_follow_the_split_unless_named(
    tiny_config, run: Run, split: str, chosen: str, expected: str
) -> None:
    config = {**copy.deepcopy(tiny_config), "method": "loss-prediction", "head": {"targets": chosen}}
    config["data"]["split"] = split
    made = type(run.load_method())(make_config(config), run.load_method().spec)
    assert made.targets == expected


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
