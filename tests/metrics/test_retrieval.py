"""Retrieval metrics against loops, torchmetrics and pytorch-metric-learning."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from doubtless.errors import InputError
from doubtless.metrics.retrieval import (
    RetrievalMetrics,
    average_precision_at,
    map_at_r,
    per_query,
    r_precision,
    recall_at,
)
from doubtless.search.neighbors import nearest
from doubtless.search.relevance import count_positives
from tests.reference import metrics as reference

relevances = st.integers(1, 9).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=8)
)


@settings(deadline=None)
@given(relevances, st.data())
def test_every_metric_equals_its_loop(rows: list[list[bool]], data: st.DataObject) -> None:
    width = len(rows[0])
    k = data.draw(st.integers(1, width))
    # R may exceed what was found, never the other way round
    positives = [data.draw(st.integers(max(1, sum(row)), width + 3)) for row in rows]
    relevant, counts = torch.tensor(rows), torch.tensor(positives)
    assert recall_at(relevant, k).tolist() == [reference.recall_at(row, k) for row in rows]
    expected = [reference.average_precision_at(row, r, k) for row, r in zip(rows, positives, strict=True)]
    assert average_precision_at(relevant, counts, k=k).tolist() == pytest.approx(expected, abs=1e-14)
    reached = [min(r, width) for r in positives]
    pairs = list(zip(rows, reached, strict=True))
    counts = torch.tensor(reached)
    assert map_at_r(relevant, counts).tolist() == pytest.approx(
        [reference.map_at_r(row, r) for row, r in pairs], abs=1e-14
    )
    assert r_precision(relevant, counts).tolist() == pytest.approx(
        [reference.r_precision(row, r) for row, r in pairs], abs=1e-14
    )


@given(st.lists(st.integers(-2, 3), min_size=1, max_size=12), st.lists(st.integers(-2, 3), min_size=1))
def test_positives_are_counted(labels: list[int], gallery: list[int]) -> None:
    found = count_positives(torch.tensor(labels), torch.tensor(gallery), leave_one_out=False)
    assert found.tolist() == [gallery.count(label) for label in labels]
    own = count_positives(torch.tensor(labels), torch.tensor(labels), leave_one_out=True)
    assert own.tolist() == [labels.count(label) - 1 for label in labels]


@settings(deadline=None)
@given(relevances, st.integers(1, 4))
def test_chunks_give_what_the_whole_gives(rows: list[list[bool]], size: int) -> None:
    relevant = torch.tensor(rows)
    positives = relevant.sum(1)  # some are 0: counted, left out
    ks = (1, relevant.shape[1])
    stream = RetrievalMetrics(ks=ks)
    for part, counts in zip(relevant.split(size), positives.split(size), strict=True):
        stream.update(part, counts)
    counted = positives > 0
    assert stream.without_positive == int((~counted).sum())
    if not bool(counted.any()):
        with pytest.raises(InputError, match="no query with a positive"):
            stream.compute()
        return
    whole = per_query(relevant[counted], positives[counted], ks=ks)
    assert stream.compute() == pytest.approx({name: float(value.mean()) for name, value in whole.items()})


def test_pytorch_metric_learning_agrees_where_it_is_right() -> None:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (150,), generator=generator)
    rows = normalize(
        torch.randn(7, 5, generator=generator)[labels] + torch.randn(150, 5, generator=generator)
    )
    positives = count_positives(labels, labels, leave_one_out=True)
    found = nearest(rows, rows, k=int(positives.max()), exclude=torch.arange(150))
    relevant = labels[found.index] == labels.unsqueeze(1)
    theirs = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
    ).get_accuracy(rows, labels)
    assert float(recall_at(relevant, 1).mean()) == pytest.approx(theirs["precision_at_1"])
    assert float(r_precision(relevant, positives).mean()) == pytest.approx(theirs["r_precision"])
    assert float(map_at_r(relevant, positives).mean()) == pytest.approx(theirs["mean_average_precision_at_r"])


def test_torchmetrics_agrees() -> None:
    from torchmetrics.functional.retrieval import retrieval_average_precision, retrieval_hit_rate

    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        scores = torch.rand(12, generator=generator)
        target = torch.rand(12, generator=generator) < 0.4
        if not bool(target.any()):
            continue
        relevant = target[scores.argsort(descending=True)].unsqueeze(0)
        positives = target.sum().reshape(1)
        assert float(recall_at(relevant, 3)) == float(retrieval_hit_rate(scores, target, top_k=3))
        # over the whole list map@k is plain average precision
        assert float(average_precision_at(relevant, positives, k=12)) == pytest.approx(
            float(retrieval_average_precision(scores, target)), abs=1e-6
        )


def test_bad_input_is_a_sentence() -> None:
    relevant = torch.tensor([[True, False]])
    with pytest.raises(InputError, match="between 1 and the 2 neighbours given, got 3"):
        recall_at(relevant, 3)
    with pytest.raises(InputError, match="without a positive"):
        average_precision_at(relevant, torch.tensor([0]), k=1)
    with pytest.raises(InputError, match="got 5"):
        map_at_r(relevant, torch.tensor([5]))
