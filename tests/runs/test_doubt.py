"""A run's combined doubt: fitted on its validation part, in its metrics, whatever is searched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.bench.comparison import _by_doubt
from doubtless.evaluation import Evaluation
from doubtless.runs import Run
from doubtless.runs.data import embed_images, features_of, open_run_data
from doubtless.runs.doubt import Reader
from doubtless.runs.evaluation import RunEvaluation


@pytest.mark.parametrize("gallery", [None, "train"])
def test_the_doubt_is_a_row_of_its_own(tiny_run: Path, tmp_path: Path, gallery: str | None) -> None:
    path = tmp_path / "run"
    shutil.copytree(tiny_run, path)
    work = RunEvaluation(Run.open(path), gallery=gallery)
    found = work.measure(bootstrap=0)
    assert set(found.doubts) == {"doubt", "disagreement", "contested", "novelty"}
    assert found.protocol["doubt"]["queries"] == len(work.own.validation)  # type: ignore[union-attr]
    stored = Evaluation.load(work.folder / "metrics.json")
    assert stored.doubts.keys() == found.doubts.keys()
    assert "one doubt from several sources" in (work.folder / "report.html").read_text()
    row = _by_doubt(found)
    assert row.measures == found.doubts["doubt"]
    assert row.queries is not None
    assert torch.equal(row.queries.uncertainty, found.queries.values["doubt/doubt"])  # type: ignore[union-attr, arg-type]


def test_parts_are_measured_as_the_doubt_is_and_without_one_what_needs_no_fit(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    shutil.copytree(tiny_run, path)
    work = RunEvaluation(Run.open(path), ood=["digits"])
    found = work.measure(bootstrap=0, report=False)
    for name in ("doubt", "disagreement", "contested", "novelty"):
        assert {"error_auroc", "ausc", "aurc", "ood_auroc/digits", "ood_auprc/digits"} <= set(
            found.doubts[name]
        )
    assert found.queries is not None
    values = found.queries.values["doubt/disagreement"]
    torch.testing.assert_close((9 * values).round(), 9 * values)  # of the next nine hits
    monkeypatch.setattr("doubtless.runs.doubt.FEWEST", 10**6)
    without = RunEvaluation(Run.open(path), ood=["digits"]).measure(bootstrap=0, report=False)
    assert set(without.doubts) == {"disagreement", "contested"}
    assert without.doubts["disagreement"] == found.doubts["disagreement"]


def test_test_labels_and_strangers_do_not_reach_the_fit(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fit in the training gallery is the same whatever the test part and the OOD set are."""
    path = tmp_path / "run"
    shutil.copytree(tiny_run, path)
    plain = RunEvaluation(Run.open(path), gallery="train").measure(bootstrap=0, report=False)
    work = RunEvaluation(Run.open(path), gallery="train", ood=["digits"])
    work.queries.labels = work.queries.labels.flip(0)
    again = work.measure(bootstrap=0, report=False)
    assert again.protocol["doubt"] == plain.protocol["doubt"]
    assert again["recall@1"] != plain["recall@1"]


def test_one_pass_gives_what_two_gave(tiny_run: Path, tiny_config: dict[str, Any]) -> None:
    run = Run.open(tiny_run)
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    found = Reader(method)(data.test, data.test.labels)
    torch.testing.assert_close(found.embedding.location, embed_images(method, data.test).location)
    features = features_of(method, data.test)
    cosines = (
        torch.nn.functional.normalize(features, dim=1) @ torch.nn.functional.normalize(features, dim=1).T
    )
    narrow = torch.nn.functional.normalize(found.features, dim=1)
    assert found.features.shape[1] <= 512
    assert float((narrow @ narrow.T - cosines).abs().max()) < 6 / 512**0.5
