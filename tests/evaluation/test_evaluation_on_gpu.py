"""A whole evaluation on a GPU: every number of it, intervals too, is that of the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from doubtless.embedding import FAMILIES, Embedding
from doubtless.evaluation import Evaluation, EvaluationOptions, OpenSetOptions, evaluate
from tests.reference.devices import DEVICE, SameNoise, on_device

ITEMS, DIM = 120, 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def an_embedding(family: str, seed: int, centers: Tensor) -> Embedding:
    location = centers + 0.5 * drawn(ITEMS, DIM, seed=seed)
    spread = drawn(ITEMS, DIM, seed=seed + 1).exp()
    if family == "point":
        return Embedding.point(location)
    if family == "vmf":
        return Embedding.vmf(location, 20 * spread[:, 0])
    if family == "empirical":
        return Embedding.empirical(location + 0.3 * drawn(9, ITEMS, DIM, seed=seed + 2))
    kind = Embedding.gaussian if family == "gaussian" else Embedding.projected_gaussian
    return kind(location, 0.1 * spread)


def measured(family: str, device: str) -> Evaluation:
    labels = torch.arange(ITEMS) % 10
    known = an_embedding(family, 0, drawn(10, DIM, seed=7)[labels])
    strange = an_embedding(family, 3, torch.zeros(ITEMS, DIM, dtype=torch.float64))
    with SameNoise():
        return evaluate(
            known.to(device),
            labels.to(device),
            ood={"strange": strange.to(device)},
            # k-means starts at random and may end elsewhere for a last bit
            options=EvaluationOptions(bootstrap=50, clusters=False, open_set=OpenSetOptions()),
        )


def tolerance(metric: str) -> float:
    """Nearly all are of ranks. Over pairs cosines are counted in cells, whose border a last bit may cross."""
    return 2e-3 if metric.startswith(("tar@", "threshold@", "eer")) else 1e-6


@on_device
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_measure(family: str) -> None:
    expected, found = measured(family, "cpu"), measured(family, DEVICE)
    assert found.measures.keys() == expected.measures.keys()
    assert {"recall@1", "map@r", "label_top1_balanced"} <= found.measures.keys()
    assert all(
        {"oscr", "baks@fpir0.1", "open_aurc"} <= baseline.keys() for baseline in found.baselines.values()
    )
    assert found.counts == expected.counts
    assert all("ood_auroc/strange" in baseline for baseline in found.baselines.values())
    for name, measure in expected.measures.items():
        other = found.measures[name]
        for one, two in ((measure.value, other.value), (measure.low, other.low), (measure.high, other.high)):
            assert (one is None) == (two is None)
            if one is not None and two is not None:
                assert two == pytest.approx(one, abs=tolerance(name)), name
    for name, baseline in expected.baselines.items():
        for metric, measure in baseline.items():
            assert found.baselines[name][metric].value == pytest.approx(measure.value, abs=1e-6), name
