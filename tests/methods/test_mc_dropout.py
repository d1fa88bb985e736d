"""mc-dropout: its samples are those of a loop over thinned networks, the same alone, in a batch and twice."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, normalize

from doubtless.data.loading import Batch
from doubtless.errors import InputError
from doubtless.laplace import half_whitened
from doubtless.methods import DataSpec
from doubtless.methods.configuration import load_config, make_config
from doubtless.methods.deterministic import Deterministic
from doubtless.methods.mc_dropout import McDropout
from doubtless.models import dropout
from doubtless.models.dropout import ConvBlocks, draw_masks, masked_linear, sampled_blocks
from doubtless.models.networks import SMALL
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.runs.data import features_of
from doubtless.training import train_run

CONFIGS = Path(__file__).parents[2] / "configs"
SPEC = DataSpec(channels=1, size=12, label_names=list("abcdef"))


def dropped(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**copy.deepcopy(config), "method": "mc-dropout", "dropout": {"samples": 7, **options}}


def made(config: dict[str, Any], *, finished: bool = True, size: int = 12, **options: Any) -> McDropout:
    torch.manual_seed(0)
    method = McDropout(make_config(dropped(config, **options)), DataSpec(1, size, SPEC.label_names))
    method.finished.fill_(finished)
    return method.eval()


def some_images(count: int, size: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 1, size, size), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module", params=["head", "blocks"])
def run(request: Any, tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("dropout") / request.param
    return train_run(make_config(dropped(tiny_config, where=request.param)), path, quiet=True)


def loop_conv_fashion(method: McDropout, image: Tensor, mask: list[Tensor]) -> Tensor:
    """One image through conv-fashion by hand; a mask for each block."""
    net, (first, second) = method.encoder.backbone, mask
    values = conv2d(image[None].float() / 255, net[0].weight, net[0].bias).clamp_min(0)
    values = values * first.view_as(values)
    values = conv2d(values, net[2].weight, net[2].bias).clamp_min(0)
    values = max_pool2d(values, 2)
    values = (values * second.view_as(values)).flatten()
    return normalize(method.head.weight @ values + method.head.bias, dim=0)


def loop_conv_cifar(method: McDropout, image: Tensor, mask: list[Tensor]) -> Tensor:
    """One image through conv-cifar by hand; a mask for each block."""
    net, (first, second, third) = method.encoder.backbone, mask
    values = max_pool2d(conv2d(image[None].float() / 255, net[0].weight, net[0].bias).clamp_min(0), 2)
    values = values * first.view_as(values)
    values = max_pool2d(conv2d(values, net[3].weight, net[3].bias).clamp_min(0), 2)
    values = values * second.view_as(values)
    values = conv2d(values, net[6].weight, net[6].bias).clamp_min(0)
    values = (values * third.view_as(values)).flatten()
    return normalize(method.head.weight @ values + method.head.bias, dim=0)


@pytest.mark.parametrize("where", ["head", "blocks"])
@pytest.mark.parametrize(
    ("backbone", "size", "loop"),
    [("conv-fashion", 12, loop_conv_fashion), ("conv-cifar", 20, loop_conv_cifar)],
)
def test_samples_are_those_of_a_loop_over_masks(
    tiny_config, where: str, backbone: str, size: int, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = made({**tiny_config, "model": {"backbone": backbone, "dim": 8}}, where=where, size=size)
    net = ConvBlocks(SMALL[backbone](1), channels=1, size=size)
    images = some_images(5, size)
    monkeypatch.setattr(dropout, "SAMPLED_IMAGES", 4)  # some images and some draws at a time
    monkeypatch.setattr(dropout, "MASKED_WEIGHTS", 2 * method.head.weight.numel())
    found = method.embed(images).samples
    assert found.shape == (7, 5, 8)
    for draw in range(7):
        if where == "blocks":
            masks = list(method.masks[draw].split(net.widths))
        else:
            masks = [torch.ones(width) for width in net.widths[:-1]] + [method.masks[draw]]
        for number in range(5):
            expected = loop(method, images[number], masks)
            torch.testing.assert_close(found[draw, number], expected, atol=1e-6, rtol=1e-5)


def test_masks_drop_the_rate_and_keep_the_mean(tiny_config) -> None:
    masks = draw_masks(20_000, rate=0.3, samples=4, generator=torch.Generator().manual_seed(1))
    assert masks.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    torch.testing.assert_close((masks == 0).float().mean(1), torch.full((4,), 0.3), atol=0.015, rtol=0)
    assert not torch.equal(masks[0], masks[1])
    few, many = made(tiny_config), made(tiny_config, samples=20)
    assert torch.equal(few.masks, many.masks[:7])  # more samples go on where fewer ended
    other = McDropout(make_config({**dropped(tiny_config), "seed": 1}), SPEC)
    assert not torch.equal(few.masks, other.masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masked_linear_and_blocks_keep_precision_and_gradient(tiny_config, dtype: torch.dtype) -> None:
    method = made(tiny_config, where="blocks").to(dtype)
    blocks = method.encoder.backbone
    first = torch.rand(3, blocks.widths[0], dtype=dtype, requires_grad=True)
    samples = sampled_blocks(blocks, method.head, first, masks=method.masks)
    assert samples.dtype == dtype
    samples.square().sum().backward()
    assert bool(torch.isfinite(first.grad).all())
    assert bool(((first.grad != 0).any(0) <= (method.masks[:, : blocks.widths[0]] != 0).any(0)).all())
    ones = torch.ones(2, method.head.in_features, dtype=dtype)
    features = torch.randn(4, method.head.in_features, dtype=dtype)
    found = masked_linear(features, method.head, ones)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found[1], method.head(features), atol=tolerance, rtol=tolerance)
    assert sampled_blocks(blocks, method.head, first[:0], masks=method.masks).shape == (7, 0, 8)
    assert masked_linear(features[:0], method.head, ones).shape == (2, 0, 8)


def test_alone_in_a_batch_twice_and_loaded_are_equal(run: Run) -> None:
    images = some_images(9)
    method, other = run.load_method(), run.load_method()
    whole = method.embed(images)
    assert whole.family == "empirical"
    assert whole.samples.shape == (7, 9, 8)
    assert bool((whole.uncertainty > 0).all())
    assert bool(torch.isfinite(whole.uncertainty).all())
    torch.rand(3)  # nothing is drawn from the global generator
    assert torch.equal(method.embed(images).samples, whole.samples)
    assert torch.equal(other.embed(images).samples, whole.samples)
    assert torch.equal(copy.deepcopy(method).embed(images).samples, whole.samples)
    assert torch.equal(method.embed_features(method.encode(images)).samples, whole.samples)
    for rows in (slice(0, 1), slice(4, 5), slice(2, 7)):
        torch.testing.assert_close(
            method.embed(images[rows]).samples, whole.samples[:, rows], atol=1e-6, rtol=1e-5
        )
    torch.testing.assert_close(
        method.embed(images.flip(0)).samples, whole.samples.flip(1), atol=1e-6, rtol=1e-5
    )


def test_it_embeds_in_evaluation_mode_whatever_its_mode(run: Run) -> None:
    method, images = run.load_method(), some_images(3)
    expected = method.embed(images).samples
    method.train()
    assert torch.equal(method.embed(images).samples, expected)
    assert method.training


def test_training_drops_and_evaluation_does_not(tiny_config) -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    for where in ("head", "blocks"):
        method = made(tiny_config, where=where, finished=False)
        batch = Batch(some_images(6), labels, torch.arange(6))
        assert torch.equal(method.loss(batch).total, method.loss(batch).total)
        method.train()
        torch.manual_seed(0)
        first, second = (method.loss(batch).total for _ in range(2))
        assert not torch.equal(first, second)
        first.backward()
        for name, value in method.named_parameters():
            assert bool(torch.isfinite(value.grad).all()), name
            assert bool((value.grad != 0).any()), name


def test_until_it_is_finished_it_is_the_network_without_dropout(tiny_config, tiny_run: Path) -> None:
    """So weights of a deterministic run fit, and give its points."""
    images, base = some_images(4), Run(tiny_run).load_method()
    for where in ("head", "blocks"):
        method = made(tiny_config, where=where, finished=False)
        missing, unexpected = method.load_state_dict(base.state_dict(), strict=False)
        assert (missing, unexpected) == (["finished"], [])
        found = method.embed(images)
        assert found.family == "point"
        torch.testing.assert_close(found.location, base.embed(images).location, atol=1e-6, rtol=1e-5)


def test_the_run_learned_and_the_best_epoch_is_that_of_points(run: Run) -> None:
    from doubtless.training.module import validation_scores

    assert run.log[-1]["train_loss"] < run.log[0]["train_loss"]
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    sampled = embed_images(method, data.validation)
    method.finished.fill_(False)
    points = embed_images(method, data.validation)

    def score(direction: Tensor) -> float:
        return validation_scores(direction, data.validation.labels)["map@r"]

    assert score(points.direction) == pytest.approx(max(row["validation_map@r"] for row in run.log), abs=1e-6)
    assert score(sampled.direction) > score(points.direction) - 0.05
    assert float((sampled.direction * points.direction).sum(1).mean()) > 0.9


def test_same_seed_same_run_and_other_losses(tiny_config, run: Run, tmp_path: Path) -> None:
    where = run.config.dropout.where
    again = train_run(make_config(dropped(tiny_config, where=where)), tmp_path / "again", quiet=True)
    one, other = run.load_method().state_dict(), again.load_method().state_dict()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    config = {**dropped(tiny_config, where=where), "loss": {"name": "triplet", "margin": 0.2}}
    triplet = train_run(make_config(config), tmp_path / "triplet", quiet=True)
    assert triplet.load_method().embed(some_images(2)).family == "empirical"


def test_on_a_finished_deterministic_run(tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    """`base` and no epochs: dropout at test time only, on the very network."""
    config = {**dropped(tiny_config, where="blocks"), "base": str(tiny_run)}
    config["training"]["epochs"] = 0
    made_run = train_run(make_config(config), tmp_path / "run", quiet=True)
    base, method = Run(tiny_run).load_method().state_dict(), made_run.load_method()
    assert all(torch.equal(value, method.state_dict()[name]) for name, value in base.items())
    assert method.embed(some_images(2)).family == "empirical"
    further = {**dropped(tiny_config, where="blocks"), "base": str(made_run.path)}
    further["training"]["epochs"] = 1
    trained = train_run(make_config(further), tmp_path / "further", quiet=True)
    assert trained.load_method().embed(some_images(2)).family == "empirical"


@pytest.mark.parametrize("where", ["head", "blocks"])
def test_frozen_encoder_and_half_whitened_head(tiny_config, tmp_path: Path, where: str) -> None:
    config = dropped(tiny_config, where=where)
    config["model"] |= {"freeze": True, "head_start": "half-whitened"}
    config["training"] |= {"epochs": 1, "lr": 1e-9}
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    assert method.batch_kind == ("features" if where == "head" else "images")
    features = method.head_inputs(features_of(method, data.train))
    assert features.shape[1] == method.head.in_features
    torch.testing.assert_close(
        method.head.weight.detach(), half_whitened(features, 8).weight, atol=1e-3, rtol=1e-2
    )


def test_options_that_do_not_fit_are_sentences(tiny_config) -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
    with pytest.raises(InputError, match=r"blocks finds no block in .* use dropout\.where: head\."):
        McDropout(make_config(dropped(tiny_config, where="blocks")), replace(SPEC, backbone=flat))
    normed = {**tiny_config, "model": {"backbone": "conv-fashion", "dim": 8, "feature_norm": "layer"}}
    with pytest.raises(
        InputError, match=r"goes without model\.feature_norm and model\.dropout; got layer and 0"
    ):
        made(normed, where="blocks")
    for bad in ({"rate": 0.0}, {"rate": 1.0}, {"samples": 1}, {"where": "everywhere"}):
        with pytest.raises(InputError, match=r"The configuration key 'dropout\."):
            make_config(dropped(tiny_config, **bad))


def test_any_backbone_with_blocks(tiny_config) -> None:
    """Of a timm network: points of the mean network first, then samples; novelty sees pooled features only."""
    config = {**tiny_config, "model": {"backbone": "test_resnet", "dim": 8, "feature_norm": "layer"}}
    images, method = some_images(6, 32), made(config, where="blocks", finished=False, size=32)
    width = method.head.in_features
    base = Deterministic(make_config(config), DataSpec(1, 32, SPEC.label_names)).eval()
    missing, unexpected = base.load_state_dict(method.state_dict(), strict=False)
    assert (missing, unexpected) == ([], ["finished"])
    points = method.embed(images)
    torch.testing.assert_close(points.location, base.embed(images).location)
    assert method.observe(images).shape == (6, width)
    method.finished.fill_(True)
    features = method.observe(images)
    described = method.describe(images)
    assert features.shape == (6, width + 7 * 8)
    assert described.embedding.samples.shape == (7, 6, 8)
    assert torch.equal(described.features, base.observe(images))
    assert torch.equal(method.head_inputs(features), described.features)
    assert torch.equal(method.describe_features(features).embedding.samples, described.embedding.samples)
    assert torch.equal(copy.deepcopy(method).embed(images).samples, described.embedding.samples)
    torch.testing.assert_close(
        method.embed(images[3:4]).samples, described.embedding.samples[:, 3:4], atol=1e-5, rtol=1e-4
    )
    assert float((described.embedding.direction * points.direction).sum(1).mean()) > 0.5
    more = made(config, where="blocks", size=32, samples=9)
    more.load_state_dict(method.state_dict())
    torch.testing.assert_close(
        more.embed(images).samples[:7], described.embedding.samples, atol=1e-5, rtol=1e-4
    )


def test_a_run_of_any_backbone_with_blocks(tiny_config, tmp_path: Path) -> None:
    config = {**dropped(tiny_config, where="blocks"), "model": {"backbone": "test_resnet", "dim": 8}}
    config["model"]["head_start"] = "half-whitened"
    config["training"] |= {"epochs": 1, "warmup": 0}
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    embedding = embed_images(method, data.validation)
    assert embedding.family == "empirical"
    assert embedding.samples.shape == (7, len(data.validation), 8)
    assert bool((embedding.uncertainty > 0).all())
    assert torch.equal(embed_images(run.load_method(), data.validation).samples, embedding.samples)


def test_blocks_of_any_backbone_are_dropped_in_training_only(tiny_config) -> None:
    config = {**tiny_config, "model": {"backbone": "test_resnet", "dim": 8, "batch_norm": "frozen"}}
    method = made(config, where="blocks", finished=False, size=32)
    batch = Batch(some_images(6, 32), torch.tensor([0, 0, 1, 1, 2, 2]), torch.arange(6))
    assert torch.equal(method.loss(batch).total, method.loss(batch).total)
    method.train()
    first, second = (method.loss(batch).total for _ in range(2))
    assert not torch.equal(first, second)
    first.backward()
    assert all(bool((value.grad != 0).any()) for value in method.encoder.backbone.conv1.parameters())
    kept: list[Tensor] = []
    handle = method.encoder.backbone.layer1.register_forward_hook(
        lambda module, inputs, output: kept.append((output == 0).all(-1).all(-1))
    )
    method.loss(batch)
    handle.remove()
    assert bool(kept[0].any())
    assert not bool((kept[0] == kept[0][:1]).all())  # every image has its own


@pytest.mark.parametrize("data", ["fashion-sample", "omniglot"])
def test_configuration_that_ships(data: str) -> None:
    config = load_config(CONFIGS / data / "mc-dropout.yaml")
    same = load_config(CONFIGS / data / "deterministic.yaml").to_dict()
    assert {**config.to_dict(), "method": "deterministic", "dropout": None} == {**same, "dropout": None}
    assert config.dropout.rate == 0.2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("backbone", "where"), [("conv-fashion", "head"), ("conv-fashion", "blocks"), ("test_resnet", "blocks")]
)
def test_devices_agree(tiny_config, backbone: str, where: str) -> None:
    config = {**tiny_config, "model": {"backbone": backbone, "dim": 8}}
    method, images = made(config, where=where, size=32), some_images(5, 32)
    expected = method.embed(images).samples
    found = method.to("cuda").embed(images).samples
    torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=0)
