"""PFE: a shared batch norm that learns, a loss that is the score of positive pairs, variances that tell."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal

from doubtless.data import Batch
from doubtless.methods.configuration import make_config
from doubtless.methods.pfe import PfeOptions, SharedBatchNorm
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.training import train_run


@pytest.fixture(scope="module")
def run(tiny_config: dict[str, Any], tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = {**copy.deepcopy(tiny_config), "method": "pfe", "base": str(tiny_run)}
    config["head"] = {"epochs": 60, "lr_decay": 0.97, "norm_lr": 30}
    return train_run(make_config(config), tmp_path_factory.mktemp("pfe") / "run", quiet=True)


def test_the_two_shared_numbers_move(run: Run) -> None:
    """The published one ends at γ = 1, β = 0 and σ ≈ 1 for every image."""
    norm = run.load_method().shared_norm
    assert abs(float(norm.scale.detach())) > 0.05
    assert abs(float(norm.shift.detach()) - PfeOptions().first_shift) > 0.3
    record = json.loads((run.path / "model.json").read_text())["record"]
    assert record["scale"] == pytest.approx(float(norm.scale.detach()))
    assert record["shift"] == pytest.approx(float(norm.shift.detach()))


def test_sigma_is_far_from_one_and_varies_over_images(run: Run) -> None:
    data = open_run_data(run.config, split=run.split)
    embedding = embed_images(run.load_method(), data.test)
    sigma = embedding.parameters["variance"].sqrt()
    assert float(sigma.max()) < 0.7
    per_image = embedding.uncertainty.log()
    assert float(per_image.std()) > 0.05


def test_the_fit_beats_the_best_constant_variance(run: Run) -> None:
    """Positive pairs are more likely than by one σ for all images in each dimension, which has a closed form."""
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    found = embed_images(method, data.train)
    i, j = torch.nonzero((data.train.labels[:, None] == data.train.labels).triu(1), as_tuple=True)
    difference, variance = found.location[i] - found.location[j], found.parameters["variance"]
    learned = Normal(0.0, (variance[i] + variance[j]).sqrt()).log_prob(difference).sum(1).mean()
    constant = Normal(0.0, difference.square().mean(0).sqrt()).log_prob(difference).sum(1).mean()
    assert float(learned) > float(constant) + 0.5


def test_loss_is_the_mean_over_positive_pairs_of_two_images(run: Run) -> None:
    method = run.load_method()
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(7, method.encoder.feature_dim, generator=generator)
    labels, position = torch.tensor([0, 1, 0, 1, 0, 2, 0]), torch.tensor([5, 3, 8, 9, 2, 1, 5])
    features[6] = features[0]  # drawn twice into one batch
    with torch.no_grad():
        found = method.loss(Batch(features, labels, position)).total
        embedding = method.embed_features(features)
    mean, variance = embedding.location, embedding.parameters["variance"]
    scores = [
        Normal(0.0, (variance[i] + variance[j]).sqrt()).log_prob(mean[i] - mean[j]).sum()
        for i in range(7)
        for j in range(i + 1, 7)
        if labels[i] == labels[j] and position[i] != position[j]
    ]
    assert len(scores) == 6
    torch.testing.assert_close(found, -torch.stack(scores).mean())


def test_a_batch_without_positive_pairs_is_zero_with_a_finite_gradient(run: Run) -> None:
    method = run.load_method().train()
    rows = torch.arange(4)
    loss = method.loss(Batch(torch.rand(4, method.encoder.feature_dim), rows, rows)).total
    loss.backward()
    assert loss.item() == 0
    assert all(torch.isfinite(p.grad).all() for p in method.second.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_shared_batch_norm_is_batch_norm_with_equal_weights(training: bool) -> None:
    shared, peer = SharedBatchNorm(5), nn.BatchNorm1d(5)
    with torch.no_grad():
        shared.scale.fill_(0.7)
        shared.shift.fill_(-2.0)
        peer.weight.fill_(0.7)
        peer.bias.fill_(-2.0)
    for _ in range(3):  # running statistics to go by
        values = torch.randn(16, 5) * 3 + 1
        shared(values)
        peer(values)
    shared.train(training)
    peer.train(training)
    values = torch.randn(16, 5)
    torch.testing.assert_close(shared(values), peer(values))
    if not training:
        torch.testing.assert_close(shared(values[:1]), peer(values)[:1])  # alone as in a batch
    shared(values).square().sum().backward()
    peer(values).square().sum().backward()
    torch.testing.assert_close(shared.scale.grad, peer.weight.grad.sum())
    torch.testing.assert_close(shared.shift.grad, peer.bias.grad.sum())


def test_shared_batch_norm_starts_as_published() -> None:
    norm, options = SharedBatchNorm(3), PfeOptions()
    assert (norm.scale.item(), norm.shift.item()) == (pytest.approx(options.first_scale), options.first_shift)
    assert sorted(p.numel() for p in norm.parameters()) == [1, 1]
