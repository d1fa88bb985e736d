"""Work on a GPU that is recorded once and replayed: one launch in place of dozens.

A chain of small kernels takes as long as the processor needs to launch them. A CUDA graph launches
the whole chain at once, but it always reads and writes the same addresses: inputs are copied in and outputs out.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

Work = Callable[..., Sequence[Tensor]]
"""Tensors to tensors, all on one device, without a question in between whose answer decides what is done."""
Answer = tuple[list[Tensor], list[float]]
"""All outputs but the last, and the numbers in the last one."""
Recording = Callable[[Sequence[Tensor]], Answer]
Recorder = Callable[[Work, Sequence[Tensor], object], Recording]


class Replays:
    """Recordings by what was done to which kind of input; the least recently used ones are dropped.

    >>> def record(work, inputs, keep):                     # `CudaRecorder()` on a GPU
    ...     return lambda inputs: (list(work(*inputs)[:-1]), work(*inputs)[-1].tolist())
    >>> def work(x, y):
    ...     return x + y, (x * y).sum().view(1)
    >>> replays, inputs = Replays(record), (torch.ones(2), torch.ones(2))
    >>> replays(work, inputs, name="work")                  # the first time: None, nothing has been done
    >>> replays(work, inputs, name="work")                  # recorded now; from here on replayed
    ([tensor([2., 2.])], [2.0])

    Recording takes as long as doing the work some times over, so what comes once does not pay for it. One thread
    at a time; a call ends with its numbers on the host, so that nothing is under way when the next begins.
    """

    def __init__(self, record: Recorder, *, size: int = 8, remembered: int = 64) -> None:
        self._record = record
        self._size = size
        self._remembered = remembered
        self._recordings: OrderedDict[Hashable, Recording | None] = OrderedDict()  # None: cannot be recorded
        self._seen_once: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(
        self, work: Work, inputs: Sequence[Tensor], *, name: Hashable, keep: object = None
    ) -> Answer | None:
        """What `work(*inputs)` gives; None where it is not recorded, and the caller has to do it.

        Inputs all have one shape, dtype and device. `name` tells works apart, `keep` is what the recording must
        keep alive: tensors that the work reads from elsewhere.
        """
        first = inputs[0]
        key = (name, first.shape, first.dtype, first.device)
        with self._lock:
            if key in self._recordings:
                self._recordings.move_to_end(key)
            elif key in self._seen_once:
                del self._seen_once[key]
                self._add(key, work, inputs, keep)
            else:
                self._seen_once[key] = None
                _shorten(self._seen_once, self._remembered)
                return None
            recording = self._recordings[key]
            return None if recording is None else recording(inputs)

    def __len__(self) -> int:
        """How many recordings there are."""
        return sum(recording is not None for recording in self._recordings.values())

    def _add(self, key: Hashable, work: Work, inputs: Sequence[Tensor], keep: object) -> None:
        try:
            self._recordings[key] = self._record(work, inputs, keep)
        except RuntimeError as error:  # what CUDA raises, lack of memory included
            # An answer does not depend on being recorded.
            warnings.warn(f"Could not record {key}, it is done step by step: {error}.", stacklevel=3)
            self._recordings[key] = None
        _shorten(self._recordings, self._size)


class CudaRecorder:
    """Records CUDA graphs. Those of a device share the memory between their inputs and outputs: only one runs."""

    def __init__(self) -> None:
        self._shared: dict[torch.device, tuple[torch.cuda.Stream, Any]] = {}

    def __call__(self, work: Work, inputs: Sequence[Tensor], keep: object) -> CudaRecording:
        """Runs the work once, then records it around copies of the inputs."""
        device = inputs[0].device
        if device not in self._shared:
            self._shared[device] = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        stream, pool = self._shared[device]
        return CudaRecording(work, inputs, keep, stream=stream, pool=pool)


class CudaRecording:
    """One CUDA graph with the tensors it reads and writes."""

    @torch.inference_mode(False)  # its tensors outlive the call, whatever mode that is in
    @torch.no_grad()
    def __init__(
        self, work: Work, inputs: Sequence[Tensor], keep: object, *, stream: torch.cuda.Stream, pool: Any
    ) -> None:
        self._keep = keep
        self._graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(stream.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):  # nothing can be recorded on the stream that everybody uses
            self._inputs = torch.stack(list(inputs))  # (inputs, …)
            work(*self._inputs.unbind())  # a first run sets up libraries, which cannot be recorded
            # Other threads may go on allocating memory and asking for events meanwhile.
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                outputs = list(work(*self._inputs.unbind()))
                self._numbers = outputs.pop()
                self._blocks = in_blocks(outputs)
            finally:
                self._graph.capture_end()
        current.wait_stream(stream)
        self._kinds = [(output.dtype, output.shape) for output in outputs]

    def __call__(self, inputs: Sequence[Tensor]) -> Answer:
        """Replays the graph with these inputs; waits for its numbers."""
        torch.stack(list(inputs), out=self._inputs)
        self._graph.replay()
        copies = [block.clone() for block in self._blocks]
        return from_blocks(copies, self._kinds), self._numbers.tolist()


def in_blocks(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of any shapes, those of a dtype behind each other in one row, which takes one copy."""
    rows: dict[torch.dtype, list[Tensor]] = {}
    for output in outputs:
        rows.setdefault(output.dtype, []).append(output.reshape(-1))
    return [torch.cat(parts) for parts in rows.values()]


def from_blocks(blocks: Sequence[Tensor], kinds: Sequence[tuple[torch.dtype, torch.Size]]) -> list[Tensor]:
    """The tensors again, as views, from their dtypes and shapes in the same order."""
    left = {block.dtype: block for block in blocks}
    outputs = []
    for dtype, shape in kinds:
        count = shape.numel()
        outputs.append(left[dtype][:count].view(shape))
        left[dtype] = left[dtype][count:]
    return outputs


def _shorten(entries: OrderedDict[Hashable, Any], size: int) -> None:
    while len(entries) > size:
        entries.popitem(last=False)
