"""The posterior of all weights together: predictive against draws, evidence, files, edges; and the running one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.laplace import (
    CurvatureOptions,
    DiagonalPosterior,
    KroneckerCurvature,
    KroneckerGGN,
    KroneckerPosterior,
    fit,
    kronecker_ggn,
    marginal_prior_precision,
    posterior_from_tensors,
    tune,
)
from doubtless.laplace.kronecker_posterior import eigen

DIM, WIDTH = 4, 6
kinds = pytest.mark.parametrize("turns", [True, False])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_ggn(inputs: int, *, turns: bool, rank: int | None = None) -> KroneckerGGN:
    left, right = normal(inputs, rank or 2 * inputs, seed=1), normal(DIM, 2 * DIM, seed=2)
    return KroneckerGGN(left @ left.T / inputs, right @ right.T if turns else None)


def a_posterior(
    *,
    with_bias: bool = True,
    turns: bool = True,
    scale: float = 50.0,
    prior: float = 2.0,
    rank: int | None = None,
) -> KroneckerPosterior:
    return KroneckerPosterior.of(
        normal(DIM, WIDTH, seed=3),
        normal(DIM, seed=4) if with_bias else None,
        a_ggn(WIDTH + with_bias, turns=turns, rank=rank),
        scale=scale,
        prior_precision=prior,
    )


@kinds
@pytest.mark.parametrize("with_bias", [True, False])
def test_predictive_has_the_moments_of_weight_draws(with_bias: bool, turns: bool) -> None:
    posterior, features, draws = (
        a_posterior(with_bias=with_bias, turns=turns),
        normal(3, WIDTH, seed=5),
        200_000,
    )
    generator = torch.Generator().manual_seed(0)
    total, squares = torch.zeros(3, DIM, DIM, dtype=torch.float64), torch.zeros(3, DIM, dtype=torch.float64)
    precision = posterior._precision()
    for _ in range(20):  # as `sample_weights` draws, ten thousand at a time
        noise = torch.randn(
            draws // 20, DIM, len(posterior.input_basis), generator=generator, dtype=torch.float64
        )
        weights = (noise * precision.rsqrt()) @ posterior.input_basis.T
        outputs = torch.einsum("sdf,nf->snd", weights[..., :WIDTH] + posterior.weight, features)
        if with_bias:
            outputs += (weights[..., WIDTH] + posterior.bias).unsqueeze(1)
        squares += outputs.sum(0)
        total += torch.einsum("snd,sne->nde", outputs, outputs)
    embedding = posterior.predict(features)
    mean, variance = squares / draws, embedding.variance
    assert bool(((mean - embedding.location).abs() < 5 * (variance / draws).sqrt()).all())
    covariance = total / draws - mean.unsqueeze(2) * mean.unsqueeze(1)
    size = (variance.unsqueeze(2) * variance.unsqueeze(1)).sqrt()  # coordinates are independent, turned
    assert float(((covariance - torch.diag_embed(variance)) / size).abs().max()) < 5 * math.sqrt(2 / draws)
    assert embedding.parameters["variance"].shape == (3, DIM if turns else 1)


@kinds
def test_single_draws_are_those_of_the_posterior(turns: bool) -> None:
    posterior, features = a_posterior(turns=turns), normal(2, WIDTH, seed=5)
    weights, biases = posterior.sample_weights(4000, generator=torch.Generator().manual_seed(0))
    outputs = torch.einsum("sdf,nf->snd", weights, features) + biases.unsqueeze(1)
    exact = posterior.predict(features)
    torch.testing.assert_close(outputs.var(0), exact.variance, rtol=0.12, atol=0)
    joint = posterior.predict_joint(features, 4000, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(joint.location @ joint.location.T, outputs_of_mean(exact), rtol=0.1, atol=0.02)


def outputs_of_mean(embedding: object) -> Tensor:
    mean = embedding.mean_unit_vector  # type: ignore[attr-defined]
    return mean @ mean.T


def test_turning_changes_no_cosine_and_can_be_undone() -> None:
    posterior, features = a_posterior(), normal(5, WIDTH, seed=6)
    outputs = features @ normal(DIM, WIDTH, seed=3).T + normal(DIM, seed=4)
    turned = posterior.predictive(features)["location"]
    assert not torch.allclose(turned, outputs)
    torch.testing.assert_close(turned @ turned.T, outputs @ outputs.T)
    weight, bias = posterior.head()
    torch.testing.assert_close(weight, normal(DIM, WIDTH, seed=3))
    torch.testing.assert_close(bias, normal(DIM, seed=4))


@kinds
def test_evidence_is_that_of_the_whole_matrix(turns: bool) -> None:
    posterior = a_posterior(turns=turns)
    ggn = a_ggn(WIDTH + 1, turns=turns)
    B = ggn.of_outputs * DIM / ggn.of_outputs.trace() if turns else torch.eye(DIM, dtype=torch.float64)
    whole = 50.0 * torch.kron(B, ggn.of_inputs) + 2.0 * torch.eye(DIM * (WIDTH + 1), dtype=torch.float64)
    squared = float(normal(DIM, WIDTH, seed=3).square().sum() + normal(DIM, seed=4).square().sum())
    expected = 0.5 * (len(whole) * math.log(2.0) - float(torch.logdet(whole)) - 2.0 * squared)
    assert posterior.log_marginal() == pytest.approx(expected, rel=1e-10)
    best = marginal_prior_precision(posterior, 50.0)
    around = [posterior.with_scale(50.0, best * factor).log_marginal() for factor in (0.99, 1.0, 1.01)]
    assert max(around) == around[1]


@kinds
def test_a_grid_is_what_single_predictions_are(turns: bool) -> None:
    posterior, features = a_posterior(turns=turns), normal(5, WIDTH, seed=6)
    points = [(1.0, 2.0), (10.0, 20.0), (3.0, 1e-3)]
    location, variance = posterior.predict_grid(features, points)
    assert variance.shape == (3, 5, DIM)
    for number, point in enumerate(points):
        expected = posterior.with_scale(*point).predictive(features)
        torch.testing.assert_close(location, expected["location"])
        torch.testing.assert_close(variance[number], expected["variance"].expand(-1, DIM), rtol=1e-12, atol=0)


@kinds
def test_rank_deficient_curvature_leaves_the_prior_where_nothing_was_seen(turns: bool) -> None:
    posterior = a_posterior(turns=turns, with_bias=False, rank=2, scale=1e8, prior=0.5)
    unseen = posterior.input_basis[:, :1].T  # an eigenvector without curvature
    torch.testing.assert_close(
        posterior.predict(unseen).variance, torch.full((1, DIM), 2.0, dtype=torch.float64), rtol=1e-6, atol=0
    )
    seen = posterior.input_basis[:, -1:].T
    assert float(posterior.predict(seen).variance.max()) < 1e-6


@pytest.mark.parametrize("prior", [1e-12, 1e-6, 1e6, 1e12])
def test_float32_stays_near_for_any_prior(prior: float) -> None:
    exact, features = a_posterior(prior=prior), normal(20, WIDTH, seed=7)
    single = exact.to(torch.float32)
    assert single.input_basis.dtype == torch.float32
    found, expected = single.predictive(features)["variance"], exact.predictive(features)["variance"]
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0)


def test_the_ratio_of_variances_is_bounded() -> None:
    posterior, features = a_posterior(scale=3.0, prior=0.7), normal(500, WIDTH, seed=8)
    variance = posterior.predict(features).variance
    ratios = variance.amax(1) / variance.amin(1)
    assert 1 < float(ratios.max()) <= posterior.variance_ratio() * (1 + 1e-9)
    assert a_posterior(turns=False).variance_ratio() == 1.0


@kinds
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_comes_back_from_a_file(tmp_path: Path, turns: bool, with_bias: bool) -> None:
    posterior = a_posterior(turns=turns, with_bias=with_bias)
    save_file(posterior.to_tensors(), tmp_path / "p.safetensors")
    found = posterior_from_tensors(load_file(tmp_path / "p.safetensors"))
    assert isinstance(found, KroneckerPosterior)
    features = normal(3, WIDTH, seed=9)
    for name, value in posterior.predictive(features).items():
        assert torch.equal(found.predictive(features)[name], value)
    assert found.head()[0].shape == (DIM, WIDTH)
    diagonal = DiagonalPosterior(
        *normal(1, 2, 3), None, torch.ones(2, 3), None, scale=1.0, prior_precision=1.0
    )
    assert isinstance(posterior_from_tensors(diagonal.to_tensors()), DiagonalPosterior)
    with pytest.raises(InputError, match="input_curvature is missing"):
        KroneckerPosterior.from_tensors(
            {k: v for k, v in posterior.to_tensors().items() if k != "input_curvature"}
        )


def test_what_does_not_fit_is_refused() -> None:
    posterior = a_posterior()
    tensors = posterior.to_tensors()
    for name, value, message in (
        ("scale", torch.tensor(0.0), "must be positive"),
        ("input_basis", torch.eye(3), "must have shape"),
        ("output_curvature", torch.ones(2), "must have shape"),
        ("input_curvature", -torch.ones(7), "clamped at 0"),
        ("input_curvature", torch.full((7,), math.nan), "NaN"),
    ):
        with pytest.raises(InputError, match=message):
            KroneckerPosterior.from_tensors(tensors | {name: value})
    with pytest.raises(InputError, match="Features must have shape"):
        posterior.predict(torch.zeros(2, 3))


def test_tuning_chooses_scale_and_prior_of_it() -> None:
    features, labels = normal(60, 8, seed=1), torch.arange(60) % 3
    posterior = fit(features[:30], labels[:30], dim=4, covariance="kronecker")
    for prior in ("marginal", "validation"):
        found = tune(
            posterior, features[30:], labels[30:], criterion="error-auroc", prior=prior, scales=[1.0, 10.0]
        ).posterior
        assert isinstance(found, KroneckerPosterior)
        assert found.scale in (1.0, 10.0)


def test_images_unlike_the_training_set_are_doubted_whatever_the_prior() -> None:
    """Features of three directions out of eight, rotated: no single feature is unseen, a direction is."""
    basis = torch.linalg.qr(normal(8, 8, seed=2)).Q
    seen, other = normal(60, 3, seed=3) @ basis[:3], normal(20, 3, seed=4) @ basis[3:6]
    labels = torch.arange(60) % 3
    options = CurvatureOptions(geometry="linear", negative_weight=0.0)
    posterior = fit(
        seen, labels, (basis[:, :4].T.contiguous(), None), covariance="kronecker", options=options
    )
    mean = float(posterior.flat_curvature().mean())
    for ratio in (1e-3, 1e-1, 1.0):
        now = posterior.with_scale(1.0, ratio * mean)

        def relative(features: Tensor, now: KroneckerPosterior = now) -> Tensor:
            return now.predictive(features)["variance"].squeeze(1) / features.square().sum(1)

        assert relative(other).min() > relative(seen).max()


# --- the running one


def batches(count: int, *, turns: bool = True) -> list[KroneckerGGN]:
    found = []
    for seed in range(count):
        head, features = nn.Linear(WIDTH, DIM), normal(9, WIDTH, seed=seed).float()
        labels = torch.arange(9) % 3
        geometry = "arccos" if turns else "linear"
        found.append(kronecker_ggn(features, head.weight, head.bias, labels, margin=0.7, geometry=geometry))
    return found


@kinds
def test_the_running_mean_is_the_weighted_sum_of_all_batches(turns: bool) -> None:
    curvature, seen = (
        KroneckerCurvature(DIM, WIDTH, memory=0.3, turns=turns, refactor=1),
        batches(5, turns=turns),
    )
    for batch in seen:
        curvature.update(*batch)
    shares = torch.tensor([0.3 * 0.7 ** (4 - k) for k in range(5)], dtype=torch.float64)
    shares /= shares.sum()
    expected = [
        sum(share * part.double() for share, part in zip(shares, parts, strict=True))
        if parts[0] is not None
        else None
        for parts in zip(*seen, strict=True)
    ]
    torch.testing.assert_close(curvature.of_inputs, expected[0], rtol=1e-10, atol=1e-12)
    factors = eigen(KroneckerGGN(*expected))
    torch.testing.assert_close(
        curvature.input_curvature, factors.input_curvature.float(), rtol=1e-5, atol=1e-6
    )
    if turns:
        torch.testing.assert_close(curvature.of_outputs, expected[1], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(
            curvature.output_curvature, factors.output_curvature.float(), rtol=1e-4, atol=1e-6
        )


def test_eigenvectors_are_found_every_so_many_steps_also_when_resumed() -> None:
    seen = batches(7)
    through, resumed = (KroneckerCurvature(DIM, WIDTH, memory=0.3, refactor=3) for _ in range(2))
    changes = []
    for batch in seen:
        before = through.input_basis.clone()
        through.update(*batch)
        changes.append(not torch.equal(before, through.input_basis))
    assert changes == [True, False, False, True, False, False, True]
    first = KroneckerCurvature(DIM, WIDTH, memory=0.3, refactor=3)
    for batch in seen[:5]:
        first.update(*batch)
    resumed.load_state_dict(first.state_dict())
    for batch in seen[5:]:
        resumed.update(*batch)
    for name, value in through.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_batches_that_are_not_valid_leave_everything_as_it_is() -> None:
    curvature, seen = KroneckerCurvature(DIM, WIDTH, memory=0.3), batches(2)
    curvature.update(*seen[0])
    before = {name: value.clone() for name, value in curvature.state_dict().items() if name != "updates"}
    curvature.update(*(torch.full_like(part, math.nan) for part in seen[1]), valid=False)
    curvature.update(*(torch.zeros_like(part) for part in seen[1]))
    assert all(torch.equal(curvature.state_dict()[name], value) for name, value in before.items())
    assert int(curvature.steps) == 1


@kinds
def test_online_draws_have_the_covariance_of_the_posterior(turns: bool) -> None:
    curvature, head = KroneckerCurvature(DIM, WIDTH, turns=turns, refactor=1), nn.Linear(WIDTH, DIM)
    for batch in batches(3, turns=turns):
        curvature.update(*batch)
    generator, features = torch.Generator().manual_seed(0), normal(2, WIDTH, seed=1).float()
    settings = {"scale": torch.tensor(30.0), "prior_precision": torch.tensor(0.5)}
    outputs = []
    with torch.no_grad():
        for _ in range(4000):
            weight, bias = curvature.sample(head.weight, head.bias, generator=generator, **settings)
            outputs.append(features @ weight.T + bias)
    drawn = torch.stack(outputs)
    posterior = curvature.posterior(head.weight, head.bias, scale=30.0, prior_precision=0.5)
    if turns:
        drawn = drawn @ curvature.output_basis
    expected = posterior.predict(features)
    torch.testing.assert_close(drawn.var(0), expected.variance, rtol=0.12, atol=0)
    torch.testing.assert_close(drawn.mean(0), expected.location, rtol=0, atol=0.2)
    weight, bias = curvature.sample(head.weight, head.bias, **settings)
    (weight.sum() + 2 * bias.sum()).backward()
    assert bool((head.weight.grad == 1).all())
    assert bool((head.bias.grad == 2).all())


def test_before_the_first_batch_draws_are_those_of_the_prior() -> None:
    curvature = KroneckerCurvature(DIM, WIDTH)
    weight, _ = curvature.sample(torch.zeros(DIM, WIDTH), torch.zeros(DIM), scale=1e9, prior_precision=4.0)
    generator = torch.Generator().manual_seed(0)
    many = torch.stack(
        [
            curvature.sample(
                torch.zeros(DIM, WIDTH), torch.zeros(DIM), scale=1e9, prior_precision=4.0, generator=generator
            )[0]
            for _ in range(500)
        ]
    )
    assert weight.shape == (DIM, WIDTH)
    assert float(many.var()) == pytest.approx(0.25, rel=0.05)


@kinds
def test_by_tensors_alone_it_predicts_the_same(turns: bool) -> None:
    curvature, head = KroneckerCurvature(DIM, WIDTH, turns=turns), nn.Linear(WIDTH, DIM)
    curvature.update(*batches(1, turns=turns)[0])
    features = normal(5, WIDTH, seed=1).float()
    found = curvature.predictive(head, features, torch.tensor(30.0), torch.tensor(0.5))
    expected = curvature.posterior(head.weight, head.bias, scale=30.0, prior_precision=0.5).predictive(
        features
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


@kinds
@pytest.mark.parametrize("running", [True, False])
def test_what_fit_found_is_kept(turns: bool, running: bool) -> None:
    features, labels, head = normal(30, WIDTH).float(), torch.arange(30) % 3, nn.Linear(WIDTH, DIM)
    options = CurvatureOptions(geometry="arccos" if turns else "linear")
    found = fit(features, labels, head, covariance="kronecker", options=options)
    curvature = KroneckerCurvature(DIM, WIDTH, turns=turns, running=running)
    curvature.keep(found)
    again = curvature.posterior(head.weight, head.bias, scale=30.0, prior_precision=1.0)
    for name, value in found.predictive(features).items():
        torch.testing.assert_close(again.predictive(features)[name], value, rtol=1e-5, atol=1e-6)
    assert ("of_inputs" in curvature.state_dict()) == running
    curvature.settle()
    if running:
        settled = curvature.posterior(head.weight, head.bias, scale=30.0, prior_precision=1.0).predict(
            features
        )
        torch.testing.assert_close(
            settled.uncertainty, found.predict(features).uncertainty, rtol=1e-3, atol=0
        )
    else:
        with pytest.raises(InputError, match="not running"):
            curvature.update(*batches(1)[0])
    with pytest.raises(InputError, match="keeps a KroneckerPosterior"):
        curvature.keep(fit(features, labels, head))


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="memory"):
        KroneckerCurvature(DIM, WIDTH, memory=0.0)
    with pytest.raises(InputError, match="refactor"):
        KroneckerCurvature(DIM, WIDTH, refactor=0)
