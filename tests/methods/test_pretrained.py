"""Features as they are and half-whitened: no training, honest rows of a table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from doubtless.laplace import half_whitened
from doubtless.methods.configuration import make_config
from doubtless.runs import embed_images, features_of, open_run_data
from doubtless.training import train_run


@pytest.mark.parametrize("head", ["raw", "half-whitened"])
def test_embedding_is_what_it_says(
    tiny_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setenv("DOUBTLESS_CACHE", str(tmp_path / "cache"))
    config = make_config({**tiny_config, "method": "pretrained", "features": {"head": head}})
    run = train_run(config, tmp_path / "run", quiet=True)
    assert run.log == []
    method = run.load_method()
    data = open_run_data(run.config, split=run.split)
    features = features_of(method, data.test)
    found = embed_images(method, data.test)
    if head == "raw":
        assert torch.equal(found.location, features)
        return
    weight, bias = half_whitened(features_of(method, data.train), 8)
    torch.testing.assert_close(found.location, features @ weight.T + bias, atol=1e-4, rtol=1e-3)


def test_training_can_start_half_whitened(tiny_config, tmp_path: Path) -> None:
    config = {**tiny_config, "model": {**tiny_config["model"], "head_start": "half-whitened"}}
    config["training"] = {**tiny_config["training"], "epochs": 1, "lr": 1e-9}
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    weight, _ = half_whitened(features_of(method, data.train), 8)
    torch.testing.assert_close(method.head.weight.detach(), weight, atol=1e-3, rtol=1e-2)
