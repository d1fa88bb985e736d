"""The steps of an evaluation: each prepares a view for the metrics registered for it, or draws a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from doubtless.evaluation.setting import Setting
from doubtless.evaluation.uncertainties import LEARNED, MATCH, VALUES, Uncertainties
from doubtless.metrics import calibration, clustering, ood, verification
from doubtless.metrics.bootstrap import mean_form, measures
from doubtless.metrics.labels import most_evident_label, vote_weights
from doubtless.metrics.measure import Curve, Measure
from doubtless.metrics.metric import work_out
from doubtless.metrics.uncertainty import (
    DEPTH,
    oracle_sparsification_curve,
    risk_coverage_curve,
    sparsification_curve,
)
from doubtless.metrics.views import Agreed, Answered, Clustered, Paired, Scored, Separated, View, Voted
from doubtless.search.neighbors import Neighbors
from doubtless.search.relevance import Positions

Table = dict[str, dict[str, Measure]]
"""Whose (an uncertainty's name, or "values" for what needs none) → metric → Measure."""


class Intervals:
    """Measures views of the same items, their intervals over the same draws."""

    def __init__(self, *, replicates: int, seed: int, device: torch.device) -> None:
        self.replicates, self.seed, self.device = replicates, seed, device

    def table(
        self, views: Mapping[str, View], *, means: Mapping[str, Mapping[str, Tensor]] | None = None
    ) -> Table:
        """Every metric of every view, by the views' names. `means`: name → metric → values of the items (n,)."""
        worked_out = {owner: work_out(view) for owner, view in views.items()}
        forms = [(owner, mean_form(values)) for owner, values in (means or {}).items()]
        for owner, (values, weighted, _) in worked_out.items():
            weighted = [mean_form(values), *weighted] if values else weighted
            forms += [(owner, form) for form in weighted]
        table: Table = {owner: {} for owner in (*(means or {}), *views)}
        if forms:
            sizes = next(iter(views.values())).sizes
            for (owner, metric), measure in self._measured(forms, sizes).items():
                table[owner][metric] = measure
        for owner, (_, _, plain) in worked_out.items():
            table[owner] |= {metric: Measure(value) for metric, value in plain.items()}
        return table

    def row(self, view: View) -> dict[str, Measure]:
        """Every metric of one view."""
        return self.table({VALUES: view})[VALUES]

    def _measured(
        self, forms: list[tuple[str, Callable[..., dict[str, Tensor]]]], sizes: tuple[int, ...]
    ) -> dict[tuple[str, str], Measure]:
        """All forms in one pass over the draws: (owner, metric) → Measure."""

        def joined(*weights: Tensor) -> dict[str, Tensor]:
            return {
                f"{owner}\n{metric}": value
                for owner, form in forms
                for metric, value in form(*weights).items()
            }

        generator = torch.Generator().manual_seed(self.seed)
        flat = measures(joined, sizes, replicates=self.replicates, generator=generator, device=self.device)
        return {(name.split("\n")[0], name.split("\n")[1]): measure for name, measure in flat.items()}


def query_measures(
    uncertainties: Uncertainties, answered: Answered, *, risks: Sequence[float], intervals: Intervals
) -> Table:
    """Retrieval means and what each uncertainty knows of errors; all per query that counts, (q,)."""
    views: dict[str, View] = {VALUES: answered}
    views |= {
        name: Scored(
            uncertainty,
            answered.correct,
            answered.values,
            risks,
            learned=name == LEARNED,
            match=uncertainties.get(MATCH) if name == LEARNED else None,
        )
        for name, uncertainty in uncertainties.items()
        if name != MATCH
    }
    return intervals.table(views, means={VALUES: answered.values})


def error_curves(uncertainties: Uncertainties, correct: Tensor) -> dict[str, dict[str, Curve]]:
    """Sparsification and risk-coverage, one line per uncertainty, beside the oracle and chance."""
    share = float(correct.double().mean())
    removed: dict[str, Curve] = {"oracle": oracle_sparsification_curve(correct)}
    risk: dict[str, Curve] = {"oracle": risk_coverage_curve(-correct.double(), correct)}
    removed["random"] = Curve([0.0, 1.0], [share, share])
    risk["random"] = Curve([0.0, 1.0], [1 - share, 1 - share])
    for name, uncertainty in uncertainties.items():
        if name != MATCH:
            removed[name] = sparsification_curve(uncertainty, correct)
            risk[name] = risk_coverage_curve(uncertainty, correct)
    return {"sparsification": removed, "risk_coverage": risk}


def detection_measures(
    inside: Uncertainties,
    outside: Uncertainties,
    *,
    name: str,
    intervals: Intervals,
    ratio: float | None = None,
) -> Table:
    """What each uncertainty that both have knows of the out-of-distribution set `name`."""
    views = {
        source: Separated(inside[source], outside[source], ratio) for source in inside if source in outside
    }
    return {
        source: {f"{metric}/{name}": measure for metric, measure in row.items()}
        for source, row in intervals.table(views).items()
    }


def detection_curves(
    inside: Uncertainties, outside: Uncertainties, *, name: str
) -> dict[str, dict[str, Curve]]:
    """ROC of each shared uncertainty; histograms of the learned one, or of the distance where none is."""
    shared = [source for source in inside if source in outside]
    shown = LEARNED if LEARNED in shared else "distance"
    return {
        f"roc/{name}": {source: ood.roc_curve(inside[source], outside[source]) for source in shared},
        f"histogram/{name}": ood.histograms(inside[shown], outside[shown]),
    }


def draw_consensus(setting: Setting, *, samples: int, seed: int, scale: float = 1.0) -> Agreed:
    """What draws of every query that counts agree on, their variance times `scale`; what they search stays."""
    drawn = setting.embedding.scaled(scale)
    generator = torch.Generator(device=setting.labels.device).manual_seed(seed)
    rows = setting.counted
    count = torch.empty_like(rows)
    correct = torch.empty_like(rows, dtype=torch.bool)
    chunks = calibration.draw_hits(
        lambda chosen: drawn[chosen].sample(samples, generator=generator),
        rows,
        gallery=setting.gallery.direction,
        samples=samples,
        exclude=None if setting.exclude is None else setting.exclude[rows],
    )
    for chunk, hits in chunks:
        count[chunk], correct[chunk] = setting.agreement(rows[chunk], hits)
    return Agreed(count, correct, samples)


def consensus_curve(agreed: Agreed) -> Curve:
    """How often answers are right, by the share of draws that agree on them."""
    bins = calibration.consensus_bins(agreed.count, samples=agreed.samples)
    return calibration.reliability_curve(agreed.count.double() / agreed.samples, agreed.correct, bins=bins)


def vote(setting: Setting, neighbors: Neighbors) -> Voted | None:
    """The label that the first hits of every query that counts vote for. Places have no labels to vote for."""
    labels, gallery_labels = setting.labels, setting.gallery_labels
    if isinstance(labels, Positions) or isinstance(gallery_labels, Positions):
        return None
    rows = setting.counted
    first = Neighbors(neighbors.score[rows, :DEPTH], neighbors.index[rows, :DEPTH])
    weights = vote_weights(setting.search.cosines(setting.embedding[rows], first))
    own = labels[rows]
    return Voted(most_evident_label(gallery_labels[first.index], weights) == own, own)


def count_pairs(setting: Setting) -> Paired | None:
    """All pairs of queries, or of queries and gallery, by their cosine. Places are no classes: they have none."""
    labels, gallery_labels = setting.labels, setting.gallery_labels
    if isinstance(labels, Positions) or isinstance(gallery_labels, Positions):
        return None
    directions = setting.embedding.direction
    if setting.leave_one_out:
        return Paired(verification.count_pairs(directions, labels))
    return Paired(
        verification.count_pairs(
            directions, labels, gallery=setting.gallery.direction, gallery_labels=gallery_labels
        )
    )


def find_clusters(setting: Setting) -> Clustered | None:
    """k-means on the queries' directions. Places are no classes that could be found again: they have none."""
    labels = setting.labels
    if isinstance(labels, Positions):
        return None
    return Clustered(labels, clustering.kmeans(setting.embedding.direction, len(labels.unique())))
