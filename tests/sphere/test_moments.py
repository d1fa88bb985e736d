"""Resultant and the two variances of a von Mises-Fisher distribution against mpmath, and their derivatives."""

from __future__ import annotations

import mpmath
import pytest
import torch

from doubtless.errors import InputError
from doubtless.sphere.moments import kl_to_uniform, sphere_moments


def exact(dim: int, kappa: float) -> list[mpmath.mpf]:
    """A, α, ν and dν/dκ."""
    order, x = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
    length = mpmath.besseli(order + 1, x) / mpmath.besseli(order, x)
    across = length / x
    along = 1 - length**2 - (dim - 1) * across
    return [length, across, along, -2 * length * along - (dim - 1) * (along - across) / x]


@pytest.mark.parametrize("dim", [2, 3, 8, 31, 66, 128, 2047])
def test_against_mpmath(dim: int) -> None:
    values = [1e-6, 0.01, 1.0, 30.0, 1e3, 1e5] + ([1e8] if dim <= 3 else [])
    kappa = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    found = sphere_moments(dim, kappa)
    slopes = torch.autograd.grad(found.along.sum(), kappa)[0]
    with mpmath.workdps(50):
        for i, value in enumerate(values):
            length, across, along, slope = (float(number) for number in exact(dim, value))
            assert float(found.resultant[i]) == pytest.approx(length, rel=1e-12)
            assert float(found.across[i]) == pytest.approx(across, rel=1e-12)
            assert float(found.along[i]) == pytest.approx(along, rel=1e-11)
            assert float(slopes[i]) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("dim", [2, 5, 80])
def test_gradcheck(dim: int) -> None:
    kappa = torch.tensor([0.3, 4.0, 0.9 * dim, 3.0 * dim], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k: tuple(sphere_moments(dim, k)), kappa)
    assert torch.autograd.gradcheck(lambda k: kl_to_uniform(k, sphere_moments(dim, k), dim=dim), kappa)


def test_ends() -> None:
    kappa = torch.tensor([0.0, 1e12, torch.inf], requires_grad=True)
    found = sphere_moments(4, kappa)
    assert found.resultant[0] == 0
    torch.testing.assert_close(found.across[0], torch.tensor(0.25).double())
    torch.testing.assert_close(found.along[0], torch.tensor(0.25).double())
    assert float(found.along[1]) == pytest.approx(1.5e-24, rel=1e-6)  # (D−1)/(2κ²)
    assert float(found.resultant[2]) == 1
    sum(value[:2].sum() for value in found).backward()
    assert torch.isfinite(kappa.grad[:2]).all()
    with pytest.raises(InputError, match="at least 2"):
        sphere_moments(1, torch.ones(1))
