"""What recalibration costs where a tenth of a gallery is new, beside a calibration and a filter's first search.

    python benchmarks/speed/recalibrate.py --sizes 1000 10000 100000 1000000

Vectors of 128 dimensions around random centres, ten to a label. A gallery of nine tenths is calibrated, a tenth of
it removed, and as many items added; then `Gallery.recalibrate` and, on the same gallery, `Gallery.calibrate` are
timed, and a filter to a tenth: the first answer, the next, and the bare search of it. Seconds of one core; small
galleries change and are calibrated several times over, and the medians count (`times`). Prints a line per size and
writes recalibrate.json beside the other results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery

DIM, PER_LABEL, SPREAD = 128, 10, 0.9
TIMES = {1_000: 9, 10_000: 5}
"""Items up to which so many changes are timed; of larger galleries one."""
RESULTS = Path(__file__).parent.parent / "results" / "promise" / "recalibrate.json"


def items(first: int, count: int, labels: int) -> dict[str, Any]:
    """Items first … first + count as `Gallery.create` and `add` take them."""
    number = torch.arange(first, first + count)
    generator = torch.Generator().manual_seed(first)
    centre = torch.nn.functional.normalize(
        torch.randn(labels, DIM, generator=torch.Generator().manual_seed(0)), dim=1
    )
    label = number % labels
    vectors = centre[label] + SPREAD / DIM**0.5 * torch.randn(count, DIM, generator=generator)
    return {
        "embedding": Embedding.point(vectors),
        "ids": [str(one) for one in number.tolist()],
        "labels": [f"thing {one}" for one in label.tolist()],
        "metadata": [{"shelf": one // 7 % 10} for one in number.tolist()],
    }


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one core: others may use the machine."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(size: int, folder: Path) -> dict[str, float]:
    """Everything of one size."""
    labels, change = size // PER_LABEL, size // 10
    times = next((count for most, count in TIMES.items() if size <= most), 1)
    asked = items(0, 1, labels)["embedding"]
    found: dict[str, list[float]] = {"incremental": [], "whole": []}
    with Gallery.create(folder / f"gallery-{size}", **items(0, size, labels)) as gallery:
        gallery.calibrate()
        for number in range(times):
            gallery.remove([str(one) for one in range(number * change, (number + 1) * change)])
            gallery.add(**items(size + number * change, change, labels))
            found["incremental"].append(timed(gallery.recalibrate))
            if number == 0:
                gallery.ask(asked)
                first, again = (timed(lambda: gallery.ask(asked, where={"shelf": 3})) for _ in range(2))
                plain = timed(lambda: gallery.index.search(asked, 50, where={"shelf": 3}))
            found["whole"].append(timed(gallery.calibrate))
    incremental, whole = (statistics.median(found[name]) for name in ("incremental", "whole"))
    return {
        "items": size,
        "times": times,
        "calibrate_s": whole,
        "recalibrate_s": incremental,
        "share": incremental / whole,
        "first_filtered_s": first,
        "next_filtered_s": again,
        "filtered_search_s": plain,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            found.append(measure(size, Path(folder)))
        print(found[-1], flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
