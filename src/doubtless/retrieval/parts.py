"""Parts of an index (calibrator, doubt, …) as bytes and text: safetensors and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from doubtless.errors import InputError


def written_part(name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> tuple[bytes, str]:
    from safetensors.torch import save

    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    try:
        return save(plain), json.dumps(dict(record), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the record of {name!r} cannot be written as JSON ({error}); keep infinite numbers in tensors."
        ) from error


def read_part(tensors: bytes, record: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors.torch import load

    return load(tensors), json.loads(record)
