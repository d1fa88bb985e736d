"""Calibrating a gallery: on its own labelled items, each of them left out, or on labelled queries from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from doubtless.calibration import distribution, fit
from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.evidence.surroundings import search_among
from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import DEFAULT, Calibration, Known
from doubtless.calibration.fit import Targets as Targets
from doubtless.calibration.kept_searches import SPARE, some_of
from doubtless.calibration.pairs.answer import PairAnswer, answer_pair
from doubtless.calibration.pairs.labelled import Recipe
from doubtless.calibration.pairs.pairs import PairCalibrator
from doubtless.calibration.risk import RiskControl
from doubtless.embedding import Embedding
from doubtless.errors import FileError, InputError, nearest
from doubtless.gallery.calibration import labels as label_calibration
from doubtless.gallery.calibration.calibrated import Calibrated
from doubtless.gallery.calibration.doubt import DoubtFitter, FeaturesOf, ItemFeatures, images_are_there
from doubtless.gallery.calibration.paired import paired_queries
from doubtless.gallery.pairs import fit_pairs, surroundings
from doubtless.index.base import Index
from doubtless.index.in_place.index import AROUND
from doubtless.search.hits import Hits, hits_without_class, without_itself

if TYPE_CHECKING:
    from doubtless.data import Progress
    from doubtless.gallery.base import OpenGallery

NoveltyOf = Literal["auto", "features", "directions", "leverage"]
MOST = 20_000
"""Queries an index is calibrated with at most; more would sharpen nothing that can be seen."""
MOST_ABSENT = 4_000
"""Queries that search the gallery once more without their class: each looks at every item."""
MOST_NUMBERS = 200_000_000
"""Numbers of a gallery that are looked at in memory for that; beyond, presence goes by similarity alone."""


def calibrate(
    index: Index,
    targets: Targets = DEFAULT,
    *,
    queries: Embedding | None = None,
    labels: Sequence[str] | None = None,
    belongs_to: Sequence[str] | None = None,
    other_encoder: bool = False,
    combined: bool = True,
    features_of: FeaturesOf | None = None,
    leverage: bool = False,
    most: int = MOST,
    seed: int = 0,
) -> Calibrated:
    """Calibrates everything an answer promises; nothing is kept yet.

    queries, labels   from outside; None: the index's own labelled items search all others
    belongs_to        in place of labels: the item of each query, in an index whose items have none
    other_encoder     what embedded the queries did not embed the items: pairs of pictures are then fitted on items
    combined          fits and saves the combined doubt, and abstains by it; else by 1 − P(first hit right)
    features_of       features before the head of items' images, by which the combined doubt then tells what is
                      new; None: directions serve
    leverage          the combined doubt looks at the space that the gallery's directions fill as well
    most              queries used, drawn at random with `seed` where there are more
    """
    index.look_around(queries)
    known: Known
    if belongs_to is not None and queries is not None:
        known, counts, embedding = paired_queries(index, queries, belongs_to, most=most, seed=seed)
        rows = None
    else:
        known, counts, embedding, rows = calibration_queries(
            index, queries=queries, labels=labels, most=most, seed=seed
        )
    fitter = None
    if combined and index.has_vectors:
        fitter = DoubtFitter(
            index, known.first(DEPTH), embedding, rows, features_of=features_of, leverage=leverage, seed=seed
        )
    pairs = None
    if (
        index.has_vectors and other_encoder
    ):  # two pictures are compared, of which queries of others say nothing
        pairs = _pairs_of_items(index, targets, most=most, seed=seed)
    elif index.has_vectors and belongs_to is None:
        pairs = fit_pairs(index, embedding, known.label, rows, targets)
    about = {**counts, "items": len(index), "pairs": None if pairs is None else dict(pairs.record)}
    if belongs_to is None and label_calibration.is_possible(known):
        made = label_calibration.calibrate(index, known, embedding, rows, targets, fitter=fitter, seed=seed)
        return replace(made, pairs=pairs, record={**about, **(made.record or {})})
    known = known.first(DEPTH)
    calibration = fit.calibrate(known, targets, fit_doubt=fitter, seed=seed)
    doubt = None if fitter is None else fitter.fitted
    record = {**about, **_figures(known, calibration, targets, seed=seed)}
    if doubt is not None:
        record["novelty_of"] = doubt.record["novelty_of"]
    return Calibrated.of(calibration, record, pairs=pairs, doubt=doubt)


def _pairs_of_items(index: Index, targets: Targets, *, most: int, seed: int) -> PairCalibrator | None:
    """From the gallery's own labelled items; None where these are too few, or cannot be looked at."""
    chosen = some_of((index.labels >= 0).nonzero().squeeze(1), most, seed)
    if not index.knows_all or len(chosen) < 2:
        return None
    rows = index.rows[chosen]
    return fit_pairs(index, index.embedding(rows), index.labels[chosen], rows, targets)


def _figures(known: Known, calibration: Calibration, targets: Targets, *, seed: int) -> dict[str, Any]:
    """What the calibration is worth, for queries and for classes that had no part in it."""
    calibrator = calibration.calibrator
    disjoint = calibrator.record.get("class_disjoint", {})
    return {
        "method": calibrator.first.method,
        "features": list(calibrator.first.names),
        "exchangeable": calibrator.record["exchangeable"]
        | fit.trial(known, targets, by_class=False, seed=seed),
        "class_disjoint": disjoint | fit.trial(known, targets, by_class=True, seed=seed),
        "abstention": _abstention(calibration.risk),
        "covering_reach": calibration.covering.reach,
        "presence": dict(calibration.presence.record),
    }


def calibrate_on_pairs(index: Index, pairs: Sequence[tuple[str, str, bool]]) -> Calibrated:
    """Match probability from pairs of items by their ids, known to be the same or not; nothing else.

    A pair says nothing of what a query finds, so abstention, covering sets and presence stay uncalibrated.
    """
    if not pairs:
        raise InputError("There is no pair to calibrate on.")
    rows = index.rows_of([id for first, second, _ in pairs for id in (first, second)])
    for number, pair in enumerate(pairs, start=1):
        if missing := [id for id in pair[:2] if id not in rows]:
            raise InputError(f"Pair {number}: the index has no item {missing[0]!r}.")
    first = index.embedding([rows[one] for one, _, _ in pairs])
    second = index.embedding([rows[other] for _, other, _ in pairs])
    same = torch.tensor([bool(pair[2]) for pair in pairs])
    calibrator = Calibrator.fit_pairs(first, second, same)
    record = {"items": len(index), "method": calibrator.first.method, **calibrator.record}
    record["features"] = list(calibrator.first.names)
    return Calibrated(
        calibrator=calibrator, pairs=PairCalibrator.fit_pairs(first, second, same), record=record
    )


def compare_by_run(
    run: str | Path,
    first: str | Path,
    second: str | Path,
    *,
    prior: float = 0.5,
    target_error: float | None = None,
    progress: Progress | None = None,
) -> PairAnswer:
    """Do two pictures show the same? By a run's model and pairs of its validation images, without a gallery.

    They are taken to show what the validation images do not.
    """
    from doubtless.runs.data import embed_images, open_run_data
    from doubtless.runs.names import open_model
    from doubtless.runs.run import Run

    opened, model = Run.open(run), open_model(run)
    known = open_run_data(opened.config, split=opened.split, progress=progress).validation
    if not len(known):
        raise InputError(
            f"{run} has no validation images to calibrate pairs on; use a gallery that is calibrated."
        )
    items = embed_images(model.method, known, progress=progress).to("cpu")
    pairs = PairCalibrator.fit(items, known.labels, recipe=Recipe(unknown=1.0))
    embedding = model.embed([first, second]).to("cpu")
    one, other = embedding[:1], embedding[1:]
    around = surroundings(search_among(items, known.labels), one, other)
    return answer_pair(one, other, pairs, prior=prior, target_error=target_error, around=around)


def feature_reader(
    gallery: OpenGallery, novelty: NoveltyOf, *, progress: Progress | None = None
) -> ItemFeatures | None:
    """Reads features of the items' images, where these are asked for or, by "auto", can be had."""
    if novelty not in get_args(NoveltyOf):
        raise InputError(f"There is no novelty of {novelty!r}{nearest(novelty, get_args(NoveltyOf))}")
    if novelty in {"directions", "leverage"} or (novelty == "auto" and not _can_look(gallery)):
        return None
    return ItemFeatures(gallery.index, gallery.model, progress=progress)


def _can_look(gallery: OpenGallery) -> bool:
    """Whether the model and the images that it has embedded can be found."""
    try:
        return gallery.find_model() is not None and images_are_there(gallery.index)
    except (InputError, FileError):  # a run that was moved away, or is another one now
        return False


def targets_of(targets: Targets | None, target_error: float | None) -> Targets:
    """What is to be promised: an object, or the usual with another error."""
    if targets is not None and target_error is not None:
        raise InputError("What is to be promised is given as targets or as target_error, and not both.")
    return (targets or DEFAULT) if target_error is None else replace(DEFAULT, target_error=target_error)


def calibration_queries(
    index: Index,
    *,
    queries: Embedding | None = None,
    labels: Sequence[str] | None = None,
    most: int = MOST,
    seed: int = 0,
) -> tuple[Known, dict[str, int], Embedding, Tensor | None]:
    """Queries with a true match in the index, what was left out, their embedding, and their rows in the index."""
    if (queries is None) != (labels is None):
        raise InputError("Queries to calibrate on need their labels; got one of the two.")
    codes = index.labels
    if not bool((codes >= 0).any()):
        raise InputError("The index has no labels to calibrate on; add them, or calibrate on pairs.")
    alone = queries is None
    if queries is None or labels is None:
        chosen = some_of((codes >= 0).nonzero().squeeze(1), most, seed)
        own, label = index.rows[chosen], codes[chosen]
        queries = index.embedding(own)
    else:
        code_of = {name: code for code, name in enumerate(index.label_names)}
        everything = torch.tensor([code_of.get(name, -1) for name in labels])
        chosen = some_of(torch.arange(len(queries)), most, seed)
        queries, label, own = queries[chosen], everything[chosen], None
    counted = codes[codes >= 0].bincount(minlength=int(label.max()) + 1)
    matches = torch.where(label >= 0, counted[label.clamp_min(0)], 0) - int(alone)
    there = (matches > 0).nonzero().squeeze(1)
    counts = {"queries": len(there), "without_positive": len(label) - len(there)}
    if not len(there):
        raise InputError("No query has a true match in the index: no other item carries any query's label.")
    queries, label, own = queries[there], label[there], None if own is None else own[there]
    hits = _searched(index, queries, own)
    return Known(hits, label, _absent(index, queries, label, seed)), counts, queries, own


def _searched(index: Index, queries: Embedding, own: Tensor | None) -> Hits:
    """The first hits of every query, its own row (n,) taken out and the next one moved up."""
    if own is None:
        return index.search(queries, distribution.DEPTH + SPARE)
    hits = index.search(queries, distribution.DEPTH + SPARE + 1)
    return without_itself(hits, own)


def _absent(index: Index, queries: Embedding, label: Tensor, seed: int) -> Hits | None:
    """Some of the queries in the gallery without their class; row −1 for those that were not asked.

    None where nothing would be left to find, or the gallery is too large to be looked at in memory.
    """
    codes = index.labels
    if not index.knows_all:
        return hits_without_label(index.search(queries, AROUND), label, distribution.DEPTH + SPARE)
    if len(codes) * index.dim > MOST_NUMBERS or int((codes >= 0).sum()) == int((codes == label[0]).sum()):
        return None
    some = some_of(torch.arange(len(label)), MOST_ABSENT, seed)
    score = index.settings.score
    found = hits_without_class(
        queries[some],
        label[some],
        index.embedding(),
        codes,
        k=distribution.DEPTH + SPARE,
        score=score,
    )

    def spread(value: Tensor | None, nothing: float) -> Tensor | None:
        if value is None:
            return None
        whole = value.new_full((len(label), found.depth), nothing)
        whole[some] = value
        return whole

    # It was searched by position; of a gallery from which items were removed these are not its rows.
    row, cosine = spread(index.rows[found.row], -1), spread(found.score, -torch.inf)
    distance = spread(found.expected_squared_distance, torch.inf)
    assert row is not None
    assert cosine is not None
    assert distance is not None
    return Hits(
        row,
        cosine,
        distance,
        label=spread(found.label, -1),
        uncertainty=spread(found.uncertainty, torch.inf),
        query_uncertainty=queries.uncertainty,
    )


def hits_without_label(hits: Hits, label: Tensor, k: int) -> Hits:
    """The first k hits (n, K) that do not carry the query's label (n,): what a search without it finds.

    Exact as far as it goes; where most of K carry the label there are fewer than k.

    >>> row = torch.tensor([[5, 6, 7]])
    >>> hits = Hits(row, torch.tensor([[0.9, 0.8, 0.7]]), torch.zeros(1, 3), label=torch.tensor([[1, 0, 2]]))
    >>> hits_without_label(hits, torch.tensor([1]), 3).row
    tensor([[ 6,  7, -1]])
    """
    assert hits.label is not None
    own = hits.label == label.unsqueeze(1)
    order = own.long().argsort(dim=1, stable=True)[:, :k]
    gone = own.gather(1, order)

    def moved(value: Tensor, nothing: float) -> Tensor:
        return value.gather(1, order).masked_fill(gone, nothing)

    return Hits(
        moved(hits.row, -1),
        moved(hits.score, -torch.inf),
        moved(hits.expected_squared_distance, torch.inf),
        label=moved(hits.label, -1),
        query_uncertainty=hits.query_uncertainty,
    )


def _abstention(control: RiskControl) -> dict[str, Any]:
    names = (
        "target_error",
        "confidence",
        "met",
        "coverage",
        "error",
        "bound",
        "reachable_error",
        "reachable_coverage",
        "queries",
    )
    return {name: getattr(control, name) for name in names} | {"sentence": control.sentence()}
