"""The registry of metrics: one that is registered on the fly is measured, explained and compared like any other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from doubtless.bench.comparison import difference
from doubtless.cli.tables import print_evaluation
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, EvaluationOptions, GivenScores, evaluate
from doubtless.metrics.bootstrap import interval, resample
from doubtless.metrics.catalogue import better, groups, in_order, meaning, metric_of
from doubtless.metrics.metric import METRICS, Metric, metrics_of, register, work_out
from doubtless.metrics.views import Clustered, Ranked, RankedToR, Scored, Separated, Whole
from doubtless.registry import Registry
from doubtless.report import MethodResult, compare_methods, write_comparison, write_report

QUICK = EvaluationOptions(bootstrap=40, clusters=False, consensus_samples=0)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is unknown to the next."""
    known = METRICS.names()
    with monkeypatch.context() as patch:
        patch.setattr(METRICS, "_items", dict(METRICS._items))
        yield
    assert METRICS.names() == known


def toy(seed: int = 0, *, count: int = 60, classes: int = 6) -> tuple[Embedding, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    variance = torch.rand(count, 1, generator=generator) * 1.5
    centre = torch.randn(classes, 5, generator=generator)
    noise = torch.randn(count, 5, generator=generator)
    return Embedding.gaussian(centre[labels] + variance.sqrt() * noise, variance), labels


def reciprocal_rank(ranked: Ranked) -> Tensor:
    """1 over the rank of the first right neighbour, 0 where none is in reach, (q,)."""
    ranks = torch.arange(1, ranked.relevant.shape[1] + 1)
    return (ranked.relevant.double() / ranks).amax(1)


def doubt_when_wrong(scored: Scored):
    """Mean uncertainty of wrong queries minus that of right ones."""
    wrong = (~scored.correct).double()

    def form(weights: Tensor) -> Tensor:
        means = [(weights @ (scored.uncertainty * part)) / (weights @ part) for part in (wrong, 1 - wrong)]
        return means[0] - means[1]

    return form


MRR = Metric(
    "mrr",
    "Reciprocal rank",
    "Mean of one over the rank of the first right image.",
    of=Ranked,
    measure=reciprocal_rank,
    group="Retrieval",
)
GAP = Metric(
    "doubt_gap",
    "Doubt gap",
    "How much more uncertain wrong queries are.",
    of=Scored,
    measure=doubt_when_wrong,
    group="Of another package",
)


def test_a_value_per_query_is_measured_with_its_interval() -> None:
    embedding, labels = toy()
    before = evaluate(embedding, labels, options=QUICK)
    register(MRR)
    found = evaluate(embedding, labels, options=QUICK)
    assert found.queries is not None
    values = found.queries.values["mrr"]
    measure = found.measures["mrr"]
    assert float(found.queries.values["recall@1"].mean()) < measure.value < 1
    assert measure.value == pytest.approx(float(values.mean()))
    weights = resample(len(values), 40, generator=torch.Generator().manual_seed(0))
    assert (measure.low, measure.high) == pytest.approx(interval(weights @ values / len(values)))
    assert {name: found.measures[name].value for name in before.measures} == pytest.approx(
        {name: measure.value for name, measure in before.measures.items()}
    )
    assert [name for name in found.measures if name != "mrr"] == list(before.measures)


def test_a_form_of_an_uncertainty_is_measured_of_every_one_of_them() -> None:
    register(GAP)
    embedding, labels = toy()
    doubt = torch.rand(60, generator=torch.Generator().manual_seed(1))
    found = evaluate(embedding, labels, given=GivenScores(doubts={"doubt": doubt}), options=QUICK)
    queries = found.queries
    assert queries is not None
    assert queries.uncertainty is not None
    for row, scores in (
        (found.measures, queries.uncertainty),
        (found.doubts["doubt"], doubt.double()),
        (found.baselines["norm"], queries.values["baseline/norm"]),
    ):
        expected = scores[~queries.correct].mean() - scores[queries.correct].mean()
        assert row["doubt_gap"].value == pytest.approx(float(expected))
        assert row["doubt_gap"].low is not None
        assert row["doubt_gap"].high is not None
        assert row["doubt_gap"].low < row["doubt_gap"].value < row["doubt_gap"].high


@pytest.mark.parametrize("higher", [True, False])
def test_its_direction_decides_notes_and_what_is_best(higher: bool, tmp_path: Path) -> None:
    """Of two methods, and of the free baselines, the better one is the larger or the smaller."""
    register(replace(GAP, higher=higher))
    embedding, labels = toy()
    found = evaluate(embedding, labels, options=QUICK)
    rivals = {name: row["doubt_gap"].value for name, row in found.baselines.items()}
    learned = found["doubt_gap"]
    beaten = [name for name, value in rivals.items() if (value >= learned if higher else value <= learned)]
    notes = [note for note in found.protocol["notes"] if note.startswith("doubt_gap:")]
    assert bool(notes) == bool(beaten)
    assert all(name in notes[0] for name in beaten)
    assert better("doubt_gap", 2.0, 1.0) == higher
    other = evaluate(*toy(3), options=QUICK)
    table = compare_methods([MethodResult("one", [found]), MethodResult("two", [other])])
    best = (
        ("one" if (learned > other["doubt_gap"]) == higher else "two")
        if learned != other["doubt_gap"]
        else ""
    )
    assert [name for name, row in table.cells.items() if row["doubt_gap"].best] == [best]


def test_reports_show_it_with_its_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    register(MRR)
    register(GAP)
    found = evaluate(*toy(), options=QUICK)
    write_report(tmp_path / "report.html", title="Plugin", evaluation=found, config={})
    page = (tmp_path / "report.html").read_text()
    for metric in (MRR, GAP):
        assert metric.title in page
        assert metric.sentence in page
    assert "<h3>Of another package</h3>" in page
    write_comparison(tmp_path / "both.html", title="Both", rows=[MethodResult("one", [found])])
    both = (tmp_path / "both.html").read_text()
    assert '<th scope="colgroup" colspan="1">Of another package</th>' in both
    for metric in (MRR, GAP):
        assert f'<span class="heading">{metric.title}</span>' in both
    print_evaluation(found, "Plugin")
    printed = capsys.readouterr().out
    assert "mrr" in printed
    assert "doubt_gap" in printed
    assert Evaluation.from_json(found.to_json()).measures["mrr"] == found.measures["mrr"]


def test_benchmarks_test_its_differences() -> None:
    register(MRR)
    register(GAP)
    embedding, labels = toy()
    worse = Embedding.gaussian(embedding.location.roll(1, 0), torch.ones(60, 1))
    first, second = (
        MethodResult(name, [evaluate(rows, labels, options=QUICK)])
        for name, rows in (("one", embedding), ("two", worse))
    )
    for metric in ("mrr", "doubt_gap", "recall@1", "error_auroc", "ausc", "coverage@risk0.05"):
        compared = difference(first, second, metric)
        assert compared is not None
        expected = first.evaluations[0][metric] - second.evaluations[0][metric]
        assert compared.difference == pytest.approx(expected)
    assert difference(first, second, "ece@1") is None  # a rank is no quality of two methods to be compared


def test_sets_places_and_the_whole_can_be_measured_too() -> None:
    register(
        Metric(
            "ood_gap",
            "OOD gap",
            "Difference of the mean uncertainties.",
            of=Separated,
            measure=lambda separated: (
                lambda inside, outside: (
                    outside @ separated.outside / outside.sum(1) - inside @ separated.inside / inside.sum(1)
                )
            ),
        )
    )
    register(
        Metric(
            "r_recall",
            "Any of R",
            "A right one among R.",
            of=RankedToR,
            measure=lambda r: r.relevant.any(1).double(),
        )
    )
    register(
        Metric("size", "Size", "Number of queries.", of=Whole, measure=lambda whole: len(whole.embedding))
    )
    (embedding, labels), (other, _) = (
        toy(classes=2, count=160),
        toy(5, count=20),
    )  # R = 79: ranked beyond one search
    found = evaluate(embedding, labels, ood={"o": other}, options=QUICK)
    assert embedding.uncertainty is not None
    assert other.uncertainty is not None
    gap = other.uncertainty.double().mean() - embedding.uncertainty.double().mean()
    assert found["ood_gap/o"] == pytest.approx(float(gap))
    assert found.measures["ood_gap/o"].low is not None
    assert "ood_gap/o" in found.baselines["distance"]
    assert meaning("ood_gap/o").title == "OOD gap · o"
    assert found["size"] == 160
    assert found.measures["size"].low is None
    assert found["recall@1"] <= found["r_recall"] <= 1
    assert len(groups()) == len(set(groups()))


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        (replace(MRR, measure=lambda ranked: ranked.relevant), "gives a tensor of shape"),
        (replace(MRR, measure=lambda ranked: 0.5), "must give one value per query; mrr gives something else"),
        (
            replace(MRR, measure=lambda ranked: "much"),
            "gives 'much'; accepted: a number, a function of weights, a",
        ),
        (replace(MRR, of=Clustered, measure=lambda clustered: len), "accepted: a number"),
    ],
)
def test_what_it_gives_is_checked(metric: Metric, sentence: str) -> None:
    register(metric)
    with pytest.raises(InputError, match=sentence):
        evaluate(*toy(), options=replace(QUICK, clusters=True))


def test_what_is_registered_is_checked() -> None:
    with pytest.raises(InputError, match="must be a Metric, got a function"):
        METRICS.register("mrr", reciprocal_rank)
    with pytest.raises(InputError, match="under its own name"):
        METRICS.register("other", MRR)
    with pytest.raises(InputError, match="without / or line breaks"):
        register(replace(MRR, name="a/b"))
    with pytest.raises(InputError, match=r"of a class of doubtless\.metrics\.views"):
        register(replace(MRR, of=int))  # type: ignore[type-var]
    with pytest.raises(InputError, match="'nmi' is taken"):
        register(replace(MRR, name="nmi"))


def test_an_entry_point_adds_a_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed beside this library, as another package would be."""
    (tmp_path / "plugin_of_metrics.py").write_text(
        "from doubtless.metrics import Metric\n"
        "from doubtless.metrics.views import Ranked\n"
        "first_two = Metric('first_two', 'First two', 'Both are right.', of=Ranked,\n"
        "    measure=lambda ranked: ranked.relevant[:, :2].all(1).double())\n"
    )
    information = tmp_path / "plugin_of_metrics-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-metrics\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[doubtless.metrics]\nfirst_two = plugin_of_metrics:first_two\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "plugin_of_metrics", raising=False)
    monkeypatch.setattr(METRICS, "_searched", False)
    monkeypatch.setattr(METRICS, "_searching", False)
    found = evaluate(*toy(), options=QUICK)
    assert 0 < found["first_two"] < found["recall@1"]
    assert meaning("first_two").sentence == "Both are right."
    assert in_order(["first_two", "nmi"], "Further measures") == ["first_two"]


def test_every_metric_says_what_it_is() -> None:
    assert isinstance(METRICS, Registry)
    for name, metric in METRICS.items():
        assert metric.sentence.endswith("."), name
        assert metric.group in groups()
        assert ("{k}" in metric.title) == name.endswith("@"), name
    assert metric_of("recall@7") is METRICS.get("recall@")
    assert len(metrics_of(Scored)) == 3  # functions: of errors, of the match, of ranks


def test_work_out_gives_each_function_once() -> None:
    calls: list[int] = []

    def both(ranked: Ranked) -> dict[str, Tensor]:
        calls.append(1)
        return {"a@1": ranked.positives.double(), "a@2": ranked.positives.double()}

    register(Metric("a@1", "A", "One.", of=Ranked, measure=both))
    register(Metric("a@", "A@{k}", "Several.", of=Ranked, measure=both))
    values = work_out(Ranked(torch.ones(3, 2, dtype=torch.bool), torch.ones(3), ks=(1,))).values
    assert calls == [1]
    assert list(values)[-2:] == ["a@1", "a@2"]
    assert meaning("a@2").sentence == "Several."
