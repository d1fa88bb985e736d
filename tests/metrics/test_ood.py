"""OOD metrics against loops over thresholds and against scikit-learn."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.errors import InputError
from doubtless.metrics.ood import auprc, auroc, detection_form, fpr95, histograms, roc_curve
from tests.reference import metrics as reference

values = st.lists(
    st.sampled_from([0.0, 1.0, 2.0, math.inf, -math.inf]) | st.floats(allow_nan=False, width=32),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(values, values)
def test_every_metric_equals_its_loop(inside: list[float], outside: list[float]) -> None:
    pair = torch.tensor(inside), torch.tensor(outside)
    assert auroc(*pair) == pytest.approx(reference.auroc(inside, outside), abs=1e-12)
    assert auprc(*pair) == pytest.approx(reference.average_precision(inside, outside), abs=1e-12)
    assert auprc(*pair, ratio=0.25) == pytest.approx(
        reference.average_precision(inside, outside, Fraction(1, 4)), abs=1e-12
    )
    assert fpr95(*pair) == pytest.approx(reference.fpr95(inside, outside), abs=1e-15)


def test_scikit_learn_agrees() -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    generator = torch.Generator().manual_seed(0)
    inside = torch.randn(300, generator=generator).round(decimals=1)
    outside = torch.randn(120, generator=generator).round(decimals=1) + 0.5
    truth, score = torch.cat([torch.zeros(300), torch.ones(120)]), torch.cat([inside, outside])
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(truth, score))
    assert auprc(inside, outside) == pytest.approx(average_precision_score(truth, score))
    for ratio in (0.1, 1, 2.6032):
        weight = torch.cat([torch.ones(300).double() / 300, torch.ones(120).double() * ratio / 120])
        assert auprc(inside, outside, ratio=ratio) == pytest.approx(
            average_precision_score(truth, score, sample_weight=weight), abs=1e-12
        )


def test_reweighting_is_a_larger_set() -> None:
    """Ten copies of the in-distribution set change the AUPRC; re-weighting undoes it."""
    generator = torch.Generator().manual_seed(1)
    inside, outside = torch.rand(50, generator=generator), torch.rand(50, generator=generator) + 0.3
    crowd = inside.repeat(10)
    assert auprc(crowd, outside) < auprc(inside, outside) - 0.1
    assert auprc(crowd, outside, ratio=1) == pytest.approx(auprc(inside, outside))
    assert auprc(inside, outside, ratio=0.1) == pytest.approx(auprc(crowd, outside))
    assert auroc(crowd, outside) == pytest.approx(auroc(inside, outside))


@settings(deadline=None)
@given(values, values, st.integers(1, 5))
def test_a_ratio_is_copies_of_the_ood_set(inside: list[float], outside: list[float], copies: int) -> None:
    """Every OOD item three times is a ratio three times as high."""
    ratio = Fraction(copies * len(outside), len(inside))
    found = auprc(torch.tensor(inside), torch.tensor(outside), ratio=float(ratio))
    assert found == pytest.approx(reference.average_precision(inside, outside * copies), abs=1e-12)


@settings(deadline=None)
@given(values, values, st.data())
def test_weights_are_copies(inside: list[float], outside: list[float], data: st.DataObject) -> None:
    pair = torch.tensor(inside), torch.tensor(outside)
    drawn = [
        data.draw(st.lists(st.integers(0, len(part) - 1), min_size=len(part), max_size=len(part)))
        for part in pair
    ]
    weights = [
        torch.tensor(places).bincount(minlength=len(part)).double().unsqueeze(0)
        for places, part in zip(drawn, pair, strict=True)
    ]
    found = detection_form(*pair, ratio=3)(*weights)
    copied = [part[places] for part, places in zip(pair, drawn, strict=True)]
    assert float(found["auroc"]) == pytest.approx(auroc(*copied), abs=1e-12)
    assert float(found["auprc"]) == pytest.approx(auprc(*copied), abs=1e-12)
    assert float(found["auprc_balanced"]) == pytest.approx(auprc(*copied, ratio=1), abs=1e-12)
    assert float(found["auprc_reweighted"]) == pytest.approx(auprc(*copied, ratio=3), abs=1e-12)
    assert float(found["fpr95"]) == pytest.approx(fpr95(*copied), abs=1e-12)


def test_nineteen_of_twenty_are_95_percent() -> None:
    outside = torch.arange(20.0)
    assert fpr95(torch.tensor([0.5, 5.0]), outside) == 0.5  # the least sure 19 lie above 0.5
    assert fpr95(torch.tensor([-1.0]), outside) == 0.0


@settings(deadline=None)
@given(values, values)
def test_the_roc_curve_has_the_auroc_below_it(inside: list[float], outside: list[float]) -> None:
    curve = roc_curve(torch.tensor(inside), torch.tensor(outside))
    assert (curve.x[0], curve.y[0], curve.x[-1], curve.y[-1]) == (0, 0, 1, 1)
    area = torch.trapezoid(torch.tensor(curve.y).double(), torch.tensor(curve.x).double())
    assert float(area) == pytest.approx(reference.auroc(inside, outside), abs=1e-6)


@settings(deadline=None)
@given(values, values)
def test_histograms_hold_everything(inside: list[float], outside: list[float]) -> None:
    lines = histograms(torch.tensor(inside), torch.tensor(outside))
    assert lines["id"].x == lines["ood"].x
    assert all(math.isfinite(centre) for centre in lines["id"].x)
    for line in lines.values():
        assert sum(line.y) == pytest.approx(1, abs=1e-5)


def test_histograms_place_values_and_infinities() -> None:
    lines = histograms(torch.arange(400.0), torch.tensor([torch.inf, 0.0]))
    assert lines["ood"].y[0] == 0.5
    assert lines["ood"].y[-1] == 0.5
    assert lines["id"].y[:-1] == pytest.approx([10 / 400] * 39, abs=2 / 400)


def test_bad_input_is_a_sentence() -> None:
    with pytest.raises(InputError, match="The out-of-distribution uncertainty has 1 NaN"):
        auroc(torch.zeros(2), torch.tensor([torch.nan]))
    with pytest.raises(InputError, match="positive number of OOD items"):
        auprc(torch.zeros(2), torch.ones(2), ratio=0)
    with pytest.raises(InputError, match="got inf"):
        auprc(torch.zeros(2), torch.ones(2), ratio=math.inf)
    with pytest.raises(InputError, match="in-distribution uncertainty must be one number per item"):
        fpr95(torch.zeros(0), torch.ones(2))
