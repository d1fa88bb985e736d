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

from doubtless import __version__
from doubtless.config import EvaluationConfig
from doubtless.data import ImageSet, Progress
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, evaluate
from doubtless.methods import Method
from doubtless.progress import spinner
from doubtless.training.parts import embed_images, open_run_data, whole_source
from doubtless.training.run import Run

GALLERY_TRAIN = "train"
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
        self.method: Method = run.load_method().to(_best_device(self.config.training.accelerator))
        self.data_name = data
        self.gallery_name = gallery
        self.ood_names = list(self.config.data.ood if ood is None else ood)
        own = (
            open_run_data(self.config, split=run.split, progress=progress)
            if data is None or gallery == "train"
            else None
        )
        self.queries = own.test if own and data is None else self._source(str(data))
        self.gallery = self._gallery(own.train if own else None)
        self.ood = {name: self._source(name) for name in self.ood_names}

    def measure(
        self, *, bootstrap: int = 1000, report: bool = True, folder: Path | None = None
    ) -> Evaluation:
        """All metrics; written into the run, or a folder of its own in it for other data than the run's."""
        embedding = self._embed(self.queries)
        gallery = None if self.gallery is None else self._embed(self.gallery)
        strangers = {_short(name): self._embed(images) for name, images in self.ood.items()}
        with spinner("measuring"):
            found = evaluate(
                embedding,
                self.queries.labels,
                gallery=gallery,
                gallery_labels=None if self.gallery is None else self.gallery.labels,
                ood=strangers,
                score=self.options.score,
                ks=self.options.ks,
                bootstrap=bootstrap,
            )
        found.save((folder or self.folder) / "metrics.json")
        if report:
            self.write_report(found, embedding, gallery=gallery, ood=strangers)
        return found

    @property
    def folder(self) -> Path:
        """Where results go: the run itself for its own test part, a folder inside it for anything else."""
        as_configured = self.options == self.config.evaluation
        if self.data_name is None and self.gallery_name is None and as_configured:
            return self.run.path
        parts = [
            _short(self.data_name or "test"),
            *([f"in-{_short(self.gallery_name)}"] if self.gallery_name else []),
            *([] if as_configured else [f"by-{self.options.score}"]),
        ]
        return self.run.path / ("on-" + "-".join(parts))

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

    def _embed(self, images: ImageSet) -> Embedding:
        return embed_images(self.method, images, progress=self.progress)


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


def _best_device(accelerator: str) -> torch.device:
    use_gpu = accelerator != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if use_gpu else "cpu")
