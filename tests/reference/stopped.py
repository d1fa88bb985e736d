"""A training that dies at a step, as if its process had been stopped there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from doubtless.data import Batch
from doubtless.methods import Losses, Method, method_class
from doubtless.methods.configuration import make_config
from doubtless.training import train_run


def train_until(step: int, config: Mapping[str, Any], path: Path) -> None:
    """Trains until the method is asked for the loss of this step, the first being 1; the run stays unfinished."""
    kind = method_class(config["method"])
    seen, original = 0, kind.loss

    def dying(self: Method, batch: Batch) -> Losses:
        nonlocal seen
        seen += 1
        if seen == step:
            raise KeyboardInterrupt
        return original(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "loss", dying)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            train_run(make_config(config), path, quiet=True)
