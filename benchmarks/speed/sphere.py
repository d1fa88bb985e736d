"""``log_normalizer`` of a million concentrations at dim 512, beside the route over scipy's ``ive``, on a CPU.

    python benchmarks/speed/sphere.py

The scipy route is ``(D/2−1) log κ − (D/2) log 2π − log ive(D/2−1, κ) − κ``. Where ``ive`` underflows to 0 its
result is +inf; those values are counted. Both sides have the same float64 inputs and one thread (``ive`` knows no
more), and are timed turn by turn, the best of several rounds each.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import ive

from doubtless.sphere import log_normalizer

BAR = 3.0


def best_seconds(actions: list[Callable[[], object]], *, rounds: int) -> list[float]:
    """The shortest of several timings of each action, turn by turn, after one turn that is not counted."""
    best = [math.inf] * len(actions)
    for turn in range(rounds + 1):
        for i, action in enumerate(actions):
            begin = time.perf_counter()
            action()
            if turn:
                best[i] = min(best[i], time.perf_counter() - begin)
    return best


def by_scipy(dim: int, concentration: np.ndarray) -> np.ndarray:
    order = dim / 2 - 1
    with np.errstate(divide="ignore"):
        log_bessel = np.log(ive(order, concentration)) + concentration
    return order * np.log(concentration) - dim / 2 * math.log(2 * math.pi) - log_bessel


def measure(dim: int, count: int, *, largest: float, rounds: int, threads: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    concentration = torch.rand(count, dtype=torch.float64, generator=generator) * largest
    ours_seconds, scipy_seconds = best_seconds(
        [lambda: log_normalizer(dim, concentration), lambda: by_scipy(dim, concentration.numpy())],
        rounds=rounds,
    )
    ours, theirs = log_normalizer(dim, concentration).numpy(), by_scipy(dim, concentration.numpy())
    usable = np.isfinite(theirs)
    difference = np.abs(ours - theirs)[usable] / np.maximum(1, np.abs(ours))[usable]
    return {
        "dim": dim,
        "values": count,
        "largest_concentration": largest,
        "threads": threads,
        "ours_seconds": round(ours_seconds, 5),
        "scipy_seconds": round(scipy_seconds, 5),
        "ratio": round(scipy_seconds / ours_seconds, 1),
        "scipy_underflows": int((~usable).sum()),
        "ours_not_finite": int((~np.isfinite(ours)).sum()),
        "largest_relative_difference": float(difference.max()) if usable.any() else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    rows = [
        measure(options.dim, options.values, largest=largest, rounds=options.rounds, threads=options.threads)
        for largest in (100.0, 1000.0, 10_000.0)
    ]
    if options.json:
        print(json.dumps({"machine": platform.platform(), "torch": torch.__version__, "rows": rows}))
        return
    for row in rows:
        print(
            f"dim {row['dim']}, κ up to {row['largest_concentration']:g}, {row['threads']} threads: "
            f"ours {row['ours_seconds']} s, scipy {row['scipy_seconds']} s, ratio {row['ratio']}; "
            f"scipy underflows {row['scipy_underflows']} of {row['values']}, ours {row['ours_not_finite']}; "
            f"largest difference elsewhere {row['largest_relative_difference']}"
        )
    slowest = min(float(str(row["ratio"])) for row in rows)
    print(f"smallest ratio {slowest}, bar {BAR}: {'met' if slowest >= BAR else 'MISSED'}")


if __name__ == "__main__":
    main()
