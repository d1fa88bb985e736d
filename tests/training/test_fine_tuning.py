"""Fine-tuning: defaults of pretrained networks, batch norm that rests, the head's warm-up, schedules, stopping."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from doubtless.config import FINE_TUNING, TrainingConfig
from doubtless.data.loading import Batch
from doubtless.methods import DataSpec, method_class
from doubtless.methods.base import Method
from doubtless.methods.configuration import make_config
from doubtless.models import Encoder
from doubtless.runs import Run
from doubtless.training import module as training_module
from doubtless.training import train, train_run
from doubtless.training.module import lr_share

TUNED = {
    "method": "deterministic",
    "data": {"source": "digits"},
    "model": {"backbone": "resnet9", "dim": 8},
    "training": {"recipe": "fine-tuning"},
}


def a_method(changes: dict[str, Any] | None = None, *, method: str = "deterministic") -> Method:
    values = copy.deepcopy(TUNED) | {"method": method}
    for section, inside in (changes or {}).items():
        values[section] = {**values.get(section, {}), **inside}
    config = make_config(values)
    torch.manual_seed(0)
    return method_class(method)(config, DataSpec(channels=1, size=28, label_names=list("abcd")))


def a_batch() -> Batch:
    images = torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    return Batch(images, torch.arange(8) % 4, torch.arange(8))


def test_pretrained_networks_get_the_defaults_of_fine_tuning_where_a_configuration_is_silent() -> None:
    silent = {"method": "lam-online", "data": {"source": "digits"}, "model": {"weights": "some.safetensors"}}
    config = make_config(silent)
    for section, defaults in FINE_TUNING.items():
        for key, value in defaults.items():
            assert getattr(getattr(config, section), key) == value, key
    spoken = make_config(
        silent | {"training": {"lr": 0.5, "warmup": 0}, "data": {"source": "digits", "augment": []}}
    )
    assert (spoken.training.lr, spoken.training.warmup, spoken.data.augment) == (0.5, 0, [])
    assert spoken.training.optimizer == "adamw"


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"backbone": "resnet9"}},
        {"model": {"weights": "some.safetensors", "freeze": True}},
        {"model": {"weights": "some.safetensors"}, "training": {"recipe": "scratch"}},
        {"model": {"weights": "some.safetensors"}, "method": "pretrained"},
    ],
)
def test_other_networks_keep_the_defaults_of_training_from_scratch(changes: dict[str, Any]) -> None:
    config = make_config({"method": "deterministic", "data": {"source": "digits"}, **changes})
    assert config.training.optimizer == "adam"
    assert (config.training.warmup, config.model.batch_norm, config.data.augment) == (0, "trained", [])


def test_what_is_no_section_is_still_a_sentence() -> None:
    with pytest.raises(Exception, match="The configuration key 'training' cannot be 3"):
        make_config({**TUNED, "training": 3, "model": {"weights": "some.safetensors"}})


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_scale(frozen: bool) -> None:
    method = a_method({"model": {"batch_norm": "frozen" if frozen else "trained"}}).train()
    norms = [m for m in method.encoder.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    method.loss(a_batch()).total.backward()
    same = [torch.equal(norm.running_mean, kept) for norm, kept in zip(norms, before, strict=True)]
    assert all(same) if frozen else not any(same)
    assert all(norm.weight.grad is not None and bool(norm.weight.grad.any()) for norm in norms)


def test_a_frozen_norm_uses_its_statistics_while_it_trains() -> None:
    method = a_method()
    images = a_batch().inputs
    alone = method.train().encoder(images[:1])
    torch.testing.assert_close(alone, method.encoder(images)[:1], rtol=1e-4, atol=1e-5)


def test_layer_norm_and_dropout_before_the_head() -> None:
    plain, normed = (
        Encoder("resnet9", channels=1, size=28, feature_norm=kind, dropout=0.5) for kind in ("none", "layer")
    )
    normed.load_state_dict(plain.state_dict())
    images = a_batch().inputs
    features = plain.eval()(images)
    spread = (features.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    expected = (features - features.mean(1, keepdim=True)) / spread
    torch.testing.assert_close(normed.eval()(images), expected, rtol=1e-3, atol=1e-3)
    dropped = (normed.train()(images) == 0).float().mean()
    assert 0.4 < float(dropped) < 0.6
    assert repr(plain) != repr(normed), "cached features are known by it"


def test_layer_norm_sees_each_pooling_by_itself() -> None:
    encoder = Encoder("resnet10t", channels=3, size=32, pooling="gem", feature_norm="layer").eval()
    encoder.pool_apart(2)
    halves = encoder(torch.rand(2, 3, 32, 32)).chunk(2, dim=1)
    for half in halves:
        torch.testing.assert_close(half.mean(1), torch.zeros(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(half.std(1, unbiased=False), torch.ones(2), atol=1e-2, rtol=0)


def test_weight_decay_spares_norms_and_biases() -> None:
    groups = a_method({"training": {"weight_decay": 0.3, "decayed": "weights"}}).parameter_groups()
    assert {(group["weight_decay"], all(p.dim() > 1 for p in group["params"])) for group in groups} == {
        (0.3, True),
        (0.0, False),
    }
    assert all(p.dim() < 2 for group in groups for p in group["params"] if group["weight_decay"] == 0)
    everything = a_method({"training": {"weight_decay": 0.3, "decayed": "all"}}).parameter_groups()
    assert [group["weight_decay"] for group in everything] == [0.3]


def test_backbone_head_and_proxies_have_learning_rates_of_their_own() -> None:
    method = a_method(
        {
            "training": {"backbone_lr": 0.1, "head_lr": 2.0, "decayed": "all"},
            "loss": {"name": "ProxyAnchorLoss", "lr_factor": 100},
        }
    )
    factor = {id(p): group["lr_factor"] for group in method.parameter_groups() for p in group["params"]}
    for name, parameter in method.named_parameters():
        expected = {"encoder": 0.1, "head": 2.0, "metric_loss": 100.0}[name.split(".")[0]]
        assert factor[id(parameter)] == expected, name


def test_the_cosine_falls_to_zero_as_the_continuous_one_does() -> None:
    options = TrainingConfig(epochs=12, schedule="cosine", warmup=2)
    shares = [lr_share(options, epoch) for epoch in range(12)]
    assert shares[:2] == [1.0, 1.0]
    assert shares == sorted(shares, reverse=True)
    for epoch, share in enumerate(shares[2:]):
        fine = [0.5 + 0.5 * math.cos(math.pi * (epoch + step / 1000) / 10) for step in range(1000)]
        assert share == pytest.approx(sum(fine) / 1000, abs=5e-3)
    assert lr_share(TrainingConfig(schedule="decay", lr_decay=0.5), 3) == 0.125


def with_training(config: dict[str, Any], **values: Any) -> dict[str, Any]:
    tiny = copy.deepcopy(config)
    tiny["training"] |= {"recipe": "fine-tuning", **values}
    tiny["data"] |= {"augment": []}
    return tiny


def test_in_the_warm_up_the_head_trains_and_the_backbone_does_not(
    tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    config = make_config(with_training(tiny_config, epochs=2, warmup=1))
    kept: list[dict[str, torch.Tensor]] = []

    class Watched(training_module.TrainingModule):
        def on_train_epoch_start(self) -> None:
            kept.append({name: value.clone() for name, value in self.method.state_dict().items()})
            super().on_train_epoch_start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("doubtless.training.loop.TrainingModule", Watched)
        run = train_run(config, tmp_path / "run", quiet=True)
    after_warmup = {name: torch.equal(value, kept[1][name]) for name, value in kept[0].items()}
    assert all(same for name, same in after_warmup.items() if name.startswith("encoder."))
    assert not after_warmup["head.weight"]
    end = run.method.state_dict()
    assert not torch.equal(end["encoder.backbone.0.weight"].cpu(), kept[1]["encoder.backbone.0.weight"].cpu())
    assert not run.method.encoder_rests


def test_gradients_are_shortened_to_the_clip(tiny_config: dict[str, Any], tmp_path: Path) -> None:
    plain = {
        "epochs": 1,
        "optimizer": "sgd",
        "lr": 1.0,
        "warmup": 0,
        "weight_decay": 0.0,
        "schedule": "decay",
    }
    steps: list[float] = []

    class Watched(training_module.TrainingModule):
        def on_train_batch_start(self, batch: Any, number: int) -> None:
            self.kept = [p.detach().clone() for p in self.method.parameters()]

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            moved = [
                (p.detach() - q).square().sum()
                for p, q in zip(self.method.parameters(), self.kept, strict=True)
            ]
            steps.append(float(torch.stack(moved).sum().sqrt()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("doubtless.training.loop.TrainingModule", Watched)
        train_run(make_config(with_training(tiny_config, **plain, clip=1e-3)), tmp_path / "run", quiet=True)
    assert max(steps) == pytest.approx(1e-3, rel=1e-3)


def test_training_stops_when_validation_gets_no_better_and_resumes_to_the_same_end(
    tiny_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.3, 0.5, 0.4, 0.5, 0.45, 0.9, 0.9])
    monkeypatch.setattr(
        training_module, "validation_scores", lambda *_, **__: {"map@r": next(scores), "recall@1": 0.0}
    )
    config = make_config(with_training(tiny_config, epochs=7, patience=3))
    run = train_run(config, tmp_path / "run", quiet=True)
    choice = json.loads((run.path / "model.json").read_text())["choice"]
    assert choice == {
        "monitor": "validation_map@r",
        "best_epoch": 1,
        "best_score": 0.5,
        "epochs": 5,
        "stopped_early": True,
    }
    (run.path / "model.json").unlink()  # as if it had been killed while it finished
    weights = (run.path / "model.safetensors").read_bytes()
    again = train_run(config, run.path, resume=True, quiet=True)
    assert len(Run.open(again.path).log) == 5
    assert (run.path / "model.safetensors").read_bytes() == weights


def test_own_pretrained_networks_are_fine_tuned_when_asked_to(tmp_path: Path) -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    config = {
        "method": "deterministic",
        "data": {"source": "digits"},
        "model": {"dim": 4},
        "training": {"recipe": "fine-tuning", "epochs": 1, "accelerator": "cpu"},
    }
    run = train(config, tmp_path / "run", encoder=network, quiet=True)
    assert run.config.model.batch_norm == "frozen"
    assert torch.equal(run.method.encoder.backbone[1].running_mean, network[1].running_mean)


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "resnet10t", "densenet121", "convnext_atto"])
def test_frozen_stages_are_the_first_ones_and_take_no_gradient(name: str) -> None:
    encoder = Encoder(name, channels=3, size=64, frozen_stages=2, batch_norm="trained").train()
    trained = [parameter.requires_grad for parameter in encoder.backbone.parameters()]
    assert trained == sorted(trained)
    assert set(trained) == {False, True}
    statistics = {
        key: value.clone() for key, value in encoder.backbone.state_dict().items() if "running" in key
    }
    encoder(torch.rand(4, 3, 64, 64)).sum().backward()
    after = encoder.backbone.state_dict()
    moved = {key: not torch.equal(value, after[key]) for key, value in statistics.items()}
    of_frozen = {
        key.rsplit(".", 1)[0] for key, value in encoder.backbone.named_parameters() if not value.requires_grad
    }
    for key, has_moved in moved.items():
        assert has_moved != (key.rsplit(".", 1)[0] in of_frozen), key


def test_own_networks_have_their_children_for_stages() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3))
    encoder = Encoder("mine", given=network, channels=1, size=28, frozen_stages=2)
    assert [parameter.requires_grad for parameter in encoder.backbone.parameters()] == [
        False,
        False,
        True,
        True,
    ]
    with pytest.raises(Exception, match=r"model\.frozen_stages is 4, but mine has 3 stages"):
        Encoder("mine", given=network, channels=1, size=28, frozen_stages=4)
