"""Which model made an embedding: a hash of its weights, its method and what else its results depend on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from doubtless.errors import InputError
from doubtless.methods import Method

NOT_RESULTS = ("data", "training", "evaluation", "base")
"""Sections of a configuration that shape how weights come about, but not what they then give."""


def model_fingerprint(method: Method) -> str:
    """32 hexadecimal digits; the same for a run and its copy, another for any change of weights or version.

    Weights (names, types, shapes, bytes), the method's name and version, what images it takes, and the sections
    of its configuration that it reads when it embeds, such as the masks' seed of MC dropout.
    """
    spec, config = method.spec, method.config.to_dict()
    model = {
        key: value for key, value in config.get("model", {}).items() if key not in ("weights", "pretrained")
    }
    kept = {key: value for key, value in config.items() if key not in NOT_RESULTS} | {"model": model}
    about = {
        "method": method.name,
        "version": method.version,
        "channels": spec.channels,
        "size": spec.size,
        "config": kept,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, value in sorted(method.state_dict().items()):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def must_match(method: Method, expected: str | None, *, where: str | Path) -> None:
    """Refuses a model that is not the one whose embeddings are there."""
    if expected is not None and (found := model_fingerprint(method)) != expected:
        raise InputError(
            f"{where} holds embeddings of another model (fingerprint {expected[:12]}…) than this one "
            f"({found[:12]}…, {method.name}); their distances would mean nothing."
        )
