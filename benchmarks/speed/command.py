"""The whole command, from its start to the report: `doubtless train CONFIG`, alone or several side by side.

    python benchmarks/speed/command.py configs/fashion/lam-online.yaml
    python benchmarks/speed/command.py configs/fashion/{lam-online,recommended}.yaml --side-by-side 6
    python benchmarks/speed/command.py configs/fashion/lam-online.yaml --set training.epochs=1

Each run is a process of its own, as a user starts it, with another seed. Several configurations take turns until
there are as many runs as are wanted. Printed are the phases that each run wrote to its timing.json, and the seconds
from the start of the first process to the end of each, and of all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import torch
from training_step import machine, verdict

SECONDS = 45.0  # of one command alone, on an H200 with 16 cores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--side-by-side", type=int, default=None, metavar="N", help="runs at the same time")
    parser.add_argument("--set", action="append", default=[], help="as `doubtless train --set`; repeatable")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds after which runs are ended")
    options = parser.parse_args()
    count = options.side_by_side or len(options.configs)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{machine(device)}; {os.cpu_count()} cores; {count} side by side", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            Path(folder) / f"{seed}-{config.stem}": (config, seed)
            for seed, config in enumerate(islice(cycle(options.configs), count))
        }
        began = time.perf_counter()
        processes = {
            run: start(run, config, [f"seed={seed}", *options.set]) for run, (config, seed) in runs.items()
        }
        ended = wait(processes, began, options.limit)
        for run in runs:
            show(run, ended[run], processes[run].returncode)
        slowest = max(ended.values())
        limit = SECONDS if device.type == "cuda" and count == 1 and not options.set else None
        print(f"{'all':>28} {slowest:8.1f} s{verdict(slowest, limit)}")
    if any(process.returncode for process in processes.values()):
        sys.exit(1)


def start(run: Path, config: Path, changes: list[str]) -> subprocess.Popen[bytes]:
    """The command as a user types it; what it prints lies beside its run."""
    command = [sys.executable, "-m", "doubtless", "train", str(config), "--out", str(run)]
    for change in changes:
        command += ["--set", change]
    printed = run.with_suffix(".log").open("wb")
    return subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)


def wait(processes: dict[Path, subprocess.Popen[bytes]], began: float, limit: float) -> dict[Path, float]:
    """Seconds until each process ended."""
    ended: dict[Path, float] = {}
    while len(ended) < len(processes):
        passed = time.perf_counter() - began
        for run, process in processes.items():
            if run not in ended and process.poll() is not None:
                ended[run] = passed
            elif run not in ended and passed > limit:
                process.kill()
                process.wait()
                ended[run] = passed
        time.sleep(0.1)
    return ended


def show(run: Path, seconds: float, code: int) -> None:
    """A line with the total, and one for every phase that took a hundredth of it."""
    print(f"{run.name:>28} {seconds:8.1f} s" + (f"  ended with {code}" if code else ""))
    if code:
        print(run.with_suffix(".log").read_text(errors="replace")[-2000:])
    timing = run / "timing.json"
    if timing.is_file():
        phases = json.loads(timing.read_text())["phases"]
        for name, part in phases.items():
            if part >= 0.01 * seconds:
                print(f"{name:>28} {part:8.1f} s")


if __name__ == "__main__":
    main()
