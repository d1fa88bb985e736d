"""The pieces of a variational loss, against torch.distributions, loops and samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence

from doubtless.errors import InputError
from doubtless.losses.variational import (
    bounded_log_variance,
    draw_samples,
    kl_to_standard_normal,
    reconstruction_loss,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_is_that_of_torch_distributions(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mean = torch.randn(50, 7, dtype=dtype)
    log_variance = bounded_log_variance(4 * torch.randn(50, 7, dtype=dtype), bound=10.0)
    own = Independent(Normal(mean, (0.5 * log_variance).exp()), 1)
    prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(
        kl_to_standard_normal(mean, log_variance), kl_divergence(own, prior), rtol=tolerance, atol=tolerance
    )


@given(
    raw=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=8),
    bound=st.floats(0.125, 20.0, width=32),
    double=st.booleans(),
)
@settings(deadline=None)
def test_log_variance_stays_in_its_bound_and_kl_is_never_negative(
    raw: list[float], bound: float, double: bool
) -> None:
    values = torch.tensor(raw, dtype=torch.float64 if double else torch.float32, requires_grad=True)
    bounded = bounded_log_variance(values, bound=bound)
    assert bool((bounded.abs() <= bound).all())
    kl = kl_to_standard_normal(torch.zeros_like(bounded), bounded)
    assert bool(kl >= 0)
    assert bool(torch.isfinite(kl))
    kl.backward()
    assert values.grad is not None
    assert bool(torch.isfinite(values.grad).all())


def test_bound_is_the_identity_near_zero_and_keeps_a_gradient_beyond_itself() -> None:
    raw = torch.tensor([0.01, -0.01, 30.0], dtype=torch.float64, requires_grad=True)
    bounded = bounded_log_variance(raw, bound=10.0)
    torch.testing.assert_close(bounded[:2], raw[:2], rtol=1e-6, atol=0)
    assert float(bounded[2].detach()) == pytest.approx(10 * math.tanh(3.0))
    (gradient,) = torch.autograd.grad(bounded.sum(), raw)
    assert float(gradient[0]) == pytest.approx(1.0, abs=1e-5)
    assert float(gradient[2]) > 0  # a clamp at 10 would have none


def test_samples_have_the_moments_asked_for() -> None:
    mean = torch.tensor([[1.0, -2.0], [0.0, 3.0]], dtype=torch.float64)
    log_variance = torch.tensor([[0.0, 2.0], [-3.0, 1.0]], dtype=torch.float64)
    count = 40_000
    drawn = draw_samples(mean, log_variance, count, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (count, 2, 2)
    error = log_variance.exp().sqrt() / count**0.5
    assert bool(((drawn.mean(0) - mean).abs() < 5 * error).all())
    torch.testing.assert_close(drawn.var(0), log_variance.exp(), rtol=5 * (2 / count) ** 0.5, atol=0)
    across = torch.corrcoef(drawn.flatten(1).T)
    assert float((across - torch.eye(4, dtype=torch.float64)).abs().max()) < 5 / count**0.5


def test_samples_carry_the_gradient_of_the_reparameterisation() -> None:
    """d z/dμ = 1 and d z/d log σ² = ½ σ ε: with `.sample()` there would be none."""
    mean, log_variance = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    drawn = draw_samples(mean, log_variance, 5, generator=torch.Generator().manual_seed(0))
    to_mean, to_log_variance = torch.autograd.grad(drawn.sum(), [mean, log_variance])
    torch.testing.assert_close(to_mean, torch.full((3, 4), 5.0))
    torch.testing.assert_close(to_log_variance, 0.5 * (drawn - mean).sum(0))
    again = draw_samples(mean, log_variance, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again, drawn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_reconstruction_is_the_mean_of_squared_distances(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    decoded, target = torch.randn(3, 4, 5, dtype=dtype), torch.randn(4, 5, dtype=dtype)
    expected = sum(
        sum((float(decoded[t, i, f]) - float(target[i, f])) ** 2 for f in range(5))
        for t in range(3)
        for i in range(4)
    ) / (3 * 4)
    assert float(reconstruction_loss(decoded, target)) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match=r"shape \(T, 4, 5\) .* got \(4, 5\)"):
        reconstruction_loss(target, target)
