"""Labels left out of the gallery, and what their queries find: against loops, and as an evaluation's own step."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, EvaluationOptions, GivenScores, OpenSetOptions, evaluate
from doubtless.evaluation.open_set import divide_labels
from doubtless.metrics.labels import TEMPERATURE
from doubtless.report import MethodResult, compare_methods
from doubtless.report.figures import evaluation_figures
from doubtless.report.sections import measure_tables
from doubtless.search import Positions
from tests.reference import metrics as reference
from tests.reference import open_set as twin

OPEN = OpenSetOptions(left_out=0.4, share=0.3, seed=1)
QUICK = EvaluationOptions(bootstrap=0, clusters=False, consensus_samples=0, open_set=OPEN)


def toy(seed: int = 0, *, count: int = 90, classes: int = 6) -> tuple[Embedding, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centre = torch.randn(classes, 5, generator=torch.Generator().manual_seed(9))
    location = centre[labels] + torch.randn(count, 5, generator=generator)
    return Embedding.gaussian(location, 0.01 + torch.rand(count, 5, generator=generator)), labels


def by_loops(
    embedding: Embedding, labels: Tensor, gallery: Embedding | None, gallery_labels: Tensor | None
) -> tuple[list[int], list[bool], list[int]]:
    """Known query positions that have a positive, whether their first hit is right, unknown positions."""
    alone = gallery is None or gallery_labels is None
    searched = embedding if gallery is None else gallery
    names = labels if gallery_labels is None else gallery_labels
    stay = set(divide_labels(names, left_out=OPEN.left_out, seed=OPEN.seed)[0].tolist())
    rows = [place for place, label in enumerate(names.tolist()) if label in stay]
    unit = searched.direction.tolist()
    known, right, unknown = [], [], []
    for place, label in enumerate(labels.tolist()):
        if label not in stay:
            unknown.append(place)
            continue
        found = [row for row in rows if not (alone and row == place)]
        order = reference.ranking(embedding.direction[place].tolist(), [unit[row] for row in found])
        if any(int(names[row]) == label for row in found):
            known.append(place)
            right.append(int(names[found[order[0]]]) == label)
    return known, right, unknown


@pytest.mark.parametrize("apart", [False, True], ids=["leave-one-out", "query-gallery"])
def test_against_loops(apart: bool) -> None:
    embedding, labels = toy()
    gallery, gallery_labels = toy(1, count=50, classes=5) if apart else (None, None)  # label 5 is never there
    found = evaluate(embedding, labels, gallery=gallery, gallery_labels=gallery_labels, options=QUICK)
    known, right, unknown = by_loops(embedding, labels, gallery, gallery_labels)
    assert embedding.uncertainty is not None
    inside, outside = (embedding.uncertainty[rows].double().tolist() for rows in (known, unknown))
    assert found["oscr"] == pytest.approx(twin.oscr(inside, right, outside))
    assert found["fnir@fpir0.1"] == pytest.approx(twin.fnir_at_fpir(inside, right, outside, Fraction("0.1")))
    assert found["dir@far0.1"] == pytest.approx(1 - found["fnir@fpir0.1"])
    share = Fraction("0.3")
    assert found["open_augrc"] == pytest.approx(twin.open_augrc(inside, right, outside, share))
    assert found["open_aurc"] == pytest.approx(twin.open_aurc(inside, right, outside, share), abs=1e-5)
    assert found["open_coverage@risk0.05"] == pytest.approx(
        twin.open_coverage_at_risk(inside, right, outside, Fraction("0.05"), share)
    )
    assert found.counts["open_set_known"] == len(known)
    assert found.counts["open_set_unknown"] == len(unknown)
    norm = -embedding.location.norm(dim=1).double()
    expected = twin.oscr(norm[known].tolist(), right, norm[unknown].tolist())
    assert found.baselines["norm"]["oscr"].value == pytest.approx(expected)


def test_the_rest_of_an_evaluation_does_not_change(tmp_path: Path) -> None:
    embedding, labels = toy()
    options = replace(QUICK, bootstrap=30)
    found, plain = (
        evaluate(embedding, labels, options=replace(options, open_set=divided)) for divided in (OPEN, None)
    )
    extra = set(found.measures) - set(plain.measures)
    assert {metric: found.measures[metric] for metric in plain.measures} == plain.measures
    assert {"oscr", "baks@fpir0.1", "baus@fpir0.1", "open_aurc", "open_augrc"} <= extra
    assert "fnir@fpir0.01" not in extra  # of 30 unknown queries that would be none
    for name in extra:
        measure = found.measures[name]
        assert measure.low is not None
        assert measure.high is not None
        assert 0 <= measure.low <= measure.high <= 1
    assert "open_set" not in plain.protocol
    assert not any(name.startswith("open_set") for name in plain.counts)
    assert found.protocol["open_set"] == {"left_out": 0.4, "share": 0.3, "seed": 1}
    assert found.protocol["ood_ratio"] == {}
    assert set(found.curves) - set(plain.curves) == {"oscr", "open_risk"}
    assert set(found.curves["oscr"]) == {"oracle", "uncertainty", "distance", "ratio", "spread", "norm"}
    oracle, own = (found.curves["open_risk"][line] for line in ("oracle", "uncertainty"))
    assert oracle.y[0] == 0  # it answers all that is right before anything else
    assert oracle.y[-1] == pytest.approx(own.y[-1])
    assert found.curves["open_risk"]["random"].y == pytest.approx([own.y[-1]] * 2)
    found.save(tmp_path / "metrics.json")
    assert Evaluation.load(tmp_path / "metrics.json").measures == found.measures
    assert "Labels that are not in the gallery" in measure_tables(found)
    assert "Labels that are not in the gallery" not in measure_tables(plain)
    drawn = "".join(evaluation_figures(found))
    assert "Right answers and answers to unknown labels" in drawn
    assert "Risk with unknown labels" in drawn
    assert "unknown labels" not in "".join(evaluation_figures(plain))


def test_benchmarks_have_their_columns() -> None:
    embedding, labels = toy()
    spread = evaluate(embedding, labels, options=QUICK)
    points = evaluate(Embedding.point(embedding.location), labels, options=QUICK)
    names = ["label_top1", "augrc", "oscr", "fnir@fpir0.1"]
    table = compare_methods(
        [MethodResult("spread", [spread]), MethodResult("points", [points])], metrics=names
    )
    assert table.cells["spread"]["oscr"].mean == spread["oscr"]
    free = {source: row["fnir@fpir0.1"].value for source, row in points.baselines.items()}
    cell = table.cells["points"]["fnir@fpir0.1"]
    assert math.isnan(cell.mean)
    assert cell.free == min(free.values())  # of an error rate the lowest is the best
    assert table.cells["points"]["label_top1"].mean == points["label_top1"]


def test_an_uncertainty_from_outside_goes_with_its_queries() -> None:
    embedding, labels = toy()
    known, right, unknown = by_loops(embedding, labels, None, None)
    doubt = torch.rand(90, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    given = GivenScores(uncertainty=doubt, doubts={"other": doubt})
    found = evaluate(Embedding.point(embedding.location), labels, given=given, options=QUICK)
    assert found["oscr"] == pytest.approx(twin.oscr(doubt[known].tolist(), right, doubt[unknown].tolist()))
    assert "oscr" not in found.doubts["other"]  # a doubt may know the whole gallery
    points = evaluate(Embedding.point(embedding.location), labels, options=QUICK)
    assert "oscr" not in points.measures
    assert "oscr" in points.baselines["distance"]


def test_labels_are_divided_with_a_seed() -> None:
    labels = torch.arange(100).repeat(2)
    stay, leave = divide_labels(labels, left_out=0.3, seed=0)
    assert len(leave) == 30
    assert sorted([*stay.tolist(), *leave.tolist()]) == list(range(100))
    assert torch.equal(divide_labels(labels.flip(0), left_out=0.3, seed=0)[1], leave)
    assert not torch.equal(divide_labels(labels, left_out=0.3, seed=1)[1], leave)
    for share in (0.001, 0.999):
        assert min(len(part) for part in divide_labels(labels, left_out=share, seed=0)) == 1


def test_the_label_that_ten_hits_vote_for() -> None:
    embedding, labels = toy()
    found = evaluate(embedding, labels, options=replace(QUICK, open_set=None))
    unit, listed = embedding.direction.tolist(), labels.tolist()
    right = []
    for place in range(90):
        order = reference.ranking(unit[place], unit, exclude=place)[:10]
        votes: Counter[int] = Counter()
        for item in order:
            cosine = torch.tensor(reference.score(unit[place], unit[item]), dtype=torch.double)
            votes[listed[item]] += float(((cosine - 1) / TEMPERATURE).exp())  # type: ignore[assignment]
        right.append(votes.most_common(1)[0][0] == listed[place])
    assert found["label_top1"] == pytest.approx(sum(right) / 90)
    assert found["label_top1_balanced"] == pytest.approx(twin.balanced_accuracy(right, listed))
    assert found.queries is not None
    assert found.queries.values["label_top1"].tolist() == [float(good) for good in right]


def test_bad_input_is_a_sentence() -> None:
    embedding, labels = toy()
    with pytest.raises(InputError, match="needs two labels in the gallery or more, got 1"):
        evaluate(embedding, torch.zeros_like(labels), options=QUICK)
    with pytest.raises(InputError, match="places have positions instead"):
        evaluate(embedding, Positions(embedding.location[:, :2], 5.0), options=QUICK)
    with pytest.raises(InputError, match=r"left_out must lie between 0 and 1, both excluded, got 1\.0"):
        OpenSetOptions(left_out=1.0)
    with pytest.raises(InputError, match=r"between 0 and 1, got -0\.1"):
        OpenSetOptions(share=-0.1)
    gallery, gallery_labels = toy(1, classes=2)
    stays = divide_labels(gallery_labels, left_out=OPEN.left_out, seed=OPEN.seed)[0][0]
    queries = torch.full_like(labels, int(stays))
    with pytest.raises(InputError, match="got 90 and 0; another seed"):
        evaluate(embedding, queries, gallery=gallery, gallery_labels=gallery_labels, options=QUICK)
