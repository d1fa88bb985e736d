"""A finished run: opened, loaded as a model, embedded with, evaluated."""

from doubtless.runs.data import RunData, embed_images, features_of, open_run_data, whole_source
from doubtless.runs.model import Model, load
from doubtless.runs.run import Run, TrainedRun

__all__ = [
    "Run",
    "TrainedRun",
    "Model",
    "load",
    "RunData",
    "open_run_data",
    "whole_source",
    "embed_images",
    "features_of",
]
