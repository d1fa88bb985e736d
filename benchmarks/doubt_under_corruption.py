"""Does the doubt rise when a picture gets worse? Blur, noise and occlusion of the page's sliders, in five steps.

    python benchmarks/doubt_under_corruption.py runs/lam-0 runs/lam-1 --figure docs/doubt-under-corruption.svg

Runs are of `configs/fashion-sample/lam-online.yaml` with several seeds. 100 test images, drawn at random, are
disturbed; every image has noise and hidden blocks of its own. Means over the images of

uncertainty   that of `lam-online` itself
run doubt     the combined doubt as `doubtless evaluate` fits it: on the validation part, which searches the
              training part, novelty by features before the head
index doubt   the combined doubt as `doubtless calibrate` fits it: on an index of the other test images, novelty by
              directions. This is what the page shows
right         share of first hits in the training part with the image's label

`rises` says of every step whether the mean rose, and by how many standard errors of the paired differences.
With --limits the disturbances are others, beyond or beside the sliders, for which it need not rise.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.data import ImageSet
from doubtless.data.corruptions import CORRUPTIONS, GREY, Corruption, occlude
from doubtless.doubt.doubt import ATTACHMENT, Doubt
from doubtless.doubt.queries import hits_with_truth
from doubtless.files import write_text
from doubtless.gallery import Gallery
from doubtless.index.folder import FolderIndex
from doubtless.runs import Run, open_run_data
from doubtless.runs.doubt import Reader, fit_run_doubt

STEPS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
IMAGES = 100
MEASURES = ("uncertainty", "run doubt", "index doubt", "right")


def strong_noise(image: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """Up to five times the sliders' strongest."""
    pattern = torch.randn(image.shape[1:], generator=torch.Generator().manual_seed(seed))
    return (image + 255 * strength * pattern).round().clamp(0, 255).to(torch.uint8)


def black_blocks(image: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """The sliders' blocks in the colour of the background."""
    hidden = occlude(torch.zeros_like(image), strength, seed=seed) > 0
    return image.masked_fill(hidden, 0)


def grey_square(image: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """One square in the middle that hides the same share as the blocks."""
    height, width = (round((0.8 * strength) ** 0.5 * side) for side in image.shape[1:])
    top, left = (image.shape[1] - height) // 2, (image.shape[2] - width) // 2
    hidden = image.clone()
    hidden[:, top : top + height, left : left + width] = GREY
    return hidden


LIMITS: dict[str, Corruption] = {"strong noise": strong_noise, "black": black_blocks, "square": grey_square}


class Measured:
    """One run, its two doubts, and the images that are disturbed."""

    def __init__(self, run: Run, *, part: str = "test") -> None:
        data = open_run_data(run.config, split=run.split)
        self.method, self.source = run.load_method(), data.source
        self.read = Reader(self.method)
        plain = data.train.preparation.without_augmentation()
        train = ImageSet(data.source, data.train.index, plain)
        self.train = self.read(train, train.labels)
        validation = self.read(data.validation, data.validation.labels)
        fitted = fit_run_doubt(validation, self.train, train=self.train, score="direction", mirrored=True)
        assert fitted is not None
        self.run_doubt = fitted
        images = data.test if part == "test" else data.validation
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        self.rows, rest = images.index[order[:IMAGES]], images.index[order[IMAGES:]]
        self.labels = data.source.labels[self.rows]
        self.preparation = plain
        self.index, self.index_doubt = self._index(ImageSet(data.source, rest, plain))

    def _index(self, images: ImageSet) -> tuple[FolderIndex, Doubt]:
        described = self.read(images, images.labels)
        self._folder = tempfile.TemporaryDirectory()  # as long as this lives
        shape = described.embedding.parameters["variance"].shape[1]
        index = FolderIndex.create(
            Path(self._folder.name) / "index",
            family=described.embedding.family,
            dim=described.embedding.dim,
            variances=shape,
        )
        names = [self.source.label_names[int(label)] for label in images.labels]
        index.add(described.embedding, [str(i) for i in range(len(names))], labels=names)
        Gallery(index).calibrate()
        state = index.attached(ATTACHMENT)
        assert state is not None
        return index, Doubt.from_state(*state)

    @torch.no_grad()
    def at(self, corruption: Corruption, strength: float) -> dict[str, Tensor]:
        """Every measure of every image, (100,)."""
        images = torch.stack(
            [
                self.preparation(corruption(self.source.image(int(row)), strength, seed=place))
                for place, row in enumerate(self.rows)
            ]
        )
        described = self.method.describe(images)
        embedding = described.embedding
        assert embedding.uncertainty is not None
        hits, _ = hits_with_truth(embedding, self.train.embedding, self.train.truth)
        narrow = self.read.narrowed(described.features)
        assert isinstance(self.train.truth, Tensor)
        return {
            "uncertainty": embedding.uncertainty.double(),
            "run doubt": self.run_doubt.of(hits, narrow, queries=embedding).total,
            "index doubt": self.index_doubt.of(self.index.search(embedding, DEPTH), queries=embedding).total,
            "right": (self.train.truth[hits.row[:, 0]] == self.labels).double(),
        }


def measure(run: Run, corruptions: Mapping[str, Corruption], *, part: str) -> dict[str, Any]:
    """Corruption → measure → its mean at every step, and the rises in standard errors."""
    measured = Measured(run, part=part)
    found: dict[str, Any] = {}
    for name, corruption in corruptions.items():
        steps = [measured.at(corruption, strength) for strength in STEPS]
        found[name] = {measure: summary([step[measure] for step in steps]) for measure in MEASURES}
    return found


def summary(values: list[Tensor]) -> dict[str, Any]:
    """Means of the steps, (n,) each, and what lies between one and the next."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(values)]
    return {
        "mean": [float(value.mean()) for value in values],
        "rises": [bool(gap.mean() > 0) for gap in gaps],
        "standard_errors": [
            round(float(gap.mean() / (gap.std() / len(gap) ** 0.5).clamp_min(1e-12)), 2) for gap in gaps
        ],
    }


def show(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}")
    for corruption, measures in found.items():
        for measure, row in measures.items():
            steps = " ".join(f"{value:9.4g}" for value in row["mean"])
            falls = [f"{STEPS[i]:g}→{STEPS[i + 1]:g}" for i, rose in enumerate(row["rises"]) if not rose]
            note = "" if measure == "right" else "rises" if not falls else f"falls at {', '.join(falls)}"
            print(f"{corruption:12} {measure:12} {steps}   {note}")


def draw(path: Path, runs: list[dict[str, Any]]) -> None:
    """A column per corruption: above the uncertainty, below both doubts and how many answers are right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "doubtless", "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey="row", constrained_layout=True)
    styles = {
        "uncertainty": ("#0a6cb0", "-", "lam-online's uncertainty, undisturbed = 1"),
        "index doubt": ("#c94f00", "-", "combined doubt of an index (the page)"),
        "run doubt": ("#00805c", "--", "combined doubt of a run"),
        "right": ("#6b7680", ":", "first hits that are right"),
    }
    for column, name in enumerate(CORRUPTIONS):
        for measure, (colour, dash, label) in styles.items():
            axis = axes[0 if measure == "uncertainty" else 1, column]
            lines = torch.tensor([run[name][measure]["mean"] for run in runs])
            lines = lines / lines[:, :1] if measure == "uncertainty" else lines
            for line in lines:
                axis.plot(STEPS, line, color=colour, linewidth=0.7, alpha=0.35)
            axis.plot(
                STEPS, lines.mean(0), dash, color=colour, linewidth=2, marker="o", markersize=3.5, label=label
            )
        axes[0, column].set_title(name)
        axes[1, column].set_xlabel("strength")
        axes[1, column].set_ylim(0, 1.02)
    handles = [handle for axis in axes[:, 0] for handle in axis.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--part", choices=("test", "validation"), default="test")
    parser.add_argument("--limits", action="store_true", help="other disturbances than the sliders'")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measured = []
    for path in options.runs:
        measured.append(measure(Run.open(path), LIMITS if options.limits else CORRUPTIONS, part=options.part))
        show(str(path), measured[-1])
    if options.figure:
        draw(options.figure, measured)
    if options.out:
        write_text(
            options.out,
            json.dumps({"steps": STEPS, "images": IMAGES, "part": options.part, "runs": measured}, indent=1),
        )


if __name__ == "__main__":
    main()
