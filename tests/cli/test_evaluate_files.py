"""`doubtless evaluate --embeddings`: the whole report for a method that is not ours."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import GivenScores, evaluate


def blobs(seed: int, items: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(items) % 4
    centers = torch.randn(4, 6, generator=torch.Generator().manual_seed(9))
    return centers[labels] + 0.8 * torch.randn(items, 6, generator=generator), labels


def run(*arguments: str) -> dict:
    found = CliRunner().invoke(app, ["evaluate", *arguments, "--json"], catch_exceptions=False)
    return json.loads(found.stdout)


def test_npz_with_an_uncertainty_of_its_own(tmp_path: Path) -> None:
    location, labels = blobs(0)
    uncertainty = torch.rand(60, generator=torch.Generator().manual_seed(1))
    strange = torch.randn(30, 6, generator=torch.Generator().manual_seed(2))
    np.savez(tmp_path / "theirs.npz", location=location, labels=labels, uncertainty=uncertainty)
    np.savez(tmp_path / "strange.npz", location=strange, uncertainty=torch.rand(30) + 0.5)
    files = ["--embeddings", str(tmp_path / "theirs.npz"), "--ood", str(tmp_path / "strange.npz")]
    found = run(*files, "--ood-ratio", "2.5")
    assert found["protocol"]["ood_reweighted_to"] == 2.5
    assert "ood_auprc_reweighted/strange" in found["measures"]
    ours = evaluate(Embedding.point(location), labels, given=GivenScores(uncertainty=uncertainty))
    assert found["measures"]["recall@1"]["value"] == pytest.approx(ours["recall@1"])
    assert found["measures"]["error_auroc"]["value"] == pytest.approx(ours["error_auroc"])
    assert "ood_auroc/strange" in found["measures"]
    page = (tmp_path / "theirs-evaluation" / "report.html").read_text()
    assert "error_auroc" in page


def test_safetensors_query_and_gallery(tmp_path: Path) -> None:
    for name, seed in (("queries", 0), ("gallery", 1)):
        location, labels = blobs(seed)
        Embedding.gaussian(location, torch.rand(60, 1)).save(tmp_path / f"{name}.safetensors", labels=labels)
    found = run(
        "--embeddings",
        str(tmp_path / "queries.safetensors"),
        "--gallery",
        str(tmp_path / "gallery.safetensors"),
        "--out",
        str(tmp_path / "out"),
        "--open-set",
        "0.5",
    )
    assert found["protocol"]["open_set"] == {"left_out": 0.5, "share": 0.1, "seed": 0}
    assert found["counts"]["open_set_known"] + found["counts"]["open_set_unknown"] == 60
    assert "oscr" in found["measures"]
    assert found["protocol"]["kind"] == "query-gallery"
    assert "ece" in found["measures"]
    assert (tmp_path / "out" / "metrics.json").exists()


def test_bad_calls_are_sentences(tmp_path: Path) -> None:
    np.savez(tmp_path / "bare.npz", location=np.eye(4))
    for arguments, sentence in [
        ([], "either a run folder or --embeddings"),
        (["--embeddings", str(tmp_path / "bare.npz")], "has no labels"),
        (["--embeddings", str(tmp_path / "none.npz")], "no file"),
        (["--embeddings", str(tmp_path / "bare.npz"), "--data", "digits"], "--data belongs to a run"),
        (["--embeddings", str(tmp_path / "bare.npz"), "--ood-ratio", "0"], "'ood_ratio' cannot be 0"),
        (["--embeddings", str(tmp_path / "bare.npz"), "--open-set", "1"], "'open_set.left_out' cannot be 1"),
    ]:
        with pytest.raises(InputError, match=sentence):
            CliRunner().invoke(app, ["evaluate", *arguments], catch_exceptions=False)
