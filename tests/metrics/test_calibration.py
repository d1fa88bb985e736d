"""Consensus, ECE, ECE@k, match ECE and Brier score against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics import calibration as consensus_module
from doubtless.metrics.calibration import (
    ConsensusCalibration,
    agree_on_label,
    agree_on_place,
    consensus_ece,
    consensus_form,
    consensus_sums,
    draw_hits,
    match_brier,
    match_ece,
    rank_ece,
    rank_ece_form,
    reliability_curve,
)
from doubtless.search.neighbors import Neighbors
from tests.reference import metrics as reference

votes = st.integers(1, 9).flatmap(
    lambda samples: st.lists(
        st.lists(
            st.tuples(st.sampled_from([0.25, 0.5, 0.75]), st.integers(0, 5)),
            min_size=samples,
            max_size=samples,
        ),
        min_size=1,
        max_size=6,
    )
)
Votes = list[list[tuple[float, int]]]


def hits_of(queries: Votes) -> Neighbors:
    scores = torch.tensor([[score for score, _ in query] for query in queries])
    places = torch.tensor([[place for _, place in query] for query in queries])
    return Neighbors(scores.T, places.T)


@settings(deadline=None)
@given(votes, st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_the_vote_and_its_ties(queries: Votes, labels: list[int]) -> None:
    found = agree_on_label(hits_of(queries), torch.tensor(labels))
    assert list(zip(found.prediction.tolist(), found.count.tolist(), strict=True)) == [
        reference.consensus(query, labels) for query in queries
    ]


@settings(deadline=None)
@given(votes, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=6, max_size=6))
def test_places_agree_within_a_radius(queries: Votes, where: list[tuple[int, int]]) -> None:
    positions = [[20.0 * x, 20.0 * y] for x, y in where]
    found = agree_on_place(hits_of(queries), torch.tensor(positions))
    assert list(zip(found.prediction.tolist(), found.count.tolist(), strict=True)) == [
        reference.place_consensus(query, positions, 25.0) for query in queries
    ]


@pytest.mark.parametrize("family", ["gaussian", "empirical"])
def test_streamed_draws_equal_a_loop_over_the_same_draws(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (30,), generator=generator)
    location = torch.randn(4, 3, generator=generator)[labels] + 0.5 * torch.randn(30, 3, generator=generator)
    if family == "gaussian":
        embedding = Embedding.gaussian(location, torch.rand(30, 1, generator=generator))
    else:
        embedding = Embedding.empirical(location + 0.5 * torch.randn(6, 30, 3, generator=generator))
    rows, samples, kept = torch.arange(0, 30, 2), 12, []

    def draw(chosen: Tensor) -> Tensor:
        kept.append(embedding[chosen].sample(samples, generator=generator))
        return kept[-1]

    monkeypatch.setattr(consensus_module, "DRAWN", 4 * samples * 3)  # four queries a chunk
    stream, seen = ConsensusCalibration(samples=samples), []
    gallery = embedding.direction
    for chunk, hits in draw_hits(draw, rows, gallery=gallery, samples=samples, exclude=rows):
        agreed = agree_on_label(hits, labels)
        stream.update(agreed.count, agreed.prediction == labels[rows[chunk]])
        seen += chunk.tolist()
    assert seen == list(range(15))
    assert len(kept) == 4

    draws, listed = torch.cat(kept, dim=1).tolist(), gallery.tolist()
    counts, correct = [], []
    for place, row in enumerate(rows.tolist()):
        found = []
        for draw_number in range(samples):
            best = reference.ranking(draws[draw_number][place], listed, exclude=row)[0]
            found.append((reference.score(draws[draw_number][place], listed[best]), best))
        label, count = reference.consensus(found, labels.tolist())
        counts.append(count)
        correct.append(label == int(labels[row]))
    assert stream.compute() == pytest.approx(reference.consensus_ece(counts, correct, samples), abs=1e-12)
    assert 0 < sum(correct) < 15  # the example says something


@settings(deadline=None)
@given(
    st.sampled_from([7, 10, 100]).flatmap(
        lambda samples: st.tuples(
            st.just(samples),
            st.lists(st.tuples(st.integers(1, samples), st.booleans()), min_size=1, max_size=30),
        )
    ),
    st.integers(1, 7),
)
def test_consensus_ece_and_its_stream(case: tuple[int, list[tuple[int, bool]]], size: int) -> None:
    samples, items = case
    counts, correct = [count for count, _ in items], [right for _, right in items]
    expected = reference.consensus_ece(counts, correct, samples)
    whole = torch.tensor(counts), torch.tensor(correct)
    assert consensus_ece(*whole, samples=samples) == pytest.approx(expected, abs=1e-12)
    weighted = consensus_form(*whole, samples=samples)(torch.ones(1, len(items), dtype=torch.double))["ece"]
    assert float(weighted) == pytest.approx(expected, abs=1e-12)
    stream = ConsensusCalibration(samples=samples)
    for part in zip(*(tensor.split(size) for tensor in whole), strict=True):
        stream.update(*part)
    assert stream.compute() == pytest.approx(expected, abs=1e-12)


def test_consensus_sums_of_many_at_once_are_those_of_each() -> None:
    generator = torch.Generator().manual_seed(0)
    count, right = (
        torch.randint(0, 13, (3, 2, 40), generator=generator),
        torch.rand(3, 2, 40, generator=generator) < 0.5,
    )
    sizes, gaps = consensus_sums(count, right, samples=12, bins=4)
    assert sizes.shape == gaps.shape == (3, 2, 4)
    for i in range(3):
        for j in range(2):
            for bin_number in range(4):
                inside = [
                    12 * int(good) - int(agreeing)
                    for agreeing, good in zip(count[i, j], right[i, j], strict=True)
                    if min(4 * int(agreeing) // 12, 3) == bin_number
                ]
                assert (int(sizes[i, j, bin_number]), int(gaps[i, j, bin_number])) == (
                    len(inside),
                    sum(inside),
                )


def test_full_agreement_counts() -> None:
    """9,900 at confidence 1, half of them right, and 100 at .95, all right: about .5, not .05."""
    count = torch.cat([torch.full((9900,), 100), torch.full((100,), 95)])
    correct = torch.cat([torch.arange(9900) % 2 == 0, torch.ones(100, dtype=torch.bool)])
    # Both are in the last bin: |5050 right − 9995 promised| of 10,000
    assert consensus_ece(count, correct, samples=100) == pytest.approx(0.4945)


doubt_and_value = st.tuples(st.sampled_from([0.0, 1.0, math.inf]), st.sampled_from([0.0, 0.25, 1.0]))


@settings(deadline=None, max_examples=60)
@given(st.lists(doubt_and_value, min_size=1, max_size=7))
def test_rank_ece_shares_ties(items: list[tuple[float, float]]) -> None:
    doubts, values = [doubt for doubt, _ in items], [value for _, value in items]
    assert rank_ece(torch.tensor(doubts), torch.tensor(values)) == pytest.approx(
        reference.rank_ece(doubts, values), abs=1e-12
    )


@given(st.permutations(range(33)))
def test_rank_ece_bins_by_rank(order: list[int]) -> None:
    values = [math.sin(place) ** 2 for place in order]
    ordered = [value for _, value in sorted(zip(order, values, strict=True))]
    expected = 0.0
    for place in range(10):
        members = ordered[place * 33 // 10 : (place + 1) * 33 // 10]
        expected += abs(sum(members) / len(members) - (10 - place) / 10) * len(members) / 33
    assert rank_ece(torch.tensor(order), torch.tensor(values, dtype=torch.double)) == pytest.approx(expected)


def test_a_perfect_retriever_scores_45() -> None:
    assert rank_ece(torch.arange(50.0), torch.ones(50)) == pytest.approx(0.45)


@settings(deadline=None)
@given(st.lists(st.tuples(doubt_and_value, st.integers(1, 10)), min_size=1, max_size=15), st.data())
def test_weights_are_copies(items: list[tuple[tuple[float, float], int]], data: st.DataObject) -> None:
    uncertainty = torch.tensor([pair[0] for pair, _ in items])
    values = torch.tensor([pair[1] for pair, _ in items])
    counts, size = torch.tensor([count for _, count in items]), len(items)
    drawn = data.draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size))
    weights = torch.tensor(drawn).bincount(minlength=size).double().unsqueeze(0)
    ranked = rank_ece_form(uncertainty, {"ece@1": values})(weights)["ece@1"]
    assert float(ranked) == pytest.approx(rank_ece(uncertainty[drawn], values[drawn]), abs=1e-12)
    binned = consensus_form(counts, values > 0.5, samples=10)(weights)["ece"]
    expected = reference.consensus_ece(counts[drawn].tolist(), (values > 0.5)[drawn].tolist(), 10)
    assert float(binned) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_match_metrics_equal_their_loops(items: list[tuple[float, bool]]) -> None:
    chances, right = [chance for chance, _ in items], [value for _, value in items]
    given = torch.tensor(chances, dtype=torch.double), torch.tensor(right)
    assert match_ece(*given) == pytest.approx(reference.match_ece(chances, right), abs=1e-12)
    brier = sum((chance - value) ** 2 for chance, value in items) / len(items)
    assert match_brier(*given) == pytest.approx(brier, abs=1e-12)
    curve = reliability_curve(*given)
    assert curve.weight is not None
    assert sum(curve.weight) == pytest.approx(1, abs=1e-5)
    gap = sum(w * abs(x - y) for x, y, w in zip(curve.x, curve.y, curve.weight, strict=True))
    assert gap == pytest.approx(match_ece(*given), abs=1e-5)


def test_a_sure_embedding_is_consulted_once_a_draw() -> None:
    """With no spread every draw hits the same item: confidence 1, accuracy recall@1."""
    generator = torch.Generator().manual_seed(3)
    location = normalize(torch.randn(40, 4, generator=generator), dim=1)
    labels = torch.arange(40) % 5
    embedding = Embedding.gaussian(location, torch.zeros(40, 1))
    rows = torch.arange(40)
    (chunk, hits), *rest = draw_hits(
        lambda chosen: embedding[chosen].sample(10, generator=generator),
        rows,
        gallery=embedding.direction,
        samples=10,
        exclude=rows,
    )
    assert not rest
    assert len(chunk) == 40
    assert (agree_on_label(hits, labels).count == 10).all()


def test_bad_input_is_a_sentence() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        match_ece(torch.tensor([1.5]), torch.tensor([True]))
    with pytest.raises(InputError, match="between 0 and 1"):
        match_brier(torch.tensor([torch.nan]), torch.tensor([True]))
    with pytest.raises(InputError, match="One probability per hit"):
        match_brier(torch.tensor([0.5]), torch.tensor([True, False]))
    with pytest.raises(InputError, match="No query was given"):
        ConsensusCalibration(samples=3).compute()
