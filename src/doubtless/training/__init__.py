"""Runs and the training that makes them."""

from typing import TYPE_CHECKING, Any

from doubtless.training.parts import RunData, embed_images, features_of, open_run_data, whole_source
from doubtless.training.run import Run

if TYPE_CHECKING:
    from doubtless.training.loop import train_run

__all__ = ["Run", "train_run", "RunData", "open_run_data", "whole_source", "embed_images", "features_of"]


def __getattr__(name: str) -> Any:
    """`train_run` when it is asked for: with Lightning, which whoever opens a finished run need not wait for."""
    if name == "train_run":
        from doubtless.training.loop import train_run

        return train_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
