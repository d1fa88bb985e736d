"""One computation on two devices: the same inputs, the same noise, values and gradients side by side.

The tests `*_on_gpu.py` compare the CPU in float64 with a GPU in float64 and float32. DOUBTLESS_TEST_DEVICE=cpu runs
them without a GPU, the CPU against itself: float32 then still shows that no case hangs on a rounding error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = os.environ.get("DOUBTLESS_TEST_DEVICE", "cuda")
IS_THERE = DEVICE != "cuda" or torch.cuda.is_available()


def on_device(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs `DEVICE`."""
    needs = pytest.mark.skipif(not IS_THERE, reason="needs a CUDA device")
    marked: Callable[..., None] = pytest.mark.gpu(needs(test))
    return marked


# Both devices compute the same up to the order of sums and the last bit of exp, log and cos. Relative to the
# largest number of an answer, float32 is off by at most 5e-5 on the CPU (a gradient of the Bhattacharyya kernel of
# draws), mostly by 1e-6, and float64 by 2e-9 of that. What is wrong is wrong by far more.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}

Inputs = Mapping[str, Tensor]
Work = Callable[[Inputs], Tensor | Sequence[Tensor]]


class SameNoise(TorchFunctionMode):
    """`torch.randn`, `rand` and `randperm` draw on the CPU, numbers in float64, whatever they are asked for."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func not in (torch.randn, torch.rand, torch.randperm):
            return func(*args, **options)
        kept = {
            name: value for name, value in options.items() if name not in ("device", "dtype", "generator")
        }
        if func is torch.randperm:
            return func(*args, **kept, generator=self.generator).to(device=options.get("device"))
        drawn = func(*args, **kept, generator=self.generator, dtype=torch.float64)
        return drawn.to(device=options.get("device"), dtype=options.get("dtype") or torch.get_default_dtype())


@contextmanager
def full_float32() -> Iterator[None]:
    """No TF32 in products, which some other test may have allowed: it keeps three digits."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def worked_out(
    work: Work, inputs: Inputs, device: str, dtype: torch.dtype
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs, and the gradient of their weighted sum to every floating input, all in float64 on the CPU."""
    own = {name: _moved(value, device, dtype) for name, value in inputs.items()}
    with full_float32(), SameNoise():
        found = work(own)
        outputs = [found] if isinstance(found, Tensor) else list(found)
        # Other weights for every number: a sum alone would not see two that changed places.
        shares = [torch.linspace(1, 2, part.numel(), device=device, dtype=part.dtype) for part in outputs]
        parts = zip(shares, outputs, strict=True)
        total = torch.stack([(share * part.flatten()).sum().double() for share, part in parts]).sum()
        leaves = {name: value for name, value in own.items() if value.requires_grad}
        if total.requires_grad:
            gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        else:
            gradients = (None,) * len(leaves)
    assert all(part.device.type == torch.device(device).type for part in outputs)
    known = {
        name: gradient.double().cpu()
        for name, gradient in zip(leaves, gradients, strict=True)
        if gradient is not None
    }
    return [part.detach().double().cpu() for part in outputs], known


def assert_same_on_device(work: Work, inputs: Inputs, dtype: torch.dtype, *, gradient: bool = True) -> None:
    """Values and gradients of `work` on `DEVICE` are those of the CPU in float64."""
    expected, slopes = worked_out(work, inputs, "cpu", torch.float64)
    found, found_slopes = worked_out(work, inputs, DEVICE, dtype)
    assert bool(slopes) == gradient
    assert slopes.keys() == found_slopes.keys()
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        _assert_close(one, other, dtype, "a value")
    for name, slope in slopes.items():
        _assert_close(found_slopes[name], slope, dtype, f"the gradient to {name}")


def _assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype, what: str) -> None:
    """To the tolerance, relative to the largest number there is."""
    assert expected.isfinite().all()
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(
        found,
        expected,
        rtol=0,
        atol=TOLERANCE[dtype] * max(largest, 1e-3),
        msg=lambda text: f"{what}: {text}",
    )


def _moved(value: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """A leaf on the device: floating numbers in `dtype`, asking for a gradient; labels as they are."""
    if not value.is_floating_point():
        return value.detach().clone().to(device)
    return value.detach().clone().to(device=device, dtype=dtype).requires_grad_()
