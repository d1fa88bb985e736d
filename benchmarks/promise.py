"""Does a promise survive use? Filters, growth, another gallery in the place of the first, several photos.

    python benchmarks/promise.py --cache features --divisions 200 --histories 500 --jobs 16

Features of EfficientNet-lite0 (frozen_features.py), half-whitened by the training classes, as in open_set.py. What
is measured is kept in the cache per division, so the command can be stopped and called again with more of them. It
writes promise.json and README.md. `--validation` measures the same on classes that no test class is among (half of
the training classes; the others whiten), by which settings were chosen; it writes nothing but the cache.

The protocol. Gallery, known and unknown queries are divided as in open_set.py: half of the labels are the
gallery's, with 70 % of their photos. Promises are of at most 5 % wrong answers with 95 % confidence, at π = .1.

Filters    A random tenth of the gallery's labels, and a random tenth of its items whatever their label. Known
           queries are those whose label has an item in the part, unknown ones photos of labels not in the gallery.
           *whole*: by the distribution and the promise of the whole gallery. *tail*: the same, log P(none)/P(label)
           moved by b · log(size of the gallery/size of the part), with b from random thirds of the gallery; its
           promise is of the calibration queries, moved likewise. *part*: what the gallery does (`fit_part`).
Growth     From a random tenth of the labels (of Omniglot, from 1,000 items) to the whole gallery. *whole* is what
           was fitted before it grew, *tail* extrapolates it, *part* is fitted on the grown gallery.
ECE        of the most probable of labels and none, pooled: all divisions' queries in 15 bins of equal width;
           `perfect`: of outcomes drawn from the probabilities themselves, what so many queries cannot be below.
Broken     R on the test queries above what was promised; `surely` as in open_set.py.
Replaced   All items by those of the other half of the labels, the same number. `withdrawn`: whether the share that
           changed withdraws the promise at the first question; `unnoticed`: R of answers by the old promise.
Histories  The same gallery in 20 steps of as many photos of its labels coming and going, a quarter of it at the
           end, less one photo. Canaries are asked as the gallery does; `alarms` counts histories with one. The
           level is 1 %.
Photos     Of groups of 1 to 5 test photos of one label that is there, and as many of one that is not, at π = .1:
           top-1, log-loss, the coverage that 5 % of wrong answers allow (`oracle`, by a threshold chosen on these
           very queries), coverage under the promise, ECE and whether it is kept, by pooled distributions
           (*pooled*), of the mean of the vectors (*mean*), and of the photo whose first hit is nearest (*maximum*),
           both judged as single photos.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from frozen_features import frozen_features
from open_set import DIM, FEATURES, Division, divide
from open_set_measures import Asked, oracle_coverage, reliability
from promise_page import write_results
from torch import Tensor

from doubtless.calibration.distribution import Distribution, LabelDistribution
from doubtless.calibration.kept_searches import Found, Items, KeptSearches, hits_of, search_items
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.part import (
    CANARIES,
    CHANGED,
    LEVEL,
    LOOKS,
    MOST_ABSENT,
    MOST_KNOWN,
    FittedPart,
    contradicted,
    drawn,
    fit_part,
)
from doubtless.calibration.promise import Promise
from doubtless.calibration.together import fit_together, with_mean
from doubtless.errors import InputError
from doubtless.laplace import half_whitened

TERMS = Terms(target_error=0.05, unknown=0.1, confidence=0.95)
RESULTS = Path(__file__).parent / "results" / "promise"
STEPS = 20
GROWN_FROM = 1_000
SHIFTS = torch.linspace(-8, 8, 161)
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Photos:
    """Unit vectors (N, D) of test classes and their labels (N,)."""

    vectors: Tensor
    labels: Tensor


def items_of(photos: Photos, rows: Tensor) -> Items:
    """Photos at rows (m,) as the items of a gallery, by their row among all photos."""
    rows = rows.sort().values
    return Items(rows, photos.labels[rows], lambda wanted: photos.vectors[wanted.clamp_min(0)])


def unsearched(photos: Photos, rows: Tensor) -> KeptSearches:
    """Items of a gallery as calibration queries that are not foreign."""
    empty = Found(torch.empty(len(rows), 0, dtype=torch.long), torch.empty(len(rows), 0))
    return KeptSearches(rows, photos.labels[rows], torch.zeros(len(rows), dtype=torch.double), empty, empty)


def fitted(photos: Photos, part: Items, gallery: Items, seed: int) -> tuple[FittedPart, KeptSearches]:
    """As the gallery fits a part of itself, or all of it."""
    kept = unsearched(photos, gallery.row)
    queries = drawn(kept, part, gallery, known=MOST_KNOWN, others=MOST_ABSENT, seed=seed)
    searched = queries.among(part, queries.vectors(gallery))
    return fit_part(searched, part, TERMS, gallery=gallery, seed=seed), searched


def moved(found: Distribution, shift: float) -> Distribution:
    """The same with `shift` added to the log-odds of none."""
    none = torch.sigmoid(torch.logit(found.none.clamp(1e-9, 1 - 1e-9)) + shift)
    none = torch.where(found.none >= 1, found.none, none)
    scale = (1 - none) / (1 - found.none).clamp_min(1e-9)
    return Distribution(found.label, found.probability * scale.unsqueeze(1), none)


def told(photos: Photos, rows: Tensor, items: Items, model: LabelDistribution) -> Distribution:
    """What queries at rows (n,) that are no items of the gallery are told."""
    vectors = photos.vectors[rows]
    found = search_items(vectors, items, own=torch.full_like(rows, -1))
    return model(hits_of(found, items.label_of, vectors), vectors=items.vectors, unknown=TERMS.unknown)


def came_to(found: Distribution, label: Tensor, known: int, promise: Promise) -> Record:
    """Bins of the ECE, and what became of the promise; the first `known` queries' labels are there."""
    chance = torch.cat([found.probability, found.none.unsqueeze(1)], dim=1)
    best, place = chance.max(1)
    first = found.first[0]
    is_none = place == found.probability.shape[1]
    there = torch.arange(len(label)) < known
    among = (found.label == label.unsqueeze(1)).any(1) & there
    right = torch.where(is_none, ~among, there & (first == label))
    sure = found.sureness
    doubt = 1 - sure.clamp_min(-1)
    asked = Asked(doubt[:known], first[:known] == label[:known], doubt[known:], label[known:])
    answered = (sure >= promise.fallback) & (sure > -torch.inf)
    record = asked.came_to(answered, TERMS.unknown, promise.bound)
    weight = asked.weight(TERMS.unknown)
    given = found.outcome(torch.where(there, label, -1))
    return record | {
        "oracle": oracle_coverage(asked, TERMS.unknown, TERMS.target_error),
        "loss": float(-(weight * given.clamp_min(1e-6).log()).sum()),
        "met": promise.met,
        "bound": promise.bound,
        "kept": promise.is_worth_keeping,
        "bins": reliability(best, right, weight),
        "perfect": reliability(best, place == _drawn(chance, len(label)), weight),
        "top1": float((first[:known] == label[:known]).double().mean()),
    }


def _drawn(chance: Tensor, seed: int) -> Tensor:
    """Outcomes (n,) as a perfect distribution would have them, from chances (n, M + 1)."""
    return torch.multinomial(chance, 1, generator=torch.Generator().manual_seed(seed)).squeeze(1)


def tail_slope(photos: Photos, gallery: Items, made: FittedPart, seed: int) -> float:
    """b: what log-odds of none change by per log of size, from calibration queries in a random third."""
    generator = torch.Generator().manual_seed(seed)
    third = gallery[(torch.rand(len(gallery), generator=generator) < 1 / 3).nonzero().squeeze(1)]
    rows = drawn(unsearched(photos, gallery.row), third, gallery, known=400, others=0, seed=seed)
    vectors, label = rows.vectors(gallery), rows.label
    near, far = (
        made.fitted.model(
            hits_of(search_items(vectors, third, own=rows.own, label=without), third.label_of, vectors),
            vectors=gallery.vectors,
            unknown=TERMS.unknown,
        )
        for without in (None, label)
    )
    weights = 1 - TERMS.unknown, TERMS.unknown

    def loss(shift: float) -> float:
        chances = moved(near, shift).outcome(label), moved(far, shift).none
        return -sum(
            weight * float(chance.clamp_min(1e-9).log().mean())
            for weight, chance in zip(weights, chances, strict=True)
        )

    best = min(SHIFTS.tolist(), key=loss)
    return best / float(torch.tensor(len(gallery) / max(1, len(third))).log())


def three_ways(
    photos: Photos,
    known: Tensor,
    unknown: Tensor,
    *,
    calibrated: Items,
    searched: Items,
    everything: Items,
    seed: int,
) -> Record:
    """Queries told by what was fitted elsewhere, by that moved by size, and by what is fitted here."""
    before, _ = fitted(photos, calibrated, calibrated, seed)
    rows = torch.cat([known, unknown])
    label = photos.labels[rows]
    plain = told(photos, rows, searched, before.fitted.model)
    slope = tail_slope(photos, calibrated, before, seed)
    shift = slope * float(torch.tensor(len(calibrated) / len(searched)).log())
    record = {"whole": came_to(plain, label, len(known), before.promise)}
    present, absent = (moved(one, shift) for one in before.fitted.unseen(unknown=TERMS.unknown))
    own, removed = before.searches.label, before.searches.removed
    outcomes = Outcomes(present.sureness, present.first[0] == own, own, absent.sureness, removed)
    record["tail"] = came_to(moved(plain, shift), label, len(known), Promise.of(outcomes, TERMS))
    try:
        made, _ = fitted(photos, searched, everything, seed)
    except InputError:
        return record | {"part": None}
    found = told(photos, rows, searched, made.fitted.model)
    record["part"] = came_to(found, label, len(known), made.promise)
    return record


def filters(photos: Photos, seed: int) -> Record:
    """A tenth of the labels, and a tenth of the items."""
    division = divide(photos.labels, seed)
    gallery = items_of(photos, division.gallery)
    generator = torch.Generator().manual_seed(seed)
    names = gallery.label.unique()
    some = names[torch.randperm(len(names), generator=generator)[: max(2, round(len(names) / 10))]]
    by_item = torch.randperm(len(gallery), generator=generator)[: max(2, len(gallery) // 10)]
    parts = {"labels": torch.isin(gallery.label, some).nonzero().squeeze(1), "items": by_item.sort().values}
    record: Record = {"seed": seed}
    for name, chosen in parts.items():
        part = gallery[chosen]
        known = division.known[torch.isin(photos.labels[division.known], part.label)]
        found = three_ways(
            photos, known, division.unknown, calibrated=gallery, searched=part, everything=gallery, seed=seed
        )
        record[name] = found | {"items": len(part), "known": len(known)}
    return record


def divided_for_growth(labels: Tensor, seed: int) -> Division:
    """Nine labels in ten are the gallery's, three quarters of their photos in it: 20,000 of Omniglot's."""
    generator = torch.Generator().manual_seed(seed)
    names = labels.unique()
    unknown = torch.isin(labels, names[torch.randperm(len(names), generator=generator)[: len(names) // 10]])
    inside = ~unknown & (torch.rand(len(labels), generator=generator) < 0.75)
    return Division(*(part.nonzero().squeeze(1) for part in (inside, ~unknown & ~inside, unknown)))


def growth(photos: Photos, seed: int) -> Record:
    """From a tenth of the labels, or about 1,000 items if that is less, to all of the gallery, and back."""
    large = len(photos.labels) > 20 * GROWN_FROM
    division = divided_for_growth(photos.labels, seed) if large else divide(photos.labels, seed)
    gallery = items_of(photos, division.gallery)
    names = gallery.label.unique()
    share = min(0.1, GROWN_FROM / len(gallery)) if large else 0.1
    generator = torch.Generator().manual_seed(seed)
    some = names[torch.randperm(len(names), generator=generator)[: max(5, round(share * len(names)))]]
    small = gallery[torch.isin(gallery.label, some).nonzero().squeeze(1)]
    known = division.known[torch.randperm(len(division.known), generator=generator)[:4000]]
    of_small = division.known[torch.isin(photos.labels[division.known], some)]
    grown = three_ways(
        photos, known, division.unknown, calibrated=small, searched=gallery, everything=gallery, seed=seed
    )
    shrunk = three_ways(
        photos, of_small, division.unknown, calibrated=gallery, searched=small, everything=small, seed=seed
    )
    return {
        "seed": seed,
        "grown": grown | {"from": len(small), "items": len(gallery), "known": len(known)},
        "shrunk": shrunk | {"from": len(gallery), "items": len(small), "known": len(of_small)},
    }


def replaced(photos: Photos, seed: int) -> Record:
    """The other half of the labels in the place of the first."""
    division = divide(photos.labels, seed)
    gallery = items_of(photos, division.gallery)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(division.unknown), generator=generator)
    other = items_of(photos, division.unknown[order[: min(len(gallery), int(0.7 * len(order)))]])
    known = division.unknown[order[min(len(gallery), int(0.7 * len(order))) :]]
    known = known[torch.isin(photos.labels[known], other.label)]
    before, _ = fitted(photos, gallery, gallery, seed)
    rows = torch.cat([known, division.known])
    label = photos.labels[rows]
    old = came_to(told(photos, rows, other, before.fitted.model), label, len(known), before.promise)
    made, _ = fitted(photos, other, other, seed)
    new = came_to(told(photos, rows, other, made.fitted.model), label, len(known), made.promise)
    share = float((~gallery.has(other.row)).double().mean())
    return {"seed": seed, "unnoticed": old, "part": new, "withdrawn": share > CHANGED, "items": len(other)}


def history(photos: Photos, seed: int) -> Record:
    """Photos of the same labels come and go until nearly a quarter of the gallery is another."""
    division = divide(photos.labels, seed)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.cat([division.gallery, division.known])
    rows = rows[torch.randperm(len(rows), generator=generator)]
    size = int(len(rows) / (1 + CHANGED))
    made, searched = fitted(photos, items_of(photos, rows[:size]), items_of(photos, rows[:size]), seed)
    looks, alarms = 0, []
    for step in range(1, STEPS + 1):
        turned = min(int(step * CHANGED * size / STEPS), int(CHANGED * size) - 1)
        now = items_of(photos, rows[turned : size + turned])
        due = sum(turned / size >= look for look in LOOKS)
        if due > looks:
            looks = due
            canaries = drawn(searched, now, now, known=CANARIES, others=0, seed=due)
            level = LEVEL / len(LOOKS)
            alarms.append(contradicted(made.fitted.model, made.promise, canaries, now, level=level, seed=due))
    return {"seed": seed, "looks": looks, "alarm": any(alarms), "met": made.promise.is_worth_keeping}


def together(photos: Photos, seed: int) -> Record:
    """One to five photos of one thing."""
    division = divide(photos.labels, seed)
    gallery = items_of(photos, division.gallery)
    made, searched = fitted(photos, gallery, gallery, seed)
    model, record = made.fitted.model, {"seed": seed}
    for count in range(1, 6):
        groups = [_groups(photos.labels, rows, count, seed) for rows in (division.known, division.unknown)]
        if min(len(one) for one in groups) < 10:
            break
        rows = torch.cat(groups)
        label, known = photos.labels[rows[:, 0]], len(groups[0])
        found: Record = {"known": known}
        vectors = torch.nn.functional.normalize(photos.vectors[rows].mean(1), dim=1)
        nobody = torch.full((len(rows),), -1)
        hits = hits_of(search_items(vectors, gallery, own=nobody), gallery.label_of, vectors)
        mean = model(hits, vectors=gallery.vectors, unknown=TERMS.unknown)
        found["mean"] = came_to(mean, label, known, made.promise)
        each = told(photos, rows.flatten(), gallery, model)
        first = search_items(
            photos.vectors[rows.flatten()], gallery, own=nobody.repeat_interleave(count), depth=1
        )
        nearest = first.score.view(len(rows), count).argmax(1) + torch.arange(len(rows)) * count
        found["maximum"] = came_to(each[nearest], label, known, made.promise)
        if count == 1:
            found["pooled"] = found["mean"]
        else:
            try:
                pooled = fit_together(searched, gallery, model, TERMS, count=count, seed=seed)
            except InputError:
                break
            stacked = with_mean(photos.vectors[rows]).flatten(0, 1)
            hits = search_items(stacked, gallery, own=nobody.repeat_interleave(count + 1))
            entries = model(
                hits_of(hits, gallery.label_of, stacked), vectors=gallery.vectors, unknown=TERMS.unknown
            )
            found["pooled"] = came_to(pooled.pooling(entries, count + 1), label, known, pooled.promise)
            found["pooling"] = [pooled.pooling.weight, pooled.pooling.prior, pooled.pooling.floor]
        record[str(count)] = found
    return record


def _groups(labels: Tensor, rows: Tensor, count: int, seed: int) -> Tensor:
    """Rows (g, count) of one label each, none twice."""
    order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    order = order[labels[order].argsort(stable=True)]
    sizes = labels[order].unique_consecutive(return_counts=True)[1].tolist()
    parts = [part for members in order.split(sizes) for part in members.split(count) if len(part) == count]
    return torch.stack(parts) if parts else torch.empty(0, count, dtype=torch.long)


EXPERIMENTS: dict[str, Callable[[Photos, int], Record]] = {
    "filters": filters,
    "growth": growth,
    "replaced": replaced,
    "history": history,
    "together": together,
}


def photos_of(name: str, cache: Path, *, validation: bool) -> Photos:
    """Test classes by half-whitened features of the training ones; for validation, half of these by the others."""
    found = frozen_features("whole-omniglot" if name == "omniglot-whole" else FEATURES[name], cache)
    labels = found["labels"]
    if name == "omniglot-whole":  # both parts number their characters from 0; 150 characters whiten
        labels = labels + 10_000 * found["test"].long()
        test = ~torch.isin(labels, labels[~found["test"]].unique()[:150])
    else:
        test = found["test"] if "test" in found else labels >= int(labels.max() + 1) // 2
    chosen, rest = test, ~test
    if validation:
        names = labels[rest].unique()
        chosen = rest & torch.isin(labels, names[::2])
        rest = rest & ~chosen
    head = half_whitened(found["features"][rest], DIM)
    vectors = torch.nn.functional.normalize(found["features"][chosen] @ head.weight.T + head.bias, dim=1)
    return Photos(vectors, labels[chosen])


_HERE: list[Photos] = []


def _begin(vectors: Any, labels: Any) -> None:
    torch.set_num_threads(1)
    _HERE.append(Photos(torch.from_numpy(vectors), torch.from_numpy(labels)))


def _measure(work: tuple[str, int]) -> Record:
    return EXPERIMENTS[work[0]](_HERE[0], work[1])


def records(photos: Photos, name: str, seeds: range, jobs: int) -> Iterator[Record]:
    """Of one experiment, in the order of the seeds, by one process or several of one thread each."""
    if jobs == 1 or len(seeds) < 2:
        yield from (EXPERIMENTS[name](photos, seed) for seed in seeds)
        return
    with ProcessPoolExecutor(
        min(jobs, len(seeds)),
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(photos.vectors.numpy(), photos.labels.numpy()),
    ) as pool:
        yield from pool.map(_measure, [(name, seed) for seed in seeds])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path("features"))
    names = [*FEATURES, "omniglot-whole"]
    parser.add_argument("--sets", nargs="+", choices=names, default=names)
    parser.add_argument("--experiments", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument("--divisions", type=int, default=200)
    parser.add_argument("--histories", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1, help="Processes, of one thread each.")
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    folder = options.cache / ("promise-validation" if options.validation else "promise")
    folder.mkdir(parents=True, exist_ok=True)
    for name in options.sets:
        photos = photos_of(name, options.cache, validation=options.validation)
        for experiment in ["growth"] if name == "omniglot-whole" else options.experiments:
            path = folder / f"{name}-{experiment}.jsonl"
            wanted = options.histories if experiment == "history" else options.divisions
            there = len(path.read_text().splitlines()) if path.exists() else 0
            for record in records(photos, experiment, range(there, wanted), options.jobs):
                with path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                print(f"{path.stem}: {record['seed']}", flush=True)
    if not options.validation:
        write_results(folder, options.out)


if __name__ == "__main__":
    main()
