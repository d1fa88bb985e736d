"""Post-hoc fitting: one pass gives what all pairs give, and heads for encoders that have none."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.laplace import (
    CurvatureOptions,
    Head,
    class_balanced_batches,
    contrastive_ggn,
    contrastive_ggn_sums,
    fit,
    half_whitened,
)


def clusters(n: int = 120, width: int = 8, classes: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    centres = 2 * torch.randn(classes, width, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, width, generator=generator, dtype=torch.float64)
    return centres[labels] + noise * torch.linspace(0.2, 2, width, dtype=torch.float64), labels


def a_head(width: int = 8, dim: int = 5) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, dim, dtype=torch.float64)


@pytest.mark.parametrize(
    ("geometry", "approximation"), list(product(["arccos", "euclidean"], ["fixed", "positive", "full"]))
)
@pytest.mark.parametrize("reduction", ["active", "all"])
def test_one_batch_is_the_curvature_of_all_pairs(geometry: str, approximation: str, reduction: str) -> None:
    features, labels = clusters()
    head = a_head()
    settings = {
        "margin": 1.0, "geometry": geometry, "approximation": approximation, "negative_weight": 0.4,
        "reduction": reduction,
    }  # fmt: skip
    posterior = fit(features, labels, head, options=CurvatureOptions(**settings, batch_size=1000))
    of_weight, of_bias = contrastive_ggn(features, head.weight, head.bias, labels, **settings)
    torch.testing.assert_close(posterior.weight_curvature, of_weight.clamp_min(0), rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(posterior.bias_curvature, of_bias.clamp_min(0), rtol=1e-10, atol=1e-14)
    assert posterior.scale == 120
    assert torch.equal(posterior.weight, head.weight.detach())
    assert not posterior.weight.requires_grad


@pytest.mark.parametrize(("reduction", "weight"), [("all", 0.5), ("active", 0.1)])
def test_small_batches_agree_with_large_ones(reduction: str, weight: float) -> None:
    """The batch size decides which pairs meet, not what they say: over several passes that averages out."""
    features, labels = clusters(n=3000)
    generator = torch.Generator().manual_seed(0)

    def curvature(batch_size: int) -> Tensor:
        options = CurvatureOptions(
            margin=1.0,
            geometry="euclidean",
            negative_weight=weight,
            reduction=reduction,
            batch_size=batch_size,
        )
        return fit(features, labels, a_head(), options=options, generator=generator).weight_curvature

    whole = curvature(3000)
    small = torch.stack([curvature(60) for _ in range(10)])
    assert (small.mean(0) - whole).norm() < 0.02 * whole.norm()
    assert (small - whole).norm(dim=(1, 2)).max() < 0.1 * whole.norm()


def test_clamped_once_at_the_end() -> None:
    """Entries of single batches are negative and stay so until all are summed."""
    features, labels = clusters(n=240)
    features = torch.nn.functional.normalize(features.flip(0) + 3)  # classes lie close together
    settings = {"margin": 2.0, "approximation": "full"}
    head, generator = a_head(), torch.Generator().manual_seed(0)
    parts = [
        contrastive_ggn_sums(features[rows], head.weight, head.bias, labels[rows], **settings)
        for rows in class_balanced_batches(labels, 24, generator=generator)
    ]
    assert all(bool((part.average()[0] < 0).any()) for part in parts)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    options = CurvatureOptions(**settings, batch_size=24)
    posterior = fit(features, labels, head, options=options, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(posterior.weight_curvature, total.average()[0].clamp_min(0))


def test_batches_hold_every_image_once_and_classes_in_groups() -> None:
    labels = torch.randint(40, (1003,), generator=torch.Generator().manual_seed(0))
    batches = list(class_balanced_batches(labels, 64, generator=torch.Generator().manual_seed(1)))
    assert sorted(torch.cat(batches).tolist()) == list(range(1003))
    assert [len(batch) for batch in batches] == [64] * 15 + [43]
    alone = sum(int((torch.bincount(labels[batch]) == 1).sum()) for batch in batches)
    assert alone < 60  # shuffled without groups it is several hundred
    again = list(class_balanced_batches(labels, 64, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(one, other) for one, other in zip(batches, again, strict=True))


def test_half_whitened_head() -> None:
    """Its outputs are centred, uncorrelated, and each has the root of its component's deviation."""
    features, _ = clusters(n=500)
    head = half_whitened(features, 5)
    outputs = features @ head.weight.T + head.bias
    torch.testing.assert_close(outputs.mean(0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-10)
    covariance = outputs.T @ outputs / 500
    singular = torch.linalg.svdvals(features - features.mean(0))[:5] / 500**0.5
    torch.testing.assert_close(covariance, torch.diag(singular), rtol=1e-8, atol=1e-8)
    single = half_whitened(features.float(), 5)
    torch.testing.assert_close(single.weight, head.weight.float(), rtol=1e-3, atol=1e-4)


def test_without_a_head() -> None:
    features, labels = clusters()
    half = fit(features, labels, dim=4)
    assert torch.equal(half.weight, half_whitened(features, 4).weight)
    assert fit(features, labels).weight.shape == (8, 8)
    identity = fit(features, labels, "identity")
    assert torch.equal(identity.weight, torch.eye(8, dtype=torch.float64))
    assert identity.bias is None
    torch.testing.assert_close(identity.predict(features).location, features)


def test_far_away_images_are_less_sure_with_a_half_whitened_head() -> None:
    """The whole chain: a posterior without training knows an image unlike any it has seen."""
    features, labels = clusters(n=600, width=20)
    posterior = fit(features, labels, dim=8).with_scale(1e3)
    generator = torch.Generator().manual_seed(5)
    strange = features.mean(0) + 2 * torch.randn(100, 20, generator=generator, dtype=torch.float64)
    usual = posterior.predict(features).uncertainty
    unusual = posterior.predict(strange).uncertainty
    assert usual is not None
    assert unusual is not None
    assert unusual.median() > usual.median()


def test_wrong_input_gets_a_sentence() -> None:
    features, labels = clusters()
    for arguments, message in (
        ((features, labels[:5]), "120, 8\\) and 5 labels"),
        ((features, torch.arange(120)), "no positive pair"),
        ((features, labels, "whitened"), "must be 'half-whitened', 'identity'"),
    ):
        with pytest.raises(InputError, match=message):
            fit(*arguments)
    with pytest.raises(InputError, match="has 1 to 8 dimensions, got 9"):
        fit(features, labels, dim=9)
    with pytest.raises(InputError, match="a head that is given has its own"):
        fit(features, labels, Head(torch.eye(8), None), dim=9)
    with pytest.raises(InputError, match="vary in fewer than 8 directions"):
        half_whitened(features[:, :1].expand(-1, 8), 8)
    with pytest.raises(InputError, match="batch_size 1"):
        fit(features, labels, options=CurvatureOptions(batch_size=1))
    with pytest.raises(InputError, match="no geometry 'arcos'"):
        CurvatureOptions(geometry="arcos")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no reduction 'actve'; did you mean 'active'"):
        CurvatureOptions(reduction="actve")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"between 0 and 1, got 1\.5"):
        CurvatureOptions(negative_weight=1.5)
    with pytest.raises(InputError, match="not be negative, got -1"):
        CurvatureOptions(margin=-1)
