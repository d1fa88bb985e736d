"""What a method takes over from another, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from doubtless.errors import InputError
from doubtless.methods import DataSpec, Method, method_class
from doubtless.methods.configuration import make_config
from doubtless.methods.stages import take_over

SPEC = DataSpec(channels=1, size=12, label_names=["boot", "shirt", "bag"])


def made(config: dict[str, Any], section: str = "", **changes: Any) -> Method:
    """A method with random weights, one section of its configuration changed."""
    values = copy.deepcopy(config)
    if section:
        values[section] |= changes
    checked = make_config(values)
    return method_class(checked.method)(checked, SPEC)


def test_all_weights_are_copied(tiny_config: dict[str, Any]) -> None:
    method, base = made(tiny_config), made(tiny_config)
    take_over(method, base, name="base")
    taken, given = method.state_dict(), base.state_dict()
    assert all(torch.equal(value, given[key]) for key, value in taken.items())
    with torch.no_grad():
        base.head.weight.zero_()
    assert bool(method.head.weight.any())  # a copy, not the same tensors


def test_another_split_or_network_is_refused(tiny_config: dict[str, Any]) -> None:
    method = made(tiny_config)
    before = {key: value.clone() for key, value in method.state_dict().items()}
    other_split = made(tiny_config, "data", split_seed=7)
    with pytest.raises(InputError, match=r"^there cannot be the base: data\.split_seed differ.*test images"):
        take_over(method, other_split, name="there")
    wider = made(tiny_config, "model", dim=9)
    with pytest.raises(InputError, match=r"^wide cannot be the base: model\.dim differ"):
        take_over(method, wider, name="wide")
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
