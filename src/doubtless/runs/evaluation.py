"""Measuring a finished run: its images embedded, the metrics taken, the report written."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless import __version__
from doubtless.config import EvaluationConfig
from doubtless.data import ImageSet, Progress
from doubtless.doubt.doubt import Doubt
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, EvaluationOptions, GivenScores, evaluate
from doubtless.methods import Method
from doubtless.progress import spinner
from doubtless.runs.data import open_run_data, whole_source
from doubtless.runs.doubt import Labelled, Reader, describe_doubt, doubts_of, fit_run_doubt
from doubtless.runs.model import best_device
from doubtless.runs.run import Run
from doubtless.search import Positions

GALLERY_TRAIN = "train"
QUERIES = ""  # beside the names of OOD sets
NO_OOD: Mapping[str, Embedding] = MappingProxyType({})


class RunEvaluation:
    """A run and the data it is to be measured on."""

    def __init__(
        self,
        run: Run,
        *,
        data: str | None = None,
        ood: Sequence[str] | None = None,
        gallery: str | None = None,
        options: EvaluationConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.run = run
        self.config = run.config
        self.options = options or self.config.evaluation
        self.progress = progress
        self.method: Method = run.load_method().to(best_device(self.config.training.accelerator))
        self.data_name = data
        self.gallery_name = gallery
        measured = self.measured = data or self.options.data
        strange = [name for name in self.config.data.ood if name != measured]
        self.ood_names = strange if ood is None else list(ood)
        own = (
            open_run_data(self.config, split=run.split, progress=progress)
            if measured is None or gallery == "train"
            else None
        )
        asked = own.test if own and measured is None else self._source(str(measured))
        self.queries, database = by_role(asked)
        self.gallery = self._gallery(own.train if own else None) or database
        self.own = own
        self.ood = {name: self._source(name) for name in self.ood_names}

    def measure(
        self, *, bootstrap: int = 1000, report: bool = True, folder: Path | None = None
    ) -> Evaluation:
        """All metrics; written into the run, or a folder of its own in it for other data than the run's."""
        read = Reader(self.method, progress=self.progress)
        queries = read(self.queries, truth_of(self.queries))
        gallery = None if self.gallery is None else read(self.gallery, truth_of(self.gallery))
        strangers = {_short(name): read(images, images.labels) for name, images in self.ood.items()}
        doubt = self._fit_doubt(read, gallery or queries)
        rows = {} if doubt is None else self._doubts(doubt, queries, gallery or queries, strangers)
        embedded = {name: found.embedding for name, found in strangers.items()}
        with spinner("measuring"):
            found = evaluate(
                queries.embedding,
                queries.truth,
                gallery=None if gallery is None else gallery.embedding,
                gallery_labels=None if gallery is None else gallery.truth,
                ood=embedded,
                given=GivenScores(doubts=rows.pop(QUERIES, {}), ood_doubts=rows),
                options=EvaluationOptions(
                    score=self.options.score,
                    ks=self.options.ks,
                    ood_ratio=self.options.ood_ratio,
                    bootstrap=bootstrap,
                ),
            )
        if doubt is not None:
            found.protocol["doubt"] = describe_doubt(doubt)
        found.save((folder or self.folder) / "metrics.json")
        if report:
            searched = None if gallery is None else gallery.embedding
            self.write_report(found, queries.embedding, gallery=searched, ood=embedded)
        return found

    def _fit_doubt(self, read: Reader, searched: Labelled) -> Doubt | None:
        """From the run's validation part; None where the run's own data are not at hand, or too few."""
        own = self.own
        if own is None:
            try:
                own = open_run_data(self.config, split=self.run.split, progress=self.progress)
            except InputError:
                return None  # a run may be measured on other data where its own are not
        validation = read(own.validation, truth_of(own.validation))
        train = None
        if self.gallery_name == GALLERY_TRAIN:
            train = searched
        elif self._is_closed:
            still = ImageSet(own.source, own.train.index, own.train.preparation.without_augmentation())
            train = read(still, still.labels)
        with spinner("fitting the doubt"):
            return fit_run_doubt(
                validation,
                searched,
                train=train,
                score=self.options.score,
                mirrored=self.gallery_name == GALLERY_TRAIN,
            )

    def _doubts(
        self, doubt: Doubt, queries: Labelled, searched: Labelled, strangers: Mapping[str, Labelled]
    ) -> dict[str, dict[str, Tensor]]:
        """Rows of the queries and of every OOD set, by name."""
        asked = {QUERIES: queries, **strangers}
        score, closed = self.options.score, self._is_closed
        return {
            name: doubts_of(doubt, found, searched, score=score, closed=closed)
            for name, found in asked.items()
        }

    @property
    def _is_closed(self) -> bool:
        """Whether what is searched has the classes of the training part: that is then what is not new."""
        return self.config.data.split == "closed" and self.measured is None

    @property
    def folder(self) -> Path:
        """Where results go: the run itself for its own test part, a folder inside it for anything else."""
        changes = self._changes()
        if self.data_name is None and self.gallery_name is None and not changes:
            return self.run.path
        parts = [
            _short(self.data_name or "test"),
            *([f"in-{_short(self.gallery_name)}"] if self.gallery_name else []),
            *changes,
        ]
        return self.run.path / ("on-" + "-".join(parts))

    def _changes(self) -> list[str]:
        """What is measured otherwise than the run's configuration says, as parts of a folder's name."""
        asked, configured = self.options, self.config.evaluation
        by_score = [] if asked.score == configured.score else [f"by-{asked.score}"]
        at_ratio = [] if asked.ood_ratio == configured.ood_ratio else [f"at-{asked.ood_ratio}"]
        return by_score + at_ratio or ([] if asked == configured else ["otherwise"])

    def write_report(
        self,
        found: Evaluation,
        embedding: Embedding,
        *,
        gallery: Embedding | None = None,
        ood: Mapping[str, Embedding] = NO_OOD,
    ) -> None:
        from doubtless.report import embedding_map, write_report
        from doubtless.report.method_figures import Context, method_sections

        images, names, log = (
            image_lookup(self.queries, self.gallery),
            self.queries.source.label_names,
            self.run.log,
        )
        context = Context(
            self.method, found, embedding, self.queries.labels, images, names, gallery, ood, log
        )
        write_report(
            self.folder / "report.html",
            title=f"{self.config.method} on {self.data_name or self.config.data.source}",
            evaluation=found,
            config=self.config.to_dict(),
            log=log,
            versions=versions(),
            command=recorded_command(),
            images=images,
            embedding_map=embedding_map(embedding.direction, self.queries.labels, embedding.uncertainty),
            label_names=names,
            of_method=method_sections(context),
        )

    def _source(self, name: str) -> ImageSet:
        return whole_source(name, self.config.data, self.method.spec, progress=self.progress)

    def _gallery(self, train: ImageSet | None) -> ImageSet | None:
        if self.gallery_name is None:
            return None
        if self.gallery_name != GALLERY_TRAIN:
            return self._source(self.gallery_name)
        if self.config.data.split != "closed":
            raise InputError(
                f"The training classes of an {self.config.data.split} split are not those of the test part; "
                "a gallery of training images has no right answer."
            )
        assert train is not None
        still = train.preparation.without_augmentation()
        return ImageSet(train.source, train.index, still)


def by_role(images: ImageSet) -> tuple[ImageSet, ImageSet | None]:
    """Those that ask and those that are searched, where the source keeps them apart; else all, and None."""
    if images.places is None:
        return images, None
    asks = images.places.query
    asking, searched = (
        ImageSet(images.source, images.index[rows], images.preparation) for rows in (asks, ~asks)
    )
    return asking, searched


def truth_of(images: ImageSet) -> Tensor | Positions:
    """What says which of them are right: positions where the source has them, else labels."""
    if images.places is None:
        return images.labels
    return Positions(images.places.position, images.places.radius)


def versions() -> dict[str, str]:
    """What made these numbers."""
    import platform

    return {
        "doubtless": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def recorded_command() -> str:
    """The command line that is running, less the folders of this machine."""
    kept: list[str] = []
    for word in sys.argv[1:]:
        if kept and kept[-1] in {"--out", "-o", "--work", "--data"}:
            kept.pop()
        else:
            kept.append(word)
    return shlex.join(["doubtless", *kept])


def image_lookup(queries: ImageSet, gallery: ImageSet | None) -> Any:
    from doubtless.report import ImageLookup

    def finder(images: ImageSet) -> Any:
        def picture(index: int) -> NDArray[np.uint8]:
            pixels = images[index].inputs.permute(1, 2, 0).numpy()  # (H, W, C)
            return pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels

        return picture

    searched = gallery or queries
    return ImageLookup(
        query=finder(queries),
        gallery=finder(searched),
        query_label=lambda index: int(queries.labels[index]),
        gallery_label=lambda index: int(searched.labels[index]),
    )


def _short(name: str) -> str:
    """A source's name without its folder, fit for a metric's or a file's name."""
    kind, _, rest = name.partition(":")
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(rest or kind).stem).strip("-").lower() or "data"


def evaluate_run(
    run: Run | str | Path,
    *,
    data: str | None = None,
    ood: Sequence[str] | None = None,
    gallery: str | None = None,
    bootstrap: int = 1000,
    report: bool = True,
    progress: Progress | None = None,
) -> Evaluation:
    """Measures a run on its test part (or another source) and writes metrics.json and report.html.

    ood      sources nothing of which the model was trained on; None: those of the run's configuration
    gallery  "train": the training part is searched; a source's name: that one; None: leave-one-out
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    work = RunEvaluation(opened, data=data, ood=ood, gallery=gallery, progress=progress)
    return work.measure(bootstrap=bootstrap, report=report)
