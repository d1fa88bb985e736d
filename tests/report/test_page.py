"""The run's report: nothing loaded from outside, nothing unescaped, every number said, absent parts left out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
import torch

from doubtless.evaluation.result import Curve, Evaluation, Measure, QueryRecord
from doubtless.metrics.catalogue import better, in_order, meaning
from doubtless.report import ImageLookup, embedding_map, write_report
from doubtless.report.page import interval, json_block, number, text
from tests.report.example import CONFIG, NAMES, directions, example, log, pictures, write_benchmark, write_run
from tests.report.reading import Page

EVIL = """</script></style><script>alert('x')</script><img src=x onerror="alert(1)"> & <b>"""
SMALL = Evaluation({"recall@1": Measure(0.5, 0.4, 0.6)})


def write(path: Path, evaluation: Evaluation = SMALL, **options: object) -> Page:
    options.setdefault("config", {})
    options.setdefault("title", "A run")
    write_report(path / "report.html", evaluation=evaluation, **options)  # type: ignore[arg-type]
    return Page.read(path / "report.html")


@pytest.mark.parametrize("page", ["run", "point", "benchmark"])
def test_page_is_whole_and_loads_nothing(tmp_path: Path, page: str) -> None:
    path = tmp_path / "page.html"
    if page == "benchmark":
        write_benchmark(path)
    else:
        write_run(path, learned=page == "run")
    found = Page.read(path)
    assert found.outside() == []
    assert path.stat().st_size < 500_000
    identifiers = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    links = {attributes["href"] for attributes in found.all("a")}
    assert links <= {f"#{identifier}" for identifier in identifiers}
    assert all(image.get("alt") for image in found.all("img"))
    drawings = [svg for svg in found.all("svg") if "x" not in svg]  # the inner ones only clip
    assert all(svg.get("aria-label") or svg.get("aria-hidden") == "true" for svg in drawings)
    assert all(header.get("scope") for header in found.all("th"))
    assert not {"nan", "inf", "None"} & set(" ".join(found.text).split())


def test_the_check_for_outside_resources_can_fail() -> None:
    for bad in (
        '<img src="https://example.org/x.png">',
        "<style>@import 'x.css';</style>",
        "<style>a { background: url(http://x/y) }</style>",
        "<script>alert(1)</script>",
        '<p onclick="x()"></p>',
        '<link href="style.css">',
    ):
        assert Page(bad).outside()


def test_every_string_is_escaped(tmp_path: Path) -> None:
    evaluation = replace(
        example(q=40),
        measures={EVIL: Measure(0.5), f"ood_auroc/{EVIL}": Measure(0.6), "error_auroc": Measure(0.5)},
        baselines={EVIL: {"error_auroc": Measure(0.4)}},
        counts={EVIL: 3},
        protocol={"kind": EVIL, EVIL: [EVIL], "notes": [EVIL]},
        curves={
            f"roc/{EVIL}": {EVIL: Curve([0.0, 1.0], [0.0, 1.0])},
            f"histogram/{EVIL}": {EVIL: Curve([0.0, 1.0], [0.5, 0.5])},
        },
    )
    found = write(
        tmp_path,
        evaluation,
        title=EVIL,
        config={EVIL: {EVIL: [EVIL]}},
        log=[{"epoch": 1, f"val {EVIL}": 0.5, f"loss {EVIL}": 0.5}],
        versions={EVIL: EVIL},
        command=EVIL,
        images=pictures(40),
        embedding_map=embedding_map(*directions(20)),
        label_names=[EVIL] * 10,
    )
    assert found.outside() == []  # and every tag that was opened was closed by us
    assert len(found.all("script")) == 1
    assert EVIL in "".join(found.text)


def test_odd_file_names_do_not_stop_the_report(tmp_path: Path) -> None:
    broken = b"caf\xe9".decode("utf-8", "surrogateescape")
    found = write(tmp_path, title=broken, config={"source": broken}, label_names=[broken])
    assert "caf?" in "".join(found.text)


def test_numbers_come_back_from_the_page(tmp_path: Path) -> None:
    evaluation = replace(example(q=50), protocol={"notes": ["</script><!--"]})
    data = json.loads(write(tmp_path, evaluation).data["doubtless-metrics"])
    assert data == json.loads(json.dumps(evaluation.to_json()))
    again = Evaluation.from_json(data)
    assert (again.measures, again.curves) == (evaluation.measures, evaluation.curves)


def test_same_input_same_bytes(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_run(tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_absent_parts_leave_no_trace(tmp_path: Path) -> None:
    found = write(tmp_path)
    assert not found.all("figure")
    assert not found.all("img")
    assert [section["id"] for section in found.all("section")] == ["key-figures", "measures"]
    assert [link["href"] for link in found.all("a")] == ["#key-figures", "#measures"]
    one = replace(SMALL, curves={"sparsification": {"uncertainty": Curve([], [])}, "risk_coverage": {}})
    assert not write(tmp_path, one).all("figure")


def test_every_measure_is_listed_with_interval_direction_and_meaning(tmp_path: Path) -> None:
    evaluation = example()
    shown = " ".join(write(tmp_path, evaluation).text)
    for name, measure in evaluation.measures.items():
        assert name in shown
        assert f"{measure.value:.3f}" in shown
        assert meaning(name).sentence in shown
        if measure.low is not None and measure.high is not None:
            assert f"{measure.low:.3f} – {measure.high:.3f}" in shown
    assert "It is a rank, not a probability: a perfect retriever scores .45." in shown
    assert "1,000 queries against a gallery of 1,000 images of 10 classes (leave-one-out)" in shown
    assert "Norms are all 1: the baseline norm is left out." in shown


def test_points_say_that_nothing_was_learned(tmp_path: Path) -> None:
    evaluation = example(learned=False)
    shown = " ".join(write(tmp_path, evaluation, images=pictures()).text)
    assert "no learned uncertainty" in shown
    assert "learned uncertainty beats" not in shown
    assert "free baseline: distance" in shown  # in the tiles
    assert "ordered by distance to the first hit (a free baseline)" in shown


@pytest.mark.parametrize(
    ("learned", "sentence"),
    [
        ({"error_auroc": 0.9, "ood_fpr95/x": 0.1}, "beats every free baseline in every column"),
        ({"error_auroc": 0.9, "ood_fpr95/x": 0.3}, "does not beat the best free baseline in 1 of 2 columns: OOD"),
        ({"error_auroc": 0.8, "ood_fpr95/x": 0.1}, "in 1 of 2 columns: Error AUROC."),
        ({"error_auroc": math.nan, "ood_fpr95/x": 0.3}, "in 1 of 1 columns: OOD FPR95 · x."),
    ],
)  # fmt: skip
def test_verdict_on_the_free_baselines(tmp_path: Path, learned: dict[str, float], sentence: str) -> None:
    free = {"error_auroc": Measure(0.8), "ood_fpr95/x": Measure(0.2)}
    worse = {"error_auroc": Measure(0.6), "ood_fpr95/x": Measure(0.7)}
    evaluation = Evaluation(
        {name: Measure(value) for name, value in learned.items()},
        baselines={"ratio": worse, "distance": free},
    )
    assert sentence in " ".join(write(tmp_path, evaluation).text)


def test_histograms_of_points_are_named_after_the_distance(tmp_path: Path) -> None:
    bars = {"id": Curve([0.0, 1.0], [0.5, 0.5]), "ood": Curve([0.0, 1.0], [0.1, 0.9])}
    for line, label in (("distance", "distance to the first hit"), ("uncertainty", "uncertainty")):
        curves = {"roc/x": {line: Curve([0.0, 1.0], [0.0, 1.0])}, "histogram/x": bars}
        shown = write(tmp_path, replace(SMALL, curves=curves)).text
        assert label in shown
        assert "known images raised" in shown  # the ROC's own axis stays


def test_references_are_drawn_where_they_belong(tmp_path: Path) -> None:
    def drawn(figure: str, *lines: str) -> list[str]:
        curves = {figure: {line: Curve([0.0, 0.9, 0.99, 1.0], [0.8, 0.9, 0.0, 0.0]) for line in lines}}
        return write(tmp_path, replace(SMALL, curves=curves)).text

    assert "guessing" in drawn("roc/x", "uncertainty")
    assert "perfectly calibrated" in drawn("reliability", "consensus")
    assert "guessing" not in drawn("sparsification", "uncertainty")
    shown = drawn("sparsification", "uncertainty", "oracle", "random", "norm")
    assert {"oracle", "random", "norm (free)"} <= set(shown)
    assert "0.80" in shown  # finer than an axis down to 0: the last queries, which fall there, do not set it


def test_training_curves_come_from_text_and_numbers(tmp_path: Path) -> None:
    found = write(tmp_path, log=log())
    shown = " ".join(found.text)
    assert len(found.all("figure")) == 2
    assert "train_loss" in shown
    assert "val_recall@1" in shown
    assert (
        len(write(tmp_path, log=[{"epoch": 1, "train_loss": "nan", "val_recall@1": ""}]).all("figure")) == 0
    )
    assert len(write(tmp_path, log=[{"epoch": 1, "train_loss": 0.5}]).all("figure")) == 1


def test_configuration_is_yaml_whatever_it_holds(tmp_path: Path) -> None:
    import yaml

    config = {**CONFIG, "root": PurePosixPath("/data"), "sizes": (1, 2), "none": None, "odd": torch.float32}
    shown = next(part for part in write(tmp_path, config=config).text if part.startswith("method:"))
    expected = {**CONFIG, "root": "/data", "sizes": [1, 2], "none": None, "odd": "torch.float32"}
    assert yaml.safe_load(shown) == expected


def test_query_without_pictures_or_order_has_no_examples(tmp_path: Path) -> None:
    index = torch.arange(3)
    queries = QueryRecord(index, index, index > 0, uncertainty=None)
    evaluation = replace(SMALL, queries=queries)
    assert not write(tmp_path, evaluation, images=pictures(3), label_names=NAMES).all("img")
    assert not write(tmp_path, example(), images=None).all("img")
    images = ImageLookup(pictures(9).query, pictures(9).gallery)
    found = write(
        tmp_path, replace(SMALL, queries=replace(queries, uncertainty=index.float())), images=images
    )
    assert len(found.all("img")) == 6


def test_catalogue_explains_and_orders() -> None:
    assert meaning("coverage@risk0.05").title == "Coverage at 5 % risk"
    assert meaning("map@r").sentence != meaning("map@7").sentence
    assert meaning("ood_auroc/a/b").title == "OOD AUROC · a/b"
    assert meaning("something").sentence == ""
    assert in_order(["ausc", "recall@9", "map@r", "recall@1", "map@3"], "Retrieval") == [
        "recall@1",
        "recall@9",
        "map@3",
        "map@r",
    ]
    assert better("recall@1", 0.6, 0.5)
    assert better("ece", 0.1, 0.2)
    assert not better("ood_fpr95/x", 0.3, 0.3)


def test_small_pieces() -> None:
    assert (number(-0.0001), number(-0.5), number(math.inf)) == ("0.000", "−0.500", "–")
    assert interval(0.1, None) == interval(math.nan, 0.2) == ""
    assert text("<a href='x'>") == "&lt;a href=&#x27;x&#x27;&gt;"
    block = json_block({"a": "</script><!-- & "}, identifier="x")
    assert block.count("<") == 2
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_block({"a": math.nan}, identifier="x")
