"""Methods that add a second head to a finished network: whose network it is, and that a stop changes nothing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from doubtless.data import Batch
from doubtless.errors import InputError, RunError
from doubtless.methods import all_methods
from doubtless.methods.configuration import make_config
from doubtless.methods.deterministic import Deterministic
from doubtless.methods.two_stage import TwoStage
from doubtless.runs import Run
from doubtless.training import train_run

NAMES = [name for name, method in all_methods().items() if issubclass(method, TwoStage)]
two_stage = pytest.mark.parametrize("name", NAMES)


def config_of(tiny_config: dict[str, Any], name: str, **more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(tiny_config), "method": name, "head": {"epochs": 4}, **more}


def state(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def assert_equal(one: Path, other: Path) -> None:
    found, expected = state(one), state(other)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


@pytest.fixture(scope="module")
def unbroken(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that trained their network themselves."""
    folder = tmp_path_factory.mktemp("unbroken")
    for name in NAMES:
        train_run(make_config(config_of(tiny_config, name)), folder / name, quiet=True)
    return {name: folder / name for name in NAMES}


def test_there_are_such_methods() -> None:
    assert {"pfe", "loss-prediction"} <= set(NAMES)


@two_stage
def test_network_is_that_of_deterministic_bit_for_bit(
    name: str, unbroken: dict[str, Path], tiny_run: Path
) -> None:
    assert_equal(unbroken[name] / "base", tiny_run)
    found, network = state(unbroken[name]), state(tiny_run)
    for key, value in network.items():
        assert torch.equal(found[key], value), key
    images = torch.randint(0, 256, (7, 1, 12, 12), dtype=torch.uint8)
    embedding = Run(unbroken[name]).load_method().embed(images)
    expected = Run(tiny_run).load_method().embed(images).direction
    torch.testing.assert_close(embedding.location, expected)
    torch.testing.assert_close(embedding.direction, expected)


@two_stage
def test_from_a_base_run_it_is_the_same(
    name: str, unbroken: dict[str, Path], tiny_config, tiny_run: Path, tmp_path: Path
) -> None:
    made = train_run(
        make_config(config_of(tiny_config, name, base=str(tiny_run))), tmp_path / "run", quiet=True
    )
    assert not (made.path / "base").exists()
    assert_equal(made.path, unbroken[name])


@two_stage
@pytest.mark.parametrize("stop", ["network", "second head"])
def test_stopped_and_resumed_is_bit_equal(
    name: str,
    stop: str,
    unbroken: dict[str, Path],
    tiny_config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process dies in the network's second epoch, or in the second head's training."""
    where, what = (Deterministic, "loss") if stop == "network" else (torch.optim.Adam, "step")
    original, calls, deadly = getattr(where, what), 0, 13 if stop == "network" else 3 * 8 + 5

    def dying(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == deadly:
            raise KeyboardInterrupt
        return original(self, *args, **named)

    config = make_config(config_of(tiny_config, name))
    monkeypatch.setattr(where, what, dying)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train_run(config, tmp_path / "run", quiet=True)
    monkeypatch.undo()
    assert Run(tmp_path / "run" / "base").is_finished == (stop == "second head")
    torch.rand(5)  # whatever else drew numbers in between
    train_run(config, tmp_path / "run", resume=True, quiet=True)
    assert_equal(tmp_path / "run", unbroken[name])


@two_stage
def test_only_the_second_head_learns_and_its_loss_falls(name: str, unbroken: dict[str, Path]) -> None:
    method = Run(unbroken[name]).load_method()
    learned = {key for key, value in method.named_parameters() if value.requires_grad}
    assert learned
    assert all(key.startswith("second.") for key in learned)
    record = json.loads((unbroken[name] / "model.json").read_text())["record"]
    assert len(record["head_loss"]) == 4
    assert record["head_loss"][-1] < record["head_loss"][0]


@two_stage
def test_encoder_never_leaves_evaluation_mode(name: str, unbroken: dict[str, Path]) -> None:
    method = Run(unbroken[name]).load_method().train()
    assert method.second.training
    assert not any(module.training for module in method.encoder.modules())
    assert method.batch_kind == "features"


@two_stage
def test_a_loss_that_explodes_is_a_sentence(name: str, tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    config = config_of(tiny_config, name, base=str(tiny_run), head={"lr": 1e30, "epochs": 3})
    with pytest.raises(RunError, match=r"second head became NaN or infinite in epoch \d; lower head.lr"):
        train_run(make_config(config), tmp_path / "run", quiet=True)


@two_stage
def test_another_network_is_refused(name: str, tiny_config, tiny_run: Path, tmp_path: Path) -> None:
    config = config_of(tiny_config, name, base=str(tiny_run), model={**tiny_config["model"], "dim": 4})
    with pytest.raises(InputError, match=r"model.dim differ"):
        train_run(make_config(config), tmp_path / "run", quiet=True)


def test_pfe_gradient_stays_in_the_second_head(unbroken: dict[str, Path]) -> None:
    method = Run(unbroken["pfe"]).load_method().train()
    features = torch.randn(6, method.encoder.feature_dim)
    rows = torch.arange(6)
    method.loss(Batch(features, rows % 2, rows)).total.backward()
    for key, value in method.named_parameters():
        assert (value.grad is not None) == key.startswith("second."), key
        if value.grad is not None:
            assert torch.isfinite(value.grad).all()
