"""What files hold, bit for bit: the header of safetensors has no order of its own, its tensors' bytes do."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file


def tensor_bytes(file: Path) -> dict[str, bytes]:
    """Name → bytes."""
    return {name: value.numpy().tobytes() for name, value in load_file(file).items()}


def contents(folder: Path) -> dict[str, object]:
    """What every file in a folder holds."""
    return {
        file.name: tensor_bytes(file) if file.suffix == ".safetensors" else file.read_bytes()
        for file in sorted(folder.iterdir())
    }
