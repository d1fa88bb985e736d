"""What answers promise, counted: errors among answered queries, covering sets, false alarms, match probabilities.

    python benchmarks/guarantee.py omniglot.safetensors fashion.safetensors --out results.json

Each file holds the embedding of a test part with its labels (`Embedding.save`). Every item queries all others.
In each of 200 random splits by query 5,000 queries calibrate (three tenths of them fit, the rest promises) and all
others are counted.

holds        splits in which at most 5 % of the answered test queries were wrong. The promise is about the error
             of the whole population; the share wrong among some thousands of test queries scatters around it,
             so `holds` is less than the confidence promises where the bound is sharp.
coverage     share of test queries answered, and that of the oracle: the threshold on the same doubt that a
             test set with known answers would allow
covering     share of test queries whose set contains a true match; `inside` counts splits within the 99 % range of
             a conformal promise: beta-binomial of n calibration and m test queries, never below it by more
match_*      of first hits, on the test queries of the first split by a calibrator fitted on all its 5,000; a
             *perfect* calibrator has the same probabilities, and outcomes drawn from them; *cosine* is isotonic
             regression of the similarity alone
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from scipy.stats import betabinom
from torch import Tensor

from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Calibration, Known, calibrate, gated
from doubtless.embedding import read_embedding
from doubtless.metrics.bootstrap import paired_bootstrap
from doubtless.metrics.calibration import match_brier, match_ece
from doubtless.metrics.uncertainty import coverage_at_risk
from doubtless.search.hits import hits_among, hits_without_class

LEVELS = (0.8, 0.9, 0.95)
SIMULATED = 200


def known_queries(path: Path, most: int | None) -> Known:
    stored = read_embedding(path)
    if stored.labels is None:
        raise SystemExit(f"The file {path} has no labels.")
    embedding, labels = stored.embedding, stored.labels
    if most is not None and most < len(labels):
        kept = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:most]
        embedding, labels = embedding[kept], labels[kept]
    itself = torch.arange(len(labels))
    hits = hits_among(embedding, embedding, k=DEPTH, gallery_labels=labels, itself=itself)
    absent = hits_without_class(embedding, labels, embedding, labels, k=DEPTH)
    return Known(hits, labels, absent)


def count_split(calibration: Calibration, test: Known) -> dict[str, float]:
    """What one calibration did on queries it had not seen."""
    chance, right = calibration.calibrator.probability(test.hits), test.right
    presence = calibration.presence.p_value(test.hits)
    doubt = gated(1 - chance[:, 0], presence, calibration.presence.false_alarm)
    answered = calibration.risk.answers(doubt)
    counts = {
        "error": float((~right[answered, 0]).double().mean()),
        "coverage": float(answered.double().mean()),
        "oracle": coverage_at_risk(doubt, right[:, 0], risk=calibration.risk.target_error),
        "false_alarms": float((presence <= calibration.presence.false_alarm).double().mean()),
    }
    for level in LEVELS:
        sizes = calibration.covering.sizes(chance, confidence=level)
        within = torch.arange(chance.shape[1]) < sizes.unsqueeze(1)
        counts[f"covered@{level}"] = float((within & right).any(1).double().mean())
        counts[f"size@{level}"] = float(sizes.double().mean())
    return counts


def count_guarantees(known: Known, *, splits: int, calibrating: int) -> dict[str, Any]:
    rows, proven = [], 0
    for number in range(splits):
        order = torch.randperm(len(known), generator=torch.Generator().manual_seed(1000 + number))
        calibration = calibrate(known[order[:calibrating]], seed=number, figures=False)
        proven = calibration.risk.queries
        rows.append(count_split(calibration, known[order[calibrating:]]))
    table = {name: torch.tensor([row[name] for row in rows], dtype=torch.double) for name in rows[0]}
    tested = len(known) - calibrating
    figures: dict[str, Any] = {
        "splits": splits,
        "test_queries": tested,
        "holds": int((table["error"] <= 0.05).sum()),
        "error": float(table["error"].mean()),
        "coverage": float(table["coverage"].mean()),
        "oracle_coverage": float(table["oracle"].mean()),
        "largest_gap": float((table["oracle"] - table["coverage"]).max()),
        "mean_gap": float((table["oracle"] - table["coverage"]).mean()),
        "false_alarms": float(table["false_alarms"].mean()),
    }
    for level in LEVELS:
        covered = table[f"covered@{level}"]
        low, high = covering_range(proven, tested, level)
        figures[f"covering@{level}"] = {
            "covered": float(covered.mean()),
            "size": float(table[f"size@{level}"].mean()),
            "range": [low, high],
            "inside": int(((covered >= low) & (covered <= high)).sum()),
            "below": int((covered < low).sum()),
        }
    return figures


def covering_range(calibrating: int, tested: int, level: float) -> tuple[float, float]:
    """Where 99 % of the shares lie that split conformal prediction covers of `tested` new queries."""
    place = -(-int((calibrating + 1) * level * 1e9) // 10**9)
    counts = betabinom(tested, place, calibrating + 1 - place)
    return float(counts.ppf(0.005)) / tested, float(counts.ppf(0.995)) / tested


def match_figures(known: Known, *, calibrating: int) -> dict[str, Any]:
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(1000))
    fit, test = known[order[:calibrating]], known[order[calibrating:]]
    right = test.right[:, 0]
    ours = Calibrator.fit_hits(fit.hits, fit.right)
    cosine = Calibrator.fit_hits(fit.hits, fit.right, method="isotonic", names=("similarity",))
    chance = {
        "ours": ours.probability(test.hits)[:, 0],
        "cosine": cosine.probability(test.hits.first(1))[:, 0],
    }
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(SIMULATED, len(right), generator=generator, dtype=torch.double) < chance["ours"]
    perfect = torch.tensor([match_ece(chance["ours"], row) for row in drawn])
    compared = paired_bootstrap(
        squared(chance["ours"], right), squared(chance["cosine"], right), generator=generator
    )
    return {
        "method": ours.first.method,
        "match_ece": match_ece(chance["ours"], right),
        "perfect_match_ece": float(perfect.mean()),
        "cosine_match_ece": match_ece(chance["cosine"], right),
        "match_brier": match_brier(chance["ours"], right),
        "cosine_match_brier": match_brier(chance["cosine"], right),
        "brier_difference": [compared.difference, compared.low, compared.high],
    }


def squared(chance: Tensor, right: Tensor) -> Tensor:
    return (chance - right.double()).square()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("embeddings", type=Path, nargs="+")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--calibrating", type=int, default=5000)
    parser.add_argument("--most", type=int, default=None, help="items of a file that are used")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    results = {}
    for path in options.embeddings:
        known = known_queries(path, options.most)
        results[path.stem] = {
            "recall@1": float(known.right[:, 0].double().mean()),
            "match": match_figures(known, calibrating=options.calibrating),
            "guarantee": count_guarantees(known, splits=options.splits, calibrating=options.calibrating),
        }
    text = json.dumps(results, indent=2)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
