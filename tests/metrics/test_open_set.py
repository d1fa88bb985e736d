"""Open-set identification against loops over thresholds, and what must hold of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics import augrc, auroc, baks, baus, coverage_at_risk
from doubtless.metrics.catalogue import meaning
from doubtless.metrics.labels import NONE
from doubtless.metrics.metric import work_out
from doubtless.metrics.open_set import (
    dir_at_far,
    fnir_at_fpir,
    open_augrc,
    open_aurc,
    open_coverage_at_risk,
    open_risk_curve,
    open_set_form,
    open_set_rates,
    oscr,
    oscr_curve,
)
from doubtless.metrics.views import OpenSet
from tests.reference import open_set as reference

doubt = st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf, -math.inf])
known_items = st.lists(st.tuples(doubt, st.booleans()), min_size=1, max_size=12)
unknown_items = st.lists(doubt, min_size=1, max_size=12)
rates = st.sampled_from(["0", "0.01", "0.1", "0.29", "0.5", "1"])
shares = st.sampled_from(["0", "0.1", "0.5", "0.9", "1"])

Queries = tuple[Tensor, Tensor, Tensor]


def tensors(known: list[tuple[float, bool]], unknown: list[float]) -> Queries:
    return (
        torch.tensor([value for value, _ in known], dtype=torch.double),
        torch.tensor([right for _, right in known], dtype=torch.bool),
        torch.tensor(unknown, dtype=torch.double),
    )


def lists(queries: Queries) -> tuple[Any, Any, Any]:
    known, correct, unknown = (part.tolist() for part in queries)
    return known, correct, unknown


def everything(queries: Queries, *, share: float = 0.3) -> dict[str, float]:
    ones = [torch.ones(1, len(part), dtype=torch.double) for part in queries[::2]]
    return {name: float(value) for name, value in open_set_form(*queries, share=share)(*ones).items()}


@settings(deadline=None)
@given(known_items, unknown_items, rates)
def test_fnir_and_dir_are_the_best_of_all_thresholds(
    known: list[tuple[float, bool]], unknown: list[float], rate: str
) -> None:
    queries = tensors(known, unknown)
    found = fnir_at_fpir(*queries, fpir=float(rate))
    assert found == pytest.approx(reference.fnir_at_fpir(*lists(queries), Fraction(rate)), abs=1e-12)
    assert found + dir_at_far(*queries, far=float(rate)) == 1


@settings(deadline=None)
@given(known_items, unknown_items)
def test_oscr_is_the_area_under_its_curve(known: list[tuple[float, bool]], unknown: list[float]) -> None:
    queries = tensors(known, unknown)
    found = oscr(*queries)
    assert found == pytest.approx(reference.oscr(*lists(queries)), abs=1e-12)
    curve = oscr_curve(*queries)
    area = torch.trapezoid(torch.tensor(curve.y).double(), torch.tensor(curve.x).double())
    assert found == pytest.approx(float(area), abs=1e-6)
    assert 0 <= found <= float(queries[1].double().mean()) + 1e-12
    all_right = torch.ones_like(queries[1])
    assert oscr(queries[0], all_right, queries[2]) == pytest.approx(auroc(queries[0], queries[2]), abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(known_items, unknown_items, shares)
def test_risks_together(known: list[tuple[float, bool]], unknown: list[float], share: str) -> None:
    queries, exact, part = tensors(known, unknown), Fraction(share), float(share)
    area = open_aurc(*queries, share=part)
    assert area == pytest.approx(reference.open_aurc(*lists(queries), exact), abs=1e-5)
    assert -1e-12 <= area <= 1 + 1e-12
    found = open_augrc(*queries, share=part)
    assert found == pytest.approx(reference.open_augrc(*lists(queries), exact), abs=1e-12)
    bad = part + (1 - part) * (1 - float(queries[1].double().mean()))
    assert bad**2 / 2 - 1e-12 <= found <= bad - bad**2 / 2 + 1e-12
    curve = open_risk_curve(*queries, share=part)
    expected = [point for point in reference.points(*lists(queries), exact) if point[0] > 0]
    assert curve.x == pytest.approx([float(coverage) for coverage, _ in expected])
    assert curve.y == pytest.approx([float(errors / coverage) for coverage, errors in expected])
    assert curve.x[-1] == pytest.approx(1)
    assert curve.y[-1] == pytest.approx(bad)


@settings(deadline=None)
@given(known_items, unknown_items, shares, rates)
def test_coverage_with_unknowns(
    known: list[tuple[float, bool]], unknown: list[float], share: str, risk: str
) -> None:
    queries = tensors(known, unknown)
    found = open_coverage_at_risk(*queries, risk=float(risk), share=float(share))
    expected = reference.open_coverage_at_risk(*lists(queries), Fraction(risk), Fraction(share))
    assert found == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(known_items, unknown_items)
def test_without_a_share_of_unknowns_it_is_what_is_known_of_errors(
    known: list[tuple[float, bool]], unknown: list[float]
) -> None:
    queries = tensors(known, unknown)
    assert open_augrc(*queries, share=0) == pytest.approx(augrc(*queries[:2]), abs=1e-12)
    for risk in (0.05, 0.5):
        expected = coverage_at_risk(*queries[:2], risk=risk)
        assert open_coverage_at_risk(*queries, risk=risk, share=0) == pytest.approx(expected, abs=1e-12)
    assert open_aurc(*queries, share=1) == pytest.approx(1)  # whoever answers only unknowns is always wrong


def test_open_aurc_is_what_aurc_tends_to() -> None:
    from doubtless.metrics import aurc

    generator = torch.Generator().manual_seed(0)
    known, unknown = torch.rand(40, generator=generator), torch.rand(40, generator=generator) + 0.2
    correct = torch.rand(40, generator=generator) > known / 2
    copies = 2000
    doubts = torch.cat([known, unknown]).repeat(copies)
    right = torch.cat([correct, torch.zeros(40, dtype=torch.bool)]).repeat(copies)
    assert open_aurc(known, correct, unknown, share=0.5) == pytest.approx(aurc(doubts, right), abs=1e-4)


@settings(deadline=None)
@given(known_items, unknown_items, st.randoms(use_true_random=False))
def test_only_the_order_of_uncertainties_matters(
    known: list[tuple[float, bool]], unknown: list[float], random: Any
) -> None:
    expected = everything(tensors(known, unknown))
    shuffled, others = list(known), list(unknown)
    random.shuffle(shuffled)
    random.shuffle(others)
    assert everything(tensors(shuffled, others)) == pytest.approx(expected, abs=1e-12)
    first, correct, second = tensors(known, unknown)
    squeezed = everything((first.atan().exp(), correct, second.atan().exp()))
    assert squeezed == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(known_items, unknown_items, st.data())
def test_weights_are_copies(
    known: list[tuple[float, bool]], unknown: list[float], data: st.DataObject
) -> None:
    queries = tensors(known, unknown)
    view = OpenSet(*queries, torch.arange(len(known)) % 3, torch.arange(len(unknown)) % 2, share=0.3)
    drawn = [
        torch.tensor(data.draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size)))
        for size in view.sizes
    ]
    weights = [
        rows.bincount(minlength=size).double().unsqueeze(0)
        for rows, size in zip(drawn, view.sizes, strict=True)
    ]
    copied = OpenSet(
        view.known[drawn[0]],
        view.correct[drawn[0]],
        view.unknown[drawn[1]],
        view.known_labels[drawn[0]],
        view.unknown_labels[drawn[1]],
        share=0.3,
    )
    ones = [torch.ones(1, size, dtype=torch.double) for size in copied.sizes]
    found, expected = (
        {name: float(value) for form in work_out(view).forms for name, value in form(*parts).items()}
        for view, parts in ((view, weights), (copied, ones))
    )
    assert set(found) == {
        *(f"{name}@{rate}" for name in ("fnir", "baks", "baus") for rate in ("fpir0.01", "fpir0.1")),
        *("dir@far0.01", "dir@far0.1", "oscr", "open_aurc", "open_augrc"),
        *(f"open_coverage@risk{risk}" for risk in ("0.01", "0.05", "0.1")),
    }
    assert found == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(known_items, unknown_items, rates)
def test_baks_and_baus_are_of_the_answers_at_the_threshold(
    known: list[tuple[float, bool]], unknown: list[float], rate: str
) -> None:
    queries = tensors(known, unknown)
    names, others = torch.arange(len(known)) % 3, 10 + torch.arange(len(unknown)) % 4
    view = OpenSet(*queries, names, others, share=0.1, false_alarms=(float(rate),))
    ones = [torch.ones(1, size, dtype=torch.double) for size in view.sizes]
    found = {name: float(value) for form in work_out(view).forms for name, value in form(*ones).items()}
    allowed = [
        threshold
        for threshold in [-math.inf, *reference.thresholds(*lists(queries)[::2])]
        if reference.false_alarms(lists(queries)[2], threshold) <= Fraction(rate)
    ]
    nothing = not allowed  # where −∞ is an uncertainty, not even that threshold may be allowed
    answers = [
        NONE if nothing or value > allowed[-1] else label if right else 9
        for value, right, label in zip(*lists(queries)[:2], names.tolist(), strict=True)
    ]
    alarms = [NONE if nothing or value > allowed[-1] else 0 for value in lists(queries)[2]]
    assert found[f"baks@fpir{float(rate):g}"] == pytest.approx(baks(torch.tensor(answers), names), abs=1e-12)
    assert found[f"baus@fpir{float(rate):g}"] == pytest.approx(baus(torch.tensor(alarms), others), abs=1e-12)


def test_nobody_known_and_nobody_unknown() -> None:
    none, right = torch.zeros(0), torch.zeros(0, dtype=torch.bool)
    some = torch.tensor([0.1, 0.4]), torch.tensor([True, False])
    for queries in ((*some, none), (none, right, torch.tensor([0.2]))):
        assert math.isnan(oscr(*queries))
        assert math.isnan(fnir_at_fpir(*queries, fpir=0.1))
        assert math.isnan(dir_at_far(*queries, far=0.1))
        assert math.isnan(open_aurc(*queries, share=0.5))
        assert math.isnan(open_augrc(*queries, share=0.5))
        assert math.isnan(open_coverage_at_risk(*queries, risk=0.1, share=0.5))
    assert open_augrc(*some, none, share=0) == augrc(*some)
    assert open_coverage_at_risk(*some, none, risk=0.1, share=0) == 0.5
    assert open_risk_curve(*some, none, share=0).y == [0, 0.5]
    assert open_aurc(none, right, torch.tensor([0.2]), share=1) == 1
    with pytest.raises(InputError, match=r"shape \(n,\), got shape \(0,\)"):
        oscr(none, right, none)


def test_all_ties_and_one_query() -> None:
    ties = torch.zeros(4), torch.tensor([True, True, True, False]), torch.zeros(2)
    assert fnir_at_fpir(*ties, fpir=0.99) == 1  # who answers one answers all
    assert fnir_at_fpir(*ties, fpir=1) == 0.25
    assert oscr(*ties) == pytest.approx(0.375)
    assert open_aurc(*ties, share=0.5) == pytest.approx(0.625)
    assert open_augrc(*ties, share=0.5) == pytest.approx(0.3125)
    assert open_coverage_at_risk(*ties, risk=0.5, share=0.5) == 0
    for right in (True, False):
        one = torch.tensor([0.1]), torch.tensor([right]), torch.tensor([0.2])
        assert fnir_at_fpir(*one, fpir=0) == 1 - right
        assert oscr(*one) == right
        assert open_set_rates(*one).risk(0.5).tolist() == [1 - right, (2 - right) / 2]


def test_a_rate_met_exactly_is_met_in_floating_point() -> None:
    unknown = torch.arange(100.0)
    known = torch.tensor([28.5, 29.5])
    assert 0.29 * 100 < 29
    assert dir_at_far(known, torch.tensor([True, True]), unknown, far=0.29) == 0.5


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.rand(900, generator=generator), torch.ones(900, dtype=torch.bool), torch.rand(900)
    for curve in (oscr_curve(*queries), open_risk_curve(*queries, share=0.5)):
        assert len(curve.x) in (200, 201)
        assert curve.x[-1] == pytest.approx(1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda u, c: oscr(u, c[:1], u), "one uncertainty and one entry of `correct` each"),
        (lambda u, c: oscr(u * math.nan, c, u), "2 NaN entries"),
        (lambda u, c: open_aurc(u, c, u, share=1.5), "lies between 0 and 1, got 1.5"),
        (lambda u, c: open_risk_curve(u, c, u, share=math.nan), "lies between 0 and 1, got nan"),
        (
            lambda u, c: fnir_at_fpir(u, c, u, fpir=-1),
            "A false alarm rate is a share between 0 and 1, got -1",
        ),
        (lambda u, c: open_coverage_at_risk(u, c, u, risk=2, share=0), "A risk is a share between 0 and 1"),
    ],
)
def test_bad_input_is_a_sentence(call: Callable[[Tensor, Tensor], object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call(torch.tensor([0.1, 0.2]), torch.tensor([True, False]))


def test_every_name_has_its_meaning() -> None:
    assert meaning("fnir@fpir0.01").title == "FNIR at 1 % FPIR"
    assert meaning("fnir@fpir0.01").higher is False
    assert meaning("open_coverage@risk0.05").title == "Coverage at 5 % risk, with unknowns"
    assert meaning("baus@fpir0.1").direction == "↑ higher"
