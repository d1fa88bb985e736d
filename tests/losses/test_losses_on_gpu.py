"""Every public loss on a GPU: its value and its gradients are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless import losses
from doubtless.losses import Gaussians, VonMisesFishers
from doubtless.losses.triplet import Triplets
from tests.reference.devices import Inputs, Work, assert_same_on_device, on_device

BATCH, DIM, CLASSES = 32, 12, 6
LABELS = torch.arange(BATCH) % CLASSES


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


POINTS = {"points": drawn(BATCH, DIM), "labels": LABELS}
SPREAD = POINTS | {"raw": drawn(BATCH, 1, seed=1)}
PAIR = {
    "mean_a": drawn(BATCH, DIM),
    "raw_a": drawn(BATCH, DIM, seed=1),
    "mean_b": drawn(BATCH, DIM, seed=2),
    "raw_b": drawn(BATCH, DIM, seed=3),
}
THREE = {f"mean_{who}": drawn(BATCH, DIM, seed=seed) for seed, who in enumerate("apn")}
THREE |= {f"raw_{who}": drawn(BATCH, 1, seed=seed) for seed, who in enumerate("apn", start=3)}


def gaussians(given: Inputs) -> Gaussians:
    return Gaussians(normalize(given["points"], dim=1), 0.1 * given["raw"].exp())


def vmfs(given: Inputs) -> VonMisesFishers:
    return VonMisesFishers(normalize(given["points"], dim=1), 10 * given["raw"].squeeze(1).exp())


def three_gaussians(given: Inputs) -> list[Gaussians]:
    return [Gaussians(0.3 * given[f"mean_{who}"], 0.1 * given[f"raw_{who}"].exp()) for who in "apn"]


def three_vmfs(given: Inputs) -> list[VonMisesFishers]:
    return [
        VonMisesFishers(normalize(given[f"mean_{who}"], dim=1), 10 * given[f"raw_{who}"].squeeze(1).exp())
        for who in "apn"
    ]


def in_order(given: Inputs) -> Triplets:
    """Each image with the next of its class and the next of all."""
    rows = torch.arange(BATCH, device=given["labels"].device)
    return Triplets(rows, (rows + CLASSES) % BATCH, (rows + 1) % BATCH, torch.ones_like(rows).double())


def of_points(loss: Callable[..., Tensor], **options: Any) -> Work:
    return lambda given: loss(given["points"], given["labels"], **options)


def cosines_of(given: Inputs, pairs: Any) -> Tensor:
    """The cosines of the pairs that are chosen, 0 for the others."""
    unit = normalize(given["points"], dim=1)
    cosine = unit @ unit.T
    return cosine * losses.chosen_pairs(cosine.detach(), given["labels"], pairs=pairs, margin=0.1)


def of_pair(score: Callable[..., Tensor]) -> Work:
    return lambda given: score(given["mean_a"], given["raw_a"].exp(), given["mean_b"], given["raw_b"].exp())


CASES: dict[str, tuple[Work, dict[str, Tensor]]] = {
    "contrastive_loss": (of_points(losses.contrastive_loss, margin=1.2), POINTS),
    "contrastive_loss over all": (of_points(losses.contrastive_loss, margin=1.2, reduction="all"), POINTS),
    "contrastive_loss few negatives": (
        of_points(losses.contrastive_loss, margin=0.8, negative_weight=0.2),
        POINTS,
    ),
    "contrastive_loss semi-hard": (of_points(losses.contrastive_loss, margin=0.3, pairs="semi-hard"), POINTS),
    "contrastive_loss hard": (of_points(losses.contrastive_loss, margin=1.2, pairs="hard"), POINTS),
    "chosen_pairs semi-hard": (partial(cosines_of, pairs="semi-hard"), POINTS),
    "chosen_pairs hard": (partial(cosines_of, pairs="hard"), POINTS),
    "batch_triplet_loss": (of_points(losses.batch_triplet_loss, margin=0.3), POINTS),
    "batch_triplet_loss hard": (of_points(losses.batch_triplet_loss, margin=0.3, mining="hard"), POINTS),
    "triplet_loss": (
        lambda given: losses.triplet_loss(*(given[f"mean_{who}"] for who in "apn"), margin=0.3),
        {name: value for name, value in THREE.items() if name.startswith("mean")},
    ),
    "triplet_moments Gaussians": (lambda given: losses.triplet_moments(*three_gaussians(given)), THREE),
    "triplet_moments VonMisesFishers": (lambda given: losses.triplet_moments(*three_vmfs(given)), THREE),
    "distance_moments Gaussians": (lambda given: losses.distance_moments(*three_gaussians(given)[:2]), THREE),
    "distance_moments VonMisesFishers": (
        lambda given: losses.distance_moments(*three_vmfs(given)[:2]),
        THREE,
    ),
    "bayesian_triplet_loss Gaussians": (
        lambda given: losses.bayesian_triplet_loss(*three_gaussians(given), margin=0.02, kl_scale=0.1),
        THREE,
    ),
    "bayesian_triplet_loss VonMisesFishers": (
        lambda given: losses.bayesian_triplet_loss(*three_vmfs(given), margin=0.02, kl_scale=0.1),
        THREE,
    ),
    "batch_bayesian_triplet_loss given triplets": (
        lambda given: losses.batch_bayesian_triplet_loss(
            gaussians(given), given["labels"], margin=0.02, kl_scale=0.1, triplets=in_order(given)
        ),
        SPREAD,
    ),
    "triplet_regression_loss": (
        lambda given: losses.triplet_regression_loss(
            given["mean_a"].square().sum(1), *(given[f"raw_{who}"].squeeze(1) for who in "apn")
        ),
        THREE,
    ),
    "batch_triplet_regression_loss": (
        lambda given: losses.batch_triplet_regression_loss(
            normalize(given["points"], dim=1), given["raw"].squeeze(1), given["labels"], margin=0.3
        ),
        SPREAD,
    ),
    "mutual_likelihood_score": (of_pair(losses.mutual_likelihood_score), PAIR),
    "pairwise_mutual_likelihood_score": (of_pair(losses.pairwise_mutual_likelihood_score), PAIR),
    "soft_contrastive_loss": (
        lambda given: losses.soft_contrastive_loss(
            given["samples"], given["labels"], scale=given["scale"], shift=given["shift"]
        ),
        {
            "samples": drawn(4, BATCH, DIM),
            "labels": LABELS,
            "scale": torch.tensor(1.3),
            "shift": torch.tensor(0.5),
        },
    ),
    "kl_to_standard_normal": (
        lambda given: losses.kl_to_standard_normal(given["mean_a"], given["raw_a"]),
        PAIR,
    ),
    "neighbor_loss_per_image": (of_points(losses.neighbor_loss_per_image), POINTS),
    "ranking_loss": (
        lambda given: losses.ranking_loss(given["predicted"], given["target"].detach()),
        {"predicted": drawn(BATCH), "target": drawn(BATCH, seed=1)},
    ),
    "proxy_nca_loss": (of_points(losses.proxy_nca_loss, temperature=0.5), POINTS),
    "proxy_anchor_loss": (
        lambda given: losses.proxy_anchor_loss(given["points"].tanh(), given["labels"]),
        POINTS,
    ),
    "bounded_log_variance": (
        lambda given: losses.bounded_log_variance(10 * given["points"], bound=5.0),
        POINTS,
    ),
    "draw_samples": (lambda given: losses.draw_samples(given["mean_a"], given["raw_a"], 7), PAIR),
    "reconstruction_loss": (
        lambda given: losses.reconstruction_loss(given["decoded"], given["target"]),
        {"decoded": drawn(3, BATCH, DIM), "target": drawn(BATCH, DIM, seed=1)},
    ),
}
for mining in ("skewed", "random", "semi-hard", "hard"):
    for family in (gaussians, vmfs):
        CASES[f"batch_bayesian_triplet_loss {family.__name__} {mining}"] = (
            lambda given, family=family, mining=mining: losses.batch_bayesian_triplet_loss(
                family(given), given["labels"], margin=0.02, mining=mining, kl_scale=0.1
            ),
            SPREAD,
        )

BY_FAMILY = [(s, f) for s in ("elk", "bhattacharyya", "kl", "log-likelihood") for f in ("vmf", "nivmf")]


def proxy_case(similarity: str, family: str, **options: Any) -> tuple[Work, dict[str, Tensor]]:
    """A `ProxyLoss` as a function of the embeddings and of its own parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = losses.ProxyLoss(
            CLASSES,
            DIM,
            similarity=similarity,  # type: ignore[arg-type]
            family=family,  # type: ignore[arg-type]
            concentration=8.0,
            norm_factor=3.0,
            temperature=0.7,
            **options,
        )
    parameters = {name: value.detach().double() for name, value in module.named_parameters()}
    return partial(called, module), POINTS | parameters


def called(module: nn.Module, given: Inputs) -> Tensor:
    points, labels = given["points"], given["labels"]
    parameters = {name: given[name] for name, _ in module.named_parameters()}
    found: Tensor = torch.func.functional_call(
        module.to(points.device, points.dtype), parameters, (points, labels)
    )
    return found


for similarity, family_name in [*BY_FAMILY, ("cosine", "point"), ("l2", "point")]:
    CASES[f"ProxyLoss {similarity} {family_name}"] = proxy_case(similarity, family_name)
CASES["ProxyLoss cosine anchor alone"] = proxy_case("cosine", "point", objective="anchor")
CASES["ProxyLoss cosine with anchor"] = proxy_case("cosine", "point", anchor_weight=0.5)


@on_device
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    work, inputs = CASES[name]
    assert_same_on_device(work, inputs, dtype)


def test_every_public_loss_is_compared() -> None:
    compared = {word for name in CASES for word in name.split()}
    assert set(losses.__all__) <= compared
