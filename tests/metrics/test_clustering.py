"""NMI and pair F1 against loops and scikit-learn; k-means on what has obvious clusters."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from doubtless.errors import InputError
from doubtless.metrics.clustering import kmeans, nmi, pair_f1
from tests.reference import metrics as reference

partitions = st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 4)), min_size=1, max_size=25)


@settings(deadline=None)
@given(partitions)
def test_both_equal_their_loops(items: list[tuple[int, int]]) -> None:
    labels, clusters = [a for a, _ in items], [b for _, b in items]
    pair = torch.tensor(labels), torch.tensor(clusters)
    assert nmi(*pair) == pytest.approx(reference.nmi(labels, clusters), abs=1e-12)
    assert pair_f1(*pair) == pytest.approx(reference.pair_f1(labels, clusters), abs=1e-12, nan_ok=True)


def test_scikit_learn_agrees() -> None:
    from sklearn.metrics import normalized_mutual_info_score
    from sklearn.metrics.cluster import pair_confusion_matrix

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(9, (400,), generator=generator)
    clusters = torch.where(torch.rand(400, generator=generator) < 0.6, labels, (labels * 7) % 5)
    assert nmi(labels, clusters) == pytest.approx(normalized_mutual_info_score(labels, clusters))
    (_, false), (missed, true) = pair_confusion_matrix(labels, clusters)
    assert pair_f1(labels, clusters) == pytest.approx(2 * true / (2 * true + false + missed))


def test_kmeans_finds_what_is_there_and_repeats() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(6).repeat_interleave(300)  # more rows a cluster than FAISS takes by itself
    rows = normalize(torch.eye(6)[labels] + 0.05 * torch.randn(1800, 6, generator=generator), dim=1)
    found = kmeans(rows, 6, seed=1)
    assert nmi(labels, found) > 0.8
    assert torch.equal(found, kmeans(rows, 6, seed=1))


def test_singletons_have_no_pairs() -> None:
    assert math.isnan(pair_f1(torch.arange(4), torch.arange(4)))
    assert nmi(torch.arange(4), torch.arange(4)) == pytest.approx(1)
    assert nmi(torch.zeros(4).long(), torch.zeros(4).long()) == 1
    assert nmi(torch.arange(4), torch.zeros(4).long()) == 0


def test_bad_input_is_a_sentence() -> None:
    with pytest.raises(InputError, match="1 to 2 clusters for as many rows, got 3"):
        kmeans(torch.eye(2), 3)
    with pytest.raises(InputError, match="must be as many"):
        nmi(torch.zeros(2), torch.zeros(3))
