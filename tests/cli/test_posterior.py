"""`doubtless posterior`: from a run, from arrays, and what it says to bad input."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from doubtless.laplace import DiagonalPosterior, KroneckerPosterior, posterior_from_tensors
from doubtless.runs import Run

GRID = ["--set", "laplace.tune.grid=6"]


@pytest.fixture
def doubtless(command: Any) -> Any:
    return partial(command, "posterior")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of 300 images of six classes, well apart, and their labels."""
    folder, rng = tmp_path_factory.mktemp("arrays"), np.random.default_rng(0)
    labels = np.arange(300) % 6
    centres = rng.normal(size=(6, 12))
    np.save(folder / "f.npy", centres[labels] + rng.normal(scale=0.6, size=(300, 12)))
    np.save(folder / "y.npy", labels)
    np.save(folder / "head.npy", rng.normal(size=(5, 13)))
    return folder


def test_a_run_becomes_a_posterior_run(doubtless, tiny_run: Path, tmp_path: Path) -> None:
    code, out, err = doubtless(
        tiny_run, "--out", tmp_path / "new", *GRID, "--set", "laplace.geometry=euclidean", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    made = Run.open(tmp_path / "new")
    assert found["run"] == str(made.path)
    assert found["record"]["trials"] == 6 + 8  # a grid, and between the neighbours of its best
    assert {"error_auroc", "ece", "recall@1"} <= set(found["measures"])
    assert (made.path / "report.html").is_file()
    assert made.config.method == "lam-posthoc"
    assert made.config.base == str(tiny_run)
    assert made.config.to_dict()["laplace"]["geometry"] == "euclidean"
    assert made.config.data == Run.open(tiny_run).config.data
    before, after = load_file(tiny_run / "model.safetensors"), load_file(made.path / "model.safetensors")
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    code, out, err = doubtless(tmp_path / "new", "--out", tmp_path / "again", *GRID, "--no-evaluate")
    assert code == 0, err  # a posterior of a posterior run is one of its network
    assert "scale τ" in out
    assert not (tmp_path / "again" / "metrics.json").exists()


@pytest.mark.parametrize("head", [None, "identity", "head.npy"])
def test_features_become_a_posterior_file(doubtless, arrays: Path, tmp_path: Path, head: str | None) -> None:
    chosen = {None: [], "identity": ["--head", "identity"], "head.npy": ["--head", arrays / "head.npy"]}[head]
    files = [
        "--features",
        arrays / "f.npy",
        "--labels",
        arrays / "y.npy",
        "--out",
        tmp_path / "p.safetensors",
    ]
    code, out, err = doubtless(*files, *chosen, *GRID, "--json")
    assert code == 0, err
    found = json.loads(out)
    posterior = DiagonalPosterior.from_tensors(load_file(tmp_path / "p.safetensors"))
    assert posterior.scale == pytest.approx(found["record"]["scale"])
    assert posterior.prior_precision == pytest.approx(found["record"]["prior_precision"])
    assert {"recall@1", "error_auroc", "ece"} <= set(found["validation"])
    features = torch.from_numpy(np.load(arrays / "f.npy"))
    assert posterior.predict(features).uncertainty.shape == (300,)
    if head == "identity":
        assert torch.equal(posterior.weight, torch.eye(12))
        assert posterior.bias is None
    if head == "head.npy":
        given = torch.from_numpy(np.load(arrays / "head.npy")).float()
        assert torch.equal(posterior.weight, given[:, :12])
        assert torch.equal(posterior.bias, given[:, 12])
    code, out, err = doubtless(*files, *chosen, *GRID)
    assert code == 0, err
    assert "on the 60 images that chose them" in out
    assert f"{found['validation']['recall@1']:.4f}" in out


@pytest.mark.parametrize("geometry", ["arccos", "linear"])
def test_features_become_a_kronecker_posterior(
    doubtless, arrays: Path, tmp_path: Path, geometry: str
) -> None:
    out = tmp_path / "p.safetensors"
    more = ["--set", "laplace.covariance=kronecker", "--set", f"laplace.geometry={geometry}", "--json"]
    head = ["--head", arrays / "head.npy"]
    code, printed, err = doubtless(
        "--features", arrays / "f.npy", "--labels", arrays / "y.npy", "--out", out, *head, *GRID, *more
    )
    assert code == 0, err
    record = json.loads(printed)["record"]
    posterior = posterior_from_tensors(load_file(out))
    assert isinstance(posterior, KroneckerPosterior)
    assert (record["covariance"], record["scale"]) == ("kronecker", pytest.approx(posterior.scale))
    given = torch.from_numpy(np.load(arrays / "head.npy")).float()
    weight, bias = posterior.head()
    torch.testing.assert_close(weight, given[:, :12], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bias, given[:, 12], rtol=1e-4, atol=1e-5)


def test_held_out_features_are_not_fitted(doubtless, arrays: Path, tmp_path: Path) -> None:
    """Labels of the held-out images do not move the curvature, only τ and λ."""
    labels = np.load(arrays / "y.npy")
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:60].numpy()
    labels[order] = labels[order][::-1]
    np.save(tmp_path / "y.npy", labels)
    found = []
    for number, file in enumerate((arrays / "y.npy", tmp_path / "y.npy")):
        out = tmp_path / f"{number}.safetensors"
        code, _, err = doubtless("--features", arrays / "f.npy", "--labels", file, "--out", out, *GRID)
        assert code == 0, err
        found.append(load_file(out))
    assert torch.equal(found[0]["weight_curvature"], found[1]["weight_curvature"])
    assert torch.equal(found[0]["weight"], found[1]["weight"])


def test_bad_input_is_one_sentence(doubtless, arrays: Path, tiny_run: Path, tmp_path: Path) -> None:
    features, labels, out = arrays / "f.npy", arrays / "y.npy", tmp_path / "p.safetensors"
    np.save(tmp_path / "flat.npy", np.zeros(5))
    np.save(tmp_path / "nan.npy", np.full((300, 12), np.nan))
    np.save(tmp_path / "floats.npy", np.zeros(300))
    (tmp_path / "broken.npy").write_bytes(b"no array")
    files = ["--features", features, "--labels", labels, "--out", out]
    cases = [
        ([], "either a run, or --features"),
        ([tiny_run, *files], "either a run, or --features"),
        ([tiny_run, "--labels", labels], "go with --features"),
        (["--features", features], "needs --labels"),
        (["--features", features, "--labels", labels], "needs --labels"),
        (["--features", tmp_path / "none.npy", *files[2:]], "There is no file"),
        (["--features", tmp_path / "flat.npy", *files[2:]], "must hold features (n, F)"),
        (["--features", tmp_path / "nan.npy", *files[2:]], "without NaN"),
        (["--features", tmp_path / "broken.npy", *files[2:]], "no readable .npy"),
        ([*files, "--labels", tmp_path / "flat.npy"], "must hold 300 whole numbers"),
        ([*files, "--labels", tmp_path / "floats.npy"], "must hold 300 whole numbers"),
        ([*files, "--head", tmp_path / "flat.npy"], "must hold a head (D, 12)"),
        ([*files, "--head", "identty"], "There is no file identty"),
        ([*files, "--head", "identity", "--dim", 3], "dim is for a half-whitened head"),
        ([*files, "--dim", 13], "has 1 to 12 dimensions"),
        ([*files, "--validation", 1.5], "--validation must leave"),
        ([*files, "--validation", 0.001], "--validation must leave"),
        ([*files, "--set", "training.epochs=3"], "means nothing"),
        ([*files, "--set", "laplace.geometri=arccos"], "did you mean 'geometry'"),
        ([*files, "--set", "laplace.tune.criterion=ece"], "cannot be 'ece'"),
        ([tiny_run, "--out", tmp_path / "new", "--set", "laplace.tune.gird=3"], "did you mean 'grid'"),
        ([tiny_run, "--out", tiny_run], "exists already"),
        ([tmp_path, "--out", tmp_path / "new"], "is not a run"),
    ]
    for arguments, sentence in cases:
        code, output, err = doubtless(*arguments)
        assert code == 2, (arguments, output, err)
        assert sentence in err, (arguments, err)
        assert err.startswith("doubtless: ")
        assert not out.exists()
