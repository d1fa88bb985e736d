"""What a training uses of its device without being asked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.config import with_overrides
from doubtless.methods.configuration import make_config
from doubtless.runs.model import best_device
from doubtless.training import train_run
from doubtless.training.accelerate import precision_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def timm_config(tiny_config: dict[str, Any]) -> dict[str, Any]:
    return {**tiny_config, "model": {"backbone": "resnet10t", "dim": 8}}


@pytest.fixture
def fast_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)


def test_half_precision_is_for_timm_networks_on_a_gpu(tiny_config, timm_config, fast_gpu) -> None:
    assert precision_of(make_config(timm_config), GPU) == "bf16"
    assert precision_of(make_config(timm_config), CPU) == "32"
    assert precision_of(make_config(tiny_config), GPU) == "32"
    frozen = with_overrides(timm_config, ["model.freeze=true"])
    assert precision_of(make_config(frozen), GPU) == "32"


def test_what_is_asked_for_is_taken(timm_config, fast_gpu) -> None:
    for asked in ("32", "bf16"):
        config = make_config(with_overrides(timm_config, [f"training.precision='{asked}'"]))
        assert precision_of(config, GPU) == precision_of(config, CPU) == asked


def test_old_gpus_stay_with_32_bits(timm_config, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert precision_of(make_config(timm_config), GPU) == "32"


def test_the_cpu_is_taken_where_it_is_asked_for() -> None:
    assert best_device("cpu") == CPU


@pytest.mark.slow
def test_a_compiled_backbone_is_the_same_network(timm_config, tmp_path: Path) -> None:
    """Compiled in place: weights keep their names, and the run is loaded without compiling."""
    if shutil.which("g++") is None:
        pytest.skip("compiling needs a C++ compiler")
    training = {**timm_config["training"], "epochs": 1}
    data = {**timm_config["data"], "size": 32}
    plain, compiled = (
        train_run(
            make_config({**timm_config, "data": data, "training": {**training, "compile": asked}}),
            tmp_path / str(asked),
            quiet=True,
        )
        for asked in (False, True)
    )
    assert compiled.log[0]["train_loss"] == pytest.approx(plain.log[0]["train_loss"], rel=1e-3)
    expected = plain.load_method().state_dict()
    for name, value in compiled.load_method().state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=5e-3, rtol=1e-2, msg=name)
    images = compiled.data.test.in_memory()
    assert images is not None
    in_memory, reopened = compiled.method.embed(images), compiled.load_method().embed(images)
    assert torch.equal(in_memory.direction, reopened.direction)
