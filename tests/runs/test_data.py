"""What a method's `start` and `finish` see of the data."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from doubtless.methods import Method, Subset, method_class
from doubtless.methods.configuration import make_config
from doubtless.methods.ensemble import Ensemble
from doubtless.runs import embed_images, open_run_data
from doubtless.runs.data import EMBED_BATCH, RunData, subset_of


@pytest.fixture(params=["trained", "frozen"])
def method_and_data(tiny_config: dict[str, Any], request: pytest.FixtureRequest) -> tuple[Method, RunData]:
    model = {**tiny_config["model"], "freeze": request.param == "frozen"}
    config = make_config({**tiny_config, "model": model})
    data = open_run_data(config)
    return method_class(config.method)(config, data.spec), data


def test_batches_are_the_features(method_and_data: tuple[Method, RunData]) -> None:
    method, data = method_and_data
    part = subset_of(method, data.train)
    whole = part.features()
    assert torch.equal(part.each(lambda features: features), whole)
    torch.testing.assert_close(part.each(lambda features: features.sum(1)), whole.sum(1))
    alone = Subset(part.labels, lambda: whole)
    assert torch.equal(alone.each(lambda features: features[:, :2]), whole[:, :2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("again", [False, True])
def test_a_last_batch_that_is_filled_up_gives_the_same(
    tiny_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    config = make_config(tiny_config)
    data = open_run_data(config)
    method = method_class(config.method)(config, data.spec)
    images = data.train.without_augmentation()
    expected = embed_images(method, images)
    monkeypatch.setattr("doubtless.runs.data.EMBED_BATCH", len(images) - 5)
    found = embed_images(method.cuda(), images, again=again)
    assert len(found) == len(images)
    torch.testing.assert_close(found.direction.cpu(), expected.direction, rtol=1e-3, atol=1e-3)


def test_a_reader_of_batches_finds_gradients_on_and_the_mode_restored(tiny_config: dict[str, Any]) -> None:
    config = make_config(tiny_config)
    data = open_run_data(config)
    method = method_class(config.method)(config, data.spec).train()
    part = subset_of(method, data.train)
    assert part.batches is not None
    assert all(torch.is_grad_enabled() and not method.training for _ in part.batches())
    assert method.training
    reader = iter(part.batches())
    next(reader)
    reader.close()  # one who has seen enough
    assert method.training


def test_an_ensemble_is_aligned_without_all_wide_features_at_once(
    tiny_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the last batch's features live on when the next one's are made; embeddings are all that is kept."""
    options = {**tiny_config, "method": "ensemble", "ensemble": {"members": 2}}
    config = make_config(options)
    data = open_run_data(config)
    method = Ensemble(config, data.spec)
    width = 2 * config.model.dim
    alive: list[weakref.ref[torch.UntypedStorage]] = []

    def batches() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(4):
            assert sum(storage() is not None for storage in alive) <= 1
            wide = torch.randn(EMBED_BATCH, width + 1000, generator=generator)
            alive.append(weakref.ref(wide.untyped_storage()))
            yield wide
            del wide

    def never() -> Tensor:
        raise AssertionError("all features at once")

    monkeypatch.setattr("doubtless.methods.ensemble.fingerprint", lambda run: 0)
    method.folder = Path("nowhere")
    part = Subset(torch.zeros(4 * EMBED_BATCH), never, batches)
    method.finish(part, part)
    assert not torch.equal(method.alignment[1], torch.eye(config.model.dim))
