"""`evaluate` as a whole against brute force, and what it says about bad input."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, EvaluationOptions, GivenScores, evaluate
from doubtless.metrics.uncertainty import free_uncertainties
from tests.reference import metrics as reference

QUICK = EvaluationOptions(bootstrap=0, clusters=False, consensus_samples=0)

items = st.lists(
    st.tuples(
        st.tuples(*[st.integers(-1, 1)] * 2), st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.0, math.inf])
    ),
    min_size=2,
    max_size=7,
)


def toy(seed: int = 0, *, count: int = 120, classes: int = 6) -> tuple[Embedding, Tensor]:
    """Gaussians whose variance says how far they lie from their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    variance = torch.rand(count, 1, generator=generator) * 1.5
    centre = torch.randn(classes, 8, generator=generator)
    noise = torch.randn(count, 8, generator=generator)
    return Embedding.gaussian(centre[labels] + variance.sqrt() * noise, variance), labels


@settings(deadline=None, max_examples=150)
@given(items)
def test_leave_one_out_equals_brute_force(rows: list[tuple[tuple[int, int], int, float]]) -> None:
    location = torch.tensor([place for place, _, _ in rows]).double()
    labels = [label for _, label, _ in rows]
    doubts = [doubt for _, _, doubt in rows]
    embedding = Embedding.point(location)
    counted = [place for place, label in enumerate(labels) if labels.count(label) > 1]
    given = GivenScores(uncertainty=torch.tensor(doubts))
    if not counted:
        with pytest.raises(InputError, match="No query has a positive"):
            evaluate(embedding, torch.tensor(labels), given=given, options=QUICK)
        return
    ks = (1, len(rows) - 1)  # k at the border
    found = evaluate(embedding, torch.tensor(labels), given=given, options=replace(QUICK, ks=ks))

    unit = embedding.direction.float().tolist()
    ranks = {place: reference.ranking(unit[place], unit, exclude=place) for place in counted}
    relevant = {place: [labels[item] == labels[place] for item in ranks[place]] for place in counted}
    positives = {place: labels.count(labels[place]) - 1 for place in counted}
    correct = [relevant[place][0] for place in counted]
    doubt = [doubts[place] for place in counted]
    match = [doubts[place] + doubts[ranks[place][0]] for place in counted]

    def mean(metric: Any, *extra: Any) -> float:
        return sum(metric(relevant[place], positives[place], *extra) for place in counted) / len(counted)

    expected = {
        "map@r": mean(reference.map_at_r),
        "r_precision": mean(reference.r_precision),
        "error_auroc": reference.auroc(
            [value for value, right in zip(doubt, correct, strict=True) if right],
            [value for value, right in zip(doubt, correct, strict=True) if not right],
        ),
        "ausc": reference.ausc(doubt, correct),
        "ausc_match": reference.ausc(match, correct),
        "ausc_oracle": reference.ausc([float(not right) for right in correct], correct),
    }
    for k in ks:
        expected[f"map@{k}"] = mean(reference.average_precision_at, k)
        expected[f"recall@{k}"] = mean(lambda row, _, k: reference.recall_at(row, k), k)
        values = [reference.average_precision_at(relevant[p], positives[p], k) for p in counted]
        expected[f"ece@{k}"] = reference.rank_ece(doubt, values)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9, nan_ok=True)
    assert found.counts["without_positive"] == len(rows) - len(counted)
    assert found.queries is not None
    assert found.queries.index.tolist() == counted
    assert found.queries.neighbor.tolist() == [ranks[place][0] for place in counted]
    assert found.queries.correct.tolist() == correct


def test_classes_larger_than_one_search_reaches() -> None:
    """R = 99, 149 and 4: two classes are ranked densely, one is served by the first search."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.cat([torch.zeros(100), torch.ones(150), torch.full((5,), 2)]).long()
    labels = labels[torch.randperm(255, generator=generator)]
    location = torch.randn(3, 6, generator=generator)[labels] + torch.randn(255, 6, generator=generator)
    embedding = Embedding.point(location)
    found = evaluate(embedding, labels, options=QUICK)
    unit, listed = embedding.direction.tolist(), labels.tolist()
    assert found.queries is not None
    for place in range(255):
        order = reference.ranking(unit[place], unit, exclude=place)
        row = [listed[item] == listed[place] for item in order]
        count = sum(row)
        values = found.queries.values
        assert float(values["map@r"][place]) == pytest.approx(reference.map_at_r(row, count))
        assert float(values["r_precision"][place]) == pytest.approx(reference.r_precision(row, count))


def test_query_against_gallery() -> None:
    (queries, labels), (gallery, gallery_labels) = toy(0, count=40), toy(1, count=60, classes=4)
    found = evaluate(queries, labels, gallery=gallery, gallery_labels=gallery_labels, options=QUICK)
    unit = gallery.direction.tolist()
    counted = [place for place, label in enumerate(labels.tolist()) if label < 4]
    hits = [reference.ranking(queries.direction[place].tolist(), unit)[0] for place in counted]
    right = [int(gallery_labels[hit]) == int(labels[place]) for hit, place in zip(hits, counted, strict=True)]
    assert found["recall@1"] == pytest.approx(sum(right) / len(right))
    assert found.protocol["kind"] == "query-gallery"
    assert found.counts == {"queries": 40, "gallery": 60, "classes": 6, "without_positive": 40 - len(counted)}
    own, theirs = queries.uncertainty, gallery.uncertainty
    assert own is not None
    assert theirs is not None
    from doubtless.metrics import ausc

    pair = own[counted].double() + theirs[hits].double()
    assert found["ausc_match"] == pytest.approx(ausc(pair, torch.tensor(right)))


def test_a_gaussian_gets_everything() -> None:
    (embedding, labels), (other, _) = toy(), toy(5, count=50)
    found = evaluate(
        embedding, labels, ood={"other": other}, options=EvaluationOptions(bootstrap=50, consensus_samples=20)
    )
    names = {f"{metric}@{k}" for metric in ("recall", "map", "ece") for k in (1, 5, 10)}
    names |= {"label_top1", "label_top1_balanced", "aurc", "augrc"}
    names |= {"map@r", "r_precision", "error_auroc", "ausc", "ausc_match", "ausc_oracle", "nmi", "f1"}
    names |= {"ece", "ece_floor"}
    names |= {f"coverage@risk{risk}" for risk in ("0.01", "0.05", "0.1")}
    names |= {f"ood_{metric}/other" for metric in ("auroc", "auprc", "auprc_balanced", "fpr95")}
    names |= {"eer"} | {f"{metric}@far{rate}" for metric in ("tar", "threshold") for rate in ("0.1", "0.01")}
    assert set(found.measures) == names
    assert set(found.baselines) == {"distance", "ratio", "spread", "norm"}
    for name, measure in found.measures.items():
        if name in {"nmi", "f1", "eer", "ece_floor"} or "@far" in name:
            assert measure.low is None
        else:
            assert measure.low is not None
            assert measure.high is not None
            assert measure.low <= measure.high
    assert set(found.curves) == {
        "sparsification",
        "risk_coverage",
        "roc/other",
        "histogram/other",
        "reliability",
        "deciles",
        "ranked/other",
    }
    lines = {"uncertainty", "oracle", "random", "distance", "ratio", "spread", "norm"}
    assert set(found.curves["sparsification"]) == set(found.curves["risk_coverage"]) == lines
    assert found.protocol["ood_ratio"] == {"other": 50 / 120}
    assert "ood_reweighted_to" not in found.protocol
    assert any("perfect retriever scores 0.45" in note for note in found.protocol["notes"])


def test_auprc_at_a_papers_ratio_is_measured_of_every_uncertainty() -> None:
    (embedding, labels), (other, _) = toy(), toy(5, count=40)
    generator = torch.Generator().manual_seed(2)
    inner, outer = torch.rand(120, generator=generator), 0.3 + torch.rand(40, generator=generator)
    given = GivenScores(doubts={"doubt": inner}, ood_doubts={"o": {"doubt": outer}})
    options, ood = replace(QUICK, bootstrap=30), {"o": other}
    found = evaluate(embedding, labels, ood=ood, given=given, options=replace(options, ood_ratio=3))
    name = "ood_auprc_reweighted/o"
    assert found.protocol["ood_reweighted_to"] == 3
    assert embedding.uncertainty is not None
    assert other.uncertainty is not None
    for row, inside, outside in (
        (found.measures, embedding.uncertainty, other.uncertainty),
        (found.doubts["doubt"], inner, outer),
        (found.baselines["norm"], -embedding.location.norm(dim=1), -other.location.norm(dim=1)),
    ):
        crowd = outside.tolist() * 9  # 40 items to 120: nine times as many are three to one
        assert row[name].value == pytest.approx(reference.average_precision(inside.tolist(), crowd))
        assert row[name].low is not None
        assert row[name].high is not None
        assert row[name].low < row[name].value < row[name].high
    assert all(name in row for row in found.baselines.values())
    plain = evaluate(embedding, labels, ood=ood, given=given, options=options)
    for before, after in ((plain.measures, found.measures), (plain.doubts["doubt"], found.doubts["doubt"])):
        assert name not in before
        assert {metric: value for metric, value in after.items() if metric != name} == before


def test_points_have_free_baselines_only(tmp_path: Path) -> None:
    (embedding, labels), (other, _) = toy(), toy(5, count=50)
    found = evaluate(
        Embedding.point(embedding.location),
        labels,
        ood={"o": Embedding.point(other.location)},
        options=EvaluationOptions(bootstrap=10),
    )
    assert not {"error_auroc", "ausc", "ece", "ece@1", "ood_auroc/o"} & set(found.measures)
    assert {"error_auroc", "ausc", "ood_auroc/o"} <= set(found.baselines["ratio"])
    assert set(found.curves["roc/o"]) == {"distance", "ratio", "spread", "norm"}
    assert found.queries is not None
    assert found.queries.uncertainty is None
    found.save(tmp_path / "metrics.json")
    assert Evaluation.load(tmp_path / "metrics.json").measures == found.measures


def test_what_is_beaten_by_something_free_says_so() -> None:
    embedding, labels = toy()
    noise = torch.rand(120, generator=torch.Generator().manual_seed(3))
    useless = evaluate(embedding, labels, given=GivenScores(uncertainty=noise), options=QUICK)
    assert any(
        note.startswith("error_auroc: the learned uncertainty") and "distance" in note
        for note in useless.protocol["notes"]
    )
    assert useless.queries is not None
    knows = GivenScores(uncertainty=(~useless.queries.correct).double())
    perfect = evaluate(embedding, labels, given=knows, options=QUICK)
    assert not any("does not beat" in note for note in perfect.protocol["notes"])
    assert perfect["ausc"] == pytest.approx(perfect["ausc_oracle"])
    assert perfect["error_auroc"] == 1


def test_uncertainty_from_outside_is_never_mixed_with_the_family_s_own() -> None:
    (embedding, labels), (other, _) = toy(), toy(5, count=50)
    ood = {"o": other}
    outside = torch.linspace(0, 1, 120)
    given = GivenScores(uncertainty=outside)
    alone = evaluate(embedding, labels, ood=ood, given=given, options=QUICK)
    assert "ood_auroc/o" not in alone.measures
    assert "ood_auroc/o" in alone.baselines["norm"]
    with_ood = evaluate(
        embedding,
        labels,
        ood=ood,
        given=replace(given, ood_uncertainty={"o": torch.full((50,), 2.0)}),
        options=QUICK,
    )
    assert with_ood["ood_auroc/o"] == 1
    separate = evaluate(
        embedding, labels, gallery=other, gallery_labels=labels[:50], given=given, options=QUICK
    )
    assert "ausc_match" not in separate.measures


def test_infinite_uncertainty_ranks_last_everywhere() -> None:
    (embedding, labels), (other, _) = toy(), toy(5, count=50)
    given = torch.rand(120, generator=torch.Generator().manual_seed(0))
    given[::7] = torch.inf
    high = torch.where(given.isinf(), 9.0, given)
    options = EvaluationOptions(bootstrap=20, clusters=False, consensus_samples=5)
    found, expected = (
        evaluate(
            embedding,
            labels,
            ood={"o": other},
            given=GivenScores(
                uncertainty=values, ood_uncertainty={"o": torch.full((50,), float(values.max()))}
            ),
            options=options,
        )
        for values in (given, high)
    )
    for name in expected.measures:
        if name != "ausc_match":  # ∞ + x ties where 9 + x does not
            assert found.measures[name] == expected.measures[name]
    found.to_json()


def test_same_seed_same_numbers_and_steps_are_named() -> None:
    embedding, labels = toy()
    steps: list[str] = []
    options = EvaluationOptions(bootstrap=20, consensus_samples=10)
    first = evaluate(embedding, labels, options=options, progress=steps.append)
    second = evaluate(embedding, labels, options=options)
    assert first.measures == second.measures
    assert steps == ["neighbours", "retrieval", "errors and intervals", "consensus", "pairs", "clusters"]
    other = evaluate(embedding, labels, options=replace(options, seed=1))
    assert other.measures["recall@1"].value == first.measures["recall@1"].value
    assert other.measures["recall@1"] != first.measures["recall@1"]


def test_one_class_and_all_right() -> None:
    embedding, _ = toy()
    options = EvaluationOptions(bootstrap=10, consensus_samples=10)
    found = evaluate(embedding, torch.zeros(120, dtype=torch.long), options=options)
    assert found["recall@1"] == found["map@r"] == found["ausc"] == found["nmi"] == 1
    assert math.isnan(found["error_auroc"])
    assert found["ece"] == 0
    assert any("error_auroc has no value" in note for note in found.protocol["notes"])


def test_default_ks_reach_as_far_as_the_gallery_and_asked_ones_must() -> None:
    location = torch.eye(4)[[0, 0, 1, 1, 2, 2]]
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    found = evaluate(Embedding.point(location), labels, options=QUICK)
    assert "recall@5" in found.measures
    assert "recall@10" not in found.measures
    assert "@10 is left out: a query can find only 5 items." in found.protocol["notes"]
    with pytest.raises(InputError, match="k = 6 is larger than the gallery"):
        evaluate(Embedding.point(location), labels, options=replace(QUICK, ks=(1, 6)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"uncertainty": torch.full((120,), torch.nan)}, "120 NaN entries"),
        ({"uncertainty": torch.zeros(3)}, r"must have shape \(120,\), got \(3,\)"),
        ({"labels": torch.zeros(120)}, "The labels must be integers"),
        ({"labels": torch.zeros(3).long()}, r"of shape \(120,\)"),
        ({"gallery": Embedding.point(torch.eye(8))}, "needs gallery_labels"),
        (
            {"gallery": Embedding.point(torch.eye(3)), "gallery_labels": torch.arange(3)},
            "queries have 8 dimensions and the gallery 3",
        ),
        ({"ood": {"x": Embedding.point(torch.eye(3))}}, "The OOD set 'x' has 3 items of 3 dimensions"),
        ({"ood_uncertainty": {"x": torch.zeros(3)}}, "not among the OOD sets"),
        ({"ks": (0,)}, "positive integers"),
        ({"bootstrap": -1}, "0 or more, got -1"),
        ({"ood_ratio": 0.0}, "ood_ratio must be a positive number of OOD items to one other, got 0.0"),
        ({"consensus_samples": -1}, "0 or more, got -1"),
        ({"labels": torch.arange(120)}, "No query has a positive"),
    ],
)
def test_bad_input_is_a_sentence(change: dict[str, Any], sentence: str) -> None:
    embedding, labels = toy()
    scores, how = ({field.name for field in fields(kind)} for kind in (GivenScores, EvaluationOptions))
    with pytest.raises(InputError, match=sentence):
        evaluate(
            embedding,
            change.get("labels", labels),
            given=GivenScores(**{name: value for name, value in change.items() if name in scores}),
            options=replace(QUICK, **{name: value for name, value in change.items() if name in how}),
            **{name: value for name, value in change.items() if name in {"gallery", "gallery_labels", "ood"}},
        )


def test_one_item_has_nothing_to_find() -> None:
    with pytest.raises(InputError, match="nothing to find"):
        evaluate(Embedding.point(torch.eye(1)), torch.tensor([0]), options=QUICK)


def test_free_uncertainties_by_hand() -> None:
    scores = torch.tensor([[1.0, 1.0, 0.0], [0.5, 0.0, 0.0]])
    found = free_uncertainties(scores, torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert found["distance"].tolist() == pytest.approx([0, 1])
    assert found["ratio"].tolist() == pytest.approx([1, 2**-0.5])  # 0/0: nothing tells the two apart
    assert found["spread"].tolist() == pytest.approx([2**0.5 / 3, 2**0.5 / 6])
    assert found["norm"].tolist() == [-5, 0]
    single = free_uncertainties(torch.tensor([[0.5]]), torch.ones(1, 2))
    assert (float(single["ratio"]), float(single["spread"])) == (1, 0)
