"""HIB: its loss by hand, what it learns, and two processes as one."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from doubtless.data import Batch
from doubtless.errors import InputError
from doubtless.methods import DataSpec, Subset, method_class
from doubtless.methods.configuration import make_config
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.training import train_run
from doubtless.training.module import validation_scores
from tests.reference.two_processes import TwoProcesses, assert_same_step, loss_and_gradients, share_of


def a_method(**hib: Any) -> Any:
    torch.manual_seed(0)
    config = {
        "method": "hib",
        "data": {"source": "digits"},
        "model": {"backbone": "conv-fashion", "dim": 6},
        "hib": hib,
    }
    return method_class("hib")(make_config(config), DataSpec(channels=1, size=12, label_names=list("abcd")))


def a_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])  # most positive pairs span the ranks
    return Batch(torch.rand(8, 1, 12, 12, generator=generator), labels, torch.arange(8))


def a_started(start: str = "measured", head: str = "half-whitened", **hib: Any) -> tuple[Any, Tensor, Tensor]:
    """A method after `start`, and what it was shown: features of 10 classes whose distances are far from 1."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(120) % 10
    method = a_method(**hib)
    width = method.encoder.feature_dim
    latent = torch.randn(10, 8, generator=generator)[labels] + torch.randn(120, 8, generator=generator)
    features = 30 * latent @ torch.randn(8, width, generator=generator)
    config = method.config.to_dict()
    config["model"]["head_start"], config["hib"]["start"] = head, start
    config["training"]["batch_size"] = 40
    again = method_class("hib")(make_config(config), method.spec)
    again.start(Subset(labels=labels, features=lambda: features))
    return again, features, labels


@pytest.fixture(scope="module")
def run(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = {**copy.deepcopy(tiny_config), "method": "hib"}
    config["training"]["epochs"] = 6
    return train_run(make_config(config), tmp_path_factory.mktemp("hib") / "run", quiet=True)


def test_it_learns(run: Run) -> None:
    data = open_run_data(run.config, split=run.split)
    embedding = embed_images(run.load_method(), data.test)
    torch.manual_seed(0)
    fresh = type(run.load_method())(run.config, data.spec)
    before = validation_scores(embed_images(fresh, data.test).direction, data.test.labels)
    after = validation_scores(embedding.direction, data.test.labels)
    assert after["map@r"] > before["map@r"] + 0.1
    assert embedding.family == "gaussian"
    assert float(embedding.uncertainty.log().std()) > 0.01
    assert run.log[-1]["train_loss"] < run.log[0]["train_loss"]


def test_scale_and_shift_are_learned_and_scale_is_positive(run: Run) -> None:
    method = run.load_method()
    fresh = a_method()
    assert method.scale.item() > 0
    assert method.scale.item() != fresh.scale.item()
    assert method.shift.item() != fresh.shift.item()
    with torch.no_grad():
        fresh.raw_scale.fill_(-30.0)
    assert fresh.scale.item() > 0


@pytest.mark.parametrize("weight", [1.0, 20.0])
def test_a_measured_start_tells_pairs_apart(weight: float) -> None:
    """Where the paper's a and b say of every pair that it is none, so that only positives would have a gradient."""
    method, features, labels = a_started(negative_weight=weight)
    with torch.no_grad():
        mean = method.embed_features(features).location
        same, pair = labels[:, None] == labels, torch.ones(120, 120, dtype=torch.bool).triu(1)
        chance = (method.shift - method.scale * torch.cdist(mean, mean)).sigmoid()
        torch.testing.assert_close(mean.var(0).mean(), torch.tensor(1.0))  # the prior's
        assert len(method.embed_features(features).variance.unique()) == 1
    positive, negative = chance[same & pair].mean(), chance[~same & pair].mean()
    assert positive > 1.5 * negative
    # What pulls and what pushes are in balance, as they are where b is best.
    assert float((1 - positive) / (weight * negative)) == pytest.approx(1, abs=0.35)


def test_unit_means_are_directions_of_one_length() -> None:
    free, fixed = a_method(), a_method(unit_means=True)
    free.load_state_dict(fixed.state_dict())
    batch = a_batch()
    one, other = free.embed(batch.inputs), fixed.embed(batch.inputs)
    torch.testing.assert_close(other.location.norm(dim=1), torch.full((8,), math.sqrt(6)))
    torch.testing.assert_close(one.direction, other.direction)
    torch.testing.assert_close(one.variance, other.variance)
    with torch.no_grad():
        fixed.head.weight.mul_(7)
        fixed.head.bias.mul_(7)
        torch.manual_seed(0)
        scaled = fixed.loss(batch).total
        fixed.load_state_dict(free.state_dict())
        torch.manual_seed(0)
        torch.testing.assert_close(scaled, fixed.loss(batch).total)


def test_the_start_is_fixed_where_asked_and_for_a_random_head() -> None:
    fresh = a_method()
    for start, head in (("fixed", "half-whitened"), ("measured", "random")):
        method, _, _ = a_started(start, head)
        assert (method.scale, method.shift) == (fresh.scale, fresh.shift)
    (once, _, _), (twice, _, _) = a_started(), a_started()
    assert once.record() == twice.record()  # its draws are seeded, and so alike on all ranks
    method, features, labels = a_started()
    before = method.record()
    method.start(Subset(labels=torch.arange(len(labels)), features=lambda: features))  # nothing matches
    assert method.record() == before


@pytest.mark.parametrize("beta", [0.0, 1e-4, 0.5])
def test_loss_by_hand(beta: float) -> None:
    """Samples drawn here by the same generator, pairs in a loop, the divergence by torch: its sign is plus."""
    method, batch = a_method(samples=3, beta=beta), a_batch()
    torch.manual_seed(7)
    losses = method.loss(batch)
    with torch.no_grad():
        embedding = method.embed_features(method.encode(batch.inputs))
        mean, deviation = embedding.location, embedding.parameters["variance"].sqrt()
        torch.manual_seed(7)
        samples = mean + deviation * torch.randn(3, 8, 6)
        scale, shift = method.scale.item(), method.shift.item()
        terms: dict[bool, list[float]] = {True: [], False: []}
        for i in range(8):
            for j in range(i + 1, 8):
                distance = (samples[:, None, i] - samples[None, :, j]).norm(dim=-1)  # (3, 3)
                match = float(torch.sigmoid(shift - scale * distance).mean())
                same = bool(batch.labels[i] == batch.labels[j])
                terms[same].append(-math.log(match if same else 1 - match))
        expected = sum(sum(part) / len(part) for part in terms.values()) / 2
        own, prior = Normal(mean, deviation), Normal(torch.zeros_like(mean), torch.ones_like(mean))
        divergence = float(kl_divergence(Independent(own, 1), Independent(prior, 1)).mean())
    assert losses.terms["match"].item() == pytest.approx(expected, rel=1e-4)
    assert losses.terms["kl"].item() == pytest.approx(divergence, rel=1e-4)
    assert losses.total.item() == pytest.approx(expected + beta * divergence, rel=1e-4)


def test_variance_is_bounded_for_any_features() -> None:
    method = a_method()
    width = method.encoder.feature_dim
    for size in (0.0, 1.0, 1e6):
        variance = method.embed_features(size * torch.randn(4, width)).detach().parameters["variance"]
        assert float(variance.min()) >= math.exp(-12.001)
        assert float(variance.max()) <= math.exp(4.001)
    with torch.no_grad():
        method.spread.weight.zero_()
        method.spread.bias.zero_()
    start = method.embed_features(torch.randn(4, width)).parameters["variance"]
    torch.testing.assert_close(start, torch.full_like(start, math.exp(-4.0)))


def test_every_parameter_is_in_one_group_and_gets_a_gradient() -> None:
    method = a_method()
    groups = method.parameter_groups()
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in method.parameters()}
    assert len(grouped) == len(list(method.parameters()))
    method.loss(a_batch()).total.backward()
    for name, parameter in method.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert bool((parameter.grad != 0).any()), name


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match=r"'hib.samples' cannot be 0"):
        a_method(samples=0)
    with pytest.raises(InputError, match=r"no configuration key 'hib.kl'"):
        a_method(kl=1.0)


def _step_of_rank(rank: int) -> tuple[Tensor, dict[str, Tensor]]:
    return loss_and_gradients(a_method(), share_of(a_batch(), rank), seed=7)


def test_gradient_of_two_processes_is_that_of_one(two_processes: TwoProcesses) -> None:
    alone = loss_and_gradients(a_method(), a_batch(), seed=7)
    for found in two_processes(_step_of_rank):
        assert_same_step(found, alone, within=1e-6)
