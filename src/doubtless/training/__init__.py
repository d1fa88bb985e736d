"""Runs and the training that makes them."""

from doubtless.training.loop import train_run
from doubtless.training.parts import RunData, embed_images, features_of, open_run_data, whole_source
from doubtless.training.run import Run

__all__ = ["Run", "train_run", "RunData", "open_run_data", "whole_source", "embed_images", "features_of"]
