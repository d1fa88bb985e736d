"""The Bayesian triplet family in a report: how sure the distance to the first hit is, and the loss itself.

After figures 2, 3, 6 and 8 of Warburg, Jørgensen, Civera and Hauberg, *Bayesian Triplet Loss* (2021). What
the paper calls the covariance of the distance is here the variance of ‖q − x‖², q and x independent, in
closed form.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from doubtless.embedding import Embedding, GaussianEmbedding, VonMisesFisherEmbedding
from doubtless.evaluation.result import QueryRecord
from doubtless.losses import bayesian_triplet_loss, triplet_loss
from doubtless.losses.triplet_moments import Distributions, Gaussians, VonMisesFishers, distance_moments
from doubtless.metrics.measure import Curve
from doubtless.metrics.ood import auroc, histograms
from doubtless.report.charts import Line, histogram, legend, line_chart, series
from doubtless.report.images import grid
from doubtless.report.method_figures.registry import Context, draws_for
from doubtless.report.page import Section, figure, gallery
from doubtless.search.neighbors import nearest

PAIRS = 6
VARIANCE = "variance of the squared distance, log₁₀"


@draws_for("bayes-triplet", "bayes-triplet-vmf", "triplet-regression")
def distance_sections(context: Context) -> list[Section]:
    """Histograms of the distance's variance, and the surest and least sure right answers."""
    queries = context.evaluation.queries
    if queries is None or not isinstance(context.embedding, GaussianEmbedding | VonMisesFisherEmbedding):
        return []
    searched = context.embedding if context.gallery is None else context.gallery
    known = distance_variance(context.embedding[queries.index], searched[queries.neighbor])
    figures = []
    for name, others in context.ood.items():
        first = nearest(others.direction, searched.direction, k=1).index[:, 0]
        figures.append(variance_figure(known, distance_variance(others, searched[first]), name))
    return [
        Section("distance-variance", "How sure the distance is", gallery(figures)),
        Section("distance-pairs", "The least and the most sure distances", _pairs(context, queries, known)),
    ]


@draws_for("bayes-triplet")
def loss_section(context: Context) -> list[Section]:
    """The loss itself, from the functions that train: nothing in it depends on the run but its margin."""
    margin = float(context.method.config.loss.margin or 0.0)
    return [
        Section(
            "triplet-loss",
            "The loss in one dimension",
            gallery([likelihood_figure(margin), *scene_figures()]),
        )
    ]


def distance_variance(queries: Embedding, neighbours: Embedding) -> Tensor:
    """Var ‖q − x‖² row by row, (n,), float64."""
    return distance_moments(_parameters(queries), _parameters(neighbours)).variance


def variance_figure(known: Tensor, other: Tensor, name: str) -> str:
    """Figure 8: the variance of the distance to the first hit, known and out-of-distribution queries."""
    inside, outside = known.log10(), other.log10()
    curves = histograms(inside, outside)
    lines = [
        Line("known", curves["id"], series(0)),
        Line(f"out-of-distribution: {name}", curves["ood"], series(1)),
    ]
    chart = histogram(
        lines,
        x_label=VARIANCE,
        y_label="share of queries",
        description=f"Variance of the squared distance to the first hit, known images and {name}",
    )
    note = (
        "A query and its first hit: both their variances count. "
        f"An out-of-distribution query has the larger one in {auroc(inside, outside):.1%} of all comparisons."
    )
    return figure(
        f"Known and out-of-distribution queries · {name}", chart + legend(lines, filled=True), note=note
    )


def likelihood_figure(margin: float) -> str:
    """Figure 3: the negative log-likelihood beside the triplet loss, the positive moving away from the anchor."""
    positive = torch.linspace(0, 1.6, 161, dtype=torch.float64)[:, None]
    anchor, negative = torch.zeros_like(positive), torch.ones_like(positive)
    tau = (positive.square() - 1)[:, 0].tolist()
    lines = [
        Line(
            "triplet loss",
            Curve(tau, triplet_loss(anchor, positive, negative, margin=margin).tolist()),
            series(0),
        )
    ]
    for place, variance in enumerate((0.02, 0.2, 1.0), start=1):
        images = (Gaussians(mean, torch.full_like(mean, variance)) for mean in (anchor, positive, negative))
        values = bayesian_triplet_loss(*images, margin=margin, kl_scale=0.0)
        lines.append(Line(f"−log likelihood, σ² = {variance:g}", Curve(tau, values.tolist()), series(place)))
    chart = line_chart(
        lines,
        x_label="‖a − p‖² − ‖a − n‖² of the means",
        y_label="loss",
        description="Triplet loss and negative log-likelihood against the difference of the squared distances",
        y_range=(0.0, 4.0),
    )
    note = "Left of 0 the order is right. With more variance the likelihood punishes a wrong order less."
    return figure("The likelihood beside the triplet loss", chart + legend(lines), note=note)


class Scene(NamedTuple):
    """Three Gaussians on a line, in the order anchor, positive, negative."""

    title: str
    note: str
    means: tuple[float, float, float]
    variances: tuple[float, float, float] = (0.3, 0.3, 0.3)


SCENES = (
    Scene("The order is right", "Every variance shrinks.", (0.0, 1.0, 3.0)),
    Scene(
        "The order is wrong",
        "Every variance grows; anchor and positive attract each other, the negative leaves.",
        (0.0, 3.0, 1.0),
    ),
    Scene(
        "The anchor is between the two",
        "As far from one as from the other: the means move, the variances hardly.",
        (0.0, -1.5, 1.5),
    ),
)
NAMES = ("anchor", "positive", "negative")


def scene_figures() -> list[str]:
    """Figure 2: where a step of gradient descent moves means and variances, in three scenes."""
    return [_scene(scene) for scene in SCENES]


def descent(scene: Scene) -> tuple[Tensor, Tensor]:
    """Minus the gradient of the loss in the means and in the variances, (3,) each."""
    means = torch.tensor(scene.means, dtype=torch.float64, requires_grad=True)
    variances = torch.tensor(scene.variances, dtype=torch.float64, requires_grad=True)
    a, p, n = (Gaussians(means[i].view(1, 1), variances[i].view(1, 1)) for i in range(3))
    with torch.enable_grad():
        loss = bayesian_triplet_loss(a, p, n, margin=0.0, kl_scale=0.0).sum()
        of_means, of_variances = torch.autograd.grad(loss, (means, variances))
    return -of_means, -of_variances


def _scene(scene: Scene) -> str:
    moves, spreads = descent(scene)
    longest = float(torch.cat((moves, spreads)).abs().max())
    x = torch.linspace(-3.5, 5.0, 171, dtype=torch.float64)
    densities, arrows = [], []
    for place, name in enumerate(NAMES):
        mean, variance, style = scene.means[place], scene.variances[place], series(place)
        y = torch.exp(-0.5 * (x - mean).square() / variance) / math.sqrt(2 * math.pi * variance)
        densities.append(Line(name, Curve(x.tolist(), y.tolist()), style))
        reach = 1.2 * float(moves[place]) / longest
        arrows.append(Line(name, _arrow((mean, -0.08 - 0.05 * place), (reach, 0.0)), style))
        rise = -0.25 * float(spreads[place]) / longest
        arrows.append(Line(name, _arrow((mean, 1.02 - max(rise, 0.0) / 2), (0.0, rise)), style))
    chart = line_chart(
        [*arrows, *densities],
        x_label="embedding",
        y_label="density",
        description=f"{scene.title}: densities of anchor, positive and negative, arrows for a step of descent",
        y_range=(-0.25, 1.25),
    )
    note = f"{scene.note} Arrows below move a mean; above, down is more spread and up is more certain."
    return figure(scene.title, chart + legend(densities), note=note)


def _arrow(start: tuple[float, float], way: tuple[float, float]) -> Curve:
    """A shaft and a head as one line; the head is smaller where the way is short, and no way has no arrow."""
    (x, y), (along, up) = start, way
    if max(abs(along), abs(up)) < 1e-3:
        return Curve([], [])
    end_x, end_y = x + along, y + up
    if abs(along) > abs(up):
        back, side = math.copysign(min(0.18, abs(along) / 2), along), 0.025
        return Curve([x, end_x, end_x - back, end_x, end_x - back], [y, end_y, y + side, end_y, y - side])
    back, side = math.copysign(min(0.05, abs(up) / 2), up), 0.1
    return Curve([x, end_x, x - side, end_x, x + side], [y, end_y, end_y - back, end_y, end_y - back])


def _pairs(context: Context, queries: QueryRecord, variance: Tensor) -> str:
    """Figure 6: right answers only, by the variance of their distance."""
    right = torch.nonzero(queries.correct.to(variance.device))[:, 0]
    order = right[variance[right].argsort(descending=True)].tolist()
    count = min(PAIRS, len(order) // 2)
    if not count:
        return ""
    parts = []
    for title, rows in (("Least sure", order[:count]), ("Most sure", order[::-1][:count])):
        pictures = grid(queries, rows, images=context.images, names=context.label_names)
        parts.append(f"<h3>{title}</h3>{pictures}")
    return "".join(parts)


def _parameters(embedding: Embedding) -> Distributions:
    parameters = embedding.to(torch.float64).parameters
    if isinstance(embedding, VonMisesFisherEmbedding):
        return VonMisesFishers(embedding.to(torch.float64).direction, parameters["concentration"])
    return Gaussians(parameters["location"], parameters["variance"])
