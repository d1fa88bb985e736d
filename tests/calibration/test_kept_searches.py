"""What queries found, followed through changes, is what a search of everything finds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.calibration.distribution import DEPTH
from doubtless.calibration.kept_searches import Found, Items, KeptSearches, after_change, search_items

SIZE, DIM = 160, 5
TABLE = torch.nn.functional.normalize(
    torch.randn(SIZE, DIM, generator=torch.Generator().manual_seed(3)), dim=1
)


def items(rows: list[int]) -> Items:
    row = torch.tensor(sorted(rows))
    return Items(row, row % 7, lambda chosen: TABLE[chosen.clamp_min(0)])


def searched(gallery: Items, own: Tensor) -> KeptSearches:
    vectors, label = TABLE[own], own % 7
    return KeptSearches(
        own,
        label,
        torch.zeros(len(own)),
        search_items(vectors, gallery, own=own),
        search_items(vectors, gallery, own=own, label=label),
    )


def by_hand(gallery: Items, query: int, *, without_label: bool) -> list[int]:
    others = [
        row for row in gallery.row.tolist() if row != query and not (without_label and row % 7 == query % 7)
    ]
    return sorted(others, key=lambda row: -float(TABLE[query] @ TABLE[row]))[:DEPTH]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(60, 120),
    st.sets(st.integers(0, SIZE - 1), max_size=70),
)
def test_following_a_change_finds_what_a_search_of_everything_finds(last: int, removed: set[int]) -> None:
    before = items(list(range(last)))
    kept = searched(before, before.row[::9])
    now = items([row for row in range(SIZE) if row not in removed])
    followed, again = after_change(kept, now, last=last - 1)
    assert set(followed.own.tolist()) == set(kept.own.tolist()) - removed
    assert 0 <= again <= len(followed)
    for number, own in enumerate(followed.own.tolist()):
        for found, without in ((followed.present, False), (followed.absent, True)):
            hits = found.row[number, :DEPTH]
            assert hits[hits >= 0].tolist() == by_hand(now, own, without_label=without)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 400), min_size=1, max_size=40), st.lists(st.integers(-1, 450), min_size=1))
def test_rows_are_found_wherever_they_lie(there: set[int], asked: list[int]) -> None:
    """Close together, where a table says where they are, and far apart, where they are searched for."""
    gallery, rows = items(list(there)), torch.tensor([asked])
    assert gallery.has(rows).tolist() == [[row in there for row in asked]]
    assert gallery.label_of(rows).tolist() == [[row % 7 if row in there else -1 for row in asked]]


def test_only_queries_that_lost_much_search_again() -> None:
    before = items(list(range(150)))
    kept = searched(before, torch.arange(40))
    _, none = after_change(kept, items([*range(148), 155]), last=149)
    _, all_ = after_change(kept, items(list(range(100))), last=149)
    assert none == 0
    assert all_ == 40


def test_hits_that_are_gone_leave_no_hole() -> None:
    found = Found(torch.tensor([[4, 2, 9]]), torch.tensor([[0.9, 0.5, 0.1]]))
    left = found.without(torch.tensor([[False, True, False]]))
    assert left.row.tolist() == [[4, 9, -1]]
    assert left.count.tolist() == [2]
    merged = left.merged(Found(torch.tensor([[7]]), torch.tensor([[0.6]])))
    assert merged.row.tolist() == [[4, 7, 9]]
    assert merged.cut(torch.tensor([1])).row.tolist() == [[4, -1, -1]]


def test_a_query_is_known_where_another_item_has_its_label() -> None:
    part = items([0, 1, 8, 20])  # labels 0, 1, 1, 6
    queries = searched(items(list(range(30))), torch.tensor([0, 7, 1, 13, 2]))
    assert queries.findable(part).tolist() == [1, 2, 3]  # 0 is alone with its label, 2's is not there


def test_what_is_kept_is_read_back() -> None:
    kept = searched(items(list(range(80))), torch.arange(5))
    again = KeptSearches.from_tensors(kept.tensors())
    assert again.outside is None
    for name, value in kept.tensors().items():
        assert torch.equal(again.tensors()[name], value)
