"""Promises with unknown queries, on simulated labels whose true share of wrong answers is known.

    python benchmarks/promise_simulation.py --times 500 --out promise.json

Labels differ: how near their photos lie to each other, how often they are mistaken, and how near they lie to other
labels when they are left out; a share of them are *twins*, taken for another label nearly always. Scores are normal
within a label. One row per setting: labels, photos per label (a range: drawn from it), share of twins, π, target;
then for `gallery` (known labels stay) and `drawn` (known labels are new) how often the promise was met, how often
what was promised (the target, or the least bound in its place) was exceeded by the true R, the mean share of known
queries answered, and the oracle's: the loosest threshold whose true R is at most the target, with all stricter.

`--bounds` compares upper bounds of a mean over labels instead: the replicated test of `betting`, the hedged bet of
Waudby-Smith and Ramdas (2024) with its running maximum, empirical Bernstein (Maurer and Pontil 2009), Bentkus
(2004) and Clopper and Pearson's for labels with any answer; beta-binomial labels; mean bound, and share of bounds
below the truth.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, norm

from doubtless.calibration.betting import Array, mean_is_below_zero
from doubtless.calibration.open_risk import Terms, share_wrong
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.promise import Promise

GRID = np.linspace(-6, 7, 261)
"""Scores at which the truth is integrated."""


@dataclass(frozen=True)
class World:
    """How labels differ."""

    nearness: float = 0.5  # spread over labels of the mean score of known queries
    mistaken: float = 0.5  # spread over labels of the probit of an error
    strangeness: float = 0.7  # spread over labels of the mean score of absent queries
    apart: float = 2.5  # mean score of known minus absent queries
    clear: float = 0.8  # how fast errors vanish with the score
    twins: float = 0.0


@dataclass(frozen=True, eq=False)
class Labels:
    """Means of known and absent scores, and how easily mistaken, (labels,) each."""

    near: Array
    mistaken: Array
    strange: Array

    @classmethod
    def drawn(cls, count: int, world: World, random: np.random.Generator) -> Labels:
        strange = random.normal(-world.apart, world.strangeness, count)
        strange[random.random(count) < world.twins] = 1.0
        return cls(random.normal(0, world.nearness, count), random.normal(0, world.mistaken, count), strange)

    def curves(self, world: World, weight: Array | None = None) -> tuple[Array, Array, Array]:
        """e₁, c₁ and a₀ at thresholds `GRID`; labels are equally likely, or by weight."""
        weight = np.ones(len(self.near)) if weight is None else weight
        weight = weight / weight.sum()
        density = norm.pdf(GRID[:, None] - self.near) * (GRID[1] - GRID[0])
        chance = norm.cdf(self.mistaken - world.clear * (GRID[:, None] + 1))
        wrong, answered = (_above(part @ weight) for part in (density * chance, density))
        return wrong, answered, norm.sf(GRID[:, None] - self.strange) @ weight

    def outcomes(self, photos: Any, world: World, random: np.random.Generator) -> Outcomes:
        row = np.repeat(np.arange(len(self.near)), photos)
        score = random.normal(self.near[row], 1)
        wrong = random.random(len(row)) < norm.cdf(self.mistaken[row] - world.clear * (score + 1))
        absent = random.normal(self.strange[row], 1)
        label = torch.from_numpy(row)
        return Outcomes(
            torch.from_numpy(score), torch.from_numpy(~wrong), label, torch.from_numpy(absent), label
        )


def _above(cell: Array) -> Array:
    """The integral from each point of the grid on, by the trapezium rule."""
    return np.asarray(cell[::-1].cumsum()[::-1] - cell / 2)


def oracle(curves: tuple[Array, Array, Array], terms: Terms) -> float:
    """Known queries answered at the loosest threshold up to which the true R stays within the target."""
    truth = share_wrong(*curves, unknown=terms.unknown)[::-1]
    fits = (np.nan_to_num(truth) <= terms.target_error) | (curves[1][::-1] < 0.001)
    last = len(fits) if fits.all() else int(fits.argmin())
    return float(curves[1][::-1][max(last - 1, 0)])


def count(labels: int, photos: tuple[int, int], world: World, terms: Terms, times: int) -> dict[str, float]:
    many = Labels.drawn(4000, world, np.random.default_rng(99)).curves(world)
    rows = []
    for number in range(times):
        random = np.random.default_rng([number, labels])
        own = Labels.drawn(labels, world, random)
        sizes = random.integers(photos[0], photos[1] + 1, labels)
        promise = Promise.of(own.outcomes(sizes, world, random), terms)
        if terms.known == "gallery":
            wrong, answered, _ = own.curves(world, sizes)  # known queries as frequent as in calibration
            curves = (wrong, answered, many[2])
        else:
            curves = many
        truth = share_wrong(*curves, unknown=terms.unknown)
        real = np.interp(promise.fallback, GRID, truth) if promise.bound < 1 else 0.0
        rows.append(
            (
                promise.met,
                real > promise.bound,
                promise.known_answered * promise.met,
                oracle(curves, terms),
                promise.bound,
            )
        )
    met, broken, covered, best, bound = np.array(rows, np.float64).mean(0)
    return {"met": met, "broken": broken, "coverage": covered, "oracle": best, "bound": bound}


SETTINGS = list(
    itertools.product(
        ((40, (20, 20)), (100, (1, 20)), (300, (2, 8)), (1000, (1, 5))),
        (World(twins=0.03), World(apart=4, clear=2, mistaken=0.2)),
        ((0.0, 0.05), (0.1, 0.05), (0.1, 0.1), (0.5, 0.1)),
    )
)


def promises(times: int) -> list[dict[str, Any]]:
    rows = []
    for (labels, photos), world, (unknown, target) in SETTINGS:
        for known in ("gallery", "drawn"):
            terms = Terms(target_error=target, unknown=unknown, known=known)
            figures = count(labels, photos, world, terms, times)
            setting = {
                "labels": labels,
                "photos": photos,
                "twins": world.twins,
                "apart": world.apart,
                "unknown": unknown,
                "target": target,
                "known": known,
            }
            rows.append(setting | figures)
            print(
                f"{labels:5d} {photos!s:>9} twins {world.twins:.2f} apart {world.apart} π {unknown} "
                f"target {target} "
                f"{known:>7}: met {figures['met']:.2f} broken {figures['broken']:.3f} coverage "
                f"{figures['coverage']:.3f} oracle {figures['oracle']:.3f} bound {figures['bound']:.3f}",
                flush=True,
            )
    return rows


def replicated(rates: Array, mean: float, level: float) -> Any:
    return mean_is_below_zero(
        rates.T - mean, *(np.full(len(rates), value) for value in (mean, 1 - mean, level))
    )


def hedged(rates: Array, mean: float, level: float) -> Any:
    """Waudby-Smith and Ramdas (2024), predictable plug-in for a known number of values, against large means."""
    times, labels = rates.shape
    capital, most, total, squares = (
        np.zeros(times),
        np.zeros(times),
        np.full(times, 0.5),
        np.full(times, 0.25),
    )
    for number in range(labels):
        bet = np.sqrt(2 * np.log(1 / level) / (squares / (number + 1) * labels))
        capital = capital + np.log1p(-np.minimum(bet, 0.999 / (1 - mean)) * (rates[:, number] - mean))
        most = np.maximum(most, capital)
        total = total + rates[:, number]
        squares = squares + (rates[:, number] - total / (number + 2)) ** 2
    return most >= np.log(1 / level)


def by_test(test: Any, rates: Array, level: float) -> Array:
    """The last mean from 1 downwards that is shown to be too large."""
    bound, alive = np.ones(len(rates)), np.ones(len(rates), bool)
    for mean in np.geomspace(0.99, 0.002, 120):
        shown = np.zeros(len(rates), bool)
        shown[alive] = test(rates[alive], float(mean), level)
        alive &= shown
        bound[alive] = mean
        if not alive.any():
            break
    return bound


def bernstein(rates: Array, level: float) -> Array:
    labels, log = rates.shape[1], np.log(2 / level)
    spread = rates.var(1, ddof=1)
    return np.asarray(rates.mean(1) + np.sqrt(2 * spread * log / labels) + 7 * log / (3 * (labels - 1)))


def bentkus(rates: Array, level: float) -> Array:
    labels, total = rates.shape[1], np.ceil(rates.sum(1) - 1e-9)
    return np.where(
        total >= labels, 1.0, beta.ppf(1 - level / np.e, total + 1, np.maximum(labels - total, 1e-9))
    )


def any_answer(rates: Array, level: float) -> Array:
    labels, some = rates.shape[1], (rates > 0).sum(1)
    return np.where(some >= labels, 1.0, beta.ppf(1 - level, some + 1, np.maximum(labels - some, 1e-9)))


def bounds(times: int, level: float = 0.05) -> list[dict[str, Any]]:
    rows = []
    worlds = ((0.005, 1, 20), (0.02, 1, 20), (0.02, 30, 20), (0.02, 1, 1), (0.1, 1, 5), (0.1, 5, 50))
    for labels, (mean, alike, photos) in itertools.product((40, 100, 300, 1000), worlds):
        random = np.random.default_rng([labels, photos])
        rates = (
            random.binomial(photos, random.beta(mean * alike, (1 - mean) * alike, (times, labels))) / photos
        )
        row: dict[str, Any] = {"labels": labels, "mean": mean, "alike": alike, "photos": photos}
        found = {
            "replicated": by_test(replicated, rates, level),
            "hedged": by_test(hedged, rates, level),
            "bernstein": bernstein(rates, level),
            "bentkus": bentkus(rates, level),
            "any": any_answer(rates, level),
        }
        text = "  ".join(
            f"{name} {bound.mean():.3f} ({(bound < mean).mean():.3f})" for name, bound in found.items()
        )
        print(f"{labels:5d} mean {mean} alike {alike} photos {photos}: {text}", flush=True)
        rows.append(row | {name: [float(b.mean()), float((b < mean).mean())] for name, b in found.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--bounds", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    rows = bounds(options.times) if options.bounds else promises(options.times)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
