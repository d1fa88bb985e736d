"""Test images made worse: what is asked of them is what an evaluation asks, and nothing finds its own twin."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from doubtless.config import EvaluationConfig
from doubtless.data.corruptions import CORRUPTIONS, crop
from doubtless.evaluation import Evaluation
from doubtless.runs import Run
from doubtless.runs.disturbed import AREAS, STRENGTHS
from doubtless.runs.evaluation import RunEvaluation


@pytest.fixture(scope="module")
def run(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("disturbed") / "run"
    shutil.copytree(tiny_run, path)
    return Run.open(path)


@pytest.mark.parametrize("gallery", [None, "train"])
def test_every_step_against_a_loop_over_images(run: Run, gallery: str | None) -> None:
    options = EvaluationConfig(disturbed=25)
    work = RunEvaluation(run, ood=["digits"], gallery=gallery, options=options)
    assert work.folder.name.endswith("disturbed")  # the run's own results stay
    found = work.measure(bootstrap=0)
    stored = Evaluation.load(work.folder / "metrics.json").curves
    assert {"disturbed/blur", "disturbed/noise", "disturbed/occlusion", "crops"} <= set(stored)
    assert found.protocol["disturbed"] == 25
    # The same by hand: each image alone through the network, distances to all others one by one.
    images, rows = work.queries, torch.randperm(120, generator=torch.Generator().manual_seed(0))[:25]
    searched = work.gallery or images
    with torch.no_grad():
        held = torch.cat([work.method.embed(one.inputs[None]).direction for one in searched])  # type: ignore[attr-defined]

    def nearest(row: int, picture: torch.Tensor) -> tuple[float, bool]:
        with torch.no_grad():
            direction = work.method.embed(images.preparation(picture)[None]).direction[0]
        away = (held - direction).norm(dim=1)
        if gallery is None:
            away[row] = torch.inf
        return float(away.min()), bool(searched.labels[away.argmin()] == images.labels[row])

    def step(change: object, amount: float) -> tuple[list[float], float]:
        answers = []
        for row in rows.tolist():
            where = int(images.index[row])
            picture = change(images.source.image(where), amount, seed=where)  # type: ignore[operator]
            answers.append(nearest(row, picture))
        return [away for away, _ in answers], float(np.mean([right for _, right in answers]))

    still, right = step(crop, 1.0)
    for name, change, amounts in (
        ("disturbed/noise", CORRUPTIONS["noise"], STRENGTHS),
        ("crops", crop, AREAS),
    ):
        for place in (0, 2, 5):
            worse, still_right = step(change, amounts[place])
            pairs = zip(still, worse, strict=True)
            if name == "crops":
                wins = [float(b > a) for a, b in pairs]
            else:
                wins = [float(b > a) for a in still for b in worse]
            if place:  # at the first all are equal, but for rounding here
                assert stored[name]["distance"].y[place] == pytest.approx(np.mean(wins), abs=0.01)
            else:
                assert stored[name]["distance"].y[place] == 0.5
            assert stored[name]["recall@1"].y[place] == pytest.approx(still_right)
    assert stored["crops"]["recall@1"].y[0] == pytest.approx(right)
    page = (work.folder / "report.html").read_text()
    for words in (
        "Pictures made worse",
        "Worse pictures · noise",
        "Crops",
        "Precision by tenth of uncertainty",
    ):
        assert words in page
    assert "Known and other images in one order · digits" in page
    assert page.count('<li class="other">') + page.count('<li class="known">') == 60


def test_undisturbed_pictures_have_the_doubts_of_the_evaluation(run: Run) -> None:
    from doubtless.runs.disturbed import Asked, disturb_images
    from doubtless.runs.doubt import Reader

    work = RunEvaluation(run, ood=[])
    read = Reader(work.method)
    queries = read(work.queries, work.queries.labels)
    doubt = work._fit_doubt(read, queries, queries)
    assert doubt is not None
    whole = work._doubts(doubt, queries, queries, {})[""]
    asked = Asked(queries, doubt, "direction", closed=work._is_closed, alone=True)
    found = disturb_images(read, work.queries, queries.truth, asked, count=10_000)
    assert len(found.rows) == len(work.queries)
    for way in found.ways.values():
        for name, expected in whole.items():
            assert torch.allclose(way.values[0][name].double(), expected.cpu().double(), atol=1e-4), name
    order = found.ways["crops"].values[0]["distance"].sort().values
    assert found.ways["crops"].values[0]["distance"][found.middling] == order[(len(order) - 1) // 2]


def test_nothing_is_disturbed_unless_asked(run: Run) -> None:
    found = RunEvaluation(run, ood=[]).measure(bootstrap=0, report=False)
    assert "crops" not in found.curves
    assert "disturbed" not in found.protocol
