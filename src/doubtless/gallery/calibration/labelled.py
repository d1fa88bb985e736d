"""Queries that say what they show: photographs in class folders or listed in a CSV, or what was embedded of them.

A gallery with one photograph of each thing has nothing to calibrate on: no item finds another of its label. Given
other photographs of the same things, it can. Photographs of things that it does not have may lie among them.

    queries/garlic/1.jpg        a folder per label; also tar shards, parquet files and sources by their name
    queries.csv                 columns path (or image, or id) and label; relative paths begin at the CSV's folder
    embedded/                   what `doubtless embed` wrote
    queries.npz, .safetensors   embeddings with their labels; also parquet; .npy with labels in a CSV of their own
    feedback                    what people said of answers (`doubtless.gallery.feedback.queries`)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import normalize

import torch
from torch import Tensor

from doubtless.calibration.fit import FEWEST
from doubtless.data import SOURCES
from doubtless.data.streams.folder import FolderStream
from doubtless.data.streams.opening import open_streams
from doubtless.data.streams.tables import read_labels
from doubtless.embedding import Embedding, holds_vectors
from doubtless.errors import InputError, listed
from doubtless.gallery.calibration.calibrated import Calibrated
from doubtless.gallery.calibration.paired import paired_with
from doubtless.gallery.content import import_file
from doubtless.gallery.feedback import queries as feedback_queries
from doubtless.gallery.feedback.store import FeedbackStore
from doubtless.index.base import Index
from doubtless.index.forms import fitting
from doubtless.ingest.bulk import Meter, WorkUnit, embed_unit, embedded, usual_batch
from doubtless.ingest.shards import MANIFEST, BadImage, EmbeddedShard
from doubtless.ingest.vectors import relabelled

if TYPE_CHECKING:
    from doubtless.data import Progress
    from doubtless.gallery.asking import Asking
    from doubtless.gallery.base import OpenGallery
    from doubtless.gallery.queries import Pictures

MOST_ASKED = 4_000
"""Queries of labels that the gallery does not have that are asked once it is calibrated."""
NAMED_BY = ("path", "image", "id")
"""Columns of a CSV that may name an image's file."""
SAME = 1e-5
"""Directions that differ by less in every number are of one picture; a copy saved anew differs by more."""
SHOWN = 5
"""Unreadable images, and labels that the gallery does not have, that a record names; all are counted."""


@dataclass(frozen=True, eq=False)
class LabelledQueries:
    """n queries from outside, in the form in which the gallery keeps its items, and what was left out."""

    place: str
    embedding: Embedding
    labels: list[str]
    ids: list[str]
    known: Tensor
    """(n,) bool: the gallery has the label; the others show what is not there."""
    gallery_labels: int
    """Labels that the gallery has."""
    bad: list[BadImage] = field(default_factory=list)
    """Images that could not be read."""
    unlabelled: int = 0
    """Left out: nobody says what they show."""
    in_gallery: int = 0
    """Left out: they are items of the gallery and would find themselves."""
    respelt: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Left out: a label that the gallery has in another spelling → that spelling, and how many queries."""

    def __len__(self) -> int:
        return len(self.labels)

    def record(self) -> dict[str, Any]:
        """What was given, in plain values, to be kept with the calibration."""
        there = {label for label, known in zip(self.labels, self.known.tolist(), strict=True) if known}
        absent = sorted(set(self.labels) - there)
        return {
            "place": self.place,
            "known": int(self.known.sum()),
            "known_labels": len(there),
            "gallery_labels": self.gallery_labels,
            "unknown": int((~self.known).sum()),
            "unknown_labels": len(absent),
            "first_unknown_labels": absent[:SHOWN],
            "unreadable": len(self.bad),
            "first_unreadable": [f"{image.id} ({image.reason})" for image in self.bad[:SHOWN]],
            "unlabelled": self.unlabelled,
            "in_gallery": self.in_gallery,
            "respelt": {label: [meant, count] for label, (meant, count) in self.respelt.items()},
        }


def labelled_queries(
    place: str | Path, gallery: OpenGallery, *, labels: str | Path | None = None, meter: Meter | None = None
) -> LabelledQueries:
    """Reads labelled queries from where they are; images are embedded by the gallery's model.

    place    a folder of class folders, a CSV, a folder that `doubtless embed` made, a file of embeddings; or tar
             shards, parquet files and sources by their name
    labels   a CSV of ids and labels, instead of the labels that the place has itself
    meter    is told how the embedding goes

    >>> from doubtless.gallery import Gallery
    >>> queries = Embedding.point(torch.eye(3)[[0, 1, 1]] + 0.1)
    >>> queries.save("queries.safetensors", labels=torch.tensor([0, 1, 7]))
    >>> with Gallery.create("shop", embedding=Embedding.point(torch.eye(3)), labels=["0", "1", "2"]) as shop:
    ...     labelled_queries("queries.safetensors", shop).known
    tensor([ True,  True, False])
    """
    known = _labels_of(gallery.index)
    shards = list(_shards(Path(place), gallery, known, labels, meter))
    bad = [image for shard in shards for image in shard.bad]
    parts = [shard.embedding for shard in shards if shard.embedding is not None]
    if not parts:
        raise InputError(_nothing_read(place, bad))
    given = [label for shard in shards for label in shard.labels]
    _must_know_some(place, given, known)
    embedding = gallery.fitted(Embedding.cat(parts))
    ids = [name for shard in shards for name in shard.ids]
    return _without_strays(str(place), embedding, given, ids, known, gallery.index, bad)


def _without_strays(
    place: str,
    embedding: Embedding,
    labels: Sequence[str | None],
    ids: Sequence[str],
    known: set[str],
    index: Index,
    bad: list[BadImage],
) -> LabelledQueries:
    """What can be used of the queries; each of the others is counted once."""
    respelt = _respelt(labels, known)
    rows = [row for row, label in enumerate(labels) if label is not None and label not in respelt]
    copies = _are_items(index, embedding[rows]).tolist() if rows else []
    kept = [row for row, copy in zip(rows, copies, strict=True) if not copy]
    if not any(labels[row] in known for row in kept):
        raise InputError(
            f"No query of {place} is left to calibrate on: those with the gallery's labels ({sum(copies)}) are "
            "pictures of the gallery itself, and would find themselves. Give other photographs of the same things."
        )
    return LabelledQueries(
        place,
        embedding[kept],
        [str(labels[row]) for row in kept],
        [ids[row] for row in kept],
        torch.tensor([labels[row] in known for row in kept]),
        len(known),
        bad,
        unlabelled=sum(label is None for label in labels),
        in_gallery=sum(copies),
        respelt=respelt,
    )


def sentences(given: Mapping[str, Any]) -> list[str]:
    """What the record of given queries says, in words."""
    found = [
        f"{_counted(given['known'])} from {given['place']}, of {given['known_labels']:,} of the gallery's "
        f"{given['gallery_labels']:,} labels."
    ]
    if given["unknown"]:
        names = [repr(label) for label in given["first_unknown_labels"]]
        found.append(
            f"{_counted(given['unknown'])} of labels that the gallery does not have: "
            f"{_some(names, given['unknown_labels'])}.{_decided(given.get('unknown_decisions'))}"
        )
    found += _spelling({label: (meant, count) for label, (meant, count) in given["respelt"].items()})
    if given["unreadable"]:
        found.append(
            f"{_counted(given['unreadable'], 'image')} left out, unreadable: "
            f"{_some(given['first_unreadable'], given['unreadable'])}."
        )
    if given["unlabelled"]:
        found.append(f"{_counted(given['unlabelled'])} left out, without a label.")
    if given["in_gallery"]:
        found.append(
            f"{_counted(given['in_gallery'])} left out: items of the gallery itself, which would find themselves."
        )
    return found


class Outside(NamedTuple):
    """What a gallery is calibrated with: its own items where there is no embedding."""

    embedding: Embedding | None
    labels: Sequence[str] | None
    read: LabelledQueries | None = None
    """Where they were read from a place."""
    items: Sequence[str] | None = None
    """That they belong to, in a gallery without labels."""

    def noted(self, gallery: Asking, calibrated: Calibrated) -> Calibrated:
        """The calibration, whose record says, where queries were read from a place, what became of them.

        Queries of labels that the gallery does not have are asked under it.
        """
        if self.read is None:
            return calibrated
        given = self.read.record()
        if strangers := (~self.read.known).nonzero()[:, 0].tolist():
            some = strangers[:: -(-len(strangers) // MOST_ASKED)]
            decided = Counter(gallery.under(calibrated).ask(self.read.embedding[some], k=1).decisions())
            given["unknown_decisions"] = {name: count / len(some) for name, count in decided.items()}
        return replace(calibrated, record={**(calibrated.record or {}), "given": given})


def outside(
    gallery: OpenGallery,
    queries: Pictures | Embedding | LabelledQueries | str | Path | None,
    labels: Sequence[str] | str | Path | None,
    items: Sequence[str] | str | Path | None = None,
    *,
    progress: Progress | None = None,
) -> Outside:
    """Queries however they are given, with their labels; without any, a gallery that needs some is refused."""
    if items is not None:
        return Outside(*paired_with(gallery, queries, labels, items, progress=progress))
    if queries is None:
        if labels is not None:
            raise InputError("Labels say what queries show; give these too.")
        gallery.must_ask_by_itself()
        _must_find_itself(gallery.index)
        return Outside(None, None)
    if isinstance(queries, str | Path):
        if labels is not None and not isinstance(labels, str | Path):
            raise InputError(
                f"The labels of {queries} are read from there, or from a CSV that `labels` names."
            )
        queries = labelled_queries(queries, gallery, labels=labels)
    if isinstance(queries, LabelledQueries):
        return Outside(queries.embedding, queries.labels, queries)
    if isinstance(labels, str | Path):
        raise InputError(
            "A CSV of labels goes with queries that are read from a place; give a list of labels."
        )
    return Outside(gallery.read(queries, progress=progress).embedding, labels)


def _must_find_itself(index: Index) -> None:
    """Refuses a gallery with labels of which hardly one has two items: what is there to search for?"""
    codes = index.labels
    sizes = codes[codes >= 0].bincount()
    shared = int(sizes[sizes > 1].sum())
    if len(sizes) and shared < FEWEST:
        raise InputError(
            f"Of {int(sizes.sum()):,} labelled items {shared} share their label with another, and calibration "
            f"needs {FEWEST} that do; give other photographs of the same things, a folder per label: --queries "
            "FOLDER, or calibrate(queries=FOLDER)."
        )


def _labels_of(index: Index) -> set[str]:
    """Labels that items carry; refused where there is none."""
    names, codes = index.label_names, index.labels.unique().tolist()
    if not (found := {names[code] for code in codes if code >= 0}):
        raise InputError(
            "The gallery has no labels that queries could ask for; add them, or calibrate on pairs."
        )
    return found


def _shards(
    path: Path, gallery: OpenGallery, known: set[str], labels: str | Path | None, meter: Meter | None
) -> Iterator[EmbeddedShard]:
    """Embedded queries; where labels are known before images are read, they are looked at before."""
    if str(path) in feedback_queries.PLACES:
        store = FeedbackStore(gallery.folder)
        yield feedback_queries.labelled_feedback(store, gallery.index.settings, str(path))
    elif path.suffix.lower() == ".csv" and not path.is_dir():
        if labels is not None:
            raise InputError(f"{path} has labels of its own; give no other CSV of labels beside it.")
        yield _listed_images(path, gallery, known, meter)
    elif holds_vectors(path) or (path / MANIFEST).is_file():
        vectors = import_file(path, labels=labels)
        for shard in vectors.shards:
            if shard.embedding is not None and gallery.query_model is None:
                fitting(shard.embedding[:1], gallery.index.settings, model=vectors.fingerprint)
            yield shard
    else:
        table = None if labels is None else read_labels(labels)
        if table is None:
            _look_ahead(path, known)
        for shard in embedded(gallery.asking_model, str(path), meter=meter):
            yield shard if table is None else relabelled(shard, table)


def _look_ahead(path: Path, known: set[str]) -> None:
    """Looks at what folders are called before any image is read."""
    if not path.exists() and str(path).partition(":")[0] not in SOURCES:
        raise InputError(f"There is no file or folder {path}, and no data source of that name.")
    streams = open_streams([str(path)])
    files = [file for stream in streams if isinstance(stream, FolderStream) for file in stream.files]
    if files:
        _must_know_some(path, [file.split("/")[0] if "/" in file else None for file in files], known)


def _listed_images(path: Path, gallery: OpenGallery, known: set[str], meter: Meter | None) -> EmbeddedShard:
    """The images that a CSV names, with its labels."""
    table = read_labels(path, named_by=NAMED_BY)
    _must_know_some(path, table.labels, known)
    if meter is not None:
        meter.start(len(table.ids), 0)
    method = gallery.asking_model.method
    unit = WorkUnit(0, FolderStream(path.absolute().parent, tuple(table.ids)))
    return relabelled(embed_unit(method, unit, batch_size=usual_batch(method), meter=meter), table)


def _must_know_some(place: str | Path, labels: Iterable[str | None], known: set[str]) -> None:
    """Refuses queries of which none carries a label of the gallery: it is not these that were meant."""
    counted = Counter(label for label in labels if label is not None)
    if not counted:
        raise InputError(
            f"{place} says of no query what it shows; accepted are a folder per label, such as garlic/1.jpg below "
            "it, a CSV with the columns path and label, and embeddings with labels."
        )
    if not known & set(counted):
        near = " ".join(_spelling(_respelt(list(counted.elements()), known)))
        raise InputError(
            f"No query of {place} carries a label of the gallery: got {listed(sorted(counted))}; the gallery has "
            f"{listed(sorted(known))}.{f' {near}' if near else ''}"
        )


def _nothing_read(place: str | Path, bad: Sequence[BadImage]) -> str:
    if not bad:
        return f"{place} holds no queries."
    first = f"{bad[0].path or bad[0].id} ({bad[0].reason})"
    return f"None of the {len(bad):,} images of {place} could be read; the first: {first}."


def _respelt(labels: Sequence[str | None], known: set[str]) -> dict[str, tuple[str, int]]:
    """Labels that are the gallery's but for case, blanks and dashes: to count them as unknown would be wrong.

    >>> _respelt(["garlic ", "garlic ", "Ginger", "Leek"], {"Garlic", "Ginger"})
    {'garlic ': ('Garlic', 2)}
    """
    meant = {_folded(name): name for name in sorted(known, reverse=True)}
    counted = Counter(label for label in labels if label is not None and label not in known)
    return {
        label: (meant[_folded(label)], count) for label, count in counted.items() if _folded(label) in meant
    }


def _folded(label: str) -> str:
    """What is left of a label when case, blanks, dashes and ways to write an accent do not matter."""
    plain = normalize("NFKC", label).casefold()
    return "".join(letter for letter in plain if not letter.isspace() and letter not in "-_") or plain


def _spelling(respelt: Mapping[str, tuple[str, int]]) -> list[str]:
    found = [
        f"{label!r} is no label of the gallery, {meant!r} is; {_counted(count)} left out until they say so."
        for label, (meant, count) in list(respelt.items())[:SHOWN]
    ]
    if more := len(respelt) - len(found):
        found.append(f"So are {more:,} more labels.")
    return found


def _counted(count: int, noun: str = "query") -> str:
    """
    >>> _counted(1), _counted(1200), _counted(2, "image")
    ('1 query', '1,200 queries', '2 images')
    """
    plural = "queries" if noun == "query" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def _decided(shares: Mapping[str, float] | None) -> str:
    if shares is None:
        return ""
    answered, absent = (shares.get(decision, 0.0) for decision in ("answer", "not-in-gallery"))
    return f" Asked now, {answered:.1%} of them are answered, {absent:.1%} called not in the gallery."


def _some(names: Sequence[str], count: int) -> str:
    """The first names of so many."""
    more = count - len(names)
    return ", ".join(names) + (f" and {more:,} more" if more else "")


def _are_items(index: Index, embedding: Embedding) -> Tensor:
    """Whether each query (n,) is a picture that the gallery holds."""
    row = index.search(embedding, 1, score="direction").row[:, 0]
    nearest = index.embedding(torch.where(row < 0, index.rows[0], row))
    away = (nearest.direction - embedding.direction).abs().amax(1)
    return (away < SAME) & (row >= 0)
