"""A run measured: with the settings of its configuration's section `evaluation`, right after training or later."""

from __future__ import annotations

import copy
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from doubtless.config import EvaluationConfig, OpenSetConfig
from doubtless.evaluation import Evaluation
from doubtless.methods.configuration import make_config
from doubtless.runs import Run
from doubtless.runs.evaluation import RunEvaluation, evaluate_run
from doubtless.training import train_run


def test_a_papers_ratio_reaches_the_metrics_and_the_report(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    run, options = Run.open(tmp_path / "run"), EvaluationConfig(ood_ratio=2.6032)
    work = RunEvaluation(run, ood=["digits"], options=options)
    assert work.folder == run.path / "on-test-at-2.6032"  # the run's own results stay
    work.measure(bootstrap=5)
    stored = Evaluation.load(work.folder / "metrics.json")
    assert stored.protocol["ood_reweighted_to"] == 2.6032
    for row in (*stored.doubts.values(), *stored.baselines.values()):
        found = row["ood_auprc_reweighted/digits"]
        assert found.low is not None
        assert found.value >= row["ood_auprc_balanced/digits"].value  # more of them are found more precisely
    page = (work.folder / "report.html").read_text()
    assert "OOD AUPRC at a stated ratio" in page
    assert re.search(r"ood reweighted to</dt>\s*<dd>2\.603<", page)
    both = EvaluationConfig(ood_ratio=2.0, score="expected-distance")
    assert RunEvaluation(run, options=both).folder.name == "on-test-by-expected-distance-at-2.0"
    assert RunEvaluation(run, options=EvaluationConfig(ks=[3])).folder.name == "on-test-otherwise"
    assert RunEvaluation(run).folder == run.path
    plain = RunEvaluation(run, ood=["digits"]).measure(bootstrap=0, report=False)
    assert "ood_auprc_reweighted/digits" not in plain.doubts["doubt"] | plain.baselines["distance"]


def test_labels_left_out_reach_the_metrics_and_the_report(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    run, options = Run.open(tmp_path / "run"), EvaluationConfig(open_set=OpenSetConfig(share=0.2, seed=3))
    work = RunEvaluation(run, options=options)
    assert work.folder == run.path / "on-test-open-set"  # the run's own results stay
    work.measure(bootstrap=5)
    stored = Evaluation.load(work.folder / "metrics.json")
    assert stored.protocol["open_set"] == {"left_out": 0.5, "share": 0.2, "seed": 3}
    for row in stored.baselines.values():
        assert {"oscr", "fnir@fpir0.1", "dir@far0.1", "open_aurc", "aurc", "augrc"} <= set(row)
        assert row["oscr"].low is not None
    page = (work.folder / "report.html").read_text()
    assert "FNIR at 10 % FPIR" in page
    assert "Risk with unknown labels" in page
    assert re.search(r"open set</dt>\s*<dd>left_out: 0.5, share: 0.2, seed: 3<", page)
    assert "oscr" not in RunEvaluation(run).measure(bootstrap=0, report=False).baselines["distance"]


def test_a_scale_is_chosen_on_the_validation_part(
    tiny_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = copy.deepcopy(tiny_config) | {"method": "pfe", "evaluation": {"scale": "tuned"}}
    values["training"]["epochs"] = 1
    run = train_run(make_config(values), tmp_path / "run")
    work = RunEvaluation(run)
    assert work.folder == run.path
    found = work.measure(bootstrap=5)
    chosen = found.protocol["scale"]
    assert chosen["kind"] == "tuned"
    assert chosen["images"] <= len(work.own.validation)  # type: ignore[union-attr]
    assert found["scale"] == chosen["value"]
    assert chosen["score"] >= chosen["as_is"]
    assert chosen["meant_for"] is None  # too few images to tell
    monkeypatch.setattr("doubtless.evaluation.scale.ENOUGH", 20)
    denser = RunEvaluation(Run.open(run.path)).measure(bootstrap=0, report=False).protocol["scale"]
    assert denser["meant_for"] == min(len(work.queries), 4 * len(work.own.validation))  # type: ignore[union-attr]
    monkeypatch.undo()
    page = (work.folder / "report.html").read_text()
    assert "Consensus ECE, scale tuned" in page
    as_is = RunEvaluation(Run.open(run.path), options=EvaluationConfig())
    assert as_is.folder.name == "on-test-as-is"
    plain = as_is.measure(bootstrap=5, report=False)
    assert "ece_tuned" not in plain.measures
    assert plain["ece"] == found["ece"]
    assert plain.doubts == found.doubts
    # Test labels have no say in it.
    other = RunEvaluation(Run.open(run.path))
    other.queries.labels = other.queries.labels.flip(0)
    assert other.measure(bootstrap=0, report=False).protocol["scale"] == chosen


def test_a_scale_that_cannot_be_chosen_is_said(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    tuned = RunEvaluation(Run.open(tmp_path / "run"), options=EvaluationConfig(scale="tuned"))
    assert tuned.folder.name == "on-test-tuned"
    points = tuned.measure(bootstrap=0, report=False)  # a deterministic run has no variance
    assert "scale" not in points.protocol
    assert not [note for note in points.protocol["notes"] if "scale" in note]
    tuned._choose_scale = lambda validation, searched: "because."  # type: ignore[method-assign]
    notes = tuned.measure(bootstrap=0, report=False).protocol["notes"]
    assert "The scale of variances is as it was: because." in notes


def never(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("what training had in memory is read again")


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"augment": "crop-flip"}},
        {"model": {"freeze": True}},
        {"method": "mc-dropout"},
        {"method": "lam-posthoc", "laplace": {"tune": {"grid": 3}}},
    ],
    ids=["augmented", "frozen", "mc-dropout", "lam-posthoc"],
)
def test_a_run_just_trained_is_measured_from_memory_as_it_would_be_from_disk(
    changes: dict[str, Any], tiny_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = copy.deepcopy(tiny_config)
    values["training"]["epochs"] = 1
    for key, value in changes.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    run = train_run(make_config(values), tmp_path / "run", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "load_method", never)
        patch.setattr("doubtless.runs.evaluation.open_run_data", never)
        RunEvaluation(run).measure(bootstrap=20)
    assert (run.path / "report.html").is_file()
    in_memory = (run.path / "metrics.json").read_bytes()
    evaluate_run(run.path, bootstrap=20, report=False)
    assert (run.path / "metrics.json").read_bytes() == in_memory


def test_a_report_records_the_command_that_was_given_and_no_other(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    monkeypatch.setattr("sys.argv", ["secret", "/home/somebody"])
    work = RunEvaluation(Run.open(tmp_path / "run"), ood=[])
    work.measure(bootstrap=0)
    page = (work.folder / "report.html").read_text()
    assert "<h3>Command</h3>" not in page
    assert "Made with" in page
    assert "/home/somebody" not in page
    work.measure(bootstrap=0, command="doubtless report <run>")
    page = (work.folder / "report.html").read_text()
    assert "<h3>Command</h3>" in page
    assert "doubtless report &lt;run&gt;" in page
