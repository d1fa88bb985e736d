"""The running curvature: its average by hand, empty batches, draws, checkpoints."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.errors import InputError
from doubtless.laplace import OnlineCurvature, contrastive_ggn


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(3, 5, generator=generator), torch.randn(3, generator=generator)) for _ in range(count)
    ]


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-4, 1.0), st.integers(1, 8))
def test_value_is_the_weighted_mean_of_clamped_batches(memory: float, count: int) -> None:
    curvature, seen = OnlineCurvature(3, 5, memory=memory), batches(count)
    for batch in seen:
        curvature.update(*batch)
    shares = torch.tensor([memory * (1 - memory) ** (count - 1 - k) for k in range(count)])
    shares /= shares.sum()
    for found, stacked in zip(curvature.value(), zip(*seen, strict=True), strict=True):
        expected = torch.einsum("k,k...->...", shares, torch.stack(stacked).clamp_min(0))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_before_the_first_batch_there_is_no_curvature() -> None:
    weight, bias = OnlineCurvature(3, 5, memory=1e-3).value()
    assert weight.count_nonzero() == 0
    assert bias is not None
    assert bias.count_nonzero() == 0


def test_a_batch_without_pairs_leaves_everything_as_it_is() -> None:
    curvature = OnlineCurvature(3, 5, memory=0.1)
    first, second = batches(2)
    curvature.update(*first)
    before = [value.clone() for value in curvature.value() if value is not None]
    curvature.update(torch.zeros(3, 5), torch.zeros(3))
    curvature.update(torch.full((3, 5), torch.nan), torch.full((3,), torch.nan), valid=False)
    curvature.update(*second, valid=torch.tensor(False))
    assert all(torch.equal(one, other) for one, other in zip(before, curvature.value(), strict=True))
    assert int(curvature.steps) == 1
    features, head = torch.randn(4, 5), torch.nn.Linear(5, 3)
    empty = contrastive_ggn(features, head.weight, head.bias, torch.arange(4), margin=0.0)
    curvature.update(*empty)
    assert int(curvature.steps) == 1


def test_draws_have_the_posterior_variance_and_pass_the_gradient_on() -> None:
    curvature = OnlineCurvature(3, 5, memory=0.5)
    for batch in batches(3):
        curvature.update(*batch)
    weight, bias = torch.randn(3, 5, requires_grad=True), torch.zeros(3, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    numbers = {"scale": 10.0, "prior_precision": 2.0}
    draws = [curvature.sample(weight, bias, generator=generator, **numbers) for _ in range(20_000)]
    posterior = curvature.posterior(weight, bias, **numbers)
    for part, mean, variance in (
        (0, posterior.weight, posterior.weight_variance),
        (1, posterior.bias, posterior.bias_variance),
    ):
        found = torch.stack([draw[part].detach() for draw in draws])
        assert bool(((found.mean(0) - mean).abs() < 5 * (variance / 20_000).sqrt()).all())
        torch.testing.assert_close(found.var(0), variance, rtol=0.06, atol=0)
    draws[0][0].sum().backward()
    assert torch.equal(weight.grad, torch.ones(3, 5))


def test_a_head_without_bias() -> None:
    curvature = OnlineCurvature(3, 5, memory=0.5, has_bias=False)
    curvature.update(torch.ones(3, 5), None)
    weight, bias = curvature.sample(torch.zeros(3, 5), None, scale=1.0, prior_precision=1.0)
    assert weight.shape == (3, 5)
    assert bias is None
    posterior = curvature.posterior(torch.zeros(3, 5), None, scale=1.0, prior_precision=1.0)
    torch.testing.assert_close(posterior.weight_curvature, torch.ones(3, 5))


def test_checkpoints_carry_it() -> None:
    one, other = OnlineCurvature(3, 5, memory=0.01), OnlineCurvature(3, 5, memory=0.01)
    for batch in batches(4):
        one.update(*batch)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.value()[0], one.value()[0])
    assert int(other.steps) == 4


def test_the_zero_start_is_divided_out_exactly_after_many_steps() -> None:
    curvature = OnlineCurvature(1, 1, memory=1e-5, has_bias=False)
    for _ in range(2000):
        curvature.update(torch.ones(1, 1), None)
    assert float(curvature.value()[0]) == pytest.approx(1, rel=1e-4)


def test_wrong_memory_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"\(0, 1\], got 0"):
        OnlineCurvature(3, 5, memory=0)
