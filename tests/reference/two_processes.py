"""Two processes that are a gloo group, started once and asked many times: most of a start is importing torch."""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from doubtless.data import Batch
from doubtless.distributed import is_distributed
from doubtless.methods import Method

PATIENCE = 120.0  # seconds for one question: a rank that waits for one that has failed never answers
Work = Callable[..., Any]


class TwoProcesses:
    """Calls a function of a module in both ranks.

    >>> pair = TwoProcesses()
    >>> pair(function, "argument")  # [function(0, "argument"), function(1, "argument")], what both return
    """

    def __init__(self) -> None:
        self._ranks: list[tuple[Any, Connection]] = []

    def __call__(self, function: Work, *arguments: Any) -> list[Any]:
        if not self._ranks:
            self._start()
        for _, pipe in self._ranks:
            pipe.send((function, arguments))
        answers = [self._answer(rank) for rank in range(2)]
        for succeeded, found in answers:
            if not succeeded:
                self.close()  # the other may wait for it for ever: the next question gets a new pair
                raise AssertionError(found)
        return [torch.load(io.BytesIO(found), weights_only=False) for _, found in answers]

    def close(self) -> None:
        for process, _ in self._ranks:
            process.kill()
            process.join()
        self._ranks = []

    def _start(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        for rank in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, port, theirs), daemon=True)
            process.start()
            self._ranks.append((process, ours))

    def _answer(self, rank: int) -> tuple[bool, Any]:
        pipe = self._ranks[rank][1]
        try:
            if pipe.poll(PATIENCE):
                return pipe.recv()  # type: ignore[no-any-return]
        except EOFError:
            return False, f"rank {rank} has died"
        return False, f"rank {rank} has said nothing for {PATIENCE:g} s"


def _serve(rank: int, port: int, pipe: Connection) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    while True:
        function, arguments = pipe.recv()
        try:
            found = io.BytesIO()
            torch.save(function(rank, *arguments), found)
            pipe.send((True, found.getvalue()))
        except Exception:
            pipe.send((False, f"in rank {rank}:\n{traceback.format_exc()}"))


def share_of(batch: Batch, rank: int | None) -> Batch:
    """A rank's half of a batch; None: all of it."""
    if rank is None:
        return batch
    half = len(batch.labels) // 2
    return Batch(*(value[half * rank : half * (rank + 1)] for value in batch))


def loss_and_gradients(method: Method, batch: Batch, *, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """Of one step, alone or, in a group, as data-parallel training takes it; draws begin alike everywhere."""
    whole: nn.Module = _LossOnly(method)
    if is_distributed():
        whole = DistributedDataParallel(whole)  # a name of its own: its hooks die with it
    torch.manual_seed(seed)
    total = whole(batch)
    total.backward()
    return total.detach(), {name: value.grad for name, value in method.named_parameters()}


def descend(method: Method, batches: Iterable[Batch], *, lr: float) -> Iterator[dict[str, Tensor]]:
    """Steps of gradient descent, averaged over a group where there is one; the gradients of each, once taken."""
    optimizer = torch.optim.SGD(method.parameters(), lr=lr)
    torch.manual_seed(5)  # as every epoch begins, on all ranks alike
    for batch in batches:
        optimizer.zero_grad()
        method.loss(batch).total.backward()
        for parameter in method.parameters() if is_distributed() else []:  # what data-parallel training does
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        gradients = {name: value.grad.clone() for name, value in method.named_parameters()}
        optimizer.step()
        yield gradients


class _LossOnly(nn.Module):
    """DDP averages what its module's forward made: let that be the loss."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, batch: Batch) -> Tensor:
        return self.method.loss(batch).total


def assert_same_step(
    found: tuple[Tensor, dict[str, Tensor]], alone: tuple[Tensor, dict[str, Tensor]], *, within: float
) -> None:
    """Loss and gradients within a share of the largest gradient, or of 1."""
    torch.testing.assert_close(found[0], alone[0], atol=within, rtol=0)
    for name, gradient in alone[1].items():
        difference = (found[1][name] - gradient).abs().max()
        assert difference <= within * max(1.0, float(gradient.abs().max())), name
