"""Does a promise survive use? Filters, growth, another gallery in the place of the first, several photos.

    python benchmarks/promise.py --cache features --divisions 200 --compared 40 --histories 500 --jobs 16

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
           The first two are what it is compared with, in the first `--compared` divisions.
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
           very queries), coverage under the promise, ECE and whether it is kept, by the distributions of the photos
           and of their mean, pooled (*pooled*), of the mean of the vectors (*mean*), and of the photo whose first
           hit is nearest (*maximum*), both judged as single photos.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from divisions import (
    DIM,
    FEATURES,
    Division,
    Photos,
    Record,
    arguments,
    divide,
    kept,
    measured_by,
    of_test,
    unit,
)
from frozen_features import frozen_features
from promise_page import write_results
from promise_ways import TERMS, came_to, fitted, items_of, three_ways, told
from torch import Tensor

from doubtless.calibration.kept_searches import hits_of, search_items
from doubtless.calibration.part import CANARIES, CHANGED, LEVEL, LOOKS, contradicted, drawn
from doubtless.calibration.together import fit_together, with_mean
from doubtless.errors import InputError
from doubtless.laplace import half_whitened

RESULTS = Path(__file__).parent / "results" / "promise"
STEPS = 20
ALL = 10**9
GROWN_FROM = 1_000


def filters(photos: Photos, seed: int, *, compared: int = ALL) -> Record:
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
            photos,
            known,
            division.unknown,
            calibrated=gallery,
            searched=part,
            everything=gallery,
            seed=seed,
            compared=seed < compared,
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


def growth(photos: Photos, seed: int, *, compared: int = ALL) -> Record:
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
    ways = partial(three_ways, photos, seed=seed, compared=seed < compared)
    grown = ways(known, division.unknown, calibrated=small, searched=gallery, everything=gallery)
    shrunk = ways(of_small, division.unknown, calibrated=gallery, searched=small, everything=small)
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
            rule = pooled.pooling
            found["pooling"] = [rule.each, rule.mean, rule.constant, rule.floor]
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
        test = of_test(found)
    chosen, rest = test, ~test
    if validation:
        names = labels[rest].unique()
        chosen = rest & torch.isin(labels, names[::2])
        rest = rest & ~chosen
    head = half_whitened(found["features"][rest], DIM)
    return Photos(unit(found["features"][chosen], head), labels[chosen])


def main() -> None:
    parser = arguments(__doc__, divisions=200, results=RESULTS)
    names = [*FEATURES, "omniglot-whole"]
    parser.add_argument("--sets", nargs="+", choices=names, default=names)
    parser.add_argument("--experiments", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument(
        "--compared",
        type=int,
        default=ALL,
        help="Divisions in which the ways beside *part* are measured, too.",
    )
    parser.add_argument("--histories", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1, help="Processes, of one thread each.")
    parser.add_argument("--validation", action="store_true")
    options = parser.parse_args()
    folder = options.cache / ("promise-validation" if options.validation else "promise")
    for name in options.sets:
        photos = photos_of(name, options.cache, validation=options.validation)
        for experiment in ["growth"] if name == "omniglot-whole" else options.experiments:
            path = folder / f"{name}-{experiment}.jsonl"
            wanted = options.histories if experiment == "history" else options.divisions
            measure = EXPERIMENTS[experiment]
            if experiment in ("filters", "growth"):
                measure = partial(measure, compared=options.compared)
            made = partial(measured_by, measure, photos, jobs=options.jobs)
            kept(path, wanted, made)
    if not options.validation:
        write_results(folder, options.out)


if __name__ == "__main__":
    main()
