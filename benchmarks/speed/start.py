"""CPU seconds of one call of the command line: a question, a gallery that is not there, a wrong option.

    git archive e2a9a4d src | tar -x -C /tmp/before        # what it is compared with
    python benchmarks/speed/start.py --before /tmp/before/src

User and system time of the process and its children, the least of several calls, one thread. The gallery is of 40
drawn photos of 8 products by EfficientNet-lite0 with weights below $DOUBTLESS_DATA, calibrated. Before, a gallery
needed a run, and the run is made first; that is not counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = 4
CONFIG = """method: pretrained
data: {source: "folder:photos", size: 224, validation: 0.4}
model: {backbone: tf_efficientnet_lite0, weights: efficientnet_lite0.safetensors, pooling: gem, dim: 8}
features: {head: half-whitened}
"""


def environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def call(source: Path, folder: Path, *words: str, check: bool = True) -> float:
    """CPU seconds of `doubtless WORDS` of the code in `source`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "doubtless", *words],
        cwd=folder,
        env=environment(source),
        check=check,
        stdout=subprocess.DEVNULL,
        stderr=None if check else subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def prepare(source: Path, folder: Path, *, before: bool) -> str:
    """A calibrated gallery `shop` in a folder; the verb that asks it."""
    sys.path.insert(0, str(ROOT))
    from tests.cli.shop_photos import write_shop

    write_shop(folder / "photos", products=8, photos=5)
    if not before:
        call(source, folder, "create", "shop", "photos")
        return "ask"
    (folder / "config.yaml").write_text(CONFIG)
    call(source, folder, "train", "config.yaml", "--out", "run", "--no-evaluate")
    call(source, folder, "index", "create", "shop", "--model", "run", "--images", "photos")
    call(source, folder, "calibrate", "shop", "--novelty", "directions")
    return "search"


def measured(source: Path, *, before: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        verb = prepare(source, folder, before=before)
        calls = {
            "a question": (verb, "shop", "photos/product-00/000.jpg"),
            "a gallery that is not there": (verb, "nowhere", "photos/product-00/000.jpg"),
            "a wrong option": (verb, "shop", "--wrong"),
            "import torch": None,
        }
        found = {}
        for name, words in calls.items():
            times = [
                _torch() if words is None else call(source, folder, *words, check=name == "a question")
                for _ in range(CALLS)
            ]
            found[name] = min(times)
        return found


def _torch() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=environment(ROOT / "src"))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="The folder src of another version.")
    options = parser.parse_args()
    now = measured(ROOT / "src", before=False)
    print("now", now, flush=True)
    then = measured(options.before.resolve(), before=True) if options.before else {}
    print("| CPU seconds | before | now |\n|---|---|---|")
    for name, seconds in now.items():
        print(f"| {name} | {then.get(name, float('nan')):.2f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
