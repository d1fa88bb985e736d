"""How long a training will take: a few real steps, measured before it begins.

What is measured is a copy of the method: weights, statistics and random numbers of the training stay as they are.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.cores import usable_cores
from doubtless.data import BalancedBatches, Batch, ImageSet
from doubtless.methods import Method
from doubtless.methods.triplet_family import TripletFamily
from doubtless.progress import describe_seconds
from doubtless.runs.data import RunData
from doubtless.training.accelerate import precision_of

FEW = 16  # images of a first step, which says whether a whole one can be afforded
AFFORDED = 1.0  # seconds that a step may take to be measured whole, and a measurement to be made twice
WORTH_SAYING = 60.0  # seconds of a whole training below which nobody needs to be told


@dataclass(frozen=True)
class Estimate:
    """Seconds of one epoch, and what they are made of."""

    steps: int
    step: float
    """Seconds of a step, its images loaded."""
    around: float
    """Seconds of what an epoch does beside its steps: it validates, and mines where the method mines."""

    @property
    def epoch(self) -> float:
        """Seconds of an epoch."""
        return self.steps * self.step + self.around

    def sentence(self, epochs: int, *, threads: int, at_most: bool = False) -> str:
        """What to tell before `epochs` epochs are begun.

        >>> Estimate(steps=39, step=13.0, around=45.0).sentence(20, threads=2)
        'One epoch takes about 9 min on this machine (39 steps, 2 threads); 20 epochs about 3 h 4 min.'
        """
        one, whole = describe_seconds(self.epoch), describe_seconds(epochs * self.epoch)
        so_many = "1 thread" if threads == 1 else f"{threads} threads"
        ending = f"; {'at most ' if at_most else ''}{epochs} epochs about {whole}" if epochs > 1 else ""
        return f"One epoch takes about {one} on this machine ({self.steps} steps, {so_many}){ending}."


def estimate_epoch(method: Method, data: RunData) -> Estimate:
    """Measures steps of the method on its device, with noise of the images' shape: it takes as long as they do."""
    shape, labels = _shape_of(method, data, data.train), _labels_of_step(method, data)
    steps = _steps(method, data)
    devices = [method.device] if method.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        probed = copy.deepcopy(method).train()
        few = _few(method, labels)
        seconds = _of_step(probed, shape, few) * len(labels) / len(few)
        if seconds < AFFORDED:
            seconds = _of_step(probed, shape, labels)
        looking = _of_looking(probed, _shape_of(method, data, data.validation), len(few)) / len(few)
    around = looking * (len(data.validation) + _mined(method, steps))
    return Estimate(steps, seconds + _of_loading(method, data, len(labels)), around)


def announcement(method: Method, data: RunData, *, done: int = 0) -> str:
    """The estimate of the epochs that are left as a sentence; "" where all of them are over in a minute."""
    options = method.config.training
    left = options.epochs - done
    if left < 1:
        return ""
    found = estimate_epoch(method, data)
    if left * found.epoch < WORTH_SAYING:
        return ""
    return found.sentence(left, threads=torch.get_num_threads(), at_most=options.patience is not None)


def _labels_of_step(method: Method, data: RunData) -> Tensor:
    """Labels (b,) of a step's images; mined tuples are only as many."""
    options, labels = method.config.training, data.train.labels
    if method.batch_kind == "tuples":
        return labels[torch.arange(_tuple_rows(method)) % len(labels)]
    plan = BalancedBatches(labels, batch_size=options.batch_size, per_class=options.per_class)
    return labels[plan.epoch(0)[0]]


def _steps(method: Method, data: RunData) -> int:
    options, labels = method.config.training, data.train.labels
    if method.batch_kind == "tuples":
        return max(1, len(labels) // _tuple_rows(method))
    return len(BalancedBatches(labels, batch_size=options.batch_size, per_class=options.per_class))


def _tuple_rows(method: Method) -> int:
    assert isinstance(method, TripletFamily)
    return method.mining.tuples * (2 + method.mining.negatives)


def _mined(method: Method, steps: int) -> float:
    """Images that are embedded in an epoch to mine tuples among them."""
    if method.batch_kind != "tuples":
        return 0.0
    assert isinstance(method, TripletFamily)
    return method.mining.cache * steps / method.mining.refresh


def _few(method: Method, labels: Tensor) -> Tensor:
    """Labels of a small step: whole tuples, or several images of each of at least two classes."""
    if isinstance(method, TripletFamily) and method.batch_kind == "tuples":
        rows = 2 + method.mining.negatives
        return labels[: max(rows, FEW // rows * rows)]
    ordered = labels.sort(stable=True).values
    first = torch.searchsorted(ordered, ordered)  # where each one's class begins
    return ordered[torch.arange(len(ordered)) - first < FEW // 2][:FEW]


def _shape_of(method: Method, data: RunData, images: ImageSet) -> tuple[int, ...]:
    """Of an input: features, or images as large as these are prepared."""
    if method.batch_kind == "features":
        return (method.encoder.feature_dim,)
    size = images.preparation.size or data.spec.size
    return (data.spec.channels, size, size)


def _of_step(method: Method, shape: tuple[int, ...], labels: Tensor) -> float:
    """Seconds of a loss and its gradients."""
    device = method.device
    batch = Batch(
        torch.rand(len(labels), *shape, device=device), labels.to(device), torch.arange(len(labels))
    )
    half = precision_of(method.config, device) == "bf16"

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = method.loss(batch).total
        loss.backward()

    return _timed(step, device)


def _of_looking(method: Method, shape: tuple[int, ...], count: int) -> float:
    """Seconds of features of so many images without gradients."""
    if method.batch_kind == "features":
        return 0.0
    images = torch.rand(count, *shape, device=method.device)
    return _timed(lambda: method.observe(images), method.device)


def _of_loading(method: Method, data: RunData, images: int) -> float:
    """Seconds a step waits for images that are decoded, or augmented, one by one: workers take cores from it."""
    if method.batch_kind == "features" or method.device.type != "cpu" or not data.train.preparation.is_random:
        return 0.0
    rows = torch.linspace(0, len(data.train) - 1, min(len(data.train), FEW // 2)).long().tolist()
    began = time.perf_counter()
    for row in rows:
        data.train[row]
    hands = max(1, min(method.config.data.workers, usable_cores()))
    return (time.perf_counter() - began) / len(rows) * images / hands


def _timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the better of two rounds: the first one also prepares what later ones find, which is soon done."""
    best = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
        if best > AFFORDED:
            break
    return best
