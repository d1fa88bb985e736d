"""What every method must hold to, those that are yet to be written included: they register, and are tested.

Each is trained twice on the tiny data set, the second time with shuffled test labels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from doubtless.data import BalancedBatches, Batch
from doubtless.embedding import Embedding
from doubtless.methods import all_methods
from doubtless.methods.configuration import load_config, make_config
from doubtless.runs import Run, TrainedRun, open_run_data
from doubtless.runs.data import subset_of
from doubtless.training import train_run

CONFIGS = Path(__file__).parents[2] / "configs"
DATA_SETS = ["fashion-sample", "omniglot"]

TRIPLET = {"loss": {"name": "triplet"}}
SETTINGS: dict[str, dict[str, Any]] = {
    "bayes-triplet": TRIPLET,
    "bayes-triplet-vmf": TRIPLET,
    "ensemble": {"ensemble": {"members": 2}},
    "lam-online": {"laplace": {"tune": {"grid": 3}}},
    "lam-posthoc": {"laplace": {"tune": {"grid": 3}}},
    "loss-prediction": {"head": {"epochs": 3}},
    "pfe": {"head": {"epochs": 3}},
    "triplet": TRIPLET,
    "triplet-regression": TRIPLET,
}
"""What a method needs beside the tiny configuration: a loss of its own, or less work than its defaults."""


Train = Callable[[str], TrainedRun]


@pytest.fixture(scope="module")
def shuffled_npz(tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set with other test labels."""
    with np.load(tiny_npz) as file:
        arrays = dict(file)
    labels = np.random.default_rng(5).permutation(arrays["y_test"])
    assert (labels != arrays["y_test"]).mean() > 0.5
    path = tmp_path_factory.mktemp("shuffled") / "tiny.npz"
    np.savez(path, **{**arrays, "y_test": labels})
    return path


@pytest.fixture(scope="module")
def trained(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Every method, trained when first asked for."""
    return _trainer(tiny_config, tmp_path_factory.mktemp("methods"))


@pytest.fixture(scope="module")
def trained_again(
    tiny_config: dict[str, Any], shuffled_npz: Path, tmp_path_factory: pytest.TempPathFactory
) -> Train:
    config = copy.deepcopy(tiny_config)
    config["data"]["source"] = f"npz:{shuffled_npz}"
    return _trainer(config, tmp_path_factory.mktemp("again"))


def _trainer(tiny_config: dict[str, Any], folder: Path) -> Train:
    known: dict[str, TrainedRun] = {}

    def train(name: str) -> TrainedRun:
        if name not in known:
            config = {**copy.deepcopy(tiny_config), "method": name, **SETTINGS.get(name, {})}
            config["training"] = {**tiny_config["training"], "epochs": 1}
            known[name] = train_run(make_config(config), folder / name, quiet=True)
        return known[name]

    return train


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randint(
        0, 256, (9, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(3)
    )


every_method = pytest.mark.parametrize("name", list(all_methods()))


def assert_equal(found: Embedding, expected: Embedding, *, tolerance: float = 0.0) -> None:
    assert found.family == expected.family
    for key, value in expected.parameters.items():
        torch.testing.assert_close(found.parameters[key], value, rtol=tolerance, atol=tolerance)


def weights(run: Run) -> dict[str, torch.Tensor]:
    """Every tensor of a run and of the runs it is made of."""
    return {
        f"{file.parent.relative_to(run.path)} {key}": value
        for file in sorted(run.path.rglob("model.safetensors"))
        for key, value in load_file(file).items()
    }


@every_method
def test_trained_again_it_has_equal_weights_whatever_the_test_labels(
    name: str, trained: Train, trained_again: Train
) -> None:
    found, expected = weights(trained_again(name)), weights(trained(name))
    assert expected
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


@every_method
def test_saved_and_loaded_it_embeds_equally(name: str, trained: Train, images: torch.Tensor) -> None:
    made = trained(name)
    assert not made.method.training
    assert_equal(made.load_method().embed(images), made.method.embed(images))


@every_method
def test_an_image_embeds_alone_as_in_any_batch(name: str, trained: Train, images: torch.Tensor) -> None:
    method = trained(name).load_method()
    whole = method.embed(images)
    assert len(whole) == len(images)
    assert_equal(method.embed(images), whole)
    for size in (1, 4):
        parts = Embedding.cat([method.embed(part) for part in images.split(size)])
        assert_equal(parts, whole, tolerance=2e-5)
    assert_equal(method.embed(images.flip(0)), whole[torch.arange(len(images)).flip(0)], tolerance=2e-5)


@every_method
def test_embedding_features_is_embedding_images(name: str, trained: Train, images: torch.Tensor) -> None:
    method = trained(name).load_method()
    with torch.no_grad():
        features = method.encode(images)
        assert features.shape[:1] == images.shape[:1]
        assert_equal(method.embed_features(features), method.embed(images), tolerance=1e-6)


@every_method
def test_describing_is_embedding_with_features_and_leaves_the_mode(
    name: str, trained: Train, images: torch.Tensor
) -> None:
    method = trained(name).load_method().train()
    described = method.describe(images)
    assert method.training
    assert torch.is_grad_enabled()
    assert not described.features.requires_grad
    features = method.observe(images)
    assert torch.equal(described.features, method.novelty_features(features))
    assert_equal(described.embedding, method.embed(images))
    from_features = method.describe_features(features)
    assert_equal(from_features.embedding, described.embedding)
    assert torch.equal(from_features.features, described.features)
    method.eval()
    assert_equal(method.describe(images).embedding, described.embedding)
    assert not method.training


@every_method
def test_directions_are_unit_and_uncertainty_is_positive(
    name: str, trained: Train, images: torch.Tensor
) -> None:
    embedding = trained(name).load_method().embed(images)
    torch.testing.assert_close(embedding.direction.norm(dim=-1), torch.ones(len(images)))
    if embedding.family == "point":
        assert embedding.uncertainty is None
        return
    assert embedding.uncertainty is not None
    assert embedding.uncertainty.shape == (len(images),)
    assert bool(torch.isfinite(embedding.uncertainty).all())
    assert bool((embedding.uncertainty > 0).all())


@every_method
def test_gradient_is_finite(name: str, trained: Train) -> None:
    made = trained(name)
    method = made.load_method()
    if not method.trains or method.batch_kind == "tuples":
        assert all(bool(torch.isfinite(value).all()) for value in weights(made).values())
        return
    data = open_run_data(made.config, split=made.split)
    rows = BalancedBatches(data.train.labels, batch_size=24, seed=0).epoch(0)[0]
    inputs = data.train.in_memory()
    assert inputs is not None
    if method.batch_kind == "features":
        inputs = subset_of(method, data.train).features()
    method.train()
    method.loss(Batch(inputs[rows], data.train.labels[rows], rows)).total.backward()
    gradients = [value.grad for value in method.parameters() if value.grad is not None]
    assert gradients
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert any(bool((gradient != 0).any()) for gradient in gradients)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_method
def test_gpu_and_cpu_agree(name: str, trained: Train, images: torch.Tensor) -> None:
    run = trained(name)
    on_cpu, on_gpu = run.load_method().embed(images), run.load_method().to("cuda").embed(images.to("cuda"))
    assert on_gpu.device.type == "cuda"
    torch.testing.assert_close(on_gpu.direction.cpu(), on_cpu.direction, atol=1e-3, rtol=0)
    if on_cpu.uncertainty is not None:
        torch.testing.assert_close(on_gpu.uncertainty.cpu(), on_cpu.uncertainty, atol=1e-6, rtol=1e-2)


@pytest.mark.parametrize("data_set", DATA_SETS)
@every_method
def test_it_has_a_configuration_for_each_data_set(name: str, data_set: str) -> None:
    config = load_config(CONFIGS / data_set / f"{name}.yaml")
    assert config.method == name
    assert config.data == load_config(CONFIGS / data_set / "deterministic.yaml").data


@pytest.mark.parametrize("data_set", DATA_SETS)
def test_every_configuration_is_named_after_its_method(data_set: str) -> None:
    assert {file.stem for file in (CONFIGS / data_set).glob("*.yaml")} == set(all_methods())


def test_settings_are_of_methods_that_exist() -> None:
    assert set(SETTINGS) <= set(all_methods())
