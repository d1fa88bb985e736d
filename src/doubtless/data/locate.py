"""Where files named in a configuration lie: as written, or below the data folder."""

from __future__ import annotations

import os
from pathlib import Path


def locate(path: str | Path, root: str | Path | None = None) -> Path:
    """The path itself if it is there; else below `root` or $DOUBTLESS_DATA if it is there; else as written.

    Configurations and suites name `omniglot.npz`, and every machine says once where its data lies.
    """
    written = Path(path).expanduser()
    for folder in (root, os.environ.get("DOUBTLESS_DATA")):
        if folder and not written.exists() and (Path(folder).expanduser() / written).exists():
            return Path(folder).expanduser() / written
    return written


def data_root(root: str | Path | None = None) -> Path | None:
    """The data folder that was named, or $DOUBTLESS_DATA, or none."""
    chosen = root or os.environ.get("DOUBTLESS_DATA")
    return Path(chosen).expanduser() if chosen else None
