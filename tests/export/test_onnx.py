"""Exported files: onnxruntime's answers are torch's, for every method, one image or many, without torch as well."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

import doubtless
from doubtless.cli.export import export as export_command
from doubtless.embedding import Embedding
from doubtless.errors import DoubtlessError, InputError
from doubtless.export import export_onnx
from doubtless.export.onnx import distribution_of
from doubtless.methods import METHODS, DataSpec, Method, all_methods, method_class
from doubtless.methods.configuration import make_config
from doubtless.methods.laplace_head import LaplaceHead
from doubtless.runs.model import model_fingerprint
from doubtless.training import train_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx" / "without_torch.py"
TRIPLET = {"loss": {"name": "triplet"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "bayes-triplet": TRIPLET,
    "bayes-triplet-vmf": TRIPLET,
    "triplet": TRIPLET,
    "triplet-regression": TRIPLET,
}
TOLERANCE = 1e-4
BATCHES = (1, 3, 8)

QUICK = ("bayes-triplet-vmf", "deterministic", "dvml", "lam-online", "mc-dropout", "pfe")
"""Each family, and batch norm; the others' graphs are alike, and take minutes together."""


def a_method(name: str, *, size: int = 12, channels: int = 1, **sections: Any) -> Method:
    """A method as if it were trained: nothing in it is 0, 1 or alike by default."""
    torch.manual_seed(0)
    config = {
        "method": name,
        "data": {"source": "digits"},
        "model": {"backbone": "conv-fashion", "dim": 8},
        **SETTINGS.get(name, {}),
        **sections,
    }
    spec = DataSpec(channels=channels, size=size, label_names=["Ärmel", "boot", "coat"])
    method = method_class(name)(make_config(config), spec).eval()
    for module in method.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, LaplaceHead):
            head = method.head
            module.curvature.assign(1e3 * torch.rand_like(head.weight) ** 4, torch.rand_like(head.bias))
    if name == "pfe":
        method.second[-1].scale.data.fill_(0.5)
    if name == "mc-dropout":
        method.finished.fill_(True)
    return method


def images_of(method: Method, count: int) -> Tensor:
    spec, generator = method.spec, torch.Generator().manual_seed(count)
    shape = (count, spec.channels, spec.size, spec.size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def answers_of(path: Path, images: Tensor) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = session.run(names, {"images": images.numpy()})
    return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}


def assert_agree(found: dict[str, Tensor], expected: Embedding) -> None:
    assert found["direction"].shape == (len(expected), expected.dim)
    torch.testing.assert_close(found["direction"], expected.direction, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(found["location"], expected.location, atol=TOLERANCE, rtol=TOLERANCE)
    assert ("uncertainty" in found) == (expected.uncertainty is not None)
    if expected.uncertainty is not None:
        assert found["uncertainty"].shape == (len(expected),)
        torch.testing.assert_close(found["uncertainty"], expected.uncertainty, atol=0, rtol=TOLERANCE)
    for name, value in expected.parameters.items():
        if name != "samples":
            torch.testing.assert_close(found[name], value, atol=TOLERANCE, rtol=TOLERANCE)
    if expected.family in ("vmf", "projected-gaussian", "empirical"):
        torch.testing.assert_close(found["resultant"], expected.resultant, atol=TOLERANCE, rtol=0)


def assert_exported_equal(method: Method, path: Path) -> None:
    done = export_onnx(method, path)
    assert done.bytes == path.stat().st_size
    for count in BATCHES:
        images = images_of(method, count)
        found = answers_of(path, images)
        assert list(found) == done.outputs
        assert_agree(found, method.embed(images))


@pytest.mark.parametrize("name", QUICK)
def test_onnxruntime_is_torch(name: str, tmp_path: Path) -> None:
    assert_exported_equal(a_method(name), tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in all_methods() if name not in (*QUICK, "ensemble")])
def test_onnxruntime_is_torch_for_every_other_method(name: str, tmp_path: Path) -> None:
    assert_exported_equal(a_method(name), tmp_path / "model.onnx")


@pytest.mark.parametrize("name", [name for name in all_methods() if name != "ensemble"])
def test_every_method_says_how_it_is_exported(name: str) -> None:
    """The graph before it is ONNX, run by torch: what `embed` gives, to the last digits."""
    method = a_method(name)
    images = images_of(method, 5)
    with torch.no_grad():
        parameters = distribution_of(method)(images)
    expected = method.embed(images)
    assert parameters.keys() == expected.parameters.keys()
    for key, value in expected.parameters.items():
        got = nn.functional.normalize(parameters[key], dim=-1) if key == "samples" else parameters[key]
        torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("member", ["deterministic", "lam-posthoc"])
def test_an_ensemble(member: str, tiny_config: dict[str, Any], tmp_path: Path) -> None:
    config = {
        **copy.deepcopy(tiny_config),
        "method": "ensemble",
        "ensemble": {"members": 2, "method": member},
    }
    config["training"]["epochs"] = 1
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    assert_exported_equal(run.load_method(), tmp_path / "model.onnx")


@pytest.mark.slow
def test_dropout_between_blocks(tmp_path: Path) -> None:
    options = {"dropout": {"where": "blocks", "samples": 6}}
    assert_exported_equal(a_method("mc-dropout", **options), tmp_path / "model.onnx")


@pytest.mark.slow
def test_dropout_after_the_blocks_of_any_network(tmp_path: Path) -> None:
    """Images are repeated in the middle of the graph, which still takes any number of them."""
    options = {"dropout": {"where": "blocks", "samples": 6}, "model": {"backbone": "test_resnet", "dim": 8}}
    assert_exported_equal(a_method("mc-dropout", size=32, channels=3, **options), tmp_path / "model.onnx")


@pytest.mark.slow
def test_a_timm_backbone_with_gem_two_heads_and_grey_images(tmp_path: Path) -> None:
    model = {"model": {"backbone": "tf_efficientnet_lite0", "dim": 16, "pooling": "gem"}}
    assert_exported_equal(a_method("bayes-triplet", size=64, channels=1, **model), tmp_path / "model.onnx")


def test_floats_are_taken_where_asked_for(tmp_path: Path) -> None:
    method = a_method("hib")
    export_onnx(method, tmp_path / "model.onnx", input_type="float32")
    images = images_of(method, 4)
    assert_agree(answers_of(tmp_path / "model.onnx", images.float() / 255), method.embed(images))
    with pytest.raises(InputError, match="no input type 'int8'; accepted: uint8, float32"):
        export_onnx(method, tmp_path / "model.onnx", input_type="int8")  # type: ignore[arg-type]


def test_the_file_says_who_it_is_and_nothing_of_this_machine(tmp_path: Path) -> None:
    method, path = a_method("deterministic"), tmp_path / "model.onnx"
    export_onnx(method, path)
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert about["model"] == model_fingerprint(method)
    assert json.loads(about["label_names"]) == ["Ärmel", "boot", "coat"]
    assert (about["method"], about["family"], about["uncertainty"]) == ("deterministic", "point", "none")
    assert (about["channels"], about["size"], about["dim"]) == ("1", "12", "8")
    assert "short side" in about["preparation"]
    assert str(Path.cwd()).encode() not in path.read_bytes()
    assert b"site-packages" not in path.read_bytes()
    assert not list(tmp_path.glob("*.data"))


def test_a_wrong_graph_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that inherits a graph and embeds otherwise is found out by the comparison."""

    class Mirrored(method_class("deterministic")):  # type: ignore[misc]
        def embed_features(self, features: Tensor) -> Embedding:
            return Embedding.point(self.head(features).flip(1))

    method = a_method("deterministic")
    method.__class__ = Mirrored
    with pytest.raises(DoubtlessError, match=r"the model disagree: directions by .* nothing was written"):
        export_onnx(method, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


class Ring(Method):
    """A method of another package: nothing of it is known to the export."""

    family = "vmf"

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        location = self.head(features)
        return {"location": location, "concentration": 1 + location.square().sum(1)}


class Silent(Method):
    """A method that embeds otherwise than it says."""

    def embed_features(self, features: Tensor) -> Embedding:
        return Embedding.vmf(self.head(features), features.square().sum(1))


def test_a_method_of_another_package_is_exported(tmp_path: Path) -> None:
    known = a_method("deterministic")
    method = Ring(known.config, known.spec)
    method.name = "ring"  # type: ignore[misc]
    assert "ring" not in METHODS
    assert_exported_equal(method, tmp_path / "model.onnx")


def test_a_method_that_embeds_as_another_family_is_refused_in_a_sentence(tmp_path: Path) -> None:
    known = a_method("deterministic")
    method = Silent(known.config, known.spec)
    method.name = "silent"  # type: ignore[misc]
    with pytest.raises(
        InputError, match="silent cannot be exported yet: it gives vmf embeddings, not the point"
    ):
        export_onnx(method, tmp_path / "model.onnx")
    unfinished = a_method("mc-dropout")
    unfinished.finished.fill_(False)
    with pytest.raises(
        InputError, match="cannot be exported yet: it gives point embeddings, not the empirical ones"
    ):
        export_onnx(unfinished, tmp_path / "model.onnx")


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"needs onnxruntime: pip install 'doubtless\[onnx\]'"):
        export_onnx(a_method("deterministic"), tmp_path / "model.onnx")


@pytest.fixture
def command() -> Callable[..., Any]:
    import typer

    app = typer.Typer()
    app.command()(export_command)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_from_a_run_to_answers_without_torch(
    command: Callable[..., Any], tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    """The command, then the example in a Python that has no torch."""
    # A wide posterior: of an uncertainty near rounding no third digit is the same twice.
    wide = {"scale": 10.0, "prior_precision": 10.0, "tune": {"criterion": "none"}}
    config = {**copy.deepcopy(tiny_config), "method": "lam-posthoc", "laplace": wide}
    config["training"]["epochs"] = 1
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    file = tmp_path / "run.onnx"
    done = command(run.path, "--out", file, "--json")
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)
    assert written["outputs"] == ["direction", "uncertainty", "location", "variance", "resultant"]
    assert written["direction_difference"] < TOLERANCE
    rng = np.random.default_rng(0)
    photos = [tmp_path / "a.png", tmp_path / "b.png"]
    for photo in photos:
        Image.fromarray(rng.integers(0, 256, (12, 12), np.uint8)).save(photo)
    blocked = "import sys; sys.modules['torch'] = None; sys.argv = sys.argv[1:]; "
    script = f"{blocked}exec(open(sys.argv[0]).read())"
    arguments = [sys.executable, "-c", script, str(EXAMPLE), str(file), *map(str, photos)]
    shown = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    expected = doubtless.load(run.path).embed(photos)
    assert expected.uncertainty is not None
    cosines = expected.direction @ expected.direction[0]
    lines = [
        f"{photo}: uncertainty {doubt:.3g}, cosine to the first image {cosine:.3f}"
        for photo, doubt, cosine in zip(photos, expected.uncertainty.tolist(), cosines.tolist(), strict=True)
    ]
    assert shown.stdout.splitlines() == lines


def test_the_command_in_words(command: Callable[..., Any], tiny_run: Path, tmp_path: Path) -> None:
    done = command(tiny_run, "--out", tmp_path / "model.onnx")
    assert done.exit_code == 0, done.output
    assert "n×1×12×12 uint8 in, direction, location out" in done.stdout
    assert "differ in directions by at most" in done.stdout
