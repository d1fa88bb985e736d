"""What bf16, the channels-last layout and compilation are worth to a network that is trained whole.

    python benchmarks/speed/backbones.py                                        # a GPU is taken where there is one
    OMP_NUM_THREADS=2 python benchmarks/speed/backbones.py --size resnet10t,8,32,64 --steps 2 --rounds 1

A step of `deterministic` with Adam on a batch of noise, every row the one above with one thing more: 32 bits with
the channels first, as PyTorch has it; channels last; bf16; compiled. The first three take turns, the compiled one
comes after them, and what its compilation took is printed: divided by what a step gains, it says after how many
images compiling pays.
"""

from __future__ import annotations

import argparse
import time

import torch
from training_step import Step, best_times, machine, numbers_of, synchronize, training_step

from doubtless.methods import Method

SIZES = ["resnet50,64,224,512", "tf_efficientnet_lite0,64,224,512", "resnet9,250,32,32"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", action="append", help="backbone,batch,pixels,D; several are possible")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(machine(device), flush=True)
    for size in options.size or SIZES:
        measure(size, device, steps=options.steps, rounds=options.rounds)


def measure(size: str, device: torch.device, *, steps: int, rounds: int) -> None:
    backbone, batch_size, pixels, dim = numbers_of(size)
    calls = {
        "channels first": step_of(size, device, channels_last=False),
        "channels last": step_of(size, device),
        "bf16": step_of(size, device, precision="bf16"),
    }
    best = best_times(calls, device, steps, rounds)
    compiled = step_of(size, device, precision="bf16", compiled=True)
    began = time.perf_counter()
    for _ in range(3):  # forward and backward are compiled in the first of them
        compiled()
    synchronize(device)
    seconds = time.perf_counter() - began
    best |= best_times({"compiled": compiled}, device, steps, rounds)
    print(f"{backbone}, batch {batch_size} of {pixels}×{pixels}, D = {dim}")
    for name, found in best.items():
        print(f"{name:>16} {1e3 * found:>9.2f} ms {best['channels first'] / found:>7.2f}×", flush=True)
    gained = best["bf16"] - best["compiled"]
    pays = f"pays after {seconds / gained * batch_size:,.0f} images" if gained > 0 else "never pays"
    print(f"   compiling took {seconds:.0f} s: it {pays}", flush=True)


def step_of(
    size: str,
    device: torch.device,
    *,
    channels_last: bool = True,
    precision: str = "32",
    compiled: bool = False,
) -> Step:
    """A training step with one network of its own."""
    backbone, batch_size, pixels, dim = numbers_of(size)
    config = {"method": "deterministic", "model": {"backbone": backbone, "dim": dim}}

    def prepare(method: Method) -> None:
        method.encoder.use_channels_last(channels_last)
        if compiled:
            method.encoder.backbone.compile()

    return training_step(
        config,
        batch_size=batch_size,
        pixels=pixels,
        classes=8,
        device=device,
        precision=precision,
        prepare=prepare,
    )


if __name__ == "__main__":
    main()
