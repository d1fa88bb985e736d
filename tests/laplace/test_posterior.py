"""The posterior of a head: closed-form predictive against weight draws, evidence, files."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from doubtless.errors import InputError
from doubtless.laplace import DiagonalPosterior


def a_posterior(
    dim: int = 4, width: int = 6, *, with_bias: bool = True, scale: float = 50.0, prior: float = 2.0
) -> DiagonalPosterior:
    generator = torch.Generator().manual_seed(dim + width)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, bias, curvature, bias_curvature = normal(dim, width), normal(dim), normal(dim, width), normal(dim)
    return DiagonalPosterior(
        weight,
        bias if with_bias else None,
        curvature.clamp_min(0),
        bias_curvature.clamp_min(0) if with_bias else None,
        scale=scale,
        prior_precision=prior,
    )


def some_features(n: int, width: int) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.mark.parametrize("with_bias", [True, False])
def test_predictive_has_the_moments_of_weight_draws(with_bias: bool) -> None:
    posterior, features = a_posterior(with_bias=with_bias), some_features(3, 6)
    embedding = posterior.predict(features)
    weights, biases = posterior.sample_weights(20_000, generator=torch.Generator().manual_seed(0))
    outputs = torch.einsum("sdf,nf->snd", weights, features)
    assert (biases is None) == (not with_bias)
    if biases is not None:
        outputs += biases.unsqueeze(1)
    deviation = embedding.parameters["variance"].sqrt()
    assert bool(((outputs.mean(0) - embedding.location).abs() < 5 * deviation / math.sqrt(20_000)).all())
    torch.testing.assert_close(outputs.var(0), embedding.parameters["variance"], rtol=0.06, atol=0)


def test_predictive_variance_by_hand() -> None:
    posterior = DiagonalPosterior(
        torch.ones(1, 2),
        torch.zeros(1),
        torch.tensor([[3.0, 0.0]]),
        torch.tensor([1.0]),
        scale=2.0,
        prior_precision=4.0,
    )
    embedding = posterior.predict(torch.tensor([[5.0, 3.0]]))
    assert embedding.location.item() == 8.0
    by_hand = 25 / (2 * 3 + 4) + 9 / 4 + 1 / (2 * 1 + 4)
    assert embedding.parameters["variance"].item() == pytest.approx(by_hand)


@pytest.mark.parametrize("dim", [3, 32, 512, 2048])
def test_closed_form_marginal_draws_and_joint_draws_agree(dim: int) -> None:
    posterior, features = a_posterior(dim, 12, scale=20.0, prior=1.0), some_features(4, 12)
    exact = posterior.predict(features)
    draws = 4000 if dim < 500 else 400
    marginal = exact.sample(draws, generator=torch.Generator().manual_seed(0))
    joint = posterior.predict_joint(features, draws, generator=torch.Generator().manual_seed(1))
    allowed = 9 * (1 - exact.resultant.square()) / draws  # of a squared error: three standard deviations
    for mean in (marginal.mean(0), joint.location):
        assert bool(((mean - exact.mean_unit_vector).square().sum(1) < allowed).all())
    assert joint.uncertainty is not None
    torch.testing.assert_close(joint.uncertainty, exact.uncertainty, rtol=0.12, atol=0)


def test_joint_draws_keep_what_two_images_share() -> None:
    posterior = a_posterior(2, 3, with_bias=False, scale=1e-3, prior=1.0)
    features = some_features(1, 3).expand(2, -1)
    joint = posterior.predict_joint(features, 50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(*joint.sample(50).unbind(1))
    first, second = posterior.predict(features).sample(50).unbind(1)
    assert not torch.allclose(first, second)


def test_evidence_is_that_of_a_gaussian_model() -> None:
    """∫ exp(−½ τH w²) N(w; 0, 1/λ) dw around a mean, one parameter at a time, by quadrature."""
    posterior = a_posterior(2, 2, scale=3.0, prior=0.7)
    parameters = zip(
        torch.cat([posterior.weight.reshape(-1), posterior.bias]),
        posterior.flat_curvature(),
        strict=True,
    )
    grid = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    total = 0.0
    for mean, curvature in parameters:
        # The Laplace approximation: the integrand's logarithm is its value at the mean and a parabola.
        log_peak = -0.5 * 0.7 * mean**2 + 0.5 * math.log(0.7 / (2 * math.pi))
        parabola = torch.exp(-0.5 * (3.0 * curvature + 0.7) * grid.square())
        total += float(log_peak) + math.log(float(torch.trapezoid(parabola, grid)))
    assert posterior.log_marginal() == pytest.approx(total, rel=1e-9)


def test_state_survives_a_file(tmp_path: Path) -> None:
    for posterior in (a_posterior(), a_posterior(with_bias=False)):
        save_file(posterior.to_tensors(), tmp_path / "posterior.safetensors")
        again = DiagonalPosterior.from_tensors(load_file(tmp_path / "posterior.safetensors"))
        assert (again.scale, again.prior_precision) == (posterior.scale, posterior.prior_precision)
        features = some_features(2, 6)
        assert torch.equal(again.predict(features).uncertainty, posterior.predict(features).uncertainty)
    with pytest.raises(InputError, match="scale is missing"):
        DiagonalPosterior.from_tensors({"weight": torch.ones(1), "weight_curvature": torch.ones(1),
                                        "prior_precision": torch.ones(())})  # fmt: skip


def test_it_is_immutable_and_scales_make_new_ones() -> None:
    posterior = a_posterior()
    before = posterior.weight_variance.clone()
    surer = posterior.with_scale(1e6)
    assert torch.equal(posterior.weight_variance, before)
    assert surer.prior_precision == posterior.prior_precision
    assert bool((surer.weight_variance <= before).all())
    assert posterior.with_scale(1.0, 9.0).prior_precision == 9.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        posterior.scale = 3.0  # type: ignore[misc]
    assert posterior.to(torch.float32).predict(some_features(2, 6)).dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 0.0}, "must be positive, got 0"),
        ({"prior_precision": math.nan}, "must be positive"),
        ({"bias_curvature": None}, "give both or neither"),
        ({"weight_curvature": torch.ones(2, 2)}, r"its shape \(4, 6\), got \(2, 2\)"),
        ({"weight_curvature": -torch.ones(4, 6)}, "must be clamped at 0, got an entry of -1"),
        ({"weight_curvature": torch.full((4, 6), torch.nan)}, "NaN or infinite"),
    ],
)
def test_wrong_parts_get_a_sentence(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(a_posterior(), **change)


def test_wrong_features_get_a_sentence() -> None:
    with pytest.raises(InputError, match=r"\(n, 6\), got \(2, 5\)"):
        a_posterior().predict(torch.ones(2, 5))
