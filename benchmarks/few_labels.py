"""No labels, and what 200 answers of people make of it: is the promise kept, and what does choosing questions save?

    python benchmarks/few_labels.py --cache features            # features of frozen_features.py; about an hour

Half-whitened features of a frozen EfficientNet-lite0, the labels hidden. A division draws a gallery from the photos
of test classes, seven tenths of them and at most 2,000, and up to 1,000 others as queries; a thing may have any
number of photos in either, also none. The gallery is calibrated without labels
(`doubtless.calibration.pairs.unlabelled`). Then the questions that `review` would ask are answered by the labels,
20 at a time: are this item and its first hit the same? For each target it is counted

kept       whether the share of accepted first hits that are wrong is at most what is promised after 200 answers,
           among the gallery's items (all of which the labels know) and among the queries, as counted
coverage   share of the queries whose first hit is accepted under the promise of the target
chance     the same where items are asked about in random order, with the same bounds
needed     answers until as little wrong is promised of as many hits as choosing got out of 200: by choosing, which
           may have got there before, and by chance, up to 1,000
error      expected calibration error of P(first hit is right) for queries, before and after the 200 answers

`--validation` does it on training classes (a half of them, whitened by the others), for choosing settings. What was
measured is kept in the cache: the command can be stopped and called again. It writes few-labels.json and README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from divisions import (
    DIM,
    FEATURES,
    Photos,
    Record,
    arguments,
    frozen_photos,
    kept,
    measured_by,
    of_test,
    unit,
    write_page,
)
from few_labels_page import page, summaries
from frozen_features import frozen_features
from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.calibration.pairs.asked import OTHER, SAME, UNSAID, AskedPairs
from doubtless.calibration.pairs.unlabelled import HitChance, stands_out, unrelated
from doubtless.laplace import half_whitened
from doubtless.metrics.calibration import match_ece
from doubtless.search.hits import Hits

RESULTS = Path(__file__).parent / "results" / "few-labels"
TARGETS = (0.1, 0.2)
ANSWERS, AT_ONCE, MOST_BY_CHANCE = 200, 20, 1_000
Following = Callable[[AskedPairs], list[int]]
"""What is known → items that are asked about next."""
IN_GALLERY, MOST_ITEMS, MOST_QUERIES, COMPARED = 0.7, 2_000, 1_000, 1_000


@dataclass(frozen=True, eq=False)
class Found:
    """What first hits stand out by (n,), and whether they are the same thing (n,)."""

    out: Tensor
    same: Tensor

    @classmethod
    def of(cls, similarity: Tensor, label: Tensor, items: Tensor) -> Found:
        """Of queries with these similarities (n, N) to the items, whose labels are (N,)."""
        top = similarity.topk(min(DEPTH, similarity.shape[1]), dim=1)
        hits = Hits(top.indices, top.values, 2 - 2 * top.values)
        return cls(stands_out(hits)[:, 0], items[hits.row[:, 0]] == label)


@dataclass(frozen=True, eq=False)
class Hidden:
    """A gallery in random order whose labels only `answer` knows, and queries to it."""

    items: Found
    queries: Found
    chance: HitChance

    @classmethod
    def drawn(cls, photos: Photos, seed: int) -> Hidden:
        """A division."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(photos.labels), generator=generator)
        count = min(MOST_ITEMS, round(IN_GALLERY * len(order)))
        item, query = order[:count], order[count:][:MOST_QUERIES]
        label, among = photos.labels[item], photos.similarity[item][:, item]
        others = among.clone().fill_diagonal_(-torch.inf)
        items = Found.of(others, label, label)
        queries = Found.of(photos.similarity[query][:, item], photos.labels[query], label)
        some = min(COMPARED, count)
        cosine = among[:some][~torch.eye(some, count, dtype=torch.bool)].view(some, count - 1)[:, :COMPARED]
        drawn = unrelated(cosine, count - 1, generator=generator)
        return cls(items, queries, HitChance.fit(items.out, drawn))

    def told(self, said: Tensor, target: float) -> tuple[HitChance, AskedPairs]:
        """Probability and promise after what was said (N,)."""
        known = said != UNSAID
        chance = self.chance.corrected(self.items.out, self.items.out[known], said[known] == SAME)
        return chance, AskedPairs(1 - chance.of(self.items.out), said, target_error=target)

    def asked(
        self,
        target: float,
        following: Following,
        enough: Callable[[AskedPairs], bool],
    ) -> tuple[HitChance, AskedPairs]:
        """Answers questions until that is enough, or nothing is left to ask."""
        said = torch.full((len(self.items.out),), UNSAID)
        chance, asked = self.told(said, target)
        while not enough(asked) and (places := following(asked)):
            said = said.clone()
            said[places] = torch.where(self.items.same[places], SAME, OTHER)
            chance, asked = self.told(said, target)
        return chance, asked


def by_review(asked: AskedPairs) -> list[int]:
    """What `review` asks about next."""
    return asked.next(AT_ONCE)


def by_chance(asked: AskedPairs) -> list[int]:
    """Any items."""
    return (asked.said == UNSAID).nonzero()[:AT_ONCE, 0].tolist()


def division(photos: Photos, seed: int) -> Record:
    """What a division comes to, per target."""
    hidden = Hidden.drawn(photos, seed)
    before = match_ece(hidden.chance.of(hidden.queries.out), hidden.queries.same)
    record: Record = {
        "items": len(hidden.items.out),
        "right": float(hidden.items.same.double().mean()),
        "expected": float(hidden.chance.of(hidden.items.out).mean()),
        "error": before,
    }
    for target in TARGETS:
        chance, asked = hidden.asked(target, by_review, lambda one: one.answered >= ANSWERS)
        other, drawn = hidden.asked(target, by_chance, lambda one: one.answered >= ANSWERS)
        record[f"{target:g}"] = {
            "review": outcome(hidden, chance, asked),
            "chance": outcome(hidden, other, drawn),
            "error": match_ece(chance.of(hidden.queries.out), hidden.queries.same),
            "review_needs": needed(hidden, asked, target, by_review),
            "chance_needs": needed(hidden, asked, target, by_chance),
        }
    return record


def outcome(hidden: Hidden, chance: HitChance, asked: AskedPairs) -> Record:
    """What is promised, and whether it is kept by items and by queries."""
    if asked.kept is None:
        return {"bound": None, "met": False, "coverage": 0.0, "by_items": None, "by_queries": None}
    shares = []
    for found in (hidden.items, hidden.queries):
        accepted = asked.answers(1 - chance.of(found.out))
        wrong = ~found.same[accepted]
        shares.append((float(wrong.double().mean()) if len(wrong) else 0.0, float(accepted.double().mean())))
    (by_items, _), (by_queries, coverage) = shares
    return {
        "bound": asked.bound,
        "met": asked.met,
        "coverage": coverage,
        "by_items": by_items,
        "by_queries": by_queries,
    }


def needed(hidden: Hidden, chosen: AskedPairs, target: float, following: Following) -> int | None:
    """Answers until as little is promised of as many hits; None: nothing was, or more than 1,000."""
    if chosen.kept is None or chosen.bound is None:
        return None
    bound, items = chosen.bound, chosen.kept.items

    def as_good(asked: AskedPairs) -> bool:
        return any(level.bound <= bound and level.items >= items for level in asked.levels)

    _, asked = hidden.asked(target, following, lambda one: as_good(one) or one.answered >= MOST_BY_CHANCE)
    return asked.answered if as_good(asked) else None


def validation_photos(name: str, cache: Path) -> Photos:
    """Training classes of a half of them, by features that the other half whitens."""
    found = frozen_features(FEATURES[name], cache)
    training = ~of_test(found)
    names = found["labels"][training].unique()
    half = names[torch.randperm(len(names), generator=torch.Generator().manual_seed(1))[: len(names) // 2]]
    fitted = training & torch.isin(found["labels"], half)
    shown = training & ~fitted
    head = half_whitened(found["features"][fitted], min(DIM, int(fitted.sum()) - 1))
    return Photos(unit(found["features"][shown], head), found["labels"][shown])


def main() -> None:
    parser = arguments(__doc__, divisions=200, results=RESULTS)
    parser.add_argument("--validation", action="store_true", help="Training classes, for choosing settings.")
    parser.add_argument("--sets", nargs="+", default=list(FEATURES), choices=list(FEATURES))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    part = "validation" if options.validation else "test"
    read = validation_photos if options.validation else frozen_photos
    found: dict[str, list[Record]] = {}
    for name in options.sets:
        path = options.cache / "few-labels" / f"{name}-{part}.jsonl"
        made = partial(_made, read, name, options.cache, options.jobs)
        found[name] = kept(path, options.divisions, made)
    result = {"command": "python benchmarks/few_labels.py --cache features", "part": part, "sets": found}
    if options.validation:
        print(page(result))
    else:
        write_page(options.out, "few-labels", {**result, "sets": summaries(found)}, page(result))


def _made(
    read: Callable[[str, Path], Photos], name: str, cache: Path, jobs: int, seeds: range
) -> Iterator[Record]:
    yield from measured_by(division, read(name, cache), seeds, jobs)


if __name__ == "__main__":
    main()
