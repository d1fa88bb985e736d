"""What one method takes over from another: the weights of a finished network on the same data."""

from __future__ import annotations

from doubtless.errors import InputError
from doubtless.methods.base import Method

SAME_DATA = ("source", "split", "validation", "test", "split_seed", "size", "channels")
SAME_MODEL = ("backbone", "dim", "pooling", "normalization", "feature_norm")
TAKEN = ("encoder.", "head.", "alignment")
"""What a method that has it must find in its base; an ensemble's alignment stands for its members."""


def take_over(method: Method, base: Method, *, name: str) -> None:
    """Copies the weights of a finished method, the same network on the same data; `name` is for messages."""
    ours, theirs = method.config, base.config
    changed = [f"data.{key}" for key in SAME_DATA if getattr(ours.data, key) != getattr(theirs.data, key)]
    changed += [
        f"model.{key}" for key in SAME_MODEL if getattr(ours.model, key) != getattr(theirs.model, key)
    ]
    if changed:
        raise InputError(
            f"{name} cannot be the base: {', '.join(changed)} differ from its configuration; "
            "it must be the same network on the same split, or its training images become test images."
        )
    given, needed = base.state_dict(), method.state_dict()
    if missing := [key for key in needed if key.startswith(TAKEN) and key not in given]:
        raise InputError(f"{name} cannot be the base: a {theirs.method} model has no {missing[0]}.")
    shared = {key: given[key] for key in needed if key in given}
    if other := [key for key, value in shared.items() if value.shape != needed[key].shape]:
        raise InputError(
            f"{name} cannot be the base: its {other[0]} has shape {tuple(shared[other[0]].shape)}, "
            f"{tuple(needed[other[0]].shape)} is needed."
        )
    method.load_state_dict(shared, strict=False)
