"""The floor of the consensus ECE, against all outcomes there are and against outcomes that are drawn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.errors import InputError
from doubtless.metrics import consensus_ece, consensus_ece_floor, track_of
from doubtless.metrics.tracks import TRACKS
from doubtless.metrics.uncertainty import NAMES
from tests.reference.metrics import consensus_ece_floor_of_all_outcomes


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 20), min_size=1, max_size=9))
def test_the_floor_is_the_mean_over_all_outcomes(counts: list[int]) -> None:
    expected = consensus_ece_floor_of_all_outcomes(counts, samples=20)
    assert consensus_ece_floor(torch.tensor(counts), samples=20) == pytest.approx(expected, abs=1e-12)


def test_the_floor_of_many_queries_is_what_draws_show() -> None:
    generator = torch.Generator().manual_seed(0)
    count = torch.randint(0, 101, (3000,), generator=generator)
    floor = consensus_ece_floor(count, samples=100)
    shown = torch.tensor(
        [
            consensus_ece(count, torch.rand(3000, generator=generator) < count / 100, samples=100)
            for _ in range(400)
        ]
    )
    assert floor == pytest.approx(float(shown.mean()), abs=4 * float(shown.std()) / 20)


def test_as_many_queries_as_a_benchmark_has() -> None:
    """The Fourier transform keeps its digits: a single binomial has its mean deviation in closed form."""
    n, p = 40_000, 0.95
    k = int(n * p) + 1  # De Moivre: 2 k (1 − p) · P(S = k)
    log_mass = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    expected = 2 * k * (1 - p) * math.exp(log_mass + k * math.log(p) + (n - k) * math.log(1 - p)) / n
    found = consensus_ece_floor(torch.full((n,), 95), samples=100)
    assert found == pytest.approx(expected, rel=1e-7)


def test_sure_voters_have_no_floor() -> None:
    assert consensus_ece_floor(torch.tensor([100, 0, 100]), samples=100) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(("counts", "sentence"), [([], "No query"), ([101], "at most 100")])
def test_what_has_no_floor(counts: list[int], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        consensus_ece_floor(torch.tensor(counts, dtype=torch.long), samples=100)


def test_every_free_uncertainty_has_a_track() -> None:
    assert set(NAMES) <= set(TRACKS)
    assert [track_of(name) for name in NAMES] == ["gallery", "gallery", "gallery", "picture"]
    assert track_of("uncertainty") == "picture"
    assert {track_of(name) for name in ("doubt", "disagreement", "novelty", "match")} == {"gallery"}
