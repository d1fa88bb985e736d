"""What of a device a training uses without being asked: half precision where it pays, and recorded steps.

More of it lies elsewhere: the channels-last layout in `doubtless.models.encoder`, augmentation in
`doubtless.data.device_augmentation`. What each is worth is in docs/gpu.md.

`GraphedStep` is a training step as one CUDA graph: recorded once per epoch, then replayed with a single launch per
step. A small network's step is many kernels of a few microseconds each, and Python launches them more slowly than a
fast device runs them. What is recorded is everything from the images to the optimiser's update, so a replay waits
for nothing.

A recording repeats the kernels with the numbers Python passed to them. So a step may be recorded only if it does
the same work whatever is in its batch (`Method.repeats_its_step`), and it is recorded anew for every epoch, when
learning rates and phases change. Random numbers are drawn anew at each replay, from where the device's
generator stands: replayed or not, a step draws the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from doubtless.config import Config
from doubtless.data import Batch
from doubtless.models.networks import SMALL

Precision = Literal["32", "bf16"]


def precision_of(config: Config, device: torch.device) -> Precision:
    """What `training.precision` means on a device; auto is bf16 on GPUs that have it, but for the small networks.

    Losses, heads' distances and curvatures are computed in 32 bits either way, and so is every embedding of a
    trained network. Those of LAM (`SMALL`) gain little: they wait for memory and for launches.
    """
    configured = config.training.precision
    if configured != "auto":
        return configured
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if fast and not _is_small(config) and not config.model.freeze else "32"


def _is_small(config: Config) -> bool:
    return config.model.backbone in SMALL


WARM_UP = 3  # steps taken before the first recording: libraries choose and allocate what they need
Step = Callable[[Batch], None]


class GraphedStep:
    """Takes steps on a CUDA device, by replay where it can: call it with every batch, `new_epoch` before an epoch.

    `step(batch)` sets gradients to None, computes loss and gradient and updates the weights, all on the device.

    >>> step = GraphedStep(take_a_step)  # needs a CUDA device  # doctest: +SKIP
    >>> step.new_epoch()  # needs a CUDA device  # doctest: +SKIP
    >>> for batch in batches:  # needs a CUDA device  # doctest: +SKIP
    ...     step(batch)
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._before_recording = WARM_UP
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None

    def new_epoch(self, *, other_work: bool = False) -> None:
        """What was recorded no longer holds: the next step is recorded anew.

        `other_work`: steps do from now on what none has done yet, such as training the encoder too; a few are taken
        as they are first. What an optimiser begins to keep while recording would begin anew at each replay.
        """
        self._graph = None
        if other_work:
            self._before_recording = WARM_UP

    def __call__(self, batch: Batch) -> None:
        """Takes one step: the first few as they are, then by replay; a batch of another size as it is."""
        if self._before_recording:
            self._before_recording -= 1
            self._take_aside(batch)
            return
        if self._batch is None:
            self._batch = Batch(*(value.clone() for value in batch))
        if [value.shape for value in batch] != [value.shape for value in self._batch]:
            self._take_aside(batch)  # a last, smaller batch
            return
        if self._graph is None:
            self._graph = self._record(self._batch)
        for kept, new in zip(self._batch, batch, strict=True):
            kept.copy_(new, non_blocking=True)
        self._graph.replay()

    def _take_aside(self, batch: Batch) -> None:
        """One step without a recording, on the stream that recordings are made on: its gradients belong there."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._step(batch)
        current.wait_stream(self._stream)

    def _record(self, batch: Batch) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on talking to the device: those that pin the memory of a loader's batches do.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._step(batch)
        return graph
