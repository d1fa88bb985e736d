"""A promise in use: is a shift noticed, what is a review worth, and how many labels show that a promise holds?

    python benchmarks/feedback.py --cache features --divisions 3

Data and weights lie below $DOUBTLESS_DATA; features are made by frozen_features.py and shifted_features.py and kept
in the cache, as is every division that was measured, so the command can be stopped and called again. It writes
feedback.json and README.md.

Division   As in open_set.py, of frozen half-whitened features of test classes: half of the labels are the
           gallery's, 70 % of their photos its items, the others known queries; all photos of other labels are
           unknown queries. The gallery is a `Gallery`, calibrated on its own items: at most a tenth of answers
           wrong where a tenth of the queries is unknown, or the least that can be promised in its place.
Stream     Queries drawn at random, with replacement, a tenth of them unknown; those that are answered make the
           stream. After `BEFORE` answers it changes: photos out of focus, of another camera, or 30 % of unknown
           labels. Up to `AFTER` more answers are watched. `true`: the share of wrong answers among all queries of
           that kind. Where it is at most the bound, an alarm is a false one.
Judges     `all`: every answer is judged. `review`: of drawn answers those that `Gallery.keep` asks for.
           `complaints`: nine of ten wrong answers and one of fifty right ones are judged by whoever wants to; all
           answers are counted. `naive`: what these judged, taken for a random sample, which must not be done.
At level   Streams whose answers are wrong with a chance of exactly the bound, whatever their probability.
Labels     judged until "holds" is said, where the stream is not shifted and its true share is at most `CLEAR` of
           the bound: by `review`; for answers drawn at random, all judged; for queries drawn at random, answered or
           not.
Errors     5 % of the items get another label of the gallery, drawn at random; 3 % are there twice, as copies saved
           anew as JPEG, half of these under another label. The gallery is calibrated with all of that in it.
           Precision and recall of what `review` lists, and of its first ones, as many as there are errors (`at`).
           Beside it: items whose first hit carries another label, by its cosine.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from divisions import DIM, FEATURES, Division, Record, arguments, divide, kept, of_test, unit
from feedback_page import write_results
from frozen_features import frozen_features
from shifted_features import shifted_features
from torch import Tensor

from doubtless.calibration.fit import Targets
from doubtless.calibration.watch import (
    LEVEL,
    NOT_ASKED,
    Counted,
    Drawn,
    capital_against,
    capital_counted,
    capital_for,
    share_asked,
)
from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from doubtless.laplace import half_whitened

RESULTS = Path(__file__).parent / "results" / "feedback"
TARGET, UNKNOWN, NEW = 0.1, 0.1, 0.3
STREAMS = 170
"""Per division and shift."""
BEFORE, AFTER = 300, 1500
WRONG_LABELS, COPIES = 0.05, 0.03
COMPLAIN, PRAISE = 0.9, 0.02
CLEAR = 0.7
"""Of the bound: where the true share of wrong answers is at most so much, "holds" is waited for."""


class Photos:
    """Test classes of a set as unit vectors, and the same photos seen otherwise, where they were."""

    def __init__(self, name: str, cache: Path) -> None:
        found = frozen_features(FEATURES[name], cache)
        test = of_test(found)
        head = half_whitened(found["features"][~test], DIM)
        self.vectors = unit(found["features"][test], head)
        self.labels = found["labels"][test]
        place = torch.full((len(test),), -1)
        place[test] = torch.arange(int(test.sum()))
        self.otherwise: dict[str, dict[int, Tensor]] = {}
        for shift in ("blur", "camera", "copy"):
            seen = shifted_features(shift, FEATURES[name], cache)
            rows = place[seen["row"]].tolist()
            self.otherwise[shift] = dict(zip(rows, unit(seen["features"], head), strict=True))

    def seen(self, rows: Tensor, shift: str | None) -> tuple[Tensor, Tensor]:
        """Vectors of the photos at rows (n,), and the rows; under a shift of those of which it was made."""
        if shift is None:
            return self.vectors[rows], rows
        there = [row for row in rows.tolist() if row in self.otherwise[shift]]
        return torch.stack([self.otherwise[shift][row] for row in there]), torch.tensor(there)


class Asked:
    """What queries were told: (n,) answered, wrong, and the predicted chance of being wrong."""

    def __init__(self, gallery: Gallery, vectors: Tensor, names: list[str]) -> None:
        answers = gallery.ask(Embedding.point(vectors))
        told = [answers[row] for row in range(len(names))]
        self.answered = np.array([one.decision == "answer" for one in told])
        self.wrong = np.array([one.label != name for one, name in zip(told, names, strict=True)])
        self.predicted = np.array([1 - (one.probability or 0.0) for one in told])


def answers_of(known: Asked, unknown: Asked, share: float, count: int, rng: np.random.Generator) -> Record:
    """So many answers (wrong, predicted), of queries of which a share is unknown, and the queries that took."""
    wrong: list[np.ndarray] = []
    predicted: list[np.ndarray] = []
    asked = got = 0
    while got < count:
        is_unknown = rng.random(count) < share
        row = np.where(
            is_unknown,
            rng.integers(len(unknown.wrong), size=count),
            rng.integers(len(known.wrong), size=count),
        )
        columns = []
        for name in ("answered", "wrong", "predicted"):
            of_unknown, of_known = getattr(unknown, name), getattr(known, name)
            columns.append(
                np.where(is_unknown, of_unknown[row % len(of_unknown)], of_known[row % len(of_known)])
            )
        answered = columns[0].astype(bool)
        if not answered.any():
            break
        wrong.append(columns[1][answered].astype(bool))
        predicted.append(columns[2][answered])
        got += int(answered.sum())
        asked += count
    if not wrong:
        return {"wrong": np.zeros(0, bool), "predicted": np.zeros(0), "coverage": 0.0}
    whole = np.concatenate(wrong)
    return {
        "wrong": whole[:count],
        "predicted": np.concatenate(predicted)[:count],
        "coverage": len(whole) / asked,
    }


def true_share(known: Asked, unknown: Asked, share: float) -> float | None:
    """Of wrong answers among all queries of a kind; None where nothing is answered."""
    answered = (1 - share) * known.answered.mean() + share * unknown.answered.mean()
    wrong = (1 - share) * (known.answered & known.wrong).mean() + share * unknown.answered.mean()
    return float(wrong / answered) if answered else None


def thinned(wrong: np.ndarray, predicted: np.ndarray, rng: np.random.Generator) -> Drawn:
    """What `review` asks for of answers that were all drawn."""
    share = share_asked(predicted)
    said = np.where(rng.random(len(wrong)) < share, wrong, NOT_ASKED).astype(np.int8)
    return Drawn(said, predicted, share, np.ones(len(wrong), dtype=bool))


def _first(capital: np.ndarray, level: float) -> int | None:
    over = np.flatnonzero(capital >= -math.log(level))
    return int(over[0]) if len(over) else None


def alarms(wrong: np.ndarray, predicted: np.ndarray, rate: float, rng: np.random.Generator) -> Record:
    """By every judge, the answer at which the alarm is raised and how many were judged until then; None: never."""
    review = thinned(wrong, predicted, rng)
    spoke = rng.random(len(wrong)) < np.where(wrong, COMPLAIN, PRAISE)
    found: Record = {}
    at = _first(capital_against(Drawn.of(wrong.astype(int)), rate), LEVEL / 2)
    found["all"] = None if at is None else [at, at]
    at = _first(capital_against(review, rate), LEVEL / 2)
    found["review"] = None if at is None else [at, int((review.said[:at] >= 0).sum())]
    capital, after = capital_counted(Counted(len(wrong), np.flatnonzero(wrong & spoke)), rate)
    at = _first(capital, LEVEL / 2)
    found["complaints"] = None if at is None else [int(after[at]), int(spoke[: after[at]].sum())]
    at = _first(capital_against(Drawn.of(wrong[spoke].astype(int)), rate), LEVEL / 2)
    found["naive"] = None if at is None else [int(np.flatnonzero(spoke)[at - 1]) + 1, at]
    return found


def streams(photos: Photos, gallery: Gallery, division: Division, seed: int) -> Record:
    """Streams with and without a shift, and labels until the promise is shown to hold."""
    promise = gallery.judge.promise()
    assert promise is not None
    rate, rng = float(promise["bound"]), np.random.default_rng(seed)
    asked: dict[str, tuple[Asked, Asked]] = {}
    for shift in (None, "blur", "camera"):
        pair = []
        for rows in (division.known, division.unknown):
            vectors, there = photos.seen(rows, shift)
            pair.append(Asked(gallery, vectors, [str(int(one)) for one in photos.labels[there]]))
        asked[shift or "none"] = (pair[0], pair[1])
    kinds = {name: (pair, UNKNOWN) for name, pair in asked.items()} | {"new labels": (asked["none"], NEW)}
    record: Record = {"rate": rate, "met": promise["met"], "shifts": {}}
    if promise["threshold"] is None:
        return record
    for name, (pair, share) in kinds.items():
        found = []
        for _ in range(STREAMS):
            before = answers_of(*asked["none"], UNKNOWN, BEFORE, rng)
            after = answers_of(*pair, share, AFTER, rng)
            wrong, predicted = (
                np.concatenate([before[what], after[what]]) for what in ("wrong", "predicted")
            )
            found.append(alarms(wrong, predicted, rate, rng))
        record["shifts"][name] = {"true": true_share(*pair, share), "streams": found}
    at_level = []
    for _ in range(STREAMS):
        before = answers_of(*asked["none"], UNKNOWN, BEFORE + AFTER, rng)
        at_level.append(alarms(rng.random(BEFORE + AFTER) < rate, before["predicted"], rate, rng))
    record["at_level"] = at_level
    record["labels"] = labels_needed(asked["none"], rate, rng)
    return record


def labels_needed(pair: tuple[Asked, Asked], rate: float, rng: np.random.Generator) -> Record | None:
    """Judgements until "holds" is said, by way of choosing what is judged; None where it may not hold."""
    true = true_share(*pair, UNKNOWN)
    if true is None or true > CLEAR * rate:
        return None
    found: dict[str, list[int | None]] = {"review": [], "answers": [], "queries": []}
    for _ in range(STREAMS):
        stream = answers_of(*pair, UNKNOWN, 4000, rng)
        review = thinned(stream["wrong"], stream["predicted"], rng)
        at = _first(capital_for(review, rate), LEVEL)
        found["review"].append(None if at is None else int((review.said[:at] >= 0).sum()))
        at = _first(capital_for(Drawn.of(stream["wrong"].astype(int)), rate), LEVEL)
        found["answers"].append(at)
        found["queries"].append(None if at is None else round(at / stream["coverage"]))
    return {"true": true, "needed": found}


def dirty_gallery(photos: Photos, division: Division, seed: int, place: Path) -> tuple[Gallery, Record]:
    """A gallery with wrong labels and copies in it, and which these are."""
    rng = np.random.default_rng(seed)
    rows, label = division.gallery, photos.labels[division.gallery].numpy()
    names, told = np.unique(label), label.copy()
    wrong = rng.choice(len(label), max(1, round(WRONG_LABELS * len(label))), replace=False)
    told[wrong] = [rng.choice(names[names != one]) for one in label[wrong]]
    can = [number for number, row in enumerate(rows.tolist()) if row in photos.otherwise["copy"]]
    can = [number for number in can if number not in set(wrong.tolist())]
    copied = rng.permutation(can)[: max(2, round(COPIES * len(label)))]
    across = copied[: len(copied) // 2]
    of_copies = np.array(
        [rng.choice(names[names != label[one]]) if one in set(across) else label[one] for one in copied]
    )
    vectors = torch.stack([photos.otherwise["copy"][int(rows[one])] for one in copied])
    embedding = Embedding.point(torch.cat([photos.vectors[rows], vectors]))
    labels = [str(one) for one in [*told, *of_copies]]
    gallery = Gallery.create(place, embedding=embedding, labels=labels)
    size = len(label)
    pairs = [[int(one), size + number] for number, one in enumerate(copied)]
    return gallery, {
        "wrong": sorted(map(int, wrong)),
        "across": pairs[: len(across)],
        "within": pairs[len(across) :],
    }


def reviewed(photos: Photos, division: Division, seed: int) -> Record:
    """What `review` lists of a gallery with errors, against what is wrong in it."""
    with tempfile.TemporaryDirectory() as folder:
        gallery, truth = dirty_gallery(photos, division, seed, Path(folder) / "gallery")
        with gallery:
            gallery.calibrate(Targets(target_error=TARGET, unknown=UNKNOWN))
            labels = gallery.review(10**6, kinds=["label"])
            copies = gallery.review(10**6, kinds=["duplicate"])
            first_hits = _first_hits(gallery)
    copies_of_wrong = {pair[1] for pair in truth["across"]}
    wrong = set(truth["wrong"]) | copies_of_wrong
    listed = [int(one.id.removeprefix("item:")) for one in labels]
    pairs = [sorted((int(one.id.removeprefix("item:")), int(one.other or -1))) for one in copies]
    across = [pair for pair, one in zip(pairs, copies, strict=True) if one.tells == 1.0]
    return {
        "items": len(division.gallery),
        "labels": _measured(listed, wrong),
        "first_hit": _measured(first_hits, wrong),
        "duplicates": _counted(pairs, [*truth["across"], *truth["within"]]),
        "across": _counted(across, truth["across"]),
        "either": _found_at_all(listed, across, truth),
    }


def _first_hits(gallery: Gallery) -> list[int]:
    """Items whose nearest other carries another label, the nearest first: without a distribution."""
    from doubtless.search.hits import without_itself

    index = gallery.index
    hits = without_itself(index.search(index.embedding(), 2), index.rows)
    assert hits.label is not None
    other = hits.label[:, 0] != index.labels
    order = hits.score[:, 0].masked_fill(~other, -2).argsort(descending=True)[: int(other.sum())]
    return [int(id) for id in index.ids(index.rows[order])]


def _measured(listed: list[int], wrong: set[int]) -> Record:
    hits = sum(one in wrong for one in listed)
    first = listed[: len(wrong)]
    return {
        "wrong": len(wrong),
        "listed": len(listed),
        "precision": hits / max(1, len(listed)),
        "recall": hits / len(wrong),
        "at": sum(one in wrong for one in first) / len(wrong),
    }


def _counted(found: list[list[int]], there: list[list[int]]) -> Record:
    hits = sum(pair in there for pair in found)
    return {
        "there": len(there),
        "listed": len(found),
        "precision": hits / max(1, len(found)),
        "recall": hits / max(1, len(there)),
    }


def _found_at_all(listed: list[int], across: list[list[int]], truth: Record) -> float:
    """Share of all wrong labels that a review names, as a doubtful label or as a copy under another one."""
    named = set(listed) | {one for pair in across for one in pair}
    wrong = set(truth["wrong"]) | {pair[1] for pair in truth["across"]}
    return len(wrong & named) / len(wrong)


def measure(photos: Photos, seed: int) -> Record:
    """Everything of one division."""
    division = divide(photos.labels, seed)
    with tempfile.TemporaryDirectory() as folder:
        vectors = Embedding.point(photos.vectors[division.gallery])
        names = [str(int(one)) for one in photos.labels[division.gallery]]
        with Gallery.create(Path(folder) / "gallery", embedding=vectors, labels=names) as gallery:
            gallery.calibrate(Targets(target_error=TARGET, unknown=UNKNOWN))
            record = streams(photos, gallery, division, seed)
    return {"seed": seed, **record, "review": reviewed(photos, division, seed)}


def measured(name: str, cache: Path, divisions: int) -> list[Record]:
    """The divisions 0, 1, … of a set, those that a file already has taken from there, new ones added to it."""

    def made(seeds: range) -> Iterator[Record]:
        photos = Photos(name, cache)
        return (measure(photos, seed) for seed in seeds)

    return kept(cache / "feedback" / f"{name}.jsonl", divisions, made)


def main() -> None:
    parser = arguments(__doc__, divisions=3, results=RESULTS)
    parser.add_argument("--sets", nargs="+", choices=list(FEATURES), default=list(FEATURES))
    options = parser.parse_args()
    for name in options.sets:
        measured(name, options.cache, options.divisions)
    write_results(options.cache / "feedback", options.out)


if __name__ == "__main__":
    main()
