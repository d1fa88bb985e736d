"""`evaluate`: everything that is measured of one embedding, leave-one-out or query against gallery.

Queries without a positive are left out of retrieval, error and calibration metrics and counted in
`counts["without_positive"]`; they are in-distribution all the same, so OOD metrics keep them. A point embedding
has no uncertainty of its own: its error and OOD metrics stand in `baselines` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.evaluation import steps
from doubtless.evaluation.notes import count, describe, write_notes
from doubtless.evaluation.open_set import DividedQueries, divide_queries, open_set_curves, open_set_measures
from doubtless.evaluation.options import DEFAULT_OPTIONS, NOTHING_GIVEN, EvaluationOptions, GivenScores
from doubtless.evaluation.ordered import decile_curves, joint_curves, joint_order
from doubtless.evaluation.result import Evaluation, QueryRecord
from doubtless.evaluation.setting import Setting, prepare
from doubtless.evaluation.uncertainties import (
    LEARNED,
    MATCH,
    VALUES,
    Uncertainties,
    given_uncertainties,
    ood_uncertainties,
    query_uncertainties,
)
from doubtless.metrics.measure import Curve, Measure
from doubtless.metrics.uncertainty import NAMES
from doubtless.metrics.views import Answered, Matched, Rescaled, Voted, Whole
from doubtless.progress import phase
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
    tell = progress or (lambda step: None)
    setting = prepare(
        embedding,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        ks=options.ks,
        score=options.score,
    )
    tell("neighbours")
    neighbors = setting.neighbors()
    uncertainties = query_uncertainties(setting, neighbors, given)
    of_ood = ood_uncertainties(setting, ood, given)
    doubts, ood_doubts = given_uncertainties(setting, ood, given)
    tell("retrieval")
    material = _Material(
        setting=setting,
        record=_record(setting, neighbors, uncertainties.get(LEARNED)),
        uncertainties=uncertainties | doubts,
        ood={name: values | ood_doubts.get(name, {}) for name, values in of_ood.items()},
        match_probability=given.match_probability,
        voted=steps.vote(setting, neighbors),
        divided=None if options.open_set is None else divide_queries(setting, given, options.open_set),
    )
    return _measure(material, list(doubts), options, tell)


@dataclass(frozen=True, eq=False)
class _Material:
    """All that is measured: what was searched and found, and every uncertainty."""

    setting: Setting
    record: QueryRecord
    uncertainties: Uncertainties  # of the queries
    ood: Mapping[str, Uncertainties]  # of each out-of-distribution set
    match_probability: Tensor | None
    voted: Voted | None  # None for places
    divided: DividedQueries | None  # where labels were left out of the gallery


Tell = Callable[[str], None]
Figures = dict[str, dict[str, Curve]]


def _measure(material: _Material, doubts: list[str], options: EvaluationOptions, tell: Tell) -> Evaluation:
    """Every step in its order; `doubts` are the uncertainties that came from outside beside the learned one."""
    setting, record = material.setting, material.record
    intervals = steps.Intervals(replicates=options.bootstrap, seed=options.seed, device=setting.labels.device)
    table, curves = _measure_uncertainties(material, options, intervals, tell)
    measures = table.pop(VALUES) | table.pop(LEARNED, {})
    rows_of_doubts = {name: table.pop(name) for name in doubts}
    further, reliability = _measure_setting(material, options, intervals, tell)
    measures |= further
    curves |= reliability
    counts = count(setting, material.ood)
    if material.divided is not None:
        counts |= material.divided.counts
    protocol: dict[str, Any] = {
        "samples": options.consensus_samples if reliability else 0,
        "bootstrap": options.bootstrap,
        "seed": options.seed,
        "notes": write_notes(setting, measures, table, ks=options.ks),
    }
    protocol |= describe(setting, counts, reweighted_to=options.ood_ratio)
    if options.open_set is not None:
        protocol["open_set"] = asdict(options.open_set)
    queries = _kept(record, material.uncertainties, material.voted)
    orders = {name: joint_order(material.uncertainties, outside) for name, outside in material.ood.items()}
    return Evaluation(measures, table, counts, protocol, curves, queries, rows_of_doubts, orders)


@phase("intervals")
def _measure_uncertainties(
    material: _Material, options: EvaluationOptions, intervals: steps.Intervals, tell: Tell
) -> tuple[steps.Table, Figures]:
    """Numbers and figures of every uncertainty, the learned one and the free ones alike."""
    tell("errors and intervals")
    setting, record = material.setting, material.record
    counted = {name: values[setting.counted] for name, values in material.uncertainties.items()}
    answered = Answered(record.correct, record.values)
    table = steps.query_measures(counted, answered, risks=options.risks, intervals=intervals)
    curves = steps.error_curves(counted, record.correct) | decile_curves(counted, record.values)
    for name, outside in material.ood.items():
        tell(f"OOD {name}")
        detected = steps.detection_measures(
            material.uncertainties, outside, name=name, intervals=intervals, ratio=options.ood_ratio
        )
        for source, row in detected.items():
            table[source] |= row
        curves |= steps.detection_curves(material.uncertainties, outside, name=name)
        curves |= joint_curves(material.uncertainties, outside, name=name)
    if material.divided is not None and options.open_set is not None:
        tell("open set")
        share = options.open_set.share
        found = open_set_measures(material.divided, share=share, risks=options.risks, intervals=intervals)
        for source, row in found.items():
            table[source] |= row
        curves |= open_set_curves(material.divided, share=share)
    return table, curves


def _measure_setting(
    material: _Material, options: EvaluationOptions, intervals: steps.Intervals, tell: Tell
) -> tuple[dict[str, Measure], Figures]:
    """What is measured once: the consensus of draws, match probabilities, pairs, clusters and the whole."""
    setting, record = material.setting, material.record
    measures: dict[str, Measure] = {}
    curves: Figures = {}
    if material.voted is not None:
        measures |= intervals.row(material.voted)
    if options.consensus_samples and setting.embedding.uncertainty is not None:
        tell("consensus")
        with phase("consensus"):
            agreed = steps.draw_consensus(setting, samples=options.consensus_samples, seed=options.seed)
        measures |= intervals.row(agreed)
        curves["reliability"] = {"consensus": steps.consensus_curve(agreed)}
        if options.scale is not None:
            with phase("consensus"):
                tuned = steps.draw_consensus(
                    setting, samples=options.consensus_samples, seed=options.seed, scale=options.scale
                )
            measures |= intervals.row(Rescaled(tuned.count, tuned.correct, tuned.samples, options.scale))
            curves["reliability"]["tuned"] = steps.consensus_curve(tuned)
    if material.match_probability is not None:
        probability = material.match_probability.to(record.correct.device)[setting.counted]
        measures |= intervals.row(Matched(probability, record.correct))
    tell("pairs")
    if (paired := steps.count_pairs(setting)) is not None:
        measures |= intervals.row(paired)
    if options.clusters:
        tell("clusters")
        if (clustered := steps.find_clusters(setting)) is not None:
            measures |= intervals.row(clustered)
    return measures | intervals.row(_whole(setting, record)), curves


def _whole(setting: Setting, record: QueryRecord) -> Whole:
    return Whole(
        setting.embedding,
        setting.labels,
        setting.gallery,
        setting.gallery_labels,
        setting.leave_one_out,
        counted=record.index,
        neighbor=record.neighbor,
        correct=record.correct,
        values=record.values,
    )


def _record(setting: Setting, neighbors: Neighbors, learned: Tensor | None) -> QueryRecord:
    rows = setting.counted
    first = neighbors.index[rows, 0]
    return QueryRecord(
        index=rows,
        neighbor=first,
        correct=setting.is_right(rows, first),
        uncertainty=None if learned is None else learned[rows],
        values=setting.retrieval_values(neighbors),
    )


def _kept(record: QueryRecord, uncertainties: Uncertainties, voted: Voted | None) -> QueryRecord:
    """What figures and comparisons read: the free baselines too, and nothing of a GPU's memory."""
    kept = {
        f"{'baseline' if name in NAMES else 'doubt'}/{name}": values[record.index]
        for name, values in uncertainties.items()
        if name not in (LEARNED, MATCH)
    }
    if voted is not None:
        kept["label_top1"] = voted.correct.double()
    return QueryRecord(
        index=record.index.cpu(),
        neighbor=record.neighbor.cpu(),
        correct=record.correct.cpu(),
        uncertainty=None if record.uncertainty is None else record.uncertainty.cpu(),
        values={name: value.cpu() for name, value in {**record.values, **kept}.items()},
    )
