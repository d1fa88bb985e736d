"""The first stage of a two-stage method: the weights of a finished run (`base: RUN`)."""

from __future__ import annotations

from doubtless.errors import InputError
from doubtless.methods import Method
from doubtless.runs.run import Run

SAME_DATA = ("source", "split", "validation", "test", "split_seed", "size", "channels")
TAKEN = ("encoder.", "head.", "alignment")
"""What a method that has it must find in its base; an ensemble's alignment stands for its members."""
SAME_MODEL = ("backbone", "dim", "pooling", "normalization")


def take_over(method: Method, base: str) -> None:
    """Copies the weights of a finished run of the same network on the same data."""
    run = Run.open(base)
    ours, theirs = method.config, run.config
    changed = [f"data.{key}" for key in SAME_DATA if getattr(ours.data, key) != getattr(theirs.data, key)]
    changed += [
        f"model.{key}" for key in SAME_MODEL if getattr(ours.model, key) != getattr(theirs.model, key)
    ]
    if changed:
        raise InputError(
            f"{base} cannot be the base: {', '.join(changed)} differ from its configuration; "
            "it must be the same network on the same split, or its training images become test images."
        )
    state, own = run.load_method().state_dict(), method.state_dict()
    if missing := [name for name in own if name.startswith(TAKEN) and name not in state]:
        raise InputError(f"{base} cannot be the base: a {theirs.method} model has no {missing[0]}.")
    shared = {name: state[name] for name in own if name in state}
    if other := [name for name, value in shared.items() if value.shape != own[name].shape]:
        raise InputError(
            f"{base} cannot be the base: its {other[0]} has shape {tuple(shared[other[0]].shape)}, "
            f"{tuple(own[other[0]].shape)} is needed."
        )
    method.load_state_dict(shared, strict=False)
