"""Training: from a configuration to a finished run. Imports Lightning; `doubtless.runs` does not."""

from doubtless.training.loop import train, train_run

__all__ = ["train", "train_run"]
