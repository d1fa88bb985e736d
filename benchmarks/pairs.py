"""Two pictures: what `compare` says of products that look alike, whether its promise is kept, and faces at a FAR.

    python benchmarks/pairs.py --features grocery.pt --times 100            # products, or any labelled features
    python benchmarks/pairs.py --lfw lfw.pt --pairs /data/lfw --trained trained_lfw.pt

--features, --lfw   {"gem" or "features" (n, F), "labels" (n,)}, as `frozen_features.py` makes them; of LFW all
                    13,233 pictures in the order of the source
--trained           {"test" (n, D), "test_labels" (n,)}: embeddings of the people of peopleDevTest.txt, in order

Divisions: a fifth of the labels are unknown; of the others a fifth of the photos (at least one) are new, the rest
is the gallery, which calibrates itself. Counted are new photos against photos of their label in the gallery,
against its nearest item of another label and against any; and photos of unknown labels against each other in the
same way. Errors among what was decided are put together at the stated shares, and the promise is broken where they
exceed what was promised: the target, or where that cannot be the least that can.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.calibration.features import DEPTH
from doubtless.calibration.labelled_pairs import Recipe
from doubtless.calibration.pair_promise import Side, least_score
from doubtless.calibration.pairs import PairCalibrator
from doubtless.calibration.surroundings import Surroundings, search_among
from doubtless.embedding import Embedding
from doubtless.metrics.verification import CELLS, PairCounts, equal_error_rate, tar_at_far

UNKNOWN, NEW = 0.2, 0.2
RATES = (0.1, 0.01, 0.001)
KINDS = ("true", "near", "any")
SIDES: tuple[Side, Side] = ("same", "different")


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


def products(name: str, vectors: Tensor, labels: Tensor, options: argparse.Namespace) -> None:
    """Prints what is said of each kind of pair, and how often the promise is broken, over divisions of labels."""
    generator = torch.Generator().manual_seed(0)
    counted = []
    for _ in range(options.times):
        counted.append(divided(vectors, labels, generator, options.count))
        print(".", end="", flush=True)
    print()
    for target in options.targets:
        print(f"\n{name}, target error {target:g}, {len(counted)} divisions (means)")
        print(f"{'pairs':28s} {'same':>6s} {'cannot tell':>12s} {'different':>10s}")
        for known in (True, False):
            for kind in KINDS:
                said = (
                    torch.tensor([one.shares(kind, target, known=known) for one in counted]).mean(0).tolist()
                )
                where = "in the gallery" if known else "unknown"
                print(f"{kind + ', ' + where:28s} {said[0]:6.3f} {1 - sum(said):12.3f} {said[1]:10.3f}")
        for side in SIDES:
            print(_kept(side, target, counted))


def _kept(side: Side, target: float, counted: list[Counted]) -> str:
    promises = [one.pairs.promise(side, target_error=target) for one in counted]
    errors = [one.error(target)[side] for one in counted]
    made = [error for error in errors if error is not None]
    bounds = [promise.bound for promise, error in zip(promises, errors, strict=True) if error is not None]
    mean_bound = torch.tensor([promise.bound for promise in promises]).mean()
    met = sum(promise.met for promise in promises)
    broken = sum(error > bound for error, bound in zip(made, bounds, strict=True))
    mean = f"{sum(made) / len(made):.4f}" if made else "–"
    said = f"said in {len(made)}, of these broken {broken}"
    return f"{side}: target met {met}, {said}, mean error {mean}, mean bound {mean_bound:.3f}"


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


def faces(lfw: Path, lists: Path, trained: Path | None) -> None:
    """Prints TAR at FAR on published pairs; trained embeddings only on those of people they were not trained on."""
    folder = next((lists / name for name in ("lfw", "lfw-deepfunneled") if (lists / name).is_dir()), lists)
    people = sorted(child.name for child in folder.iterdir() if child.is_dir())
    names = [file.stem for person in people for file in sorted((folder / person).iterdir())]
    raw, _ = loaded(lfw)
    if len(raw) != len(names):
        raise SystemExit(f"There are {len(names)} pictures and {len(raw)} features.")
    place = {name: row for row, name in enumerate(names)}
    learned = {line.split()[0] for line in (lists / "peopleDevTrain.txt").read_text().splitlines()[1:]}
    rows = torch.tensor([name.rsplit("_", 1)[0] in learned for name in names])
    spaces = {"raw": raw, "half-whitened": half_whitened(raw, raw[rows])}
    if trained is not None:
        tested = {line.split()[0] for line in (lists / "peopleDevTest.txt").read_text().splitlines()[1:]}
        own = torch.tensor([name.rsplit("_", 1)[0] in tested for name in names])
        kept = torch.load(trained)["test"].float()
        spaces["trained"] = torch.zeros(len(names), kept.shape[1])
        spaces["trained"][own] = kept
    print(
        f"\n{'LFW':32s} {'pairs':>6s} "
        + " ".join(f"{'TAR@' + format(rate, 'g'):>10s}" for rate in RATES)
        + "    EER"
    )
    for file in ("pairsDevTest.txt", "pairs.txt"):
        found = list(published(lists / file))
        same = torch.tensor([one == other for one, _, other, _ in found])
        pairs = [(place[f"{a}_{i:04d}"], place[f"{b}_{j:04d}"]) for a, i, b, j in found]
        for space, vectors in spaces.items():
            if space == "trained" and file == "pairs.txt":
                continue  # most of its people were trained on
            result = counts(vectors, pairs, same)
            tar = " ".join(f"{tar_at_far(result, rate):10.3f}" for rate in RATES)
            print(f"{file + ', ' + space:32s} {len(pairs):6d} {tar} {equal_error_rate(result):6.3f}")


def half_whitened(
    vectors: Tensor, fitted: Tensor, *, dims: int | None = None, power: float = -0.25
) -> Tensor:
    """Centred, and every principal direction, the first `dims`, divided by the root of its deviation."""
    mean = fitted.double().mean(0)
    value, direction = torch.linalg.eigh(torch.cov(fitted.double().T))
    scale = value.clamp_min(value.max() * 1e-6).pow(power)
    turned = (vectors.double() - mean) @ direction * scale
    return turned.flip(1)[:, :dims].float()


def loaded(path: Path) -> tuple[Tensor, Tensor]:
    """Features and labels of a file."""
    kept = torch.load(path)
    for name in ("gem", "features"):
        if name in kept:
            return kept[name].float(), kept["labels"].long()
    return kept["test"].float(), kept["test_labels"].long()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--features", type=Path, nargs="*", default=[])
    parser.add_argument("--whiten", action="store_true", help="Half-whiten the features by themselves.")
    parser.add_argument("--dims", type=int, default=256, help="Principal directions of the features to keep.")
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--count", type=int, default=2000, help="Pairs of each kind to calibrate on.")
    parser.add_argument("--targets", type=float, nargs="*", default=[0.05, 0.1, 0.2])
    parser.add_argument("--lfw", type=Path)
    parser.add_argument("--pairs", type=Path, help="Folder of LFW's lists and pictures.")
    parser.add_argument("--trained", type=Path)
    options = parser.parse_args()
    for path in options.features:
        vectors, labels = loaded(path)
        name = f"{path.stem}, half-whitened" if options.whiten else path.stem
        power = -0.25 if options.whiten else 0.0
        products(
            name, normalize(half_whitened(vectors, vectors, dims=options.dims, power=power)), labels, options
        )
    if options.lfw is not None:
        faces(options.lfw, options.pairs, options.trained)


if __name__ == "__main__":
    main()
