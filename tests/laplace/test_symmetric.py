"""Sums of symmetric products: the same as one product in float64, however rows come."""

from __future__ import annotations

import pytest
import torch

from doubtless.laplace import symmetric
from doubtless.laplace.fit import half_whitened
from doubtless.laplace.symmetric import SymmetricSum


@pytest.mark.parametrize("sizes", [[1], [3, 0, 7], [40], [16, 16, 16]])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_equal_to_one_product(
    sizes: list[int], dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symmetric, "ROWS", 16)
    monkeypatch.setattr(symmetric, "BLOCK", 4)
    rows = torch.randn(sum(sizes), 11, dtype=dtype, generator=torch.Generator().manual_seed(0))
    weights = torch.rand(len(rows), 1, dtype=dtype, generator=torch.Generator().manual_seed(1))
    total = SymmetricSum(11)
    for part, weight in zip(rows.split(sizes), weights.split(sizes), strict=True):
        total.add(part * weight, part)
    expected = (rows.double() * weights.double()).T @ rows.double()
    torch.testing.assert_close(total.value(), expected, rtol=0, atol=tolerance * float(expected.abs().max()))
    assert torch.equal(total.value(), total.value().T)


def test_goes_on_after_it_was_asked() -> None:
    total, rows = SymmetricSum(3), torch.eye(3)
    total.add(rows, rows)
    first = total.value()
    total.add(rows, rows)
    assert torch.equal(total.value(), 2 * first)
    assert torch.equal(SymmetricSum(2).value(), torch.zeros(2, 2, dtype=torch.float64))


def test_many_float32_batches_lose_no_more_than_the_rows_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric, "ROWS", 64)
    rows = 1 + 1e-3 * torch.randn(20_000, 5, generator=torch.Generator().manual_seed(0))
    total = SymmetricSum(5)
    for part in rows.split(10):
        total.add(part, part)
    exact = rows.double().T @ rows.double()
    torch.testing.assert_close(total.value(), exact, rtol=1e-7, atol=0)


@pytest.mark.parametrize("faintest", [1e-1, 1e-5])
def test_a_half_whitened_head_of_float32_is_that_of_float64(faintest: float) -> None:
    """Also where its last direction is far fainter than float32 products could tell."""
    source = torch.Generator().manual_seed(0)
    spread = torch.logspace(0, torch.tensor(faintest).log10().item(), 8, dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(12, 8, generator=source, dtype=torch.float64)).Q
    features = (torch.randn(400, 8, generator=source, dtype=torch.float64) * spread @ turned.T).float()
    found, exact = half_whitened(features, 8), half_whitened(features.double(), 8)
    torch.testing.assert_close(
        found.weight.double(), exact.weight, rtol=2e-3, atol=2e-3 * float(exact.weight.abs().max())
    )
