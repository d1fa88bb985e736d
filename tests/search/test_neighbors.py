"""Exact neighbours against sorting every score by hand: ties, duplicates, the border of k."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.errors import InputError
from doubtless.search import neighbors
from doubtless.search.neighbors import nearest, ranked
from tests.reference import metrics as reference

# Small integers: most scores tie, many rows are duplicates.
rows_with_ties = st.integers(1, 3).flatmap(
    lambda dim: st.lists(
        st.lists(st.integers(-1, 1).map(float), min_size=dim, max_size=dim), min_size=2, max_size=24
    )
)


@settings(deadline=None, max_examples=150)
@given(rows_with_ties, st.data(), st.booleans())
def test_leave_one_out_equals_sorting(rows: list[list[float]], data: st.DataObject, unit: bool) -> None:
    k = data.draw(st.integers(1, len(rows) - 1))
    table = torch.tensor(rows)
    table = normalize(table, dim=1) if unit else table
    found = nearest(table, table, k=k, exclude=torch.arange(len(rows)))
    listed = table.tolist()
    for place, row in enumerate(listed):
        expected = reference.ranking(row, listed, exclude=place)[:k]
        assert found.index[place].tolist() == expected
        assert found.score[place].tolist() == [reference.score(row, listed[item]) for item in expected]


@settings(deadline=None, max_examples=100)
@given(rows_with_ties, st.data())
def test_query_gallery_equals_sorting(rows: list[list[float]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(rows) - 1))
    queries, gallery = torch.tensor(rows[:cut]), torch.tensor(rows[cut:])
    k = data.draw(st.integers(1, len(gallery)))
    found = nearest(queries, gallery, k=k)
    assert found.index.tolist() == [reference.ranking(row, rows[cut:])[:k] for row in rows[:cut]]


@settings(deadline=None, max_examples=60)
@given(rows_with_ties, st.data())
def test_ranked_serves_each_depth(rows: list[list[float]], data: st.DataObject) -> None:
    count = len(rows)
    depth = torch.tensor(data.draw(st.lists(st.integers(1, count - 1), min_size=count, max_size=count)))
    table = torch.tensor(rows)
    with pytest.MonkeyPatch.context() as patch:  # both paths on small data
        patch.setattr(neighbors, "SHALLOW", 3)
        patch.setitem(neighbors.DENSE_SCORES, "cpu", 2 * count)
        parts = list(ranked(table, table, depth=depth, exclude=torch.arange(count)))
    seen = torch.cat([chosen for chosen, _ in parts])
    assert sorted(seen.tolist()) == list(range(count))
    for chosen, found in parts:
        for place, index in zip(chosen.tolist(), found.index.tolist(), strict=True):
            need = int(depth[place])
            assert len(index) >= need
            assert index[:need] == reference.ranking(rows[place], rows, exclude=place)[:need]


@pytest.mark.parametrize("copies", [1, 30])
def test_random_rows_with_more_duplicates_than_faiss_proposes(copies: int) -> None:
    table = normalize(torch.randn(20, 7, generator=torch.Generator().manual_seed(1)), dim=1).repeat(copies, 1)
    found = nearest(table, table, k=5, exclude=torch.arange(len(table)))
    listed = table.tolist()
    for place in range(0, len(table), 41):
        assert found.index[place].tolist() == reference.ranking(listed[place], listed, exclude=place)[:5]


def test_a_collapsed_network_gives_the_first_items() -> None:
    table = torch.full((500, 8), 8**-0.5)
    found = nearest(table, table, k=3, exclude=torch.arange(500))
    assert found.index[:4].tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert (found.index[4:] == torch.arange(3)).all()


def test_a_gap_below_float32_is_a_tie_and_goes_by_index() -> None:
    near = torch.tensor([[1.0, 2.0**-30], [1.0, 2.0**-29], [1.0, 0.0]])
    assert nearest(torch.tensor([[1.0, 1.0]]), near, k=3).index.tolist() == [[0, 1, 2]]


def test_both_precisions_and_views_agree() -> None:
    table = normalize(
        torch.randn(50, 12, dtype=torch.double, generator=torch.Generator().manual_seed(2)), dim=1
    )
    wide = torch.zeros(50, 24)
    wide[:, ::2] = table.float()
    expected = nearest(table.float(), table.float(), k=4)
    for other in (nearest(table, table, k=4), nearest(wide[:, ::2], wide[:, ::2], k=4)):
        assert torch.equal(other.index, expected.index)
        assert torch.equal(other.score, expected.score)


def test_dense_and_proposed_agree_on_clustered_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    centre = torch.randn(5, 16, generator=generator).repeat(200, 1)
    table = normalize(centre + 1e-3 * torch.randn(1000, 16, generator=generator), dim=1)
    itself = torch.arange(1000)
    proposed = nearest(table, table, k=20, exclude=itself)
    monkeypatch.setattr(neighbors, "SHALLOW", 0)
    for rows, dense in ranked(table, table, depth=torch.full((1000,), 20), exclude=itself):
        assert torch.equal(dense.index, proposed.index[rows])


def test_no_queries() -> None:
    found = nearest(torch.empty(0, 3), torch.eye(3), k=2)
    assert found.index.shape == (0, 2)
    assert list(ranked(torch.empty(0, 3), torch.eye(3), depth=torch.empty(0, dtype=torch.long))) == []


@pytest.mark.parametrize(
    ("k", "exclude", "sentence"),
    [
        (4, None, "k = 4 is larger than the gallery, which has 3 items; accepted: 1 to 3."),
        (3, torch.arange(3), "which has 2 items without the query itself"),
        (0, None, "k must be at least 1, got 0."),
    ],
)
def test_k_beyond_the_gallery_is_a_sentence(k: int, exclude: Tensor | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        nearest(torch.eye(3), torch.eye(3), k=k, exclude=exclude)


def test_dimensions_must_agree() -> None:
    with pytest.raises(InputError, match="one dimension"):
        nearest(torch.eye(3), torch.eye(4), k=1)
