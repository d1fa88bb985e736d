"""Leverage against the explicit inverse: of queries, of items left out for themselves, and at the edges."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.doubt.doubt import Doubt
from doubtless.doubt.leverage import Leverage
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index import moments as moments_module
from doubtless.index.moments import Moments
from doubtless.metrics.ood import auroc
from doubtless.search.hits import hits_among


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def explicit(known: Tensor, query: Tensor, *, ridge: float, level: float | None = None) -> float:
    """qᵀ (Σ x xᵀ + ridge μ I)⁻¹ q, one item at a time; `level` is ridge μ where that is to stay another's."""
    total = torch.zeros(known.shape[1], known.shape[1], dtype=torch.double)
    for row in normalize(known.double(), dim=1):
        total += torch.outer(row, row)
    level = ridge * float(total.trace()) / len(total) if level is None else level
    inverse = torch.linalg.inv(total + level * torch.eye(len(total), dtype=torch.double))
    unit = query.double() / query.double().norm()
    return float(unit @ inverse @ unit)


@pytest.mark.parametrize("ridge", [1e-4, 0.1, 10.0])
@pytest.mark.parametrize("count", [1, 5, 60])
def test_it_is_the_explicit_inverse(count: int, ridge: float) -> None:
    known, queries = draw(count, 9), draw(7, 9, seed=1)
    found = Leverage(Moments.of(known), ridge=ridge).of(queries)
    expected = torch.tensor([count * explicit(known, query, ridge=ridge) for query in queries])
    torch.testing.assert_close(found, expected.double(), rtol=1e-6, atol=0)


def test_an_item_is_left_out_exactly() -> None:
    known, ridge = draw(20, 9), 0.1
    found = Leverage(Moments.of(known), ridge=ridge).of(known, own=True)
    for row in range(20):
        others = torch.cat([known[:row], known[row + 1 :]])
        expected = 20 * explicit(others, known[row], ridge=ridge, level=ridge * 20 / 9)
        assert float(found[row]) == pytest.approx(expected, rel=1e-6)


def test_scale_does_not_matter_and_more_of_the_same_does_not_either() -> None:
    known, queries = draw(30, 8), draw(9, 8, seed=1)
    once = Leverage(Moments.of(known)).of(queries)
    torch.testing.assert_close(once, Leverage(Moments.of(100 * known)).of(1e-3 * queries), rtol=1e-5, atol=0)
    torch.testing.assert_close(once, Leverage(Moments.of(known.repeat(3, 1))).of(queries), rtol=1e-5, atol=0)


def test_galleries_of_nothing_and_of_one() -> None:
    queries = torch.cat([torch.eye(4), torch.zeros(1, 4)])
    assert Leverage(Moments.none(4)).of(queries).tolist() == [torch.inf] * 4 + [0]
    one = Leverage(Moments.of(torch.eye(4)[:1]))
    near, far, *_ = one.of(queries).tolist()
    assert near < 1 < far
    assert bool(torch.isfinite(one.of(queries[:1], own=True)).all())
    assert float(one.of(queries[4:])) == 0  # what points nowhere says nothing
    with pytest.raises(InputError, match="take rows"):
        one.of(torch.eye(3))


def test_wide_directions_are_ordered_as_the_exact_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    basis = draw(12, 600, seed=5)
    known = draw(400, 12) @ basis + 0.3 * draw(400, 600, seed=6)
    inside = draw(100, 12, seed=1) @ basis + 0.3 * draw(100, 600, seed=7)
    outside = draw(100, 12, seed=2) @ basis + 1.0 * draw(100, 600, seed=8)
    queries = torch.cat([inside, outside])
    exact = Leverage(Moments.of(known)).of(queries)
    monkeypatch.setattr(moments_module, "WIDEST", 128)
    moments_module._projection.cache_clear()
    narrowed = Leverage(Moments.of(known)).of(queries)
    moments_module._projection.cache_clear()
    assert auroc(exact[:100], exact[100:]) > 0.99
    assert auroc(narrowed[:100], narrowed[100:]) > 0.97
    assert float(torch.corrcoef(torch.stack([exact, narrowed]))[0, 1]) > 0.9


def test_it_is_the_same_after_saving() -> None:
    leverage, queries = Leverage(Moments.of(draw(50, 6)), ridge=0.3), draw(8, 6, seed=1)
    again = Leverage.from_tensors(load(save(leverage.tensors())))
    assert (again.ridge, again.moments.count) == (0.3, 50)
    torch.testing.assert_close(again.of(queries), leverage.of(queries), rtol=1e-5, atol=0)


@pytest.fixture(scope="module")
def flat() -> tuple[Tensor, Tensor]:
    """Classes in six of twelve dimensions, and nearly nothing in the others."""
    labels = torch.arange(400) % 8
    centres = 2 * draw(8, 12, seed=9)
    rows = centres[labels] + draw(400, 12)
    rows[:, 6:] *= 0.02
    return rows, labels


def test_a_doubt_of_directions_sees_what_the_nearest_item_does_not(flat: tuple[Tensor, Tensor]) -> None:
    rows, labels = flat
    embedding, itself = Embedding.point(rows), torch.arange(400)
    beside = rows[:200] + 0.6 * torch.cat([torch.zeros(200, 6), draw(200, 6, seed=3)], dim=1)

    def found(doubt: Doubt) -> float:
        totals = []
        for queries, own in ((rows, itself), (beside, None)):
            asked = Embedding.point(queries)
            hits = hits_among(asked, embedding, k=10, gallery_labels=labels, itself=own)
            totals.append(doubt.of(hits, queries=asked, itself=own).total)
        return auroc(*totals)

    with_leverage, without = (Doubt.fit(embedding, labels, leverage=leverage) for leverage in (True, False))
    assert set(with_leverage.tails) - set(without.tails) == {"leverage"}
    assert found(with_leverage) > found(without) + 0.1


def test_nobody_who_does_not_ask_gets_leverage_and_old_doubts_open(flat: tuple[Tensor, Tensor]) -> None:
    rows, labels = flat
    embedding = Embedding.point(rows)
    doubt = Doubt.fit(embedding, labels, features=rows)
    assert doubt.leverage is None
    assert doubt.among(Moments.of(rows)) is doubt
    tensors, record = doubt.state()
    assert not any(name.startswith("leverage") for name in tensors)  # as those before leverage were
    hits = hits_among(embedding, embedding, k=10, gallery_labels=labels)
    again = Doubt.from_state(tensors, record)
    assert torch.equal(
        again.of(hits, rows, queries=embedding).total, doubt.of(hits, rows, queries=embedding).total
    )


def test_a_doubt_is_saved_with_its_leverage_and_moves_with_the_gallery(flat: tuple[Tensor, Tensor]) -> None:
    rows, labels = flat
    embedding = Embedding.point(rows)
    doubt = Doubt.fit(embedding, labels, leverage=True)
    tensors, record = doubt.state()
    again = Doubt.from_state(load(save(tensors)), record)
    hits = hits_among(embedding, embedding, k=10, gallery_labels=labels)
    torch.testing.assert_close(
        again.of(hits, queries=embedding).total, doubt.of(hits, queries=embedding).total, rtol=1e-4, atol=1e-6
    )
    beside = Embedding.point(draw(40, 12, seed=4))
    found = hits_among(beside, embedding, k=10, gallery_labels=labels)
    before = doubt.of(found, queries=beside).parts["novelty"]
    grown = doubt.among(Moments.of(torch.cat([rows, draw(2000, 12, seed=5)])))
    assert float(grown.of(found, queries=beside).parts["novelty"].mean()) < float(before.mean())
    there = doubt.for_gallery(Embedding.point(draw(300, 12, seed=6)), labels=torch.arange(300) % 5)
    assert there.leverage is not None
    assert there.leverage.moments.count == 300
