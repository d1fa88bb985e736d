"""Streamed measures: against torchmetrics' own retrieval metrics, in one piece or in many, over two processes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics")

from doubtless import Embedding  # noqa: E402
from doubtless.errors import InputError  # noqa: E402
from doubtless.pipelines.streaming import DoubtMeasures, RetrievalMeasures  # noqa: E402


@pytest.fixture
def clusters() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 6
    centers = torch.randn(6, 8, generator=generator)
    return centers[labels] + 0.9 * torch.randn(90, 8, generator=generator), labels


def peers(points: Tensor, labels: Tensor) -> dict[str, float]:
    """The same of torchmetrics: every item asks all others."""
    from torchmetrics.retrieval import RetrievalHitRate, RetrievalRPrecision

    unit = torch.nn.functional.normalize(points, dim=1)
    others = ~torch.eye(len(labels), dtype=torch.bool)
    scores, relevant = unit @ unit.T, labels[:, None] == labels[None, :]
    query = torch.arange(len(labels))[:, None].expand_as(scores)
    given = scores[others], relevant[others], query[others]
    found = {f"recall@{k}": RetrievalHitRate(top_k=k) for k in (1, 5, 10)}
    return {
        name: float(metric(*given[:2], indexes=given[2]))
        for name, metric in {**found, "r_precision": RetrievalRPrecision()}.items()
    }


def test_values_are_those_of_torchmetrics(clusters: tuple[Tensor, Tensor]) -> None:
    points, labels = clusters
    metric = RetrievalMeasures()
    metric.update(points, labels)
    found = metric.compute()
    for name, expected in peers(points, labels).items():
        assert float(found[name]) == pytest.approx(expected, abs=1e-6), name
    assert 0 < found["map@r"] < found["r_precision"] < 1
    assert 0.5 < found["error_auroc"] < 1  # of the distance, which nobody had to give


def test_batches_and_processes_make_no_difference(clusters: tuple[Tensor, Tensor]) -> None:
    points, labels = clusters
    whole, parts, other = RetrievalMeasures(), RetrievalMeasures(), RetrievalMeasures()
    whole.update(points, labels)
    for start in range(0, 50, 7):
        parts.update(points[start : min(50, start + 7)], labels[start : min(50, start + 7)])
    other.update(points[50:], labels[50:])
    parts.merge_state(other)  # as the states of another process are gathered
    expected = whole.compute()
    for name, value in parts.compute().items():
        assert float(value) == pytest.approx(float(expected[name]), abs=1e-6), name
    parts.reset()
    with pytest.raises(InputError, match="update first"):
        parts.compute()


def test_an_embedding_brings_its_uncertainty(clusters: tuple[Tensor, Tensor]) -> None:
    from doubtless.evaluation import EvaluationOptions, evaluate

    points, labels = clusters
    variance = torch.rand(90, 1, generator=torch.Generator().manual_seed(1)) + 0.1
    embedding = Embedding.gaussian(points, variance)
    own, told = RetrievalMeasures(), RetrievalMeasures()
    assert embedding.uncertainty is not None
    for start in (0, 45):
        own.update(embedding[start : start + 45], labels[start : start + 45])
    told.update(points, labels, embedding.uncertainty)
    expected = evaluate(embedding, labels, options=EvaluationOptions(bootstrap=0, consensus_samples=0))
    for metric in (own, told):
        for name in ("error_auroc", "ausc", "aurc", "augrc", "recall@1"):
            assert float(metric.compute()[name]) == pytest.approx(expected[name], abs=1e-6)
    with pytest.raises(InputError, match="none has"):
        own.update(points, labels)


def test_doubts_against_torchmetrics_auroc() -> None:
    from torchmetrics.classification import BinaryAUROC

    generator = torch.Generator().manual_seed(2)
    uncertainty = torch.rand(200, generator=generator)
    correct = torch.rand(200, generator=generator) > uncertainty
    metric = DoubtMeasures()
    for start in range(0, 200, 33):
        metric.update(uncertainty[start : start + 33], correct[start : start + 33])
    expected = float(BinaryAUROC()(uncertainty, (~correct).long()))
    assert float(metric.compute()["error_auroc"]) == pytest.approx(expected, abs=1e-6)
    collection = torchmetrics.MetricCollection([DoubtMeasures()])
    collection.update(uncertainty, correct)
    assert set(collection.compute()) == {"error_auroc", "ausc", "aurc", "augrc"}


def test_what_cannot_be_measured() -> None:
    metric = DoubtMeasures()
    metric.update(torch.tensor([0.1, 0.2]), torch.tensor([True, True]))
    assert math.isnan(float(metric.compute()["error_auroc"]))
    with pytest.raises(InputError, match=r"\(b,\)"):
        metric.update(torch.zeros(2, 1), torch.zeros(2))
    with pytest.raises(InputError, match=r"\(b, D\)"):
        RetrievalMeasures().update(torch.zeros(3), torch.zeros(3))
