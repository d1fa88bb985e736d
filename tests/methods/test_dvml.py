"""Deep variational metric learning: samples at once and one by one, phases, collapse, moments."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from doubtless.config import LossConfig
from doubtless.data import Batch
from doubtless.errors import InputError
from doubtless.losses.variational import kl_to_standard_normal
from doubtless.methods import DataSpec
from doubtless.methods.configuration import make_config
from doubtless.methods.dvml import LOSSES, Dvml
from doubtless.methods.metric_loss import MetricLoss
from tests.reference.two_processes import TwoProcesses, loss_and_gradients, share_of

SPEC = DataSpec(channels=1, size=12, label_names=list("abcdef"))
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
NPAIR = {
    "name": "NPairsLoss",
    "arguments": {
        "distance": {"name": "DotProductSimilarity", "arguments": {"normalize_embeddings": False}},
        "embedding_regularizer": {"name": "LpRegularizer", "arguments": {"power": 2}},
        "embedding_reg_weight": 0.02,
    },
}
MARGIN_DWS = {
    "name": "MarginLoss",
    "arguments": {"beta": 1.2},
    "miner": {"name": "DistanceWeightedMiner", "arguments": {"cutoff": 0.5, "nonzero_loss_cutoff": 1.4}},
}
METRIC_LOSSES: dict[str, dict[str, Any]] = {
    "contrastive": {"name": "contrastive", "margin": 1.0, "negative_weight": 0.3},
    "semi-hard": {"name": "triplet", "margin": 0.2},
    "hard": {"name": "triplet", "margin": 0.2, "mining": "hard"},
    "npair": NPAIR,
    "proxies": {"name": "ProxyAnchorLoss"},
    "mined": {"name": "TripletMarginLoss", "miner": {"name": "TripletMarginMiner"}},
}


def with_dvml(config: dict[str, Any], loss: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config) | {
        "method": "dvml",
        "dvml": {"samples": 3, "phase1_epochs": 1, **options},
    }
    return changed | ({"loss": loss} if loss else {})


def made(config: dict[str, Any], loss: dict[str, Any] | None = None, **options: Any) -> Dvml:
    torch.manual_seed(0)
    return Dvml(make_config(with_dvml(config, loss, **options)), SPEC).train()


def a_batch(seed: int = 1) -> Batch:
    images = torch.rand(8, 1, 12, 12, generator=torch.Generator().manual_seed(seed))
    return Batch(images, LABELS, torch.arange(8))


def gradients(method: Dvml, loss: Tensor) -> dict[str, Tensor]:
    """Of every parameter; zero where the loss does not reach it at all."""
    names, values = zip(*method.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, values, allow_unused=True)
    return {
        name: torch.zeros_like(value) if gradient is None else gradient
        for name, value, gradient in zip(names, values, found, strict=True)
    }


@pytest.mark.parametrize("loss", METRIC_LOSSES.values(), ids=list(METRIC_LOSSES))
def test_samples_at_once_are_samples_one_by_one(loss: dict[str, Any]) -> None:
    torch.manual_seed(0)
    metric = MetricLoss(LossConfig(**loss), dim=5, classes=6)
    samples = torch.randn(4, 8, 5, requires_grad=True)
    found = metric.over_samples(samples, LABELS)
    expected = sum(metric(draw, LABELS) for draw in samples) / 4
    assert float(found.detach()) > 0
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    for one, other in zip(
        *(torch.autograd.grad(value, [samples, *metric.parameters()]) for value in (found, expected)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_mining_once_uses_the_tuples_of_the_first_draw_within_every_draw() -> None:
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import TripletMarginMiner

    torch.manual_seed(0)
    loss = {
        "name": "TripletMarginLoss",
        "arguments": {"margin": 0.3, "reducer": {"name": "MeanReducer"}},
        "miner": {"name": "TripletMarginMiner", "arguments": {"margin": 0.3}},
    }
    metric = MetricLoss(LossConfig(**loss), dim=5, classes=6)
    samples = torch.randn(4, 8, 5)
    tuples = TripletMarginMiner(margin=0.3)(samples[0], LABELS)
    assert len(tuples[0]) > 0
    one_by_one = TripletMarginLoss(margin=0.3, reducer=metric.peer.reducer)
    expected = torch.stack([one_by_one(draw, LABELS, tuples) for draw in samples]).mean()
    torch.testing.assert_close(metric.over_samples(samples, LABELS, mine_once=True), expected)
    assert float(expected) != float(metric.over_samples(samples, LABELS))


def test_distance_weighted_sampling_once_for_all_draws(tiny_config) -> None:
    """Its β is one a class, by the label: labels are those of the batch, whichever the draw."""
    method = made(tiny_config, MARGIN_DWS, mine_at="first-sample")
    losses = method.loss(a_batch())
    assert float(losses.terms["synthesised"].detach()) > 0
    losses.total.backward()
    assert all(bool(torch.isfinite(value.grad).all()) for value in method.parameters())


def test_a_peer_takes_all_its_numbers_to_a_device() -> None:
    """MarginLoss keeps its β in a plain attribute, which nn.Module.to does not move."""
    metric = MetricLoss(LossConfig(**MARGIN_DWS), dim=5, classes=6)
    assert metric.peer.beta.tolist() == pytest.approx([1.2] * 6)
    assert metric.to("meta").peer.beta.device.type == "meta"
    assert not metric.state_dict()


@pytest.mark.parametrize(
    "loss", [METRIC_LOSSES["semi-hard"], NPAIR, MARGIN_DWS], ids=["triplet", "npair", "dws"]
)
def test_four_losses_are_what_they_say(tiny_config, loss: dict[str, Any]) -> None:
    method = made(tiny_config, loss)
    features = method.features(a_batch().inputs)
    torch.manual_seed(3)
    found = method.losses(features, LABELS)
    torch.manual_seed(3)
    parts = method.parts(features)
    noise = torch.randn(3, 8, 8)
    drawn = [parts.center + parts.mean + (0.5 * parts.log_variance).exp() * noise[t] for t in range(3)]
    decoded = [method.decoder(z) for z in drawn]
    torch.testing.assert_close(
        found["reconstruction"],
        torch.stack([(features - y).square().sum(1).mean() for y in decoded]).mean(),
    )
    torch.testing.assert_close(found["kl"], kl_to_standard_normal(parts.mean, parts.log_variance).mean())
    if "miner" not in loss:  # the miner draws, too
        torch.testing.assert_close(
            found["synthesised"], torch.stack([method.metric_loss(z, LABELS) for z in drawn]).mean()
        )
        torch.testing.assert_close(found["metric"], method.metric_loss(method.head(features), LABELS))


def test_npair_sees_raw_embeddings_and_pays_for_their_length() -> None:
    """−log softmax of z_a·z_p over one pair a class, and 0.02 ‖z‖²; the triplet loss sees directions only."""
    metric = MetricLoss(LossConfig(**NPAIR), dim=4, classes=4)
    z = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = z[0::2] @ z[1::2].T
    expected = -logits.log_softmax(1).diagonal().mean() + 0.02 * z.square().sum(1).mean()
    assert float(metric(z, LABELS)) == pytest.approx(float(expected), rel=1e-5)
    unit = MetricLoss(LossConfig(name="triplet"), dim=4, classes=4)
    torch.testing.assert_close(unit(3 * z, LABELS), unit(z, LABELS))


def test_wrong_names_inside_arguments_are_answered() -> None:
    def build(**arguments: Any) -> MetricLoss:
        return MetricLoss(LossConfig(name="NPairsLoss", arguments=arguments), dim=4, classes=4)

    with pytest.raises(InputError, match=r"distances has no 'DotProductSimilarty'.*DotProductSimilarity"):
        build(distance={"name": "DotProductSimilarty"})
    with pytest.raises(InputError, match="In embedding_regularizer: The configuration lacks the key 'name'"):
        build(embedding_regularizer={"arguments": {"power": 2}})


def test_phases_switch_by_epoch_with_their_weights(tiny_config) -> None:
    method = made(tiny_config, phase1_epochs=2, phase2={"synthesised": 0.7})
    expected = {0: (1, 1, 0.1, 1), 1: (1, 1, 0.1, 1), 2: (0.8, 1, 0.7, 0.8), 9: (0.8, 1, 0.7, 0.8)}
    for epoch, weights in expected.items():
        method.begin_epoch(epoch)
        losses = method.loss(a_batch())
        logged = [float(losses.terms[f"{name}_weight"]) for name in LOSSES]
        assert logged == pytest.approx(weights)
        total = sum(
            weight * float(losses.terms[name].detach()) for name, weight in zip(LOSSES, weights, strict=True)
        )
        assert float(losses.total.detach()) == pytest.approx(total, rel=1e-5)
    assert set(losses.terms) == {*LOSSES, *(f"{name}_weight" for name in LOSSES)}


def test_reconstruction_reaches_the_encoder_in_phase_2_only(tiny_config) -> None:
    method = made(tiny_config)
    found = {}
    for epoch in (0, 1):
        method.begin_epoch(epoch)
        features = method.features(a_batch().inputs)
        found[method.phase] = gradients(method, method.losses(features, LABELS)["reconstruction"])
    for phase, of_parameter in found.items():
        for name, gradient in of_parameter.items():
            reached = bool((gradient != 0).any())
            assert bool(torch.isfinite(gradient).all())
            assert reached == (phase == 2 or name.startswith("decoder.")), (phase, name)


def test_what_is_reconstructed_does_not_give_way(tiny_config) -> None:
    """In phase 2, too, the gradient comes through the decoded features only, not through the target."""
    method = made(tiny_config, phase1_epochs=0)
    features = method.features(a_batch().inputs)
    torch.manual_seed(3)
    (found,) = torch.autograd.grad(
        method.losses(features, LABELS)["reconstruction"], features, retain_graph=True
    )
    torch.manual_seed(3)
    decoded = method.decoder(method._synthesised(method.parts(features), 3))
    (expected,) = torch.autograd.grad((decoded - features.detach()).square().sum(-1).mean(), features)
    torch.testing.assert_close(found, expected)


def test_synthesised_loss_reaches_mean_and_variance(tiny_config) -> None:
    """With `.sample()` in place of a re-parameterised draw it would not."""
    method = made(tiny_config)
    found = gradients(method, method.losses(method.features(a_batch().inputs), LABELS)["synthesised"])
    for name in ("variation_mean.weight", "variation_log_variance.weight", "head.weight"):
        assert bool((found[name] != 0).any()), name
    assert not bool((found["decoder.0.weight"] != 0).any())


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
def test_gradients_are_finite_for_features_of_any_size(tiny_config, scale: float) -> None:
    method = made(tiny_config, phase1_epochs=0)
    features = (scale * torch.randn(8, method.encoder.feature_dim)).requires_grad_()
    losses = method.losses(features, LABELS)
    sum(losses.values()).backward()
    assert all(bool(torch.isfinite(value.detach())) for value in losses.values())
    assert bool(torch.isfinite(features.grad).all())
    assert float(losses["kl"].detach()) >= 0
    bound = method.options.log_variance_bound
    assert bool((method.parts(features).log_variance.abs() <= bound).all())


def collapsed(tiny_config: dict[str, Any], **options: Any) -> Dvml:
    method = made(tiny_config, **options)
    with torch.no_grad():
        for layer in (method.variation_mean, method.variation_log_variance):
            layer.weight.zero_()
            layer.bias.fill_(1e-3)
    return method


def test_a_collapsed_posterior_is_told_once_with_the_weight_to_change(tiny_config) -> None:
    method = collapsed(tiny_config, phase1={"kl": 4.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said before an epoch is over
        method.begin_epoch(0)
        method.loss(a_batch())
    with pytest.warns(
        UserWarning, match=r"In epoch 0 .* Lower dvml\.phase1\.kl, which is 4, .* to 0\.4"
    ) as told:
        method.begin_epoch(1)
    assert len(told) == 1
    method.loss(a_batch())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor again
        method.begin_epoch(2)
        method.finish(None, None)  # type: ignore[arg-type]


def test_a_collapse_in_the_last_epoch_is_told_at_the_end_and_a_healthy_one_never(tiny_config) -> None:
    method = collapsed(tiny_config)
    method.begin_epoch(1)
    method.loss(a_batch())
    with pytest.warns(UserWarning, match=r"Lower dvml\.phase2\.kl, which is 0\.8"):
        method.finish(None, None)  # type: ignore[arg-type]
    healthy = made(tiny_config)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            healthy.begin_epoch(epoch)
            healthy.loss(a_batch())
        healthy.finish(None, None)  # type: ignore[arg-type]
    # an epoch in which it was healthy at first is judged by its mean
    method = collapsed(tiny_config)
    with torch.no_grad():
        method.variation_mean.bias.fill_(1.0)
    method.loss(a_batch())
    with torch.no_grad():
        method.variation_mean.bias.fill_(1e-3)
    method.loss(a_batch())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.begin_epoch(1)


def test_synthesised_samples_have_the_moments_of_the_embedding(tiny_config) -> None:
    method, images, count = made(tiny_config), a_batch().inputs, 20_000
    found = method.synthesise(images, count, generator=torch.Generator().manual_seed(0))
    assert found.shape == (count, 8, 8)
    assert method.training
    again = method.synthesise(images, count, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found, again)
    embedding = method.embed(images)
    with torch.no_grad():
        parts = method.parts(method.encode(images))
    error = embedding.variance.sqrt() / count**0.5
    assert bool(((found.mean(0) - parts.center - parts.mean).abs() < 5 * error).all())
    torch.testing.assert_close(found.var(0), embedding.variance, rtol=6 * (2 / count) ** 0.5, atol=0)


def test_embedding_is_the_centre_with_the_variance_of_the_variation(tiny_config) -> None:
    method, images = made(tiny_config), a_batch().inputs
    embedding = method.embed(images)
    features = method.encode(images)
    assert embedding.family == "gaussian"
    torch.testing.assert_close(embedding.location, method.head(features).detach())
    bound = method.options.log_variance_bound
    raw = method.variation_log_variance(features)
    torch.testing.assert_close(embedding.uncertainty, (bound * (raw / bound).tanh()).exp().sum(1).detach())
    torch.testing.assert_close(method.embed_features(features).variance.detach(), embedding.variance)


def test_options_are_checked(tiny_config) -> None:
    for bad in ({"samples": 0}, {"phase1": {"kl": -1}}, {"log_variance_bound": 0}, {"mine_at": "never"}):
        with pytest.raises(InputError, match=r"The configuration key 'dvml\."):
            make_config(with_dvml(tiny_config, **bad))
    with pytest.raises(InputError, match=r"no configuration key 'dvml\.phase2\.sythesised'.*synthesised"):
        make_config(with_dvml(tiny_config, phase2={"sythesised": 1}))


def _step_of_rank(rank: int, config: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    return loss_and_gradients(made(config, phase1_epochs=0), share_of(a_batch(), rank), seed=5)


def test_two_processes_have_the_gradient_of_one(tiny_config, two_processes: TwoProcesses) -> None:
    total, gradients = loss_and_gradients(made(tiny_config, phase1_epochs=0), a_batch(), seed=5)
    for loss, found in two_processes(_step_of_rank, tiny_config):
        torch.testing.assert_close(loss, total)
        torch.testing.assert_close(found, gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "loss", [METRIC_LOSSES["semi-hard"], NPAIR, MARGIN_DWS], ids=["triplet", "npair", "dws"]
)
def test_devices_agree(tiny_config, loss: dict[str, Any]) -> None:
    method = made(tiny_config, loss)
    expected = method.embed(a_batch().inputs)
    method.to("cuda")
    found = method.embed(a_batch().inputs)
    torch.testing.assert_close(found.location.cpu(), expected.location, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.variance.cpu(), expected.variance, atol=1e-3, rtol=1e-3)
    losses = method.loss(Batch(*(value.cuda() for value in a_batch())))
    losses.total.backward()
    assert bool(torch.isfinite(method.head.weight.grad).all())
