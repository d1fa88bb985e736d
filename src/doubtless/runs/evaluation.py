"""Measuring a finished run: its images embedded, the metrics taken, the report written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from doubtless.config import EvaluationConfig
from doubtless.data import ImageSet, Progress, Source, named_source
from doubtless.doubt.doubt import Doubt
from doubtless.errors import InputError
from doubtless.evaluation import (
    ChosenScale,
    Evaluation,
    EvaluationOptions,
    GivenScores,
    OpenSetOptions,
    choose_scale,
    evaluate,
)
from doubtless.methods import Method
from doubtless.progress import phase, running, spinner
from doubtless.runs.data import RunData, must_take, open_run_data, whole_source
from doubtless.runs.disturbed import Asked, Disturbed, disturb_images
from doubtless.runs.doubt import Labelled, Reader, describe_doubt, doubts_of, fit_run_doubt
from doubtless.runs.model import best_device
from doubtless.runs.run import Run, TrainedRun
from doubtless.runs.timing import write_timing
from doubtless.search import Positions

GALLERY_TRAIN = "train"
QUERIES = ""  # beside the names of OOD sets


class RunEvaluation:
    """A run and the data it is to be measured on; a run that was just trained is not read again from disk."""

    def __init__(
        self,
        run: Run,
        *,
        data: Any = None,
        ood: Sequence[str] | None = None,
        gallery: str | None = None,
        encoder: nn.Module | None = None,
        options: EvaluationConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.run = run
        self.given: Source | None = None
        if data is not None and not isinstance(data, str):
            self.given, data = named_source(data)
        self.config = run.config
        self.options = options or self.config.evaluation
        self.progress = progress
        method = run.method if isinstance(run, TrainedRun) else run.load_method(encoder=encoder)
        self.method: Method = method.to(best_device(self.config.training.accelerator))
        if self.given is not None and self.given.fingerprint() == run.split.fingerprint:
            data = None  # the run's own, given again
        must_take(self.method, self.options.size)
        self.data_name = data
        self.gallery_name = gallery
        measured = self.measured = data or self.options.data
        configured = [name for name in self.config.data.ood if name != measured]
        self.ood_names = configured if ood is None else list(ood)
        self.own: RunData | None = run.data if isinstance(run, TrainedRun) else None
        if self.own is None and (measured is None or gallery == GALLERY_TRAIN):
            self.own = self._open_data()
        with phase("data"):
            images = self._test_images() if measured is None else self._source(measured)
            self.queries, database = by_role(images)
            self.gallery = self._gallery() or database
            self.ood = {name: self._source(name) for name in self.ood_names}

    def measure(
        self, *, bootstrap: int = 1000, report: bool = True, folder: Path | None = None, command: str = ""
    ) -> Evaluation:
        """All metrics; written into the run, or a folder of its own in it for other data than the run's.

        folder   for metrics.json, where it is to lie elsewhere
        command  what one types to make the report, for its last section; "": none
        """
        read = Reader(self.method, progress=self.progress)
        queries = read(self.queries, truth_of(self.queries))
        gallery = None if self.gallery is None else read(self.gallery, truth_of(self.gallery))
        ood = {_short(name): read(images, images.labels) for name, images in self.ood.items()}
        validation = self._validation(read)
        doubt = None if validation is None else self._fit_doubt(read, validation, gallery or queries)
        scale = self._choose_scale(validation, gallery or queries) if self.options.scale == "tuned" else None
        evaluation = self._evaluate(queries, gallery, ood, doubt, scale, bootstrap=bootstrap)
        disturbed = self._disturb(read, queries, gallery, doubt)
        if disturbed is not None:
            evaluation.curves.update(disturbed.curves)
            evaluation.protocol["disturbed"] = len(disturbed.rows)
        evaluation.save((folder or self.folder) / "metrics.json")
        if report:
            if (watch := running()) is not None:
                write_timing(self.folder, watch)  # which the page shows
            with phase("report"):
                self._write_report(evaluation, queries, gallery, ood, disturbed, command=command)
        return evaluation

    def _disturb(
        self, read: Reader, queries: Labelled, gallery: Labelled | None, doubt: Doubt | None
    ) -> Disturbed | None:
        """Some of the queries made worse, where that was asked for."""
        if self.options.disturbed is None:
            return None
        asked = Asked(
            gallery or queries, doubt, self.options.score, closed=self._is_closed, alone=gallery is None
        )
        return disturb_images(read, self.queries, queries.truth, asked, count=self.options.disturbed)

    def _evaluate(
        self,
        queries: Labelled,
        gallery: Labelled | None,
        ood: Mapping[str, Labelled],
        doubt: Doubt | None,
        scale: ChosenScale | str | None,
        *,
        bootstrap: int,
    ) -> Evaluation:
        rows = self._doubts(doubt, queries, gallery or queries, ood)
        divided = self.options.open_set
        with spinner("measuring"), phase("measuring"):
            evaluation = evaluate(
                queries.embedding,
                queries.truth,
                gallery=None if gallery is None else gallery.embedding,
                gallery_labels=None if gallery is None else gallery.truth,
                ood={name: described.embedding for name, described in ood.items()},
                given=GivenScores(doubts=rows.pop(QUERIES, {}), ood_doubts=rows),
                options=EvaluationOptions(
                    score=self.options.score,
                    ks=self.options.ks,
                    ood_ratio=self.options.ood_ratio,
                    scale=scale.scale if isinstance(scale, ChosenScale) else None,
                    open_set=None if divided is None else OpenSetOptions(**divided.model_dump()),
                    bootstrap=bootstrap,
                ),
            )
        if doubt is not None:
            evaluation.protocol["doubt"] = describe_doubt(doubt)
        if isinstance(scale, ChosenScale):
            evaluation.protocol["scale"] = scale.describe()
        elif scale is not None:
            evaluation.protocol["notes"].append(f"The scale of variances is as it was: {scale}")
        return evaluation

    def _validation(self, read: Reader) -> Labelled | None:
        """The run's validation part; None where the run's own data are not at hand."""
        if self.own is None:
            try:
                self.own = self._open_data()
            except InputError:
                return None  # a run may be measured on other data where its own are not
        images = self.own.validation.without_augmentation(size=self._size)
        return read(images, truth_of(images))

    def _choose_scale(self, validation: Labelled | None, searched: Labelled) -> ChosenScale | str | None:
        """On the validation part; a sentence that says why not, or None for points, which have no variance.

        In a closed set what is searched is the same labels, denser: votes are extrapolated to its size.
        """
        if validation is None:
            return "the run's own data, whose validation part chooses it, are not at hand."
        try:
            with spinner("choosing the scale of variances"):
                size = len(searched.embedding) if self._is_closed else None
                return choose_scale(validation.embedding, validation.truth, meant_for=size)
        except InputError as error:
            return str(error)

    def _fit_doubt(self, read: Reader, validation: Labelled, searched: Labelled) -> Doubt | None:
        """From the run's validation part; None where it is too small."""
        assert self.own is not None
        train = None
        if self.gallery_name == GALLERY_TRAIN:
            train = searched
        elif self._is_closed:
            still = self._training_images(self.own)
            train = read(still, still.labels)
        with spinner("fitting the doubt"), phase("doubt"):
            return fit_run_doubt(
                validation,
                searched,
                train=train,
                score=self.options.score,
                mirrored=self.gallery_name == GALLERY_TRAIN,
            )

    def _doubts(
        self, doubt: Doubt | None, queries: Labelled, searched: Labelled, ood: Mapping[str, Labelled]
    ) -> dict[str, dict[str, Tensor]]:
        """Rows of the queries and of every OOD set, by name."""
        score, closed = self.options.score, self._is_closed
        with phase("doubt"):
            return {
                name: doubts_of(doubt, described, searched, score=score, closed=closed)
                for name, described in {QUERIES: queries, **ood}.items()
            }

    def _write_report(
        self,
        evaluation: Evaluation,
        queries: Labelled,
        gallery: Labelled | None,
        ood: Mapping[str, Labelled],
        disturbed: Disturbed | None,
        *,
        command: str,
    ) -> None:
        from doubtless.runs.report import (  # pages and figures, read only where wanted
            Measured,
            write_run_report,
        )

        measured = Measured(
            self.run,
            self.method,
            self.queries,
            queries.embedding,
            gallery=self.gallery,
            gallery_embedding=None if gallery is None else gallery.embedding,
            ood={name: described.embedding for name, described in ood.items()},
            ood_images={_short(name): images for name, images in self.ood.items()},
            disturbed=disturbed,
        )
        title = f"{self.config.method} on {self.data_name or self.config.data.source}"
        write_run_report(self.folder / "report.html", measured, evaluation, title=title, command=command)

    @property
    def _is_closed(self) -> bool:
        """Whether what is searched has the classes of the training part: that is then what is not new."""
        return self.config.data.split == "closed" and self.measured is None

    @property
    def _size(self) -> int:
        """The side of the images that are measured."""
        return self.options.size or self.method.spec.size

    @property
    def folder(self) -> Path:
        """Where results go: the run itself for its own test part, a folder inside it for anything else."""
        changes = self._changes()
        if self.data_name is None and self.gallery_name is None and not changes:
            return self.run.path
        words = [
            _short(self.data_name or "test"),
            *([f"in-{_short(self.gallery_name)}"] if self.gallery_name else []),
            *changes,
        ]
        return self.run.path / ("on-" + "-".join(words))

    def _changes(self) -> list[str]:
        """What is measured otherwise than the run's configuration says, as words of a folder's name."""
        wanted, configured = self.options, self.config.evaluation
        by_score = [] if wanted.score == configured.score else [f"by-{wanted.score}"]
        at_ratio = [] if wanted.ood_ratio == configured.ood_ratio else [f"at-{wanted.ood_ratio}"]
        of_size = [] if wanted.size == configured.size else [f"{wanted.size or self.method.spec.size}px"]
        divided = [] if wanted.open_set == configured.open_set else ["open-set"]
        tuned = [] if wanted.scale == configured.scale else [wanted.scale.replace(" ", "-")]
        worse = [] if wanted.disturbed == configured.disturbed else ["disturbed"]
        return by_score + at_ratio + of_size + divided + tuned + worse or (
            [] if wanted == configured else ["otherwise"]
        )

    def _open_data(self) -> RunData:
        own = self.given if self.data_name is None else None
        return open_run_data(self.config, split=self.run.split, source=own, progress=self.progress)

    def _source(self, name: str) -> ImageSet:
        given = self.given if self.given is not None and name == self.data_name else None
        return whole_source(
            given or name, self.config.data, self.method.spec, size=self._size, progress=self.progress
        )

    def _test_images(self) -> ImageSet:
        assert self.own is not None
        return self.own.test.without_augmentation(size=self._size)

    def _gallery(self) -> ImageSet | None:
        if self.gallery_name is None:
            return None
        if self.gallery_name != GALLERY_TRAIN:
            return self._source(self.gallery_name)
        if self.config.data.split != "closed":
            raise InputError(
                f"The training classes of an {self.config.data.split} split are not those of the test part; "
                "a gallery of training images has no right answer."
            )
        assert self.own is not None
        return self._training_images(self.own)

    def _training_images(self, data: RunData) -> ImageSet:
        """The training part without augmentation, with the labels of its source."""
        return data.train.without_augmentation(size=self._size)


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


def _short(name: str) -> str:
    """A source's name without its folder, fit for a metric's or a file's name."""
    kind, _, rest = name.partition(":")
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(rest or kind).stem).strip("-").lower() or "data"


def evaluate_run(
    run: Run | str | Path,
    *,
    data: Any = None,
    ood: Sequence[str] | None = None,
    gallery: str | None = None,
    encoder: nn.Module | None = None,
    bootstrap: int = 1000,
    report: bool = True,
    progress: Progress | None = None,
) -> Evaluation:
    """Measures a run on its test part (or another source) and writes metrics.json and report.html.

    run        a run or its folder; one that `train` just returned is measured without reading it again
    data       another source to measure on than the run's test part, by its name or as an object (see `train`);
               an object that is the run's own data, given again, stands for that
    encoder    the run's network, where that was given as an object
    ood        sources nothing of which the model was trained on; None: those of the run's configuration
    gallery    "train": the training part is searched; a source's name: that one; None: leave-one-out
    bootstrap  replicates behind the intervals; 0: no intervals
    report     whether report.html is written beside metrics.json
    progress   shows bars, such as `doubtless.progress.bar`

    >>> evaluate_run("runs/first", bootstrap=0, report=False)["recall@1"] > 0.5
    True
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    work = RunEvaluation(opened, data=data, ood=ood, gallery=gallery, encoder=encoder, progress=progress)
    return work.measure(bootstrap=bootstrap, report=report)
