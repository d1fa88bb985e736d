"""Features of a frozen encoder, computed once for a whole source, kept on disk and memory-mapped.

The key is a hash of everything they depend on: the encoder's weights, how images are prepared, and what the
source holds. A changed pixel or weight gives another key, never stale features.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from doubtless.data.loading import ImageSet
from doubtless.files import atomic_writer


def cache_folder() -> Path:
    """$DOUBTLESS_CACHE, or the user's cache folder."""
    own = os.environ.get("DOUBTLESS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "doubtless"


def cached_features(
    encoder: nn.Module, images: ImageSet, compute: Callable[[ImageSet], Tensor], *, folder: Path | None = None
) -> Tensor:
    """Features (n, F) of an image set; `compute` makes those of the whole source if they are not there yet."""
    still = images.preparation.without_augmentation()
    key = hashlib.sha256(
        f"{_weights_hash(encoder)} {still.describe()} {images.source.fingerprint()}".encode()
    ).hexdigest()[:24]
    path = (folder or cache_folder() / "features") / f"{key}.npy"
    if not path.exists():
        whole = ImageSet(images.source, torch.arange(len(images.source)), still)
        features = compute(whole).cpu().numpy()
        with atomic_writer(path) as file:
            np.lib.format.write_array(file, features, allow_pickle=False)
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    return torch.from_numpy(stored[images.index.numpy()])  # only the rows asked for are read


def _weights_hash(encoder: nn.Module) -> str:
    digest = hashlib.sha256(repr(encoder).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for name, value in sorted(encoder.named_buffers()):  # normalisation is not in the state, but matters
        digest.update(f"{name}{value.flatten()[:8].tolist()}".encode())
    return digest.hexdigest()
