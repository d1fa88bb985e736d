"""Cached features: computed once, mapped, and never stale."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from doubtless.data import ImageSet, Preparation, open_source
from doubtless.data.loading import cached_features
from doubtless.models import Encoder


def test_computed_once_and_keyed_by_weights_preparation_and_source(tmp_path: Path) -> None:
    calls: list[int] = []
    source = open_source("digits")
    torch.manual_seed(0)
    encoder = Encoder("conv-cifar", channels=1, size=28).eval()

    def compute(images: ImageSet) -> torch.Tensor:
        calls.append(len(images))
        return torch.cat([encoder(part) for part in images.in_memory().split(512)]).detach()

    def features(rows: torch.Tensor, size: int = 28) -> torch.Tensor:
        images = ImageSet(source, rows, Preparation(channels=1, size=size))
        return cached_features(encoder, images, compute, folder=tmp_path)

    some = features(torch.tensor([5, 3, 900]))
    torch.testing.assert_close(some, encoder(source.pixels[torch.tensor([5, 3, 900])]).detach())
    features(torch.arange(1797))
    assert calls == [1797]
    features(torch.arange(10), size=32)  # prepared otherwise
    assert len(calls) == 2
    with torch.no_grad():
        encoder.backbone[0].weight[0, 0, 0, 0] += 1e-3
    features(torch.arange(10))
    assert len(calls) == 3
    source.pixels[0, 0, 0, 0] ^= 1
    features(torch.arange(10))
    assert len(calls) == 4
    assert len(list(tmp_path.glob("*.npy"))) == 4


def test_frozen_training_and_evaluation_use_the_cache(tiny_config, tmp_path: Path, monkeypatch) -> None:
    from doubtless.methods.base import Method
    from doubtless.methods.configuration import make_config
    from doubtless.runs import embed_images, open_run_data
    from doubtless.training import train_run

    monkeypatch.setenv("DOUBTLESS_CACHE", str(tmp_path / "cache"))
    config = make_config({**tiny_config, "model": {**tiny_config["model"], "freeze": True}})
    run = train_run(config, tmp_path / "run", quiet=True)
    assert len(list((tmp_path / "cache" / "features").glob("*.npy"))) == 1
    data = open_run_data(run.config, split=run.split)
    method = run.load_method()
    expected = method.embed(data.test.in_memory())
    monkeypatch.setattr(Method, "embed", lambda *_: pytest.fail("the encoder ran again"))
    torch.testing.assert_close(embed_images(method, data.test).direction, expected.direction)
