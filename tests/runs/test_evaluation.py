"""A run measured with the settings of its configuration's section `evaluation`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from doubtless.config import EvaluationConfig
from doubtless.evaluation import Evaluation
from doubtless.runs import Run
from doubtless.runs.evaluation import RunEvaluation


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
        assert (
            found.value >= row["ood_auprc_balanced/digits"].value
        )  # more strangers are found more precisely
    page = (work.folder / "report.html").read_text()
    assert "OOD AUPRC at a stated ratio" in page
    assert re.search(r"ood reweighted to</dt>\s*<dd>2\.603<", page)
    both = EvaluationConfig(ood_ratio=2.0, score="expected-distance")
    assert RunEvaluation(run, options=both).folder.name == "on-test-by-expected-distance-at-2.0"
    assert RunEvaluation(run, options=EvaluationConfig(ks=[3])).folder.name == "on-test-otherwise"
    assert RunEvaluation(run).folder == run.path
    plain = RunEvaluation(run, ood=["digits"]).measure(bootstrap=0, report=False)
    assert "ood_auprc_reweighted/digits" not in plain.doubts["doubt"] | plain.baselines["distance"]
