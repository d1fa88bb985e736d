"""Mining from a cache: what is found against loops, what is shown, resuming, and two processes as one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from doubtless.errors import InputError
from doubtless.methods import method_class
from doubtless.methods.configuration import make_config
from doubtless.runs import Run, open_run_data
from doubtless.training import train_run
from doubtless.training.callbacks import EpochDisplay
from doubtless.training.mining import TupleBatches, violating_tuples
from tests.reference.stopped import train_until
from tests.training.test_distributed import train_with

MINING = {"cache": 60, "refresh": 5, "negatives": 2, "tuples": 4}


@pytest.fixture(scope="module")
def mined_config(tiny_config: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(tiny_config)
    config |= {"method": "bayes-triplet", "mining": MINING, "loss": {"name": "triplet", "margin": 0.1}}
    return config


@pytest.fixture(scope="module")
def mined_run(mined_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mined") / "run"
    train_run(make_config(mined_config), path, quiet=True)
    return path


def batches_of(config: dict[str, Any], **mining: int) -> TupleBatches:
    checked = make_config({**config, "mining": {**config["mining"], **mining}})
    data = open_run_data(checked)
    torch.manual_seed(0)
    return TupleBatches(method_class(checked.method)(checked, data.spec), data.train)


@pytest.mark.parametrize("seed", range(5))
def test_found_tuples_are_those_of_a_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.nn.functional.normalize(torch.randn(40, 3, generator=generator), dim=-1)
    labels = torch.randint(12, (40,), generator=generator)
    found = violating_tuples(points, labels, margin=0.1, negatives=3, generator=generator)
    distance = (points[:, None] - points[None]).square().sum(-1)
    for anchor, positive, *negatives in found.tolist():
        assert anchor != positive
        assert labels[anchor] == labels[positive]
        others = sorted(
            (n for n in range(40) if labels[n] != labels[anchor]), key=lambda n: distance[anchor, n]
        )
        assert negatives == others[:3]
        assert distance[anchor, positive] > distance[anchor, negatives[0]] - 0.1
    anchors = found[:, 0].tolist()
    assert len(set(anchors)) == len(anchors)
    for anchor in set(range(40)) - set(anchors):  # left out: alone, or in order for at least one positive
        nearest = distance[anchor][labels != labels[anchor]].min()
        positives = [p for p in range(40) if labels[p] == labels[anchor] and p != anchor]
        assert not positives or any(distance[anchor, p] <= nearest - 0.1 + 1e-6 for p in positives)


def test_every_positive_is_drawn() -> None:
    points, labels = torch.ones(6, 2), torch.tensor([0, 1, 0, 0, 1, 0])
    generator = torch.Generator().manual_seed(0)
    pairs = torch.cat(
        [
            violating_tuples(points, labels, margin=0.1, negatives=1, generator=generator)[:, :2]
            for _ in range(300)
        ]
    )
    drawn = {tuple(pair) for pair in pairs.tolist()}
    assert drawn == {(a, p) for a in range(6) for p in range(6) if a != p and labels[a] == labels[p]}
    share = (pairs[pairs[:, 0] == 0][:, 1] == 2).double().mean()
    assert abs(float(share) - 1 / 3) < 4 * (2 / 9 / 300) ** 0.5


def test_where_nothing_violates_the_nearest_to_it_are_shown() -> None:
    points = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-0.6, 0.8]])
    found = violating_tuples(points, torch.tensor([0, 0, 1, 1]), margin=0.1, negatives=1, at_least=1)
    assert found[:, 0].tolist() == [3]


def test_caches_that_are_too_small_are_sentences() -> None:
    with pytest.raises(InputError, match=r"only 1 images of other labels .* lower mining.negatives from 2"):
        violating_tuples(torch.eye(4), torch.tensor([0, 0, 0, 1]), margin=0.1, negatives=2)
    with pytest.raises(InputError, match="No label has two images"):
        violating_tuples(torch.eye(4), torch.arange(4), margin=0.1, negatives=1)


def test_batches_are_whole_tuples_and_refreshed_when_due(mined_config: dict[str, Any]) -> None:
    batches = batches_of(mined_config)
    assert len(batches) == len(batches.images) // 16
    seen = []
    for step, batch in enumerate(batches):
        assert batch.inputs.shape == (16, 1, 12, 12)
        seen.append(batch.position)
        labels = batch.labels.view(4, 4)
        assert (labels[:, 0] == labels[:, 1]).all()
        assert (labels[:, 2:] != labels[:, :1]).all()
        torch.testing.assert_close(batches.images.labels[batch.position], batch.labels)
        assert batches.refreshed == step // 5
    again = [batch.position for batch in batches_of(mined_config)]
    assert all(torch.equal(one, other) for one, other in zip(seen, again, strict=True))


def test_augmented_images_come_through_workers(mined_config: dict[str, Any]) -> None:
    config = copy.deepcopy(mined_config)
    config["data"] |= {"augment": "crop-flip", "size": 12, "workers": 0}
    batch = next(iter(batches_of(config)))
    assert batch.inputs.shape == (16, 1, 12, 12)


@pytest.mark.parametrize("step", [4, 20, 30])
def test_stopped_and_resumed_is_bit_equal(
    mined_config: dict[str, Any], mined_run: Path, tmp_path: Path, step: int
) -> None:
    """Epochs have 12 steps and the cache is refreshed every 5: what an epoch starts with is older than it."""
    train_until(step, mined_config, tmp_path / "run")
    train_run(make_config(mined_config), tmp_path / "run", resume=True, quiet=True)
    whole, resumed = (load_file(path / "model.safetensors") for path in (mined_run, tmp_path / "run"))
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_two_processes_are_one(mined_config: dict[str, Any], mined_run: Path, tmp_path: Path) -> None:
    train_with(2, mined_config, tmp_path)
    alone, together = (load_file(path / "model.safetensors") for path in (mined_run, tmp_path / "run"))
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, atol=2e-4, rtol=1e-3)
    for one, two in zip(Run(mined_run).log, Run(tmp_path / "run").log, strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], abs=1e-5)


def test_refreshing_has_a_bar_of_its_own() -> None:
    from rich.console import Console
    from rich.progress import Progress

    display = EpochDisplay(3)
    assert list(display.bar(range(3), "mining", 3)) == [0, 1, 2]  # no terminal: as it comes
    display.progress = Progress(console=Console(force_terminal=True, quiet=True))
    walk = display.bar(range(3), "mining", 3)
    next(walk), next(walk)
    assert [(task.description, task.completed, task.total) for task in display.progress.tasks] == [
        ("mining", 1, 3)
    ]
    assert list(walk) == [2]
    assert display.progress.tasks == []
