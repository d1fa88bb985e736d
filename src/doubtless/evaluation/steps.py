"""The steps of an evaluation: each takes the setting and gives measures and lines for figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from doubtless.evaluation.setting import Setting
from doubtless.evaluation.uncertainties import LEARNED, MATCH, ORACLE, VALUES, Doubts
from doubtless.metrics import calibration, clustering, ood, verification
from doubtless.metrics import calibration as consensus
from doubtless.metrics.bootstrap import mean_form, measures
from doubtless.metrics.measure import Curve, Measure
from doubtless.metrics.uncertainty import (
    oracle_form,
    oracle_sparsification_curve,
    risk_coverage_curve,
    selective_form,
    sparsification_curve,
)
from doubtless.search.relevance import Positions

Table = dict[str, dict[str, Measure]]
"""Whose (an uncertainty's name, or "values" for what needs none) → metric → Measure."""


class Meter:
    """Measures several forms over the same draws of the same items."""

    def __init__(self, *, replicates: int, seed: int, device: torch.device) -> None:
        self.replicates, self.seed, self.device = replicates, seed, device

    def __call__(self, forms: Mapping[str, Callable[..., dict[str, Tensor]]], sizes: Sequence[int]) -> Table:
        def joined(*weights: Tensor) -> dict[str, Tensor]:
            return {
                f"{owner}\n{metric}": value
                for owner, form in forms.items()
                for metric, value in form(*weights).items()
            }

        generator = torch.Generator().manual_seed(self.seed)
        flat = measures(joined, sizes, replicates=self.replicates, generator=generator, device=self.device)
        table: Table = {owner: {} for owner in forms}
        for name, measure in flat.items():
            owner, metric = name.split("\n")
            table[owner][metric] = measure
        return table


def query_measures(
    doubts: Doubts, correct: Tensor, values: Mapping[str, Tensor], *, risks: Sequence[float], meter: Meter
) -> Table:
    """Retrieval means and what each uncertainty knows of errors; all per query that counts, (q,)."""
    forms = {name: selective_form(doubt, correct, risks=risks) for name, doubt in doubts.items()}
    forms[VALUES] = mean_form(values)
    forms[ORACLE] = oracle_form(correct)
    if LEARNED in doubts:
        ranked = {name.replace("map@", "ece@"): value for name, value in values.items() if _is_map_at_k(name)}
        forms["rank"] = calibration.rank_ece_form(doubts[LEARNED], ranked)
    table = meter(forms, [len(correct)])
    table[VALUES] |= table.pop(ORACLE)
    if MATCH in table:
        table[LEARNED]["ausc_match"] = table.pop(MATCH)["ausc"]
    if LEARNED in table:
        table[LEARNED] |= table.pop("rank")
    return table


def error_curves(doubts: Doubts, correct: Tensor) -> dict[str, dict[str, Curve]]:
    """Sparsification and risk-coverage, a line an uncertainty, beside the oracle and chance."""
    share = float(correct.double().mean())
    removed: dict[str, Curve] = {"oracle": oracle_sparsification_curve(correct)}
    risk: dict[str, Curve] = {"oracle": risk_coverage_curve(-correct.double(), correct)}
    removed["random"] = Curve([0.0, 1.0], [share, share])
    risk["random"] = Curve([0.0, 1.0], [1 - share, 1 - share])
    for name, doubt in doubts.items():
        removed[name] = sparsification_curve(doubt, correct)
        risk[name] = risk_coverage_curve(doubt, correct)
    return {"sparsification": removed, "risk_coverage": risk}


def detection_measures(
    inside: Doubts, outside: Doubts, *, name: str, meter: Meter, ratio: float | None = None
) -> Table:
    """What each uncertainty that both sets have knows of the OOD set `name`; AUPRC at `ratio` : 1 too, if given."""
    shared = [source for source in inside if source in outside]
    sizes = [len(next(iter(part.values()))) for part in (inside, outside)]
    forms = {source: ood.detection_form(inside[source], outside[source], ratio=ratio) for source in shared}
    return {
        source: {f"ood_{metric}/{name}": measure for metric, measure in found.items()}
        for source, found in meter(forms, sizes).items()
    }


def detection_curves(inside: Doubts, outside: Doubts, *, name: str) -> dict[str, dict[str, Curve]]:
    """ROC of each shared uncertainty; histograms of the learned one, or of the distance where none is."""
    shared = [source for source in inside if source in outside]
    shown = LEARNED if LEARNED in shared else "distance"
    return {
        f"roc/{name}": {source: ood.roc_curve(inside[source], outside[source]) for source in shared},
        f"histogram/{name}": ood.histograms(inside[shown], outside[shown]),
    }


def consensus_measures(
    setting: Setting, *, samples: int, seed: int, meter: Meter
) -> tuple[dict[str, Measure], Curve]:
    """`ece` of the draws' consensus and its reliability curve."""
    generator = torch.Generator(device=setting.labels.device).manual_seed(seed)
    rows = setting.counted
    count = torch.empty_like(rows)
    correct = torch.empty_like(rows, dtype=torch.bool)
    chunks = consensus.draw_hits(
        lambda chosen: setting.embedding[chosen].sample(samples, generator=generator),
        rows,
        gallery=setting.gallery.direction,
        samples=samples,
        exclude=None if setting.exclude is None else setting.exclude[rows],
    )
    for chunk, hits in chunks:
        count[chunk], correct[chunk] = setting.agreement(rows[chunk], hits)
    table = meter({VALUES: calibration.consensus_form(count, correct, samples=samples)}, [len(rows)])
    bins = calibration.consensus_bins(count, samples=samples)
    return table[VALUES], calibration.reliability_curve(count.double() / samples, correct, bins=bins)


def cluster_measures(setting: Setting) -> dict[str, Measure]:
    """NMI and F1 of k-means on the queries' directions; no interval: only other seeds would give one.

    Places are no classes that could be found again: they have neither.
    """
    labels = setting.labels
    if isinstance(labels, Positions):
        return {}
    assigned = clustering.kmeans(setting.embedding.direction, len(labels.unique()))
    return {
        "nmi": Measure(clustering.nmi(labels, assigned)),
        "f1": Measure(clustering.pair_f1(labels, assigned)),
    }


def verification_measures(setting: Setting) -> dict[str, Measure]:
    """TAR and threshold at several FAR, and EER, over all pairs; no interval: pairs share their items.

    Places are no classes: they have none.
    """
    labels, others = setting.labels, setting.gallery_labels
    if isinstance(labels, Positions) or isinstance(others, Positions):
        return {}
    own, gallery = setting.embedding.direction, setting.gallery.direction
    if setting.leave_one_out:
        return verification.verification_measures(verification.count_pairs(own, labels))
    counts = verification.count_pairs(own, labels, gallery=gallery, gallery_labels=others)
    return verification.verification_measures(counts)


def match_measures(probability: Tensor, correct: Tensor, *, meter: Meter) -> dict[str, Measure]:
    """`match_ece` and `match_brier` of calibrated probabilities (q,) that the first hit is right."""
    form = calibration.match_form(probability, correct)
    return meter({VALUES: form}, [len(correct)])[VALUES]


def _is_map_at_k(name: str) -> bool:
    return name.startswith("map@") and name != "map@r"
