"""Sums that are made once give what fitting anew gives, with and without a fold."""

from __future__ import annotations

import pytest
import torch

from doubtless.calibration.evidence.background import Background
from doubtless.calibration.evidence.sample_sums import LabelledVectors
from doubtless.calibration.evidence.within import WithinMetric


def some_items(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(12, (90,), generator=generator) * 7
    centre = 5 + torch.randn(80, 6, generator=generator)
    return (centre[label] + 0.3 * torch.randn(90, 6, generator=generator)).double(), label


@pytest.mark.parametrize("fold", [None, "items", "labels"])
def test_metric_and_background_are_those_fitted_anew(fold: str | None) -> None:
    vectors, label = some_items()
    left_out = None
    if fold == "items":
        left_out = torch.arange(90) % 5 == 2
    if fold == "labels":
        left_out = label >= 42  # whole labels go
    kept = torch.ones(90, dtype=torch.bool) if left_out is None else ~left_out
    metric, background = LabelledVectors.of(vectors, label).fitted(left_out)
    wanted, other = WithinMetric.fit(vectors[kept], label[kept]), Background.fit(vectors[kept])
    for one, two in ((metric, wanted), (background, other)):
        for name, value in two.tensors().items():
            torch.testing.assert_close(one.tensors()[name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("fold", [False, True])
def test_copies_have_the_plain_metric(fold: bool) -> None:
    """What subtracting leaves over is no variance: dividing by it would make noise of everything."""
    generator = torch.Generator().manual_seed(1)
    vectors = torch.nn.functional.normalize(torch.randn(9, 5, generator=generator)).repeat(4, 1)
    label = torch.arange(9).repeat(4)
    left_out = torch.arange(36) < 9 if fold else None
    metric, _ = LabelledVectors.of(vectors, label).fitted(left_out)
    assert torch.equal(metric.transform, torch.eye(5))
