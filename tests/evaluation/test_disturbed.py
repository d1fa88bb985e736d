"""Curves of pictures made worse, against loops over pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from doubtless.errors import InputError
from doubtless.evaluation.disturbed import crop_curves, worse_curves

VALUES = st.sampled_from([0.0, 0.25, 0.5, 2.0])


@given(pairs=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=8))
def test_lines_against_loops(pairs: list[tuple[float, float]]) -> None:
    before, after = zip(*pairs, strict=True)
    steps = [{"doubt": torch.tensor(one, dtype=torch.double)} for one in (before, after)]
    wins = sum((b > a) + 0.5 * (b == a) for a in before for b in after)
    assert worse_curves(steps, [0.0, 1.0])["doubt"].y == pytest.approx([0.5, wins / len(pairs) ** 2])
    own = sum((b > a) + 0.5 * (b == a) for a, b in pairs)
    found = crop_curves(steps, [1.0, 0.3])
    assert found["doubt"].y == pytest.approx([0.5, own / len(pairs)])
    assert found["doubt"].x == [1.0, 0.3]


def test_right_answers_are_counted_and_guessing_is_a_half() -> None:
    steps = [{"recall@1": torch.tensor(right)} for right in ([True, True], [True, False])]
    assert worse_curves(steps, [0.0, 1.0])["recall@1"].y == [1.0, 0.5]
    lines = crop_curves(steps, [1.0, 0.1])
    assert lines["recall@1"].y == [1.0, 0.5]
    assert lines["random"].y == [0.5, 0.5]


def test_nan_is_refused() -> None:
    steps = [{"doubt": torch.tensor([0.0, 1.0])}, {"doubt": torch.tensor([0.0, torch.nan])}]
    with pytest.raises(InputError, match="NaN"):
        crop_curves(steps, [1.0, 0.5])
    with pytest.raises(InputError, match="NaN"):
        worse_curves(steps, [0.0, 1.0])
