"""Is a source whole? What it holds, what its standard says it should, and sentences on what is missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from doubtless.data.papers import PAPERS, count_parts
from doubtless.data.papers.layout import FilesBelow, Layout
from doubtless.data.prepare import readable
from doubtless.data.source import Source, locate
from doubtless.data.sources import SOURCES, Progress, open_source
from doubtless.errors import InputError


@dataclass(frozen=True)
class SourceCheck:
    """What was found of a source; it is whole when there are no problems."""

    source: str
    counts: dict[str, int] = field(default_factory=dict)
    standard: dict[str, int] = field(default_factory=dict)
    """Counts everyone reports, for the papers' sets."""
    problems: list[str] = field(default_factory=list)


def check_source(
    name: str, *, root: str | Path | None = None, decode: bool = False, progress: Progress | None = None
) -> SourceCheck:
    """Checks a source by its name, or a folder whose layout says what it is.

    decode  reads every image to its end, instead of only looking whether it is there

    >>> check_source("digits").counts
    {'images': 1797, 'classes': 10}
    """
    name = recognise(name, root=root)
    kind, _, rest = name.partition(":")
    if kind not in PAPERS:
        return _check_other(name, root, progress)
    paper = PAPERS[kind]
    try:
        layout = paper.read(locate(rest, root))
    except InputError as error:
        return SourceCheck(name, standard=dict(paper.standard), problems=[str(error)])
    counts = count_parts(layout)
    problems = [
        *layout.missing,
        *_against_standard(counts, paper.standard),
        *_files(layout, decode, progress),
    ]
    return SourceCheck(name, counts, dict(paper.standard), problems)


def recognise(name: str, *, root: str | Path | None = None) -> str:
    """A source's name as it is; for a path, the name of the source whose layout it has.

    >>> recognise("digits")
    'digits'
    """
    if name in SOURCES or ":" in name:
        return name
    path = locate(name, root)
    if path.suffix == ".npz":
        return f"npz:{name}"
    for kind, paper in PAPERS.items():
        if path.is_dir() and paper.recognises(path):
            return f"{kind}:{name}"
    return f"folder:{name}"


def _check_other(name: str, root: str | Path | None, progress: Progress | None) -> SourceCheck:
    try:
        source = open_source(name, root=root, progress=progress)
    except InputError as error:
        return SourceCheck(name, problems=[str(error)])
    return SourceCheck(name, _counts(source), problems=[f"{line}." for line in source.skipped])


def _counts(source: Source) -> dict[str, int]:
    counts = {"images": len(source), "classes": len(source.labels.unique())}
    if source.given_split is not None:
        train, test = torch.bincount(source.given_split, minlength=2).tolist()
        counts |= {"training images": train, "test images": test}
    return counts


def _against_standard(counts: Mapping[str, int], standard: Mapping[str, int]) -> list[str]:
    return [
        f"There are {counts[name]:,} {name}; the standard has {expected:,}."
        for name, expected in standard.items()
        if name in counts and counts[name] != expected
    ]


def _files(layout: Layout, decode: bool, progress: Progress | None) -> list[str]:
    """What is wrong with the image files: those that are not there, and, asked for, those that do not decode."""
    paths = FilesBelow(layout.folder, layout.names)
    with ThreadPoolExecutor() as pool:  # the disk is what is waited for
        results: Iterable[str | None] = pool.map(readable if decode else _present, paths)
        if progress is not None:
            results = progress(results, "checking images", len(paths))
        reasons = list(results)
    bad = [(path, reason) for path, reason in zip(paths, reasons, strict=True) if reason is not None]
    gone = [path for path, _ in bad if not path.exists()]
    torn = [(path, reason) for path, reason in bad if path.exists()]
    sentences = []
    if gone:
        sentences.append(
            f"{len(gone):,} of {len(paths):,} images are missing; the first is {gone[0]}{_emptiest(gone)}."
        )
    if torn:
        path, reason = torn[0]
        sentences.append(f"{len(torn):,} images cannot be read; the first is {path}: {reason}.")
    return sentences


def _present(path: Path) -> str | None:
    return None if os.path.isfile(path) else "it is not there"


def _emptiest(gone: list[Path]) -> str:
    """Which folders the missing images are in, where they are few."""
    folders = sorted({str(path.parent) for path in gone})
    return f", all of them in {folders[0]}" if len(folders) == 1 and len(gone) > 1 else ""
