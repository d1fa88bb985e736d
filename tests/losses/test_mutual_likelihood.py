"""The mutual likelihood score against densities of torch.distributions, quadrature, and a loop over pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Independent, Normal

from doubtless.errors import InputError
from doubtless.losses import mutual_likelihood, mutual_likelihood_score, pairwise_mutual_likelihood_score


def gaussians(count: int, dim: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, dim, generator=generator, dtype=dtype)
    return mean, torch.rand(count, dim, generator=generator, dtype=dtype) * 3 + 1e-3


def by_loop(mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor) -> Tensor:
    """log N(μ_i − μ_j; 0, σ_i² + σ_j²), pair by pair."""
    rows = []
    for mean, variance in zip(mean_a, variance_a, strict=True):
        spreads = [(variance + other).sqrt().expand_as(mean) for other in variance_b]
        rows.append(
            torch.stack(
                [
                    Independent(Normal(torch.zeros_like(mean), spread), 1).log_prob(mean - other)
                    for other, spread in zip(mean_b, spreads, strict=True)
                ]
            )
        )
    return torch.stack(rows)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 6),
    m=st.integers(1, 6),
    dim=st.integers(1, 5),
    seed=st.integers(0, 999),
    budget=st.integers(1, 60),
    shared=st.booleans(),
)
def test_equals_the_loop_whatever_the_block(
    n: int, m: int, dim: int, seed: int, budget: int, shared: bool
) -> None:
    (mean_a, variance_a), (mean_b, variance_b) = gaussians(n, dim, seed), gaussians(m, dim, seed + 1)
    if shared:
        variance_a = variance_a[:, :1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(mutual_likelihood.NUMBERS_AT_A_TIME, "cpu", budget)
        found = pairwise_mutual_likelihood_score(mean_a, variance_a, mean_b, variance_b)
    torch.testing.assert_close(found, by_loop(mean_a, variance_a, mean_b, variance_b))
    rows = min(n, m)
    row_by_row = mutual_likelihood_score(mean_a[:rows], variance_a[:rows], mean_b[:rows], variance_b[:rows])
    torch.testing.assert_close(row_by_row, found.diagonal())


def test_is_the_integral_of_the_product_of_the_densities() -> None:
    (mean, variance), (other_mean, other_variance) = gaussians(1, 1, 3), gaussians(1, 1, 4)
    grid = torch.linspace(-40, 40, 80_001, dtype=torch.float64)
    one, two = Normal(mean, variance.sqrt()), Normal(other_mean, other_variance.sqrt())
    integral = torch.trapezoid((one.log_prob(grid) + two.log_prob(grid)).exp(), grid)
    found = mutual_likelihood_score(mean, variance, other_mean, other_variance)
    torch.testing.assert_close(found, integral.log().reshape(1))


def test_gradient_of_blocks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [value.requires_grad_() for part in (gaussians(4, 3, 0), gaussians(5, 3, 1)) for value in part]
    weight = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.autograd.grad((by_loop(*inputs) * weight).sum(), inputs)
    monkeypatch.setitem(mutual_likelihood.NUMBERS_AT_A_TIME, "cpu", 7)
    found = torch.autograd.grad((pairwise_mutual_likelihood_score(*inputs) * weight).sum(), inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_backward_keeps_no_tensor_of_pairs_times_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, variance = gaussians(64, 32, 0, torch.float32)
    variance.requires_grad_()
    monkeypatch.setitem(mutual_likelihood.NUMBERS_AT_A_TIME, "cpu", 4096)
    kept: dict[int, int] = {}  # storage → its size: views of the inputs take no memory

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = pairwise_mutual_likelihood_score(mean, variance, mean, variance)
    assert held.requires_grad
    assert sum(kept.values()) < 64 * 64 * 32 // 4


def test_single_precision_and_emptiness() -> None:
    mean, variance = gaussians(9, 4, 0)
    single = pairwise_mutual_likelihood_score(*(x.float() for x in (mean, variance, mean, variance)))
    double = pairwise_mutual_likelihood_score(mean, variance, mean, variance)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-4)
    assert single.dtype == torch.float32
    assert pairwise_mutual_likelihood_score(mean, variance, mean[:0], variance[:0]).shape == (9, 0)
    assert pairwise_mutual_likelihood_score(mean[:0], variance[:0], mean, variance).shape == (0, 9)


def test_shapes_that_do_not_fit_are_refused() -> None:
    mean, variance = gaussians(3, 4, 0)
    with pytest.raises(InputError, match="equal lengths, got 3 and 2"):
        mutual_likelihood_score(mean, variance, mean[:2], variance[:2])
    with pytest.raises(InputError, match=r"variance_b must have shape \(3, 1\) or \(3, 4\), got \(3, 2\)"):
        pairwise_mutual_likelihood_score(mean, variance, mean, variance[:, :2])
    with pytest.raises(InputError, match="equal dimensions, got 4 and 3"):
        pairwise_mutual_likelihood_score(mean, variance, mean[:, :3], variance[:, :3])
    with pytest.raises(InputError, match=r"mean_a must have shape \(n, D\), got \(4,\)"):
        mutual_likelihood_score(mean[0], variance[0], mean, variance)
