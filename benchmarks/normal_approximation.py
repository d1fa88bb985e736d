"""How near is the Bayesian triplet loss's normal approximation to the truth, over the dimensions?

    python benchmarks/normal_approximation.py --figure docs/methods/normal-approximation.svg

The loss takes P(τ < −m), τ = ‖a − p‖² − ‖a − n‖², for Φ((−m − E τ)/√Var τ). Here τ is drawn a million times for
each of some random triplets per dimension D, and the approximation compared: `largest` is its error at the
threshold where it is largest (Kolmogorov's distance), `at the margin` that at −m, both the mean over the triplets.

Means are unit vectors with cosines as a network in training has them; the spread is the expected squared distance
of an image's draws from its mean, D σ² for Gaussians and about (D − 1)/κ for von Mises-Fisher, times a factor per
image.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from doubtless.embedding import Embedding
from doubtless.files import write_text
from doubtless.losses.triplet_moments import Gaussians, Moments, VonMisesFishers, triplet_moments
from doubtless.metrics.measure import Curve
from doubtless.report.charts import HEIGHT, WIDTH, Line, line_chart, series

DIMENSIONS = tuple(2**power for power in range(1, 11))
SPREADS = {"small": 0.1, "medium": 0.5, "large": 2.0}
MARGIN = 0.02
FAMILIES = ("Gaussian", "von Mises-Fisher")
Floats = NDArray[np.float64]


class Triplet(NamedTuple):
    """Unit means (3, D) of anchor, positive and negative, and each one's spread."""

    means: torch.Tensor
    spreads: tuple[float, float, float]


def draw_triplet(dim: int, spread: float, rng: np.random.Generator) -> Triplet:
    """Positives with a cosine of .5 to .95 to their anchor, negatives with one of 0 to .8."""
    frame = np.linalg.qr(rng.normal(size=(dim, min(dim, 3))))[0].T
    rows = [frame[0]]
    for low, high, axis in ((0.5, 0.95, 1), (0.0, 0.8, 2)):
        cosine = rng.uniform(low, high)
        other = frame[min(axis, dim - 1)] * rng.choice([-1, 1])
        if axis == 2 and dim > 2:  # anywhere around the anchor, not only square to the positive
            turn = rng.uniform(0, 2 * math.pi)
            other = math.cos(turn) * frame[1] + math.sin(turn) * frame[2]
        rows.append(cosine * frame[0] + math.sqrt(1 - cosine**2) * other)
    factors = np.exp(rng.uniform(-math.log(2), math.log(2), size=3))
    first, second, third = (float(spread * factor) for factor in factors)
    return Triplet(torch.from_numpy(np.array(rows)), (first, second, third))


def moments_of(family: str, triplet: Triplet) -> Moments:
    """What the loss computes."""
    dim = triplet.means.shape[1]
    images: list[Any] = []
    for mean, spread in zip(triplet.means, triplet.spreads, strict=True):
        if family == "Gaussian":
            images.append(Gaussians(mean[None], torch.full((1, 1), spread / dim, dtype=torch.double)))
        else:
            kappa = torch.full((1,), (dim - 1) / spread, dtype=torch.double)
            images.append(VonMisesFishers(mean[None], kappa))
    return triplet_moments(images[0], images[1], images[2])


def draw_directly(family: str, triplet: Triplet, count: int, *, seed: int = 0) -> Floats:
    """τ (count,) from draws of the three embeddings themselves."""
    dim, generator = triplet.means.shape[1], torch.Generator().manual_seed(seed)
    spreads = torch.tensor(triplet.spreads, dtype=torch.double)
    if family == "Gaussian":
        embedding = Embedding.gaussian(triplet.means, (spreads / dim)[:, None])
        noise = torch.randn(count, 3, dim, generator=generator, dtype=torch.double)
        a, p, n = (embedding.location + (spreads / dim).sqrt()[:, None] * noise).unbind(1)
    else:
        embedding = Embedding.vmf(triplet.means, (dim - 1) / spreads)
        a, p, n = embedding.sample(count, generator=generator).double().unbind(1)
    tau: Floats = ((a - p).square().sum(1) - (a - n).square().sum(1)).numpy()
    return tau


def draw_quickly(triplet: Triplet, count: int, rng: np.random.Generator) -> Floats:
    """The same for Gaussians in more than 4 dimensions, by few numbers per draw.

    Outside the three dimensions that the means span, only lengths and inner products with a count:
    ‖p‖² − ‖n‖² − 2 a·(p − n), where p has a part along a, normal, and a rest whose square is chi-squared.
    """
    dim = triplet.means.shape[1]
    deviations = [math.sqrt(spread / dim) for spread in triplet.spreads]
    basis = torch.linalg.qr(triplet.means.T)[0]  # (D, 3)
    inside = (triplet.means @ basis).numpy()
    a, p, n = (inside[i] + deviations[i] * rng.normal(size=(count, 3)) for i in range(3))
    tau: Floats = ((a - p) ** 2).sum(1) - ((a - n) ** 2).sum(1)
    length = deviations[0] * np.sqrt(rng.chisquare(dim - 3, count))  # of the rest of a
    for sign, deviation in ((1, deviations[1]), (-1, deviations[2])):
        along = deviation * rng.normal(size=count)
        squared = along**2 + deviation**2 * rng.chisquare(dim - 4, count)
        tau += sign * (squared - 2 * length * along)
    return tau


def draw_quickly_on_sphere(triplet: Triplet, count: int, rng: np.random.Generator) -> Floats:
    """The same for von Mises-Fisher: τ = 2 a·(n − p), each u = w μ + √(1 − w²) v with v uniform around μ.

    v is a normal vector over its length: two of its coordinates lie in the span of the means, of the rest only the
    part along a's rest and the length count.
    """
    dim = triplet.means.shape[1]
    basis = torch.linalg.qr(triplet.means.T)[0]
    means = (triplet.means @ basis).numpy()  # (3, 3)
    inner, along = [], []
    for place, spread in enumerate(triplet.spreads):
        weight = draw_weight(dim, (dim - 1) / spread, count, rng)
        around = np.linalg.svd(means[place][None])[2][1:]  # (2, 3), square to the mean
        coordinates = rng.normal(size=(count, 2))
        on_a = rng.normal(size=count) if place else np.sqrt(rng.chisquare(dim - 3, count))
        beside = rng.chisquare(dim - 4, count) if place else np.zeros(count)
        norm = np.sqrt((coordinates**2).sum(1) + on_a**2 + beside)
        scale = np.sqrt(1 - weight**2) / norm
        inner.append(weight[:, None] * means[place] + scale[:, None] * (coordinates @ around))
        along.append(scale * on_a)
    tau: Floats = 2 * ((inner[0] * (inner[2] - inner[1])).sum(1) + along[0] * (along[2] - along[1]))
    return tau


def draw_weight(dim: int, kappa: float, count: int, rng: np.random.Generator) -> Floats:
    """u·μ of a von Mises-Fisher (Wood 1994)."""
    b = (dim - 1) / (2 * kappa + math.sqrt(4 * kappa**2 + (dim - 1) ** 2))
    x = (1 - b) / (1 + b)
    c = kappa * x + (dim - 1) * math.log(1 - x**2)
    kept: list[Floats] = []
    missing = count
    while missing > 0:
        z = rng.beta((dim - 1) / 2, (dim - 1) / 2, size=2 * missing)
        w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        good = kappa * w + (dim - 1) * np.log(1 - x * w) - c >= np.log(rng.uniform(size=len(z)))
        kept.append(w[good][:missing])
        missing -= len(kept[-1])
    return np.concatenate(kept)


def errors(tau: Floats, moments: Moments, *, margin: float = MARGIN) -> tuple[float, float]:
    """The largest error of Φ over all thresholds, and that at −margin."""
    mean, deviation = float(moments.mean), math.sqrt(float(moments.variance))
    ordered = np.sort(tau)
    said = torch.special.ndtr(torch.from_numpy((ordered - mean) / deviation)).numpy()
    count = len(tau)
    above = np.arange(1, count + 1) / count - said
    below = said - np.arange(count) / count
    at = float(torch.special.ndtr(torch.tensor((-margin - mean) / deviation, dtype=torch.double)))
    return float(max(above.max(), below.max())), abs(float((tau < -margin).mean()) - at)


def measure(*, triplets: int, draws: int) -> dict[str, Any]:
    """Family → spread → largest and at the margin, mean over the triplets, and the worst triplet's largest."""
    found: dict[str, Any] = {}
    for family in FAMILIES:
        found[family] = {}
        for name, spread in SPREADS.items():
            rows: dict[str, list[float]] = {"largest": [], "at the margin": [], "worst": []}
            for dim in DIMENSIONS:
                rng = np.random.default_rng(dim)
                pairs = []
                for place in range(triplets):
                    triplet = draw_triplet(dim, spread, rng)
                    if dim <= 4:
                        tau = draw_directly(family, triplet, draws, seed=place)
                    elif family == "Gaussian":
                        tau = draw_quickly(triplet, draws, rng)
                    else:
                        tau = draw_quickly_on_sphere(triplet, draws, rng)
                    pairs.append(errors(tau, moments_of(family, triplet)))
                largest, at_margin = np.array(pairs).T
                rows["largest"].append(float(largest.mean()))
                rows["at the margin"].append(float(at_margin.mean()))
                rows["worst"].append(float(largest.max()))
            found[family][name] = rows
            print(f"{family:17} {name:7}", " ".join(f"{value:.4f}" for value in rows["largest"]), flush=True)
    return found


STYLE = """
svg { font-family: system-ui, sans-serif; }
.page { fill: #fff; }
text { fill: #55606b; font-size: 11px; } .name, .title { fill: #1c2127; }
.title { font-size: 13px; font-weight: 600; }
.grid { stroke: #e3e6ea; } .axis { stroke: #55606b; } .line { fill: none; stroke: var(--c); stroke-width: 2; }
.mark { fill: var(--c); stroke: #fff; } .s0 { --c: #0a6cb0; } .s1 { --c: #c94f00; } .s2 { --c: #00805c; }
.s3 { --c: #6b7680; } .s3 .line { stroke-dasharray: 4 4; } .s1 .line { stroke-dasharray: 7 3; }
.s2 .line { stroke-dasharray: 2 3; }
"""


def draw(found: dict[str, Any], *, draws: int) -> str:
    """Two panels side by side, logarithmic both ways, and below them what the lines are."""
    x = [math.log2(dim) for dim in DIMENSIONS]
    x_ticks = [(math.log2(dim), str(dim)) for dim in DIMENSIONS]
    y_ticks = [(-4.0, "0.0001"), (-3.0, "0.001"), (-2.0, "0.01"), (-1.0, "0.1"), (0.0, "1")]
    floor = math.log10(0.8687 / math.sqrt(draws))  # mean of Kolmogorov's distribution over √draws
    panels = []
    named: list[Line] = []
    for place, family in enumerate(FAMILIES):
        named = [
            Line(
                f"{name} spread ({spread:g})",
                Curve(x, [math.log10(value) for value in found[family][name]["largest"]]),
                series(index),
                marks=True,
            )
            for index, (name, spread) in enumerate(SPREADS.items())
        ]
        named.append(Line("what the draws themselves are off", Curve([x[0], x[-1]], [floor] * 2), series(3)))
        chart = line_chart(
            named,
            x_label="dimensions D",
            y_label="largest error of the probability",
            description=f"{family}: largest error of the normal approximation over dimensions",
            x_range=(x[0], x[-1]),
            y_range=(-4.0, 0.0),
            x_ticks=x_ticks,
            y_ticks=y_ticks,
        )
        start = place * (WIDTH + 24) + 12
        panels.append(f'<text class="title" x="{start + 2:g}" y="22">{family}</text>')
        panels.append(
            chart.replace("<svg ", f'<svg x="{start:g}" y="32" width="{WIDTH:g}" height="{HEIGHT:g}" ')
        )
    width, height = 2 * WIDTH + 48, HEIGHT + 70
    for place, line in enumerate(named):
        left, y = 24 + 175 * place, HEIGHT + 52
        panels.append(
            f'<g class="{line.style}"><path class="line" d="M{left} {y} L{left + 26} {y}"/></g>'
            f'<text x="{left + 32}" y="{y + 4:g}">{line.name}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}"><style>{STYLE}</style><rect class="page" width="100%" height="100%" rx="8"/>'
        f"{''.join(panels)}</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--triplets", type=int, default=12)
    parser.add_argument("--draws", type=int, default=300_000)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = measure(triplets=options.triplets, draws=options.draws)
    recorded = {
        "dimensions": DIMENSIONS,
        "draws": options.draws,
        "triplets": options.triplets,
        "found": found,
    }
    if options.out:
        write_text(options.out, json.dumps(recorded, indent=1) + "\n")
    if options.figure:
        write_text(options.figure, draw(found, draws=options.draws))


if __name__ == "__main__":
    main()
