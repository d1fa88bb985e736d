"""URL's protocol: figures against loops and scipy, people's labels from a file, and the command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation.url import read_human_labels, url_figures
from doubtless.metrics.ranking import spearman
from doubtless.runs import Run
from doubtless.runs.url import measure_url

LABELS = torch.arange(60) % 5


def embedding() -> Embedding:
    generator = torch.Generator().manual_seed(0)
    location = torch.randn(5, 4, generator=generator)[LABELS] + torch.randn(60, 4, generator=generator)
    return Embedding.gaussian(location, torch.rand(60, 1, generator=generator))


def test_figures_against_loops() -> None:
    found, rows = url_figures(embedding(), LABELS), embedding().direction
    doubt = embedding().uncertainty
    assert doubt is not None
    right = []
    for i in range(60):
        others = [(float(rows[i] @ rows[j]), int(LABELS[j])) for j in range(60) if j != i]
        right.append(max(others)[1] == int(LABELS[i]))
    assert found.recall == pytest.approx(sum(right) / 60)
    pairs = [
        1.0 if doubt[i] > doubt[j] else 0.5 if doubt[i] == doubt[j] else 0.0
        for i in range(60)
        for j in range(60)
        if not right[i] and right[j]
    ]
    assert found.r_auroc == pytest.approx(sum(pairs) / len(pairs))
    assert (found.images, found.classes, found.cropped, found.human_spearman) == (60, 5, None, None)


def test_crops_must_be_less_sure() -> None:
    doubt = embedding().uncertainty
    assert doubt is not None
    assert url_figures(embedding(), LABELS, cropped=doubt + 1).cropped == 1
    assert url_figures(embedding(), LABELS, cropped=doubt).cropped == 0  # as sure is not less sure


def test_spearman_is_that_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        a, b = (torch.randint(0, 6, (40,), generator=generator).double() for _ in range(2))
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a.numpy(), b.numpy())[0])


def people(doubt: torch.Tensor) -> np.ndarray:
    """Shares: the more doubtful an image, the flatter."""
    flat = doubt.argsort().argsort().double() / (2 * len(doubt))
    shares = torch.full((len(doubt), 5), 1.0).double() * flat[:, None] / 5
    shares[torch.arange(len(doubt)), LABELS] += 1 - flat
    return shares.numpy()


def test_peoples_labels_from_a_file(tmp_path: Path) -> None:
    doubt = embedding().uncertainty
    assert doubt is not None
    np.save(tmp_path / "people.npy", people(doubt))
    found = url_figures(embedding(), LABELS, human=read_human_labels(tmp_path / "people.npy"))
    assert found.human_spearman == pytest.approx(1.0)
    assert found.human_auroc == pytest.approx(1.0)
    np.save(tmp_path / "turned.npy", people(doubt)[:, ::-1][::7])
    with pytest.raises(InputError, match="same, in order"):
        url_figures(embedding(), LABELS, human=read_human_labels(tmp_path / "turned.npy"))
    np.save(tmp_path / "turned.npy", np.roll(people(doubt), 1, axis=1))
    with pytest.raises(InputError, match="must be another"):
        url_figures(embedding(), LABELS, human=read_human_labels(tmp_path / "turned.npy"))


@pytest.mark.parametrize("values", [np.zeros((3, 2)), np.ones(3), np.full((2, 2), np.nan), -np.ones((2, 2))])
def test_files_that_say_nothing(values: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "people.npy", values)
    with pytest.raises(InputError, match=r"people\.npy must"):
        read_human_labels(tmp_path / "people.npy")
    with pytest.raises(InputError, match="no readable"):
        read_human_labels(tmp_path / "absent.npy")


def test_a_run_beside_the_published_means(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "run")
    figures, notes, path = measure_url(tmp_path / "run")
    assert figures.cropped is not None
    assert 0 <= figures.cropped <= 1
    assert json.loads(path.read_text())["figures"]["r_auroc"] == figures.r_auroc
    assert any("trained on the classes" in note for note in notes)
    again = Run.open(tmp_path / "run")
    labels = measured_labels(again)
    shares = np.eye(int(labels.max()) + 1)[labels.numpy()] + 0.01
    np.save(tmp_path / "people.npy", shares)
    said = CliRunner().invoke(
        app,
        [
            "evaluate",
            str(tmp_path / "run"),
            "--protocol",
            "url",
            "--human-labels",
            str(tmp_path / "people.npy"),
        ],
    )
    assert said.exit_code == 0, said.output
    assert "R-AUROC" in said.output
    assert "0.567" in said.output
    wrong = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--protocol", "urn"])
    assert wrong.exit_code != 0


def measured_labels(run: Run) -> torch.Tensor:
    from doubtless.runs.evaluation import RunEvaluation

    images = RunEvaluation(run).queries
    return images.labels[torch.as_tensor(images.index).argsort()]
