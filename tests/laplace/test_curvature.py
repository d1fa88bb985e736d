"""The closed-form curvature against explicit Jacobians, and its edges."""

from __future__ import annotations

from itertools import accumulate, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from doubtless.errors import InputError
from doubtless.laplace import contrastive_ggn, contrastive_ggn_sums, pair_weight_matrix
from doubtless.laplace.curvature import FEW_OUTPUTS
from doubtless.losses import contrastive_loss
from tests.reference.curvature import brute_force_ggn, pair_weight

VARIANTS = list(product(["arccos", "euclidean", "linear"], ["fixed", "positive", "full"]))
every_variant = pytest.mark.parametrize(("geometry", "approximation"), VARIANTS)
both_reductions = pytest.mark.parametrize("reduction", ["active", "all"])


def a_batch(
    batch: int = 7, width: int = 5, dim: int = 4, classes: int = 3, seed: int = 0
) -> tuple[Tensor, ...]:
    """Features, weight, bias, labels; float64."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((batch, width), (dim, width), (dim,))
    tensors = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
    return *tensors, torch.arange(batch) % classes


def counted_weights(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    margin: float,
    w: float = 0.5,
    reduction: str = "active",
) -> Tensor:
    outputs = features @ weight.T + (0 if bias is None else bias)
    weights = torch.zeros(len(labels), len(labels), dtype=torch.float64)
    for i in range(len(labels)):
        for j in range(i + 1, len(labels)):
            weights[i, j] = weights[j, i] = pair_weight(i, j, outputs, labels, margin, w, reduction)
    return weights


def assert_equals_brute_force(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    geometry: str,
    approximation: str,
    margin: float = 1.2,
    w: float = 0.5,
    reduction: str = "active",
) -> Tensor:
    of_weight, of_bias = contrastive_ggn(
        features, weight, bias, labels, margin=margin, geometry=geometry, approximation=approximation,
        negative_weight=w, reduction=reduction,
    )  # fmt: skip
    weights = counted_weights(features, weight, bias, labels, margin, w, reduction)
    expected = brute_force_ggn(
        features, weight, bias, weights, geometry=geometry, approximation=approximation
    )
    torch.testing.assert_close(of_weight, expected[0], rtol=1e-10, atol=1e-10)
    if bias is None:
        assert of_bias is None
    else:
        torch.testing.assert_close(of_bias, expected[1], rtol=1e-10, atol=1e-10)
    return of_weight


@every_variant
@both_reductions
@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_explicit_jacobians(
    geometry: str, approximation: str, with_bias: bool, reduction: str
) -> None:
    features, weight, bias, labels = a_batch()
    found = assert_equals_brute_force(
        features, weight, bias if with_bias else None, labels, geometry=geometry, approximation=approximation,
        reduction=reduction,
    )  # fmt: skip
    assert found.abs().max() > 1e-2  # there was something to be equal to


@every_variant
@pytest.mark.parametrize(
    ("change", "margin"),
    [
        ({"classes": 1}, 1.2),
        ({"classes": 7}, 1.2),  # no positive pair
        ({}, 0.01),  # no negative inside the margin
        ({}, 3.0),  # every negative inside
        ({"dim": 1}, 1.2),
        ({"dim": 6, "width": 2}, 1.2),
        ({"batch": 2, "classes": 1}, 1.2),
        ({"batch": 1}, 1.2),
    ],
)
def test_edges_equal_explicit_jacobians(
    geometry: str, approximation: str, change: dict[str, int], margin: float
) -> None:
    features, weight, bias, labels = a_batch(**change)
    settings = {"geometry": geometry, "approximation": approximation, "margin": margin}
    for reduction in ("active", "all"):
        assert_equals_brute_force(features, weight, bias, labels, reduction=reduction, **settings)


@every_variant
@both_reductions
def test_zero_embeddings_contribute_nothing(geometry: str, approximation: str, reduction: str) -> None:
    features, weight, bias, labels = a_batch()
    settings = {"geometry": geometry, "approximation": approximation, "reduction": reduction}
    features[2] = 0
    assert_equals_brute_force(features, weight, None, labels, **settings)  # an embedding of length 0
    assert_equals_brute_force(features, weight, bias, labels, **settings)  # zero features, but a bias
    nothing, _ = contrastive_ggn(torch.zeros_like(features), weight, None, labels, margin=1.0, **settings)
    assert nothing.count_nonzero() == 0


@every_variant
def test_equal_points_count_where_they_push_and_not_where_they_pull(
    geometry: str, approximation: str
) -> None:
    """Two equal points of one label are as near as can be: no term, so no part in the active average."""
    features, weight, bias, labels = a_batch()
    features[3] = features[0]  # of one label
    features[4] = features[2]  # of two
    settings = {"geometry": geometry, "approximation": approximation}
    found = assert_equals_brute_force(features, weight, bias, labels, **settings)
    over_all = assert_equals_brute_force(features, weight, bias, labels, reduction="all", **settings)
    assert not torch.allclose(found, over_all)
    alike = features[:1].expand(7, -1)
    only_pushed = contrastive_ggn(
        alike, weight, bias, labels, margin=0.5, geometry=geometry, approximation=approximation
    )
    y = pair_weight_matrix(alike @ weight.T + bias, labels, margin=0.5)
    assert y.max() == 0
    assert float(y.sum()) == pytest.approx(-2)  # all negative pairs, each in both orders
    expected = brute_force_ggn(alike, weight, bias, y, geometry=geometry, approximation=approximation)
    torch.testing.assert_close(only_pushed, expected, rtol=1e-9, atol=1e-9)


@every_variant
def test_negative_weight_and_pair_weights(geometry: str, approximation: str) -> None:
    features, weight, bias, labels = a_batch()
    for reduction in ("active", "all"):
        assert_equals_brute_force(
            features, weight, bias, labels, geometry=geometry, approximation=approximation, w=0.2,
            reduction=reduction,
        )  # fmt: skip
    mined = torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mined = mined + mined.T  # its diagonal is not zero, and must not count
    mined[0, 3] = mined[3, 0] = 0
    found = contrastive_ggn(
        features, weight, bias, None, margin=0.7, geometry=geometry, approximation=approximation,
        pair_weights=mined,
    )  # fmt: skip
    expected = brute_force_ggn(features, weight, bias, mined, geometry=geometry, approximation=approximation)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_published_sign_of_the_arccos_cross_term_is_wrong() -> None:
    """With normalisation in the loss the model is linear, so the GGN is the Hessian of the loss itself."""
    features, weight, _, labels = a_batch()
    weights = counted_weights(features, weight, None, labels, 1.2)

    def loss(flat: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(features @ flat.reshape(weight.shape).T)
        return (weights.triu(1) * (1 - unit @ unit.T)).sum()

    hessian = torch.autograd.functional.hessian(loss, weight.reshape(-1)).diagonal().reshape(weight.shape)
    full, _ = contrastive_ggn(features, weight, None, labels, margin=1.2, approximation="full")
    fixed, _ = contrastive_ggn(features, weight, None, labels, margin=1.2, approximation="fixed")
    torch.testing.assert_close(full, hessian, rtol=1e-10, atol=1e-10)
    published = fixed - (full - fixed)  # the code subtracts a cross term that already has its minus sign
    assert (published - hessian).norm() > hessian.norm()  # further from the truth than answering 0


@both_reductions
def test_it_is_the_second_derivative_of_the_loss_itself(reduction: str) -> None:
    """By autograd, counts and all: they are constants where nothing crosses the margin."""
    features, weight, bias, labels = a_batch(batch=9)
    settings = {"margin": 1.2, "negative_weight": 0.3, "reduction": reduction}

    def loss(flat: Tensor) -> Tensor:
        return contrastive_loss(features @ flat.reshape(weight.shape).T + bias, labels, **settings)

    hessian = torch.autograd.functional.hessian(loss, weight.reshape(-1)).diagonal().reshape(weight.shape)
    found, _ = contrastive_ggn(features, weight, bias, labels, approximation="full", **settings)
    torch.testing.assert_close(found, hessian, rtol=1e-9, atol=1e-10)


@every_variant
def test_float32_and_large_batches(geometry: str, approximation: str) -> None:
    """Chunks of pairs add up; float32 stays within 1e-4 of the largest entry."""
    features, weight, bias, labels = a_batch(batch=60, width=30, dim=20, classes=6)
    settings = {"margin": 1.2, "geometry": geometry, "approximation": approximation}
    exact = contrastive_ggn(features, weight, bias, labels, **settings)
    single = contrastive_ggn(features.float(), weight.float(), bias.float(), labels, **settings)
    assert single[0].dtype == torch.float32
    for found, expected in zip(single, exact, strict=True):
        # Of the bias alone nothing is left in a linear geometry: attraction and repulsion cancel.
        largest = (exact[0] if geometry == "linear" else expected).abs().max()
        assert (found - expected).abs().max() < 1e-4 * largest
    mean = sum(
        contrastive_ggn(
            features, weight, bias, None, pair_weights=weights, **settings
        )[0]
        for weights in _one_pair_at_a_time(features @ weight.T + bias, labels)
    )  # fmt: skip
    torch.testing.assert_close(mean, exact[0], rtol=1e-10, atol=1e-12)


def _one_pair_at_a_time(outputs: Tensor, labels: Tensor) -> list[Tensor]:
    """y of the whole batch, cut into 40 parts."""
    weights = pair_weight_matrix(outputs, labels, margin=1.2)
    part = torch.randint(40, weights.shape, generator=torch.Generator().manual_seed(0)).triu(1)
    part = part + part.T
    return [weights * (part == number) for number in range(40)]


@every_variant
@both_reductions
def test_sums_of_batches_average_to_the_whole(geometry: str, approximation: str, reduction: str) -> None:
    features, weight, bias, labels = a_batch(batch=12)
    settings = {
        "margin": 1.2, "geometry": geometry, "approximation": approximation, "reduction": reduction,
    }  # fmt: skip
    whole = contrastive_ggn(features, weight, bias, labels, negative_weight=0.3, **settings)
    sums = contrastive_ggn_sums(features, weight, bias, labels, **settings)
    torch.testing.assert_close(sums.average(negative_weight=0.3), whole, rtol=1e-10, atol=1e-12)
    twice = sums + sums
    assert int(twice.positive_pairs) == 2 * 18
    inside = int((pair_weight_matrix(features @ weight.T + bias, labels, margin=1.2) < 0).sum()) // 2
    assert 0 < inside < 48
    assert int(twice.negative_pairs) == 2 * (inside if reduction == "active" else 48)
    torch.testing.assert_close(twice.average(), sums.average())
    without_bias = contrastive_ggn_sums(features, weight, None, labels, **settings)
    assert (without_bias + without_bias).average()[1] is None


def test_euclidean_and_linear_positive_are_never_negative_and_the_others_can_be() -> None:
    lowest = dict.fromkeys(VARIANTS, 0.0)
    for seed in range(20):
        features, weight, bias, _ = a_batch(batch=8, seed=seed)
        labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
        for geometry, approximation in VARIANTS:
            of_weight, _ = contrastive_ggn(
                features, weight, bias, labels, margin=2.0, geometry=geometry, approximation=approximation
            )
            lowest[geometry, approximation] = min(lowest[geometry, approximation], float(of_weight.min()))
    for geometry in ("euclidean", "linear"):
        assert lowest.pop((geometry, "positive")) > -1e-12
    assert max(lowest.values()) < -1e-3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.floats(0, 2.5), st.integers(0, 1000))
def test_pair_weights_are_those_of_the_loss(labels: list[int], margin: float, seed: int) -> None:
    classes = torch.tensor(labels)
    outputs = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    negatives = (classes[:, None] != classes).sum(1)
    has_positive = (classes[:, None] == classes).sum(1) > 1
    for reduction in ("active", "all"):
        settings = {"margin": margin, "reduction": reduction}
        weights = pair_weight_matrix(outputs, classes, negative_weight=0.3, **settings)
        expected = counted_weights(
            outputs, torch.eye(3, dtype=torch.float64), None, classes, w=0.3, **settings
        )
        torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-15)
        per_point = pair_weight_matrix(outputs, classes, per_point=True, **settings).sum(1)
        inside = (expected < 0).sum(1)
        share = inside / negatives.clamp_min(1).double() if reduction == "all" else (inside > 0).double()
        by_hand = (1 - share) / len(labels) * has_positive
        torch.testing.assert_close(per_point, by_hand, rtol=1e-12, atol=1e-15)


def test_equal_points_lie_outside_a_margin_of_zero() -> None:
    outputs = torch.full((4, 3), 0.3)
    assert pair_weight_matrix(outputs, torch.arange(4), margin=0.0).count_nonzero() == 0


def test_no_gradient_and_no_half_precision() -> None:
    features, weight, bias, labels = a_batch()
    head = weight.float().requires_grad_()
    expected, _ = contrastive_ggn(features.float(), head, bias.float(), labels, margin=1.2)
    assert not expected.requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = contrastive_ggn(features.float(), head, bias.float(), labels, margin=1.2)
        pairs = pair_weight_matrix(features.bfloat16(), labels, margin=1.2)
    assert torch.equal(found, expected)
    assert torch.equal(pairs, pair_weight_matrix(features.bfloat16().float(), labels, margin=1.2))


def test_fixed_has_no_dynamic_shapes() -> None:
    """It runs on tensors that have a shape but no values: nothing reads one, nothing is indexed by one."""
    with FakeTensorMode() as mode:
        shapes = [mode.from_tensor(tensor) for tensor in a_batch()]
        of_weight, of_bias = contrastive_ggn(*shapes, margin=1.2)
        assert (of_weight.shape, of_bias.shape) == ((4, 5), (4,))
        with pytest.raises(DynamicOutputShapeException):
            contrastive_ggn(*shapes, margin=1.2, approximation="full")  # its pairs have to be counted


@pytest.mark.parametrize("approximation", ["positive", "full"])
def test_a_gpu_is_not_asked_which_pairs_count_where_outputs_are_few(approximation: str) -> None:
    with FakeTensorMode():
        features, labels = torch.empty(7, 5, device="cuda"), torch.zeros(7, dtype=torch.long, device="cuda")
        few, many = (torch.empty(dim, 5, device="cuda") for dim in (FEW_OUTPUTS, FEW_OUTPUTS + 1))
        of_weight, _ = contrastive_ggn(features, few, None, labels, margin=1.2, approximation=approximation)
        assert of_weight.shape == few.shape
        with pytest.raises(DynamicOutputShapeException):
            contrastive_ggn(features, many, None, labels, margin=1.2, approximation=approximation)


@pytest.mark.parametrize("geometry", ["arccos", "euclidean"])
@pytest.mark.parametrize("reading", [-1000, 1000], ids=["some pairs", "all pairs"])
def test_some_pairs_and_all_pairs_come_to_the_same(
    geometry: str, reading: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("doubtless.laplace.curvature.READING", reading)
    features, weight, bias, labels = a_batch()
    for approximation in ("positive", "full"):
        assert_equals_brute_force(
            features, weight, bias, labels, geometry=geometry, approximation=approximation
        )


@every_variant
@pytest.mark.parametrize("shape", [(64, 900, 3), (96, 200, 16), (32, 256, 256)])
def test_memory_stays_below_the_stated_bound(
    geometry: str, approximation: str, shape: tuple[int, int, int]
) -> None:
    """3·D·F + 3·B·(D+F) + 4·B² floats, the result included, when every pair counts."""
    batch, width, dim = shape
    features, weight, bias, labels = (
        tensor.float() for tensor in a_batch(batch=batch, width=width, dim=dim, classes=batch // 4)
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        contrastive_ggn(
            features, weight, bias, labels, margin=3.0, geometry=geometry, approximation=approximation
        )
    events = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    peak = max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
    assert dim * width * 4 < peak < 4 * (3 * dim * width + 3 * batch * (dim + width) + 4 * batch**2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"geometry": "arcos"}, "did you mean 'arccos'"),
        ({"reduction": "activ"}, "no reduction 'activ'; did you mean 'active'"),
        ({"approximation": "diagonal"}, "accepted: fixed, full, positive"),
        ({"margin": -1.0}, "margin must not be negative"),
        ({"negative_weight": 2.0}, "between 0 and 1"),
        ({"pair_weights": torch.ones(3, 3)}, r"must have shape \(7, 7\)"),
        ({"labels": torch.arange(3)}, r"Labels must have shape \(7,\), one per image, got \(3,\)"),
        ({"labels": None}, "give labels or pair_weights"),
        ({"weight": torch.ones(4, 9, dtype=torch.float64)}, r"\(7, 5\) and \(4, 9\)"),
        ({"bias": torch.ones(9)}, r"bias must have shape \(4,\)"),
    ],
)
def test_wrong_input_gets_a_sentence(arguments: dict[str, object], message: str) -> None:
    names = ("features", "weight", "bias", "labels")
    given = {**dict(zip(names, a_batch(), strict=True)), "margin": 1.0, **arguments}
    positional = [given.pop(name) for name in names]
    with pytest.raises(InputError, match=message):
        contrastive_ggn(*positional, **given)
