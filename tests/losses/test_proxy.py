"""Every similarity × family against quadrature or a loop, both losses against others' and by hand, edges."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.errors import InputError
from doubtless.losses.proxy import ProxyLoss, check_labels, proxy_anchor_loss, proxy_nca_loss
from doubtless.sphere import (
    NonIsotropicVonMisesFisher,
    VonMisesFisher,
    expected_likelihood,
    log_normalizer,
)
from doubtless.sphere.sampled_likelihood import _SampledLikelihood, debye_table, sampled_expected_likelihood

OF_DISTRIBUTIONS = [
    (similarity, family)
    for similarity in ("elk", "bhattacharyya", "kl", "log-likelihood")
    for family in ("vmf", "nivmf")
]
ROWS = [*OF_DISTRIBUTIONS, ("cosine", "point"), ("l2", "point")]
every_row = pytest.mark.parametrize(("similarity", "family"), ROWS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_loss(similarity: str = "elk", family: str = "nivmf", dim: int = 2, **arguments: Any) -> ProxyLoss:
    """Three proxies with parameters of their own."""
    chosen = {"norm_factor": 1.7, "concentration": 2.0, "temperature": 0.8, **arguments}
    loss = ProxyLoss(3, dim, similarity=similarity, family=family, **chosen).double()  # type: ignore[arg-type]
    with torch.no_grad():
        loss.location.copy_(2 * normal(3, dim, seed=1))
        if family != "point":
            loss.log_concentration.add_(0.3 * normal(*loss.log_concentration.shape, seed=2))
    return loss


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# -- similarities ------------------------------------------------------------------------------------


def by_quadrature(similarity: str, image: VonMisesFisher, proxy: Any) -> float:
    """One pair on the circle, by the rectangle rule, which is exact to rounding for smooth periodic functions."""
    angle = torch.arange(8192, dtype=torch.float64) * (2 * math.pi / 8192)
    points, cell = torch.stack((angle.cos(), angle.sin()), 1), 2 * math.pi / 8192
    p, q = image.log_prob(points), proxy.log_prob(points)
    if similarity == "elk":
        return math.log(float((p + q).exp().sum()) * cell)
    if similarity == "bhattacharyya":
        return math.log(float((0.5 * (p + q)).exp().sum()) * cell)
    return -float((p.exp() * (p - q)).sum()) * cell


@pytest.mark.parametrize("family", ["vmf", "nivmf"])
@pytest.mark.parametrize("similarity", ["elk", "bhattacharyya", "kl"])
def test_similarities_of_distributions_are_integrals(similarity: str, family: str) -> None:
    loss, embeddings = a_loss(similarity, family, samples=40_000), 2 * normal(4, 2, seed=3)
    with torch.no_grad():
        found = loss.similarities(embeddings, generator=seeded())
        proxies = loss.proxies()
    for i, e in enumerate(embeddings):
        image = VonMisesFisher(e / e.norm(), 1.7 * e.norm())
        for c in range(3):
            spread = proxies.concentration[c] if isinstance(proxies, VonMisesFisher) else proxies.scale[c]
            expected = by_quadrature(similarity, image, type(proxies)(proxies.direction[c], spread))
            # sampled where the proxy is not isotropic: within 0.03 with 40,000 draws
            assert float(found[i, c]) == pytest.approx(expected, abs=1e-8 if family == "vmf" else 0.03)


@pytest.mark.parametrize("family", ["vmf", "nivmf"])
def test_log_likelihood_is_the_density_at_the_direction(family: str) -> None:
    loss, embeddings = a_loss("log-likelihood", family, dim=5), normal(4, 5, seed=3)
    kind: Any = VonMisesFisher if family == "vmf" else NonIsotropicVonMisesFisher
    found = loss.similarities(embeddings).detach()
    for i in range(4):
        for c in range(3):
            proxy = kind(normalize(loss.location[c], dim=0), loss.log_concentration[c].exp())
            expected = float(proxy.log_prob(normalize(embeddings[i], dim=0)).detach())
            assert float(found[i, c]) == pytest.approx(expected, abs=1e-9)


def test_similarities_of_points_are_those_of_a_loop() -> None:
    embeddings = normal(4, 6, seed=3)
    cosine, l2 = a_loss("cosine", "point", dim=6), a_loss("l2", "point", dim=6)
    found = {"cosine": cosine.similarities(embeddings), "l2": l2.similarities(embeddings)}
    for i, e in enumerate(embeddings):
        for c in range(3):
            angle = e @ cosine.location[c] / e.norm() / cosine.location[c].norm()
            torch.testing.assert_close(found["cosine"][i, c], angle)
            torch.testing.assert_close(found["l2"][i, c], -(1.7 * e - l2.location[c]).square().sum())


@every_row
def test_single_precision_agrees_with_double(similarity: str, family: str) -> None:
    loss, embeddings = a_loss(similarity, family, dim=24), 3 * normal(5, 24, seed=3)
    exact = loss.similarities(embeddings, generator=seeded())
    if family == "nivmf" and similarity == "elk":  # other precision, other draws: the same noise for both
        noise = normal(5, 7, 24, seed=4)
        exact = sampled_expected_likelihood(embeddings, loss.location, loss.log_concentration, noise=noise)
        single = (embeddings.float(), loss.location.float(), loss.log_concentration.float())
        found = sampled_expected_likelihood(*single, noise=noise.float())
    elif family == "nivmf" and similarity != "log-likelihood":
        return
    else:
        found = loss.float().similarities(embeddings.float())
    error = (found.double() - exact).abs() / exact.abs().clamp_min(1)
    assert found.dtype == torch.float32
    assert float(error.max().detach()) < 1e-5


@every_row
def test_an_image_does_not_depend_on_its_batch(similarity: str, family: str) -> None:
    if family == "nivmf" and similarity != "log-likelihood":
        pytest.skip("draws depend on the batch")
    loss, embeddings = a_loss(similarity, family, dim=9), normal(6, 9, seed=3)
    whole, part = loss.similarities(embeddings), loss.similarities(embeddings[2:4])
    torch.testing.assert_close(part, whole[2:4])


# -- the expected likelihood by weighted draws ---------------------------------------------------------


@pytest.mark.parametrize("dim", [2, 3, 26])
def test_written_out_gradients_are_right(dim: int) -> None:
    embeddings, location, log_scale = 3 * normal(3, dim), normal(2, dim, seed=1), 0.3 * normal(2, dim, seed=2)
    inputs = [value.requires_grad_() for value in (embeddings, location, log_scale + 1)]
    inputs[2] = inputs[2].detach().requires_grad_()
    noise, table = normal(3, 4, dim, seed=4), debye_table(dim)
    assert torch.autograd.gradcheck(
        lambda *given: _SampledLikelihood.apply(*given, noise, table, 1.3), inputs
    )


@pytest.mark.parametrize(("dim", "norm"), [(3, 0.0), (3, 4.0), (16, 10.0), (100, 30.0), (100, 1e4)])
def test_weighted_draws_have_no_bias(dim: int, norm: float) -> None:
    """Against the closed form, which an isotropic scale has; the mean of exp(estimate) over many estimates."""
    direction, proxy = normalize(normal(1, dim), dim=1), normal(1, dim, seed=1)
    near = normalize(direction + 0.3 * normalize(proxy, dim=1), dim=1)
    scale = torch.full((1, dim), math.log(8.0), dtype=torch.float64)
    images = (norm * direction).expand(5_000, dim)
    found = sampled_expected_likelihood(images, near, scale, samples=2, generator=seeded(5))[:, 0]
    image = VonMisesFisher(direction, torch.tensor([norm], dtype=torch.float64))
    expected = expected_likelihood(image, VonMisesFisher(near, torch.tensor([8.0], dtype=torch.float64)))
    likelihood = (found - expected).exp()
    assert abs(float(likelihood.mean()) - 1) < 4 * float(likelihood.std()) / math.sqrt(5_000)


def test_weighted_draws_are_nearly_as_good_as_exact_ones() -> None:
    """(Σw)²/Σw² of n draws is at least ¾ n in any dimension and 0.84 n from 8 on, and no weight is above 1.6."""
    for dim, norm in [(2, 1.0), (2, 1e4), (8, 1e4), (512, 50.0), (512, 512.0), (512, 1e5)]:
        image, count = norm * normalize(normal(1, dim), dim=1), 2000
        # a class of scale → 0 has the density of the uniform distribution: what is left is the weight
        flat, proxy = torch.full((1, dim), -12.0, dtype=torch.float64), normal(1, dim, seed=7)
        log_weight = sampled_expected_likelihood(
            image.expand(count, dim), proxy, flat, noise=normal(count, 1, dim, seed=6)
        )
        weight = (log_weight - log_normalizer(dim, torch.zeros(1, dtype=torch.float64))).exp()
        assert float(weight.mean()) == pytest.approx(1, abs=4 * float(weight.std()) / math.sqrt(count) + 1e-9)
        assert float(weight.max()) < 1.6
        assert float(weight.mean().square() / weight.square().mean()) > (0.74 if dim < 8 else 0.84)


def test_relative_differs_by_a_number_of_the_image_only() -> None:
    loss, embeddings, noise = a_loss(dim=7), normal(4, 7, seed=3), normal(4, 5, 7, seed=4)
    given = (embeddings, loss.location, loss.log_concentration)
    whole = sampled_expected_likelihood(*given, noise=noise)
    relative = sampled_expected_likelihood(*given, noise=noise, relative=True)
    difference = whole - relative
    torch.testing.assert_close(difference, difference[:, :1].expand(4, 3))


def test_shapes_that_do_not_fit_are_a_sentence() -> None:
    with pytest.raises(InputError, match=r"\(2, 4\), \(3, 5\) and \(3, 5\)"):
        sampled_expected_likelihood(torch.ones(2, 4), torch.ones(3, 5), torch.ones(3, 5))


# -- losses ------------------------------------------------------------------------------------------


def test_proxy_nca_is_cross_entropy_by_hand() -> None:
    similarities, labels = normal(4, 3), [2, 0, 0, 1]
    expected = 0.0
    for row, label in zip(similarities.tolist(), labels, strict=True):
        total = sum(math.exp(value / 0.4) for value in row)  # the own class included
        expected -= math.log(math.exp(row[label] / 0.4) / total) / 4
    found = proxy_nca_loss(similarities, torch.tensor(labels), temperature=0.4)
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize("labels", [[0, 1, 2, 0], [1, 1, 1, 1], [2, 0, 0, 0]])
def test_proxy_anchor_is_that_of_pytorch_metric_learning(labels: list[int]) -> None:
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    embeddings, proxies = normal(4, 6).requires_grad_(), normal(3, 6, seed=1).requires_grad_()
    peer = ProxyAnchorLoss(num_classes=3, embedding_size=6, margin=0.1, alpha=32).double()
    with torch.no_grad():
        peer.proxies.copy_(proxies)
    expected = peer(embeddings, torch.tensor(labels))
    by_peer = torch.autograd.grad(expected, [embeddings, peer.proxies])
    cosines = normalize(embeddings, dim=1) @ normalize(proxies, dim=1).T
    found = proxy_anchor_loss(cosines, torch.tensor(labels))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, [embeddings, proxies]), by_peer)


@every_row
def test_the_module_is_cross_entropy_of_its_similarities(similarity: str, family: str) -> None:
    loss, embeddings, labels = a_loss(similarity, family, dim=6), normal(4, 6), torch.tensor([0, 1, 2, 1])
    torch.manual_seed(3)
    found = loss(embeddings, labels)
    torch.manual_seed(3)
    similarities = loss.similarities(embeddings)
    torch.testing.assert_close(found, proxy_nca_loss(similarities, labels, temperature=0.8))


def test_anchor_as_regulariser_and_alone() -> None:
    embeddings, labels = normal(4, 6), torch.tensor([0, 1, 2, 1])
    both, plain = a_loss("elk", "vmf", dim=6, anchor_weight=0.5), a_loss("elk", "vmf", dim=6)
    anchor = proxy_anchor_loss(normalize(embeddings, dim=1) @ normalize(plain.location, dim=1).T, labels)
    terms = both.terms(embeddings, labels)
    torch.testing.assert_close(terms.total, plain(embeddings, labels) + 0.5 * anchor)
    torch.testing.assert_close(terms.terms["anchor_loss"], anchor)
    alone = a_loss("cosine", "point", dim=6, objective="anchor")
    torch.testing.assert_close(alone(embeddings, labels), anchor)
    assert [name for name, _ in alone.named_parameters()] == ["location"]  # nothing without a gradient


@every_row
@pytest.mark.parametrize("length", [0.0, 1e-20, 1e-3, 1.0, 1e4])
def test_gradients_are_finite_at_any_length(similarity: str, family: str, length: float) -> None:
    loss = ProxyLoss(3, 40, similarity=similarity, family=family, norm_factor=3.0)  # type: ignore[arg-type]
    embeddings = (length * normalize(normal(4, 40), dim=1).float()).requires_grad_()
    loss(embeddings, torch.tensor([0, 1, 2, 1])).backward()
    for value in (embeddings, *loss.parameters()):
        assert value.grad is not None
        assert bool(value.grad.isfinite().all())


@every_row
def test_descent_finds_the_classes(similarity: str, family: str) -> None:
    torch.manual_seed(0)
    loss = ProxyLoss(
        3, 8, similarity=similarity, family=family, concentration=8.0, norm_factor=4.0, samples=2
    )  # type: ignore[arg-type]
    embeddings = torch.nn.Parameter(torch.randn(12, 8))
    labels = torch.arange(12) % 3
    optimizer = torch.optim.Adam([embeddings, *loss.parameters()], lr=0.1)
    before = float(loss(embeddings, labels).detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    assert float(loss(embeddings, labels).detach()) < 0.5 * before
    assert torch.equal(loss.similarities(embeddings).argmax(1), labels)


def test_warm_start_is_the_class_mean_and_leaves_empty_classes() -> None:
    loss = a_loss("cosine", "point", dim=4)
    directions, labels = normal(6, 4), torch.tensor([0, 0, 0, 2, 2, 0])
    untouched = loss.location[1].detach().clone()
    loss.start_at(directions, labels)
    mean = normalize(directions, dim=1)[labels == 0].mean(0)
    torch.testing.assert_close(loss.location[0].detach(), mean / mean.norm())
    assert torch.equal(loss.location[1].detach(), untouched)
    long = a_loss("l2", "point", dim=4, concentration=7.0)
    long.start_at(directions, labels)
    torch.testing.assert_close(long.location[2].detach().norm(), torch.tensor(7.0).double())


# -- what is refused -----------------------------------------------------------------------------------


@every_row
def test_measured_starts(similarity: str, family: str) -> None:
    """Lengths give the concentration asked for; own classes are the gap above the others, by a loop."""
    loss = a_loss(similarity, family, dim=4, samples=400)
    labels = torch.arange(30) % 3
    embeddings = 50 * normalize(loss.location.detach()[labels], dim=1) + 20 * normal(30, 4)
    loss.start_lengths(embeddings, concentration=6.0)
    assert float(loss.norm_factor * embeddings.norm(dim=1).mean()) == pytest.approx(6)
    loss.start_temperature(embeddings, labels, gap=2.5)
    with torch.no_grad():
        logits = loss.similarities(embeddings, generator=seeded(5)) / loss.log_temperature.exp()
    above = [
        float(row[label] - sum(row[other] for other in range(3) if other != label) / 2)
        for row, label in zip(logits, labels.tolist(), strict=True)
    ]
    assert sum(above) / 30 == pytest.approx(2.5, rel=0.05)


def test_measured_starts_stay_where_nothing_can_be_measured() -> None:
    loss = a_loss("cosine", "point")
    before = loss.log_temperature.item(), loss.norm_factor
    loss.start_lengths(torch.zeros(3, 2, dtype=torch.float64), concentration=6.0)
    loss.start_temperature(-loss.location.detach(), torch.arange(3), gap=1.0)  # its own class is the farthest
    assert (loss.log_temperature.item(), loss.norm_factor) == before
    with pytest.raises(InputError, match="3 proxies"):
        loss.start_temperature(loss.location.detach(), torch.arange(1, 4), gap=1.0)


def test_a_measured_factor_is_saved_and_older_states_have_none() -> None:
    loss, again = a_loss(), a_loss()
    loss.start_lengths(normal(5, 2), concentration=1 / 3)
    again.load_state_dict(loss.state_dict())
    assert again.norm_factor == loss.norm_factor != a_loss().norm_factor
    older = {name: value for name, value in loss.state_dict().items() if name != "measured_factor"}
    again = a_loss(norm_factor=2.5)
    again.load_state_dict(older)
    assert again.norm_factor == 2.5
    assert "measured_factor" not in older  # what was given is left alone
    torch.testing.assert_close(again.location, loss.location)


@pytest.mark.parametrize("label", [-1, 3, 100])
def test_a_label_without_a_proxy_is_a_sentence(label: int) -> None:
    with pytest.raises(InputError, match=rf"There are 3 proxies, for the labels 0 … 2; got label {label}\."):
        a_loss()(normal(2, 2), torch.tensor([0, label]))
    with pytest.raises(InputError, match="whole numbers"):
        check_labels(torch.tensor([0.5]), 3)
    check_labels(torch.tensor([], dtype=torch.long), 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"similarity": "cosine", "family": "vmf"}, "cosine compares points"),
        ({"similarity": "elk", "family": "point"}, "a point has none"),
        ({"similarity": "elk", "objective": "anchor"}, "ProxyAnchor alone compares directions"),
        ({"similarity": "euclid"}, "no similarity 'euclid' of proxies; there are elk, bhattacharyya"),
        ({"dim": 1}, "at least 2 dimensions"),
    ],
)
def test_combinations_without_meaning_are_sentences(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ProxyLoss(3, arguments.pop("dim", 4), **arguments)
