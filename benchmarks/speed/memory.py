"""What keeping freed memory is worth: a network on one core, with `doubtless.memory.keep_freed` and without.

    python benchmarks/speed/memory.py

EfficientNet-lite0 with random weights at 192 px: batches that are embedded, in the main thread and in one beside it
as a server does, and training steps. Each is a process of its own, in turns, the best of several rounds. Prints CPU
seconds per image (user and system) and the most memory a process had.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
from collections.abc import Callable

SIZE = 192
CASES = {
    "embed, batches of 64": ("embed", 64, 4, False),
    "embed, batches of 64, in a thread": ("embed", 64, 4, True),
    "embed, batches of 8, in a thread": ("embed", 8, 20, True),
    "embed, one image, in a thread": ("embed", 1, 60, True),
    "train, batches of 16": ("train", 16, 4, False),
}
"""Name → what is done, images of a batch, how often, and whether in a thread."""


def seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measured(name: str) -> dict[str, float]:
    """CPU milliseconds per image and megabytes of this process."""
    import timm
    import torch

    kind, batch, times, beside = CASES[name]
    torch.set_num_threads(1)
    network = timm.create_model("tf_efficientnet_lite0").train(kind == "train")
    optimizer = torch.optim.AdamW(network.parameters())
    images = torch.rand(batch, 3, SIZE, SIZE)
    found: list[float] = []

    def embed() -> None:
        with torch.inference_mode():
            network(images)

    def train() -> None:
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()

    def work(step: Callable[[], None]) -> None:
        for _ in range(3):
            step()
        before = seconds()
        for _ in range(times):
            step()
        found.append(seconds() - before)

    step = train if kind == "train" else embed
    if beside:
        thread = threading.Thread(target=work, args=(step,))
        thread.start()
        thread.join()
    else:
        work(step)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": 1000 * found[0] / (batch * times), "MB": megabytes}


def in_a_process(name: str, way: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--case", name, way], capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--case", nargs=2, help="Measures one in this process: its name, and kept or given-back."
    )
    options = parser.parse_args()
    if options.case:
        name, way = options.case
        if way == "kept":
            from doubtless.memory import keep_freed

            if not keep_freed():
                raise SystemExit("Memory is managed otherwise here: by another library, or by a variable.")
        print(json.dumps(measured(name)))
        return
    print("| CPU ms per image (MB at most) | given back | kept | times as fast |\n|---|---|---|---|")
    for name in CASES:
        ways: dict[str, dict[str, float]] = {}
        for _ in range(options.rounds):
            for way in ("given-back", "kept"):
                one = in_a_process(name, way)
                if way not in ways or one["ms"] < ways[way]["ms"]:
                    ways[way] = one
        back, kept = ways["given-back"], ways["kept"]
        print(
            f"| {name} | {back['ms']:.1f} ({back['MB']:.0f}) | {kept['ms']:.1f} ({kept['MB']:.0f}) "
            f"| {back['ms'] / kept['ms']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
