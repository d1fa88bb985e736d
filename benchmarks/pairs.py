"""Two pictures: what `compare` says of products that look alike, whether its promise is kept, and faces at a FAR.

    python benchmarks/pairs.py --cache features --times 100

Features are those of frozen_features.py (`all-grocery.pt`, `all-lfw.pt`, made where they are not there) and, where
the cache has `trained-lfw.pt` (open_set.py), embeddings of LFW's test people. Every division that was measured is
kept in the cache, so the command can be stopped and called again. It writes pairs.json and README.md.

Products   All of Grocery, by 256 principal directions of their features, as they are or half-whitened by themselves
           (no label takes part). A fifth of the labels are unknown; of the others a fifth of the photos (at least
           one) are new, the rest is the gallery, which calibrates itself. Counted are new photos against photos of
           their label in the gallery, against its nearest item of another label and against any; and photos of
           unknown labels against each other in the same way. Errors among what was decided are put together at the
           stated shares, and the promise is broken where they exceed what was promised: the target, or where that
           cannot be the least that can.
Faces      Published pairs of LFW by cosine: as they are, half-whitened by the training people, trained on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from divisions import Record, kept
from frozen_features import frozen_features
from pairs_page import write_results
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.calibration.evidence.surroundings import Surroundings, search_among
from doubtless.calibration.features import DEPTH
from doubtless.calibration.pairs.labelled import Recipe
from doubtless.calibration.pairs.pairs import PairCalibrator
from doubtless.calibration.pairs.promise import Side, least_score
from doubtless.data.source import locate
from doubtless.embedding import Embedding
from doubtless.metrics.verification import CELLS, PairCounts, equal_error_rate, tar_at_far

UNKNOWN, NEW = 0.2, 0.2
RATES = (0.1, 0.01, 0.001)
KINDS = ("true", "near", "any")
SIDES: tuple[Side, Side] = ("same", "different")
TARGETS = (0.05, 0.1, 0.2)
PAIRS = 2000
"""Of each kind, that are calibrated on."""
DIMS = 256
POWERS = {"raw": 0.0, "half-whitened": -0.25}
"""Of the deviation of principal directions, what these are multiplied by."""
RESULTS = Path(__file__).parent / "results" / "pairs"


@dataclass(frozen=True)
class Counted:
    """Log-odds of each kind of pair, of labels in the gallery and of unknown ones; and the calibrator."""

    pairs: PairCalibrator
    known: dict[str, Tensor]
    unknown: dict[str, Tensor]

    def shares(self, kind: str, target: float, *, known: bool = True) -> tuple[float, float]:
        """How many pairs of a kind are called the same, and different."""
        odds = (self.known if known else self.unknown)[kind]
        chance = self.pairs.chance(odds)
        said = []
        for side, sign in (("same", 1), ("different", -1)):
            limit = least_score(self.pairs.promise(side, target_error=target))  # type: ignore[arg-type]
            said.append(float(((sign * odds >= limit) & (sign * (chance - 0.5) > 0)).double().mean()))
        return said[0], said[1]

    def error(self, target: float) -> dict[str, float | None]:
        """Of pairs called so, how many are not, at the shares the promise states; None: none is called so."""
        unknown, near = self.pairs.terms.unknown, self.pairs.record["near"]
        right: dict[str, float] = dict.fromkeys(SIDES, 0.0)
        wrong = dict(right)
        for known, weight in ((True, 1 - unknown), (False, unknown)):
            said = {kind: self.shares(kind, target, known=known) for kind in KINDS}
            for place, side in enumerate(SIDES):
                other = near * said["near"][place] + (1 - near) * said["any"][place]
                one = said["true"][place]
                right[side] += weight * (one if side == "same" else other)
                wrong[side] += weight * (other if side == "same" else one)
        return {
            side: wrong[side] / (right[side] + wrong[side]) if right[side] + wrong[side] else None
            for side in SIDES
        }


def divided(vectors: Tensor, labels: Tensor, generator: torch.Generator, pairs: int) -> Counted:
    """One division into gallery, new photos and unknown labels."""
    every, count = labels.unique(return_counts=True)
    every = every[count >= 3]
    order = every[torch.randperm(len(every), generator=generator)]
    unknown = torch.isin(labels, order[: round(UNKNOWN * len(order))])
    chosen = torch.rand(len(labels), generator=generator)
    new = torch.zeros_like(unknown)
    for label in order[round(UNKNOWN * len(order)) :].tolist():
        own = (labels == label).nonzero().flatten()
        new[own[chosen[own].argsort()[: max(1, round(NEW * len(own)))]]] = True
    stays = ~unknown & ~new
    gallery, code = Embedding.point(vectors[stays]), labels[stays]
    calibrator = PairCalibrator.fit(gallery, code, recipe=Recipe(pairs=pairs))
    world = _World(gallery, code, calibrator, generator)
    return Counted(
        calibrator,
        world.compared(vectors[new], labels[new], gallery.direction, code),
        world.compared(vectors[unknown], labels[unknown], vectors[unknown], labels[unknown], itself=True),
    )


class _World:
    """Comparisons of pictures that are not in a gallery, with what lies around them in it."""

    def __init__(
        self, gallery: Embedding, labels: Tensor, pairs: PairCalibrator, generator: torch.Generator
    ) -> None:
        self.pairs, self.generator = pairs, generator
        self.search = search_among(gallery, labels)

    def compared(
        self, new: Tensor, label: Tensor, others: Tensor, other_label: Tensor, *, itself: bool = False
    ) -> dict[str, Tensor]:
        """Log-odds (n,) of new pictures with another of their label, the nearest of another, any of another."""
        cosine = normalize(new) @ normalize(others).T
        own = label.unsqueeze(1) == other_label
        if itself:
            cosine.fill_diagonal_(-2)
        random = torch.rand(cosine.shape, generator=self.generator)
        same = own & (cosine > -2)
        partner = {
            "true": random.masked_fill(~same, -1).argmax(1),
            "near": cosine.masked_fill(own, -2).argmax(1),
            "any": random.masked_fill(own, -1).argmax(1),
        }
        there = same.any(1)
        first = Embedding.point(new[there])
        around = self.search(first, DEPTH)
        return {kind: self._odds(first, around, others[place[there]]) for kind, place in partner.items()}

    def _odds(self, first: Embedding, around: Surroundings, other: Tensor) -> Tensor:
        second = Embedding.point(other)
        found = self.search(second, DEPTH)
        own = torch.cat([around.itself, found.itself], 1)
        return self.pairs.odds(first, second, (around.without(own), found.without(own)))


def division(vectors: Tensor, labels: Tensor, seed: int) -> Record:
    """What is said of each kind of pair, and whether that keeps the promise, per target error."""
    counted = divided(vectors, labels, torch.Generator().manual_seed(seed), PAIRS)
    record: Record = {}
    for target in TARGETS:
        said = {
            where: {kind: counted.shares(kind, target, known=known) for kind in KINDS}
            for where, known in (("known", True), ("unknown", False))
        }
        errors = counted.error(target)
        promised = {}
        for side in SIDES:
            promise, error = counted.pairs.promise(side, target_error=target), errors[side]
            promised[side] = {
                "met": promise.met,
                "bound": promise.bound,
                "made": error is not None,
                "error": error,
                "broken": error is not None and error > promise.bound,
            }
        record[f"{target:g}"] = {"said": said, "promised": promised}
    return record


def products(name: str, cache: Path, times: int) -> list[Record]:
    """So many divisions of Grocery, those that a file already has taken from there."""
    path = cache / "pairs" / f"grocery-{name}.jsonl"
    found = frozen_features("all-grocery", cache)
    vectors = normalize(half_whitened(found["features"], found["features"], dims=DIMS, power=POWERS[name]))
    return kept(path, times, lambda seeds: (division(vectors, found["labels"], seed) for seed in seeds))


def published(path: Path) -> Iterator[tuple[str, int, str, int]]:
    """Pairs of pictures (person, number, person, number) of a list of LFW."""
    for line in path.read_text().splitlines():
        parts = line.split()
        if len(parts) == 3:
            yield parts[0], int(parts[1]), parts[0], int(parts[2])
        elif len(parts) == 4:
            yield parts[0], int(parts[1]), parts[2], int(parts[3])


def counts(vectors: Tensor, pairs: list[tuple[int, int]], same: Tensor) -> PairCounts:
    """Counts of the cosines of pairs of rows (n,), same or not (n,)."""
    unit = normalize(vectors.double())
    first, second = torch.tensor(pairs).T
    cell = (((unit[first] * unit[second]).sum(1) + 1) * (CELLS / 2)).long().clamp(0, CELLS - 1)
    return PairCounts(cell[same].bincount(minlength=CELLS), cell[~same].bincount(minlength=CELLS))


def faces(cache: Path) -> dict[str, Record]:
    """TAR at FAR on published pairs; trained embeddings only on those of people they were not trained on."""
    lists = locate("lfw")
    folder = next((lists / name for name in ("lfw", "lfw-deepfunneled") if (lists / name).is_dir()), lists)
    people = sorted(child.name for child in folder.iterdir() if child.is_dir())
    names = [file.stem for person in people for file in sorted((folder / person).iterdir())]
    found = frozen_features("all-lfw", cache)
    raw, test = found["features"], found["test"]
    spaces = {"raw": raw, "half-whitened": half_whitened(raw, raw[~test])}
    if (cache / "trained-lfw.pt").exists():
        kept = torch.load(cache / "trained-lfw.pt")["vectors"].float()
        spaces["trained"] = torch.zeros(len(names), kept.shape[1])
        spaces["trained"][test] = kept
    place = {name: row for row, name in enumerate(names)}
    results: dict[str, Record] = {}
    for file in ("pairsDevTest.txt", "pairs.txt"):
        listed = list(published(lists / file))
        same = torch.tensor([one == other for one, _, other, _ in listed])
        pairs = [(place[f"{a}_{i:04d}"], place[f"{b}_{j:04d}"]) for a, i, b, j in listed]
        for space, vectors in spaces.items():
            if space == "trained" and file == "pairs.txt":
                continue  # most of its people were trained on
            result = counts(vectors, pairs, same)
            rates = {f"tar@{rate:g}": tar_at_far(result, rate) for rate in RATES}
            results[f"{file}, {space}"] = {"pairs": len(pairs), **rates, "eer": equal_error_rate(result)}
    return results


def half_whitened(
    vectors: Tensor, fitted: Tensor, *, dims: int | None = None, power: float = -0.25
) -> Tensor:
    """Centred, and every principal direction, the first `dims`, divided by the root of its deviation."""
    mean = fitted.double().mean(0)
    value, direction = torch.linalg.eigh(torch.cov(fitted.double().T))
    scale = value.clamp_min(value.max() * 1e-6).pow(power)
    turned = (vectors.double() - mean) @ direction * scale
    return turned.flip(1)[:, :dims].float()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--times", type=int, default=100, help="Divisions of the products.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    found = {name: products(name, options.cache, options.times) for name in POWERS}
    write_results(found, faces(options.cache), options.out)


if __name__ == "__main__":
    main()
