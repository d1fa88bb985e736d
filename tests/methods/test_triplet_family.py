"""The triplet family: heads, losses by hand, miners, tuples, two processes as one, launches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from doubtless.data import Batch
from doubtless.errors import InputError
from doubtless.losses import (
    batch_bayesian_triplet_loss,
    batch_triplet_loss,
    batch_triplet_regression_loss,
    bayesian_triplet_loss,
    triplet_loss,
    triplet_regression_loss,
)
from doubtless.losses.triplet_moments import Gaussians
from doubtless.methods import DataSpec, method_class
from doubtless.methods.configuration import make_config
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.training import train_run
from tests.reference.launches import Launches
from tests.reference.two_processes import TwoProcesses, loss_and_gradients, share_of

METHODS = ["triplet", "bayes-triplet", "bayes-triplet-vmf", "triplet-regression"]
WITH_VARIANCE = METHODS[1:]


def a_method(name: str, *, mining: dict[str, int] | None = None, **sections: Any) -> Any:
    torch.manual_seed(0)
    config = {
        "method": name,
        "data": {"source": "digits"},
        "model": {"backbone": "conv-fashion", "dim": 6, **sections.pop("model", {})},
        "loss": {"name": "triplet", "margin": 0.3, **sections.pop("loss", {})},
        "mining": mining or {},
        **sections,
    }
    size = 12 if config["model"]["backbone"] == "conv-fashion" else 64
    spec = DataSpec(channels=1, size=size, label_names=list("abcd"))
    return method_class(name)(make_config(config), spec).train()


def a_batch(count: int = 8) -> Batch:
    images = torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    return Batch(images, torch.arange(count) % 4, torch.arange(count))


@pytest.mark.parametrize("name", METHODS)
def test_embedding_and_loss(name: str) -> None:
    method, batch = a_method(name), a_batch()
    embedding = method.embed(batch.inputs)
    assert embedding.dim == (6 if name == "triplet" else 5)  # one of model.dim is the variance
    assert (embedding.uncertainty is None) == (name == "triplet")
    total = method.loss(batch).total
    total.backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0 for p in method.parameters())


def test_losses_are_those_of_the_functions() -> None:
    batch = a_batch()
    for name in METHODS:
        method = a_method(name, **({"bayes": {"negatives": "hard"}} if "bayes" in name else {}))
        method.eval()
        embedding, found = method.embed(batch.inputs), method.loss(batch).total
        if name == "triplet":
            expected = batch_triplet_loss(embedding.location, batch.labels, margin=0.3)
        elif name == "triplet-regression":
            log = embedding.parameters["variance"].squeeze(1).log()
            expected = batch_triplet_regression_loss(embedding.location, log, batch.labels, margin=0.3)
        else:
            images = method.distributions(method.encode(batch.inputs))
            expected = batch_bayesian_triplet_loss(images, batch.labels, margin=0.3, mining="hard")
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["bayes-triplet", "bayes-triplet-vmf"])
def test_training_starts_at_the_prior(name: str) -> None:
    method = a_method(name)
    torch.nn.init.zeros_(method.variance_head[-1].weight)
    embedding = method.embed(a_batch().inputs)
    if name == "bayes-triplet":
        torch.testing.assert_close(embedding.variance, torch.full((8, 5), 0.2))
        torch.testing.assert_close(embedding.location.norm(dim=1), torch.ones(8))
        with torch.no_grad():
            method.log_scale.fill_(1.0)
        lengths = method.embed(a_batch().inputs).location.norm(dim=1)
        torch.testing.assert_close(lengths, torch.full((8,), torch.e))
    else:
        torch.testing.assert_close(embedding.parameters["concentration"], torch.full((8,), 5.0))


@pytest.mark.parametrize("name", METHODS)
def test_with_gem_each_head_has_a_power(name: str) -> None:
    method = a_method(name, model={"backbone": "resnet10t", "pooling": "gem"})
    batch = Batch(torch.rand(8, 1, 64, 64), torch.arange(8) % 4, torch.arange(8))
    assert method.encode(batch.inputs).shape == (8, 512 if name == "triplet" else 1024)
    method.loss(batch).total.backward()
    assert method.encoder.pooling.p.numel() == (1 if name == "triplet" else 2)
    assert (method.encoder.pooling.p.grad != 0).all()
    features = method.eval().encode(batch.inputs)
    if name == "triplet":
        return
    other = features.clone()
    other[:, 512:] += 1  # what the variance head sees
    one, two = (method.embed_features(value) for value in (features, other))
    torch.testing.assert_close(one.direction, two.direction)
    assert (one.uncertainty != two.uncertainty).all()


@pytest.mark.parametrize("name", METHODS)
def test_miners_of_pytorch_metric_learning(name: str) -> None:
    miner = {"name": "TripletMarginMiner", "arguments": {"margin": 0.2, "type_of_triplets": "all"}}
    method, batch = a_method(name, loss={"miner": miner}), a_batch()
    total = method.loss(batch).total
    total.backward()
    assert torch.isfinite(total)
    if name == "bayes-triplet":
        images = method.distributions(method.encode(batch.inputs))
        rows = [
            (a, p, n)
            for a in range(8)
            for p in range(8)
            for n in range(8)
            if a != p and batch.labels[a] == batch.labels[p] and batch.labels[a] != batch.labels[n]
        ]
        normal = torch.nn.functional.normalize(images.location, dim=1)
        assert len(rows) == 48
        a, p, n = (Gaussians(images[0][list(at)], images[1][list(at)]) for at in zip(*rows, strict=True))
        picked = torch.tensor([bool(gap(normal, *row) <= 0.2) for row in rows])
        losses = bayesian_triplet_loss(a, p, n, margin=0.3, kl_scale=0.0)
        expected = losses[picked].mean()
        torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-4)


def gap(points: Tensor, a: int, p: int, n: int) -> Tensor:
    """d(a, n) − d(a, p), what the miner compares with its margin."""
    return (points[a] - points[n]).norm() - (points[a] - points[p]).norm()


@pytest.mark.parametrize("name", METHODS)
def test_tuples_are_taken_apart(name: str) -> None:
    method = a_method(name, mining={"cache": 50, "negatives": 2, "tuples": 3})
    assert method.batch_kind == "tuples"
    batch = Batch(a_batch(12).inputs, torch.zeros(12), torch.arange(12))
    method.eval()
    embedding, found = method.embed(batch.inputs), method.loss(batch).total
    losses, violations = [], []
    for first in range(0, 12, 4):
        for negative in (first + 2, first + 3):
            rows = (first, first + 1, negative)
            violation = triplet_loss(*(embedding.direction[row] for row in rows), margin=0.3)
            violations.append(float(violation))
            if name == "triplet":
                losses.append(float(violation))
            elif name == "triplet-regression":
                logs = [embedding[row].parameters["variance"].log().squeeze() for row in rows]
                losses.append(float(triplet_regression_loss(violation, *logs)))
            else:
                images = method.distributions(method.encode(batch.inputs))
                parts = (type(images)(images[0][r : r + 1], images[1][r : r + 1]) for r in rows)
                losses.append(bayesian_triplet_loss(*parts, margin=0.3).item())
    if name in ("triplet", "triplet-regression"):
        losses = [loss for loss, violation in zip(losses, violations, strict=True) if violation > 0]
    assert found.item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_wrong_options_are_sentences() -> None:
    with pytest.raises(InputError, match=r"trains with triplets, got loss 'contrastive'"):
        a_method("bayes-triplet", loss={"name": "contrastive"})
    with pytest.raises(InputError, match=r"model\.dim of at least 3, one for the variance, got 2"):
        a_method("bayes-triplet-vmf", model={"dim": 2})
    with pytest.raises(InputError, match="did you mean 'negatives'"):
        a_method("bayes-triplet", bayes={"negativs": "hard"})


@pytest.mark.parametrize("name", METHODS)
def test_a_run_learns_and_comes_back(name: str, tiny_config: dict[str, Any], tmp_path: Path) -> None:
    config = make_config({**tiny_config, "method": name, "loss": {"name": "triplet"}})
    run = train_run(config, tmp_path / "run", quiet=True)
    data = open_run_data(run.config, split=run.split)
    embedding = embed_images(Run.open(tmp_path / "run").load_method(), data.test)
    from doubtless.training.module import validation_scores

    torch.manual_seed(0)
    fresh = embed_images(method_class(name)(config, data.spec), data.test)
    learned, start = (
        validation_scores(one.direction, data.test.labels)["map@r"] for one in (embedding, fresh)
    )
    assert learned > start + 0.1


def test_frozen_features_and_half_whitened_heads(tiny_config: dict[str, Any], tmp_path: Path) -> None:
    model = {**tiny_config["model"], "freeze": True, "head_start": "half-whitened"}
    training = {**tiny_config["training"], "epochs": 1}
    config = make_config(
        {
            **tiny_config,
            "method": "bayes-triplet",
            "model": model,
            "loss": {"name": "triplet"},
            "training": training,
        }
    )
    method = train_run(config, tmp_path / "run", quiet=True).load_method()
    assert method.batch_kind == "features"
    torch.manual_seed(config.seed)
    fresh = method_class("bayes-triplet")(config, method.spec)
    assert torch.equal(fresh.encoder.backbone[0].weight, method.encoder.backbone[0].weight)
    assert not torch.equal(fresh.head.weight, method.head.weight)


def _steps_of_rank(rank: int) -> dict[str, dict[str, Tensor]]:
    return {
        name: loss_and_gradients(a_method(name), share_of(a_batch(), rank), seed=3)[1] for name in METHODS
    }


def test_gradient_of_two_processes_is_that_of_one(two_processes: TwoProcesses) -> None:
    of_ranks = two_processes(_steps_of_rank)
    for name in METHODS:
        _, alone = loss_and_gradients(a_method(name), a_batch(), seed=3)
        for found in of_ranks:
            torch.testing.assert_close(found[name], alone, rtol=1e-4, atol=1e-6)


def test_a_gaussian_step_launches_little_more_than_the_plain_one() -> None:
    """A step with EfficientNet-lite0 launches some 550 kernels; 5 % of a step's time is what this may cost."""
    counts = {}
    for name in ("triplet", "bayes-triplet"):
        method, batch = a_method(name), a_batch()
        with Launches() as launches:
            method.loss(batch).total.backward()
        counts[name] = len(launches.names)
    assert counts["bayes-triplet"] - counts["triplet"] <= 60
