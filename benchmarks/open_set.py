"""Answers where some queries show what is not in the gallery: is what they promise kept, and what are they worth?

    python benchmarks/open_set.py --cache features --run cub=runs/birds --run lfw=runs/faces --divisions 200

Data and weights lie below $DOUBTLESS_DATA. Features of EfficientNet-lite0 (frozen_features.py) are half-whitened by
the training classes, those of a trained network come from the run of a suite (--run); what is made is kept in the
cache, as is every division that was measured, so the command can be stopped and called again, with more divisions.
A cache that holds the features (`cub.pt`, `trained-cub.pt` and so on) is all it needs, neither data nor weights;
`--jobs 16` measures sixteen divisions at a time.
It writes open-set.json and README.md, whatever number of divisions there is.

The protocol, fixed before any of it was looked at. Only classes that no network was trained on take part.

Division   Half of the labels, drawn at random, are the gallery's, the others unknown. Of a gallery label's photos
           70 % are in the gallery (a remainder is rounded up or down at random, one photo is always in), the
           others are known queries; all photos of unknown labels are unknown queries. Divisions share their photos,
           so they are not independent.
Fitted     on the gallery's items alone: each without itself (present, if its label has another item), each without
           its label (absent). `fit_distribution`, its `unseen` probabilities as `Outcomes`, `Promise` with π = 0,
           .1 and .5 and targets of .05 and .1 at 95 % confidence. The probabilities are those for the same π.
Used       A query is answered with its most probable label where that has at least the promise's probability. Where
           the target cannot be promised nothing is answered under it; the least bound that could be is held to
           as well, at its own threshold.
R          = ((1 − π) e₁ + π a₀)/((1 − π) c₁ + π a₀) on the test queries: c₁, e₁ per known query, a₀ the mean over
           unknown labels of the share of their photos that is answered (what is promised).
Broken     R above what was promised. `broken` counts every division where it is, though R is counted on some
           hundred answers and scatters: where the true R is at the bound it is above it half of the time. `surely`
           counts those where a binomial test rejects R ≤ bound at 5 %, one-sided, with as many answers as the
           weighted ones are worth, (Σw)²/Σw². Photos of one unknown label depend on each other, which this test
           ignores, so it rejects too often rather than too rarely. 5 % is what the confidence allows.
Oracle     the largest coverage with R at most the target that any threshold on the same probabilities has on these
           very test queries.
Old rule   as before unknowns were thought of: 1 − P(first hit right) of the first hit's label, the threshold of
           `RiskControl`, never answering what is held to be not in the gallery; held to the target at each π.
Top-1      of known queries: the most probable label, the first hit's, that of a vote of ten hits weighted by
           exp(cos/.07), and by the cosine.
ECE        15 equally full bins, of as many queries as there are with a share π of unknown ones: of the most
           probable of labels and none (`top`), of the first and second label, of none. `perfect` is the mean of
           ten draws of outcomes from the distribution itself. An unknown query, and a known one whose label is not
           among its hits, is *none*. `pooled`: all divisions' queries in 15 bins of equal width, where what is
           noise in one division evens out.
AUROC      right answers against wrong ones and unknown queries, weighted by π: of P(most probable label), of
           P(first hit right) for the first hit's answers, and for these of the first hit's label's probability.
FNIR, OSCR of the probabilities for π = .1, unknown labels equally likely.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from divisions import FEATURES, Photos, Record, arguments, divide, frozen_photos, kept, measured_by
from open_set_measures import Asked, auroc, calibration_errors, held, of_open_sets
from open_set_page import write_results
from torch import Tensor

from doubtless.calibration.evidence.evidence import LabelHits, evidence
from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Calibration, Known, calibrate, gated
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import Promise
from doubtless.calibration.searches import FittedDistribution, Sample, Searches, fit_distribution
from doubtless.metrics import label_top1, vote_weights
from doubtless.search.hits import Hits

SHARES = (0.0, 0.1, 0.5)
"""π: queries whose label is not in the gallery."""
TARGETS = (0.05, 0.1)
LABEL_DEPTH = 50
"""Hits that labels are looked for among; the old rule looks at the first `DEPTH`."""
RESULTS = Path(__file__).parent / "results" / "open-set"


def searched(photos: Photos, queries: Tensor, gallery: Tensor, *, without: str = "") -> LabelHits:
    """The first hits of queries (n,) among the gallery's rows (g,), `without` nothing, itself or its label."""
    score = photos.similarity[queries.unsqueeze(1), gallery]
    label = photos.labels[gallery]
    if without == "itself":
        score.masked_fill_(queries.unsqueeze(1) == gallery, -torch.inf)
    if without == "label":
        score.masked_fill_(photos.labels[queries].unsqueeze(1) == label, -torch.inf)
    best = score.topk(min(LABEL_DEPTH, len(gallery)), dim=1)
    found = torch.where(best.values.isfinite(), label[best.indices], -1)
    return LabelHits(found, best.values, best.indices, photos.vectors[queries])


def own_searches(photos: Photos, gallery: Tensor) -> Searches:
    """The gallery's items without themselves, where their label has another one, and without their label."""
    items, label = photos.vectors[gallery], photos.labels[gallery]
    several = ((label.unsqueeze(1) == label).sum(1) > 1).nonzero().squeeze(1)
    return Searches(
        searched(photos, gallery[several], gallery, without="itself"),
        label[several],
        searched(photos, gallery, gallery, without="label"),
        label,
        vectors=lambda rows: items[rows],
        sample=Sample(items, label, several),
    )


def old_hits(hits: LabelHits) -> Hits:
    """The first hits as the old rule reads them."""
    assert hits.row is not None
    score = hits.score[:, :DEPTH].double().clamp(-1, 1)
    there = score.isfinite()
    row = torch.where(there, hits.row[:, :DEPTH], -1)
    distance = torch.where(there, 2 - 2 * score, torch.inf)
    return Hits(row, score.masked_fill(~there, -torch.inf), distance, label=hits.label[:, :DEPTH])


def old_rule(searches: Searches) -> Calibration:
    """The calibration of a gallery on its own items, first hits only."""
    assert searches.sample is not None
    assert searches.sample.row is not None
    absent = searches.absent[searches.sample.row]
    return calibrate(Known(old_hits(searches.present), searches.label, old_hits(absent)), figures=False)


def promises(fitted: FittedDistribution, searches: Searches, unknown: float) -> dict[float, Promise]:
    """Target → what is promised of a share π of unknown queries."""
    present, absent = fitted.unseen(unknown=unknown)
    first, chance = present.first
    outcomes = Outcomes(chance, first == searches.label, searches.label, absent.first[1], searches.removed)
    return {target: Promise.of(outcomes, Terms(target_error=target, unknown=unknown)) for target in TARGETS}


def measure(photos: Photos, seed: int) -> Record:
    """Everything of one division."""
    division = divide(photos.labels, seed)
    gallery, known = division.gallery, len(division.known)
    searches = own_searches(photos, gallery)
    fitted, old = fit_distribution(searches), old_rule(searches)
    queries = torch.cat([division.known, division.unknown])
    hits, label = searched(photos, queries, gallery), photos.labels[queries]
    given = evidence(hits, fitted.model.by, vectors=searches.vectors)
    before = _before(old, hits, label, known)
    record: Record = {
        "seed": seed,
        "gallery": len(gallery),
        "labels": len(photos.labels[gallery].unique()),
        "known": known,
        "unknown": len(division.unknown),
        "promise": {},
        "ece": {},
        "auroc": {},
    }
    for share in SHARES:
        found = fitted.model.weights(given, unknown=share)
        first, chance = found.first
        now = Asked(1 - chance[:known], first[:known] == label[:known], 1 - chance[known:], label[known:])
        for target, promise in promises(fitted, searches, share).items():
            record["promise"][f"{share:g}/{target:g}"] = held(now, promise) | {
                "old": _old_held(before, old, share, target)
            }
        if share > 0:
            truth = torch.where(torch.arange(len(label)) < known, label, -1)
            record["ece"][f"{share:g}"] = calibration_errors(found, truth, now, share, seed=seed)
            record["auroc"][f"{share:g}"] = _aurocs(
                now, before, 1 - found.of(hits.label[:, :1]).squeeze(1), share
            )
        if share == 0.1:
            record["top1"] = _top1(hits[torch.arange(known)], label[:known], now)
            record["open"] = {"now": of_open_sets(now), "old": of_open_sets(before)}
    return record


def _before(old: Calibration, hits: LabelHits, label: Tensor, known: int) -> Asked:
    """What the old rule says of the test queries: the doubt of first hits, infinite where held to be not there."""
    first = old_hits(hits)
    chance = old.calibrator.probability(first)[:, 0]
    gate = gated(1 - chance, old.presence.p_value(first), old.presence.false_alarm)
    right = hits.label[:known, 0] == label[:known]
    return Asked(1 - chance[:known], right, 1 - chance[known:], label[known:], gate=gate)


def _old_held(before: Asked, old: Calibration, share: float, target: float) -> Record:
    risk = old.risk.at(target_error=target)
    assert before.gate is not None
    return before.came_to(risk.answers(before.gate), share, target) | {"met": risk.met}


def _aurocs(now: Asked, before: Asked, of_first_hit: Tensor, share: float) -> dict[str, float]:
    """Of both rules for their own answers, and of the distribution (n + m,) for the first hits' labels."""
    known = len(now.known)
    same_answers = replace(before, known=of_first_hit[:known], unknown=of_first_hit[known:])
    return {
        "now": auroc(now, share),
        "old": auroc(before, share),
        "now_of_first_hit": auroc(same_answers, share),
    }


def _top1(hits: LabelHits, label: Tensor, now: Asked) -> dict[str, float]:
    near, cosine = hits.label[:, :10], hits.score[:, :10]
    return {
        "label": float(now.correct.double().mean()),
        "first_hit": float((hits.label[:, 0] == label).double().mean()),
        "vote": label_top1(near, vote_weights(cosine), label),
        "vote_cosine": label_top1(near, cosine.double().clamp_min(0), label),
    }


def trained_photos(name: str, cache: Path, run: str | None) -> Photos | None:
    """The test part of a run by its network, from the cache or made now; None where there is neither."""
    path = cache / f"trained-{name}.pt"
    if not path.exists():
        if run is None:
            return None
        from doubtless.runs.data import embed_images, open_run_data
        from doubtless.runs.names import open_model
        from doubtless.runs.run import Run

        opened = Run.open(run)
        test = open_run_data(opened.config, split=opened.split).test
        direction = embed_images(open_model(run).method, test).to("cpu").direction
        cache.mkdir(parents=True, exist_ok=True)
        torch.save({"vectors": direction, "labels": test.labels}, path)
    found = torch.load(path)
    return Photos(torch.nn.functional.normalize(found["vectors"].float(), dim=1), found["labels"].long())


def same_classes(photos: Photos, others: Photos) -> Photos:
    """Photos of the labels that the others have, too: where these are of some classes, so are all."""
    both = torch.isin(photos.labels, others.labels)
    return Photos(photos.vectors[both], photos.labels[both])


def measured(photos: Photos, path: Path, divisions: int, jobs: int = 1) -> list[Record]:
    """The divisions 0, 1, … of a set, those that a file already has taken from there, new ones added to it."""
    return kept(path, divisions, lambda seeds: measured_by(measure, photos, seeds, jobs))


def measured_sets(
    cache: Path, runs: Mapping[str, str], names: list[str], divisions: int, jobs: int = 1
) -> None:
    """All divisions of the sets, by frozen features and, where there is one, by a trained network."""
    for name in names:
        frozen = frozen_photos(name, cache)
        measured(frozen, cache / "divisions" / f"{name}-frozen.jsonl", divisions, jobs)
        trained = trained_photos(name, cache, runs.get(name))
        if trained is None:
            print(f"{name}: no trained network (--run {name}=FOLDER)", flush=True)
            continue
        path = cache / "divisions" / f"{name}-trained.jsonl"
        measured(same_classes(trained, frozen), path, divisions, jobs)


def main() -> None:
    parser = arguments(__doc__, divisions=200, results=RESULTS)
    parser.add_argument("--run", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--sets", nargs="+", choices=list(FEATURES), default=list(FEATURES))
    parser.add_argument("--jobs", type=int, default=1, help="Processes, of one thread each.")
    options = parser.parse_args()
    runs = dict(run.split("=", 1) for run in options.run)
    measured_sets(options.cache, runs, options.sets, options.divisions, options.jobs)
    write_results(options.cache / "divisions", options.out)


if __name__ == "__main__":
    main()
