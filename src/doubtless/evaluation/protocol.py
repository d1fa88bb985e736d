"""`evaluate`: everything that is measured of one embedding, leave-one-out or query against gallery.

Queries without a positive are left out of retrieval, error and calibration metrics and counted in
`counts["without_positive"]`; they are in-distribution all the same, so OOD metrics keep them. A point embedding
has no uncertainty of its own: its error and OOD metrics stand in `baselines` only.

Anyone's embeddings from files: the whole evaluation for a method that is not ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from doubtless.embedding import Embedding, StoredEmbedding, read_embedding
from doubtless.errors import InputError
from doubtless.evaluation import steps as measuring
from doubtless.evaluation.notes import count, describe, write_notes
from doubtless.evaluation.options import DEFAULT_OPTIONS, NOTHING_GIVEN, EvaluationOptions, GivenScores
from doubtless.evaluation.result import Evaluation, QueryRecord
from doubtless.evaluation.setting import Setting, prepare
from doubtless.evaluation.uncertainties import (
    LEARNED,
    MATCH,
    VALUES,
    Doubts,
    given_doubts,
    query_doubts,
    stranger_doubts,
)
from doubtless.metrics.measure import Curve
from doubtless.metrics.uncertainty import NAMES
from doubtless.search.neighbors import Neighbors
from doubtless.search.relevance import Truth


def evaluate(
    embedding: Embedding,
    labels: Truth,
    *,
    gallery: Embedding | None = None,
    gallery_labels: Truth | None = None,
    ood: Mapping[str, Embedding] | None = None,
    given: GivenScores = NOTHING_GIVEN,
    options: EvaluationOptions = DEFAULT_OPTIONS,
    progress: Callable[[str], None] | None = None,
) -> Evaluation:
    """Measures retrieval, and whether the uncertainty knows where it fails and what it was never shown.

    embedding, labels   n queries and their integer labels (n,), or `Positions` where items within a radius are
                        right. Without a gallery every item queries all others, itself left out by index;
                        duplicates of it stay in.
    ood                 name → embedding of images of another kind, which have no class at all; they query the
                        same gallery
    given               uncertainties, doubts and probabilities that come from outside
    options             what is measured, and how
    progress            is called with the name of each step as it begins

    >>> import torch
    >>> points, labels = Embedding.point(torch.eye(4).repeat(2, 1)), torch.arange(4).repeat(2)
    >>> evaluate(points, labels, options=EvaluationOptions(bootstrap=0))["recall@1"]
    1.0
    """
    ood = ood or {}
    setting = prepare(
        embedding,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        ks=options.ks,
        score=options.score,
    )
    tell = progress or (lambda step: None)
    tell("neighbours")
    found = setting.neighbors()
    own = query_doubts(
        setting, found, uncertainty=given.uncertainty, gallery_uncertainty=given.gallery_uncertainty
    )
    strangers = stranger_doubts(
        setting, ood, from_outside=given.uncertainty is not None, uncertainty=given.ood_uncertainty
    )
    further, foreign = given_doubts(setting, given.doubts, ood, given.ood_doubts)
    strangers = {name: values | foreign.get(name, {}) for name, values in strangers.items()}
    return _measured(
        setting, found, own | further, strangers, set(further), given.match_probability, options, tell
    )


def _measured(
    setting: Setting,
    found: Neighbors,
    doubts: Doubts,
    strangers: Mapping[str, Doubts],
    given: Collection[str],
    match_probability: Tensor | None,
    options: EvaluationOptions,
    tell: Callable[[str], None],
) -> Evaluation:
    """Every step in its order; `given` names the doubts that came from outside."""
    samples = options.consensus_samples
    meter = measuring.Meter(replicates=options.bootstrap, seed=options.seed, device=setting.labels.device)
    tell("retrieval")
    record = _record(setting, found, doubts.get(LEARNED))
    table, curves = _measure_doubts(
        setting, record, doubts, strangers, options=options, meter=meter, tell=tell
    )
    learned = table.pop(VALUES) | table.pop(LEARNED, {})
    fitted = {name: table.pop(name) for name in doubts if name in given}
    if samples and setting.embedding.uncertainty is not None:
        tell("consensus")
        part, line = measuring.consensus_measures(setting, samples=samples, seed=options.seed, meter=meter)
        learned, curves["reliability"] = learned | part, {"consensus": line}
    if match_probability is not None:
        learned |= measuring.match_measures(
            match_probability.to(record.correct.device)[setting.counted], record.correct, meter=meter
        )
    tell("pairs")
    learned |= measuring.verification_measures(setting)
    if options.clusters:
        tell("clusters")
        learned |= measuring.cluster_measures(setting)
    counts = count(setting, strangers)
    how: dict[str, Any] = {"samples": samples if "ece" in learned else 0, "bootstrap": options.bootstrap}
    how |= {"seed": options.seed, "notes": write_notes(setting, learned, table, asked=options.ks)}
    how |= describe(setting, counts, reweighted_to=options.ood_ratio)
    return Evaluation(learned, table, counts, how, curves, _kept(record, doubts), doubts=fitted)


def _measure_doubts(
    setting: Setting,
    record: QueryRecord,
    doubts: Doubts,
    strangers: Mapping[str, Doubts],
    *,
    options: EvaluationOptions,
    meter: measuring.Meter,
    tell: Callable[[str], None],
) -> tuple[measuring.Table, dict[str, dict[str, Curve]]]:
    """Numbers and figures of every uncertainty, the learned one and the free ones alike."""
    risks, ratio = options.risks, options.ood_ratio
    tell("errors and intervals")
    counted = {name: doubt[setting.counted] for name, doubt in doubts.items()}
    table = measuring.query_measures(counted, record.correct, record.values, risks=risks, meter=meter)
    counted.pop(MATCH, None)
    curves = measuring.error_curves(counted, record.correct)
    for name, stranger in strangers.items():
        tell(f"OOD {name}")
        detected = measuring.detection_measures(doubts, stranger, name=name, meter=meter, ratio=ratio)
        for source, found in detected.items():
            table[source] |= found
        curves |= measuring.detection_curves(doubts, stranger, name=name)
    return table, curves


def _record(setting: Setting, found: Neighbors, learned: Tensor | None) -> QueryRecord:
    rows = setting.counted
    first = found.index[rows, 0]
    return QueryRecord(
        index=rows,
        neighbor=first,
        correct=setting.is_right(rows, first),
        uncertainty=None if learned is None else learned[rows],
        values=setting.retrieval_values(found),
    )


def _kept(record: QueryRecord, doubts: Doubts) -> QueryRecord:
    """What figures and comparisons read: the free baselines too, and nothing of a GPU's memory."""
    kept = {
        f"{'baseline' if name in NAMES else 'doubt'}/{name}": doubt[record.index]
        for name, doubt in doubts.items()
        if name not in (LEARNED, MATCH)
    }
    return QueryRecord(
        index=record.index.cpu(),
        neighbor=record.neighbor.cpu(),
        correct=record.correct.cpu(),
        uncertainty=None if record.uncertainty is None else record.uncertainty.cpu(),
        values={name: value.cpu() for name, value in {**record.values, **kept}.items()},
    )


def evaluate_files(
    embeddings: str | Path,
    *,
    gallery: str | Path | None = None,
    ood: Sequence[str | Path] = (),
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> tuple[Evaluation, StoredEmbedding]:
    """Measures a safetensors or .npz file (location, labels; variance, samples or uncertainty where there are).

    Without a gallery file it is leave-one-out. An `uncertainty` in the file stands in place of the family's.
    Returns what was measured, and the queries.
    """
    queries = _labelled(embeddings)
    searched = None if gallery is None else _labelled(gallery)
    foreign = {Path(path).stem: read_embedding(path) for path in ood}
    if len(foreign) != len(ood):
        raise InputError(
            "Two out-of-distribution files have the same name; their numbers could not be told apart."
        )
    given = GivenScores(
        uncertainty=queries.uncertainty,
        gallery_uncertainty=None if searched is None else searched.uncertainty,
        ood_uncertainty={
            name: stored.uncertainty for name, stored in foreign.items() if stored.uncertainty is not None
        },
    )
    evaluation = evaluate(
        queries.embedding,
        _labels(queries),
        gallery=None if searched is None else searched.embedding,
        gallery_labels=None if searched is None else _labels(searched),
        ood={name: stored.embedding for name, stored in foreign.items()},
        given=given,
        options=options,
    )
    return evaluation, queries


def _labelled(path: str | Path) -> StoredEmbedding:
    stored = read_embedding(path)
    if stored.labels is None:
        raise InputError(f"{path} has no labels; they say what a right answer is.")
    if len(stored.labels) != len(stored.embedding):
        raise InputError(f"{path} has {len(stored.embedding)} embeddings but {len(stored.labels)} labels.")
    return stored


def _labels(stored: StoredEmbedding) -> Tensor:
    assert stored.labels is not None
    return stored.labels
