"""Means by tenth against all orders of ties, and what they must be where one knows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.errors import InputError
from doubtless.metrics.tenths import means_by_tenth
from tests.reference import metrics as reference


@settings(max_examples=40, deadline=None)
@given(
    items=st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0, 1)), min_size=1, max_size=6)
)
def test_few_items_with_ties_against_all_orders(items: list[tuple[float, float]]) -> None:
    uncertainty, values = [one for one, _ in items], [value for _, value in items]
    found = means_by_tenth(torch.tensor(uncertainty), torch.tensor(values, dtype=torch.double))
    expected = reference.means_by_tenth(uncertainty, values)
    assert found.x == pytest.approx([float(middle) for middle, _ in expected])
    assert found.y == pytest.approx([mean for _, mean in expected], abs=1e-12)


@pytest.mark.parametrize("count", [10, 23, 100, 1009])
def test_many_items_without_ties_against_sorting(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    uncertainty = torch.randperm(count, generator=generator).double()
    values = torch.rand(count, generator=generator).double()
    ordered = [value for _, value in sorted(zip(uncertainty.tolist(), values.tolist(), strict=True))]
    found = means_by_tenth(uncertainty, values)
    tenths = [ordered[place * count // 10 : (place + 1) * count // 10] for place in range(10)]
    assert found.y == pytest.approx([sum(tenth) / len(tenth) for tenth in tenths])
    whole = sum(y * len(tenth) for y, tenth in zip(found.y, tenths, strict=True)) / count
    assert whole == pytest.approx(float(values.mean()))


def test_where_all_are_equally_sure_every_tenth_has_the_mean() -> None:
    values = torch.rand(57, generator=torch.Generator().manual_seed(0)).double()
    assert means_by_tenth(torch.ones(57), values).y == pytest.approx([float(values.mean())] * 10)


def test_infinity_ranks_last_and_nan_is_refused() -> None:
    values = torch.arange(20.0)
    found = means_by_tenth(torch.cat([torch.arange(18.0), torch.tensor([torch.inf, torch.inf])]), values)
    assert found.y[-1] == 18.5
    with pytest.raises(InputError, match="NaN"):
        means_by_tenth(torch.tensor([0.0, torch.nan]), torch.ones(2))
    with pytest.raises(InputError, match=r"3 uncertainties needs one value, got values of shape \(2,\)"):
        means_by_tenth(torch.zeros(3), torch.zeros(2))
