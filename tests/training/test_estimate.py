"""An estimate of a training changes nothing of it, and is about right."""

import copy
import time
from typing import Any

import pytest
import torch

from doubtless.config import Config
from doubtless.methods import Method, method_class
from doubtless.methods.configuration import make_config
from doubtless.runs.data import RunData, open_run_data
from doubtless.training import estimate, train_run
from doubtless.training.estimate import Estimate, announcement, estimate_epoch


def opened(values: dict[str, Any]) -> tuple[Config, RunData, Method]:
    config = make_config(values)
    data = open_run_data(config)
    return config, data, method_class(config.method)(config, data.spec)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "method": "lam-online",
            "loss": {"name": "contrastive"},
        },  # a running curvature, and draws of the head
        {"method": "triplet", "loss": {"name": "triplet"}, "mining": {"cache": 40, "tuples": 2}},
        {"data": {"augment": ["RandomHorizontalFlip"]}},
    ],
    ids=["plain", "online", "tuples", "augmented"],
)
def test_nothing_of_the_training_changes(tiny_config: dict[str, Any], changes: dict[str, Any]) -> None:
    values = {**tiny_config, **changes, "data": {**tiny_config["data"], **changes.get("data", {})}}
    _, data, method = opened(values)
    state, mode = copy.deepcopy(method.state_dict()), method.training
    draws = torch.random.get_rng_state()
    found = estimate_epoch(method, data)
    assert found.steps >= 1
    assert 0 < found.step < found.epoch
    assert torch.equal(torch.random.get_rng_state(), draws)
    assert method.training == mode
    assert all(parameter.grad is None for parameter in method.parameters())
    for name, value in method.state_dict().items():
        assert torch.equal(value, state[name]), name


def test_a_long_step_is_worked_out_from_a_few_images(tiny_config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that takes a fixed time for each image, and more of them than is affordable."""
    _, data, method = opened(tiny_config)
    seen: list[int] = []
    honest = type(method).loss

    def slow(self: Method, batch: Any) -> Any:
        seen.append(len(batch.labels))
        assert len(batch.labels.unique()) > 1
        time.sleep(0.002 * len(batch.labels))
        return honest(self, batch)

    monkeypatch.setattr(type(method), "loss", slow)
    monkeypatch.setattr(estimate, "AFFORDED", 0.0)
    monkeypatch.setattr(estimate, "FEW", 8)
    size = method.config.training.batch_size
    found = estimate_epoch(method, data)
    assert seen == [8]  # once: what takes long is not done again
    assert found.step >= 0.002 * size
    monkeypatch.setattr(estimate, "AFFORDED", 1e9)
    seen.clear()
    estimate_epoch(method, data)
    assert seen == [8, 8, size, size]


def test_it_is_said_only_where_it_takes_long_and_for_what_is_left(
    tiny_config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data, method = opened(tiny_config)
    monkeypatch.setattr(estimate, "estimate_epoch", lambda *_: Estimate(steps=10, step=0.1, around=0.0))
    assert announcement(method, data) == ""
    monkeypatch.setattr(estimate, "estimate_epoch", lambda *_: Estimate(steps=10, step=60.0, around=0.0))
    epochs = config.training.epochs
    assert f"10 min on this machine (10 steps, {torch.get_num_threads()}" in announcement(method, data)
    assert f"; {epochs} epochs about" in announcement(method, data)
    assert announcement(method, data, done=epochs - 1).endswith(").")
    assert announcement(method, data, done=epochs) == ""


def test_a_training_says_it_before_it_starts_unless_it_is_quiet(
    tiny_config, tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "WORTH_SAYING", 0.0)
    config = make_config({**tiny_config, "training": {**tiny_config["training"], "epochs": 1}})
    train_run(config, tmp_path / "quiet", quiet=True)
    assert "One epoch" not in capsys.readouterr().err
    train_run(config, tmp_path / "told")
    said = capsys.readouterr().err
    assert said.index("One epoch takes about") < said.index("epoch 1/1")
