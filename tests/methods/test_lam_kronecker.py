"""LAM with the whole posterior: fitted, drawn from, saved, resumed, exported, and two processes as one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode

from doubtless.data import Batch
from doubtless.errors import InputError
from doubtless.export import export_onnx
from doubtless.laplace import KroneckerPosterior, fit, kronecker_ggn
from doubtless.methods import DataSpec
from doubtless.methods.configuration import make_config
from doubtless.methods.lam_online import LamOnline
from doubtless.methods.laplace_head import curvature_options
from doubtless.runs import Run, open_run_data
from doubtless.runs.data import features_of
from doubtless.training import train_run
from tests.reference.two_processes import TwoProcesses, descend, share_of

both = pytest.mark.parametrize("geometry", ["arccos", "linear"])


def config_of(config: dict[str, Any], method: str, **laplace: Any) -> Any:
    laplace = {"covariance": "kronecker", "tune": {"grid": 6}, **laplace}
    return make_config({**copy.deepcopy(config), "method": method, "laplace": laplace})


@pytest.fixture(scope="module", params=["arccos", "linear"])
def run(request: pytest.FixtureRequest, tiny_config, tiny_run: Path, tmp_path_factory) -> Run:
    tiny_config = {**tiny_config, "base": str(tiny_run)}
    config = config_of(tiny_config, "lam-posthoc", geometry=request.param)
    return train_run(config, tmp_path_factory.mktemp("kronecker") / "run", quiet=True)


def a_method(samples: int = 1, **laplace: Any) -> LamOnline:
    torch.manual_seed(0)
    config = {
        "method": "lam-online",
        "data": {"source": "digits"},
        "model": {"backbone": "conv-fashion", "dim": 6},
        "loss": {"name": "contrastive", "margin": 0.7},
        "laplace": {
            "covariance": "kronecker", "memory": 0.1, "scale": 1e4, "prior_precision": 2e3, "samples": samples,
            **laplace,
        },
    }  # fmt: skip
    return LamOnline(make_config(config), DataSpec(channels=1, size=12, label_names=list("abcd"))).train()


def a_batch(seed: int = 1) -> Batch:
    images = torch.rand(8, 1, 12, 12, generator=torch.Generator().manual_seed(seed))
    return Batch(images, torch.arange(8) % 4, torch.arange(8))


def test_the_posterior_is_the_fit_around_the_head(run: Run) -> None:
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    features = features_of(method, data.train)
    options = curvature_options(run.config)
    assert options.negative_weight == 0
    expected = fit(
        features, data.train.labels, method.head, covariance="kronecker", options=options,
        generator=torch.Generator().manual_seed(run.config.seed),
    )  # fmt: skip
    found = method.laplace.posterior(method.head)
    assert isinstance(found, KroneckerPosterior)
    now = expected.with_scale(found.scale, found.prior_precision)
    for name, value in now.predictive(features[:9]).items():
        torch.testing.assert_close(found.predictive(features[:9])[name], value, rtol=1e-3, atol=1e-5)
    record = json.loads((run.path / "model.json").read_text())["record"]
    assert record["covariance"] == "kronecker"
    assert record["mean_curvature"] == pytest.approx(float(found.flat_curvature().mean()), rel=1e-4)


def test_embeddings_are_the_heads_up_to_a_rotation_whatever_the_batch(run: Run) -> None:
    images = torch.randint(0, 256, (9, 1, 12, 12), dtype=torch.uint8)
    one, other = run.load_method(), run.load_method()
    whole = one.embed(images)
    assert whole.family == "projected-gaussian"
    for name, value in other.embed(images).parameters.items():
        assert torch.equal(value, whole.parameters[name])
    with torch.no_grad():
        outputs = one.head(one.encode(images))
    torch.testing.assert_close(whole.location @ whole.location.T, outputs @ outputs.T, rtol=1e-3, atol=1e-3)
    together = torch.cat([one.embed(images[:2]).uncertainty, one.embed(images[2:]).uncertainty])
    torch.testing.assert_close(together, whole.uncertainty, rtol=1e-4, atol=0)
    assert "laplace.curvature.of_inputs" not in load_file(run.path / "model.safetensors")  # nothing runs on


def test_an_exported_file_answers_the_same(run: Run, tmp_path: Path) -> None:
    method = run.load_method()
    export_onnx(method, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    for count in (1, 5):
        images = torch.randint(0, 256, (count, 1, 12, 12), dtype=torch.uint8)
        found = dict(zip(names, session.run(names, {"images": images.numpy()}), strict=True))
        expected = method.embed(images)
        for name, value in (("direction", expected.direction), ("location", expected.location)):
            torch.testing.assert_close(torch.from_numpy(found[name]), value, rtol=1e-3, atol=1e-4)
        for name, value in (
            ("uncertainty", expected.uncertainty),
            ("variance", expected.parameters["variance"]),
        ):
            torch.testing.assert_close(torch.from_numpy(found[name]), value, rtol=1e-3, atol=0)


@both
@pytest.mark.parametrize("samples", [1, 2])
def test_loss_and_curvature_are_those_of_an_explicit_loop(geometry: str, samples: int) -> None:
    method = a_method(samples, geometry=geometry, refactor=2)
    reference = a_method(samples, geometry=geometry, refactor=2).laplace.curvature
    for step in range(4):
        batch = a_batch(step)
        features = method.encoder(batch.inputs).detach()
        torch.manual_seed(step)
        drawn = []
        for _ in range(samples):
            with torch.no_grad():
                weight, bias = reference.sample(
                    method.head.weight, method.head.bias, scale=1e4, prior_precision=2e3
                )
            ggn = kronecker_ggn(
                features, weight, bias, batch.labels, margin=0.7, geometry=geometry, negative_weight=0.0
            )
            drawn.append(ggn)
        parts = [None if part[0] is None else torch.stack(part).mean(0) for part in zip(*drawn, strict=True)]
        reference.update(*parts)
        torch.manual_seed(step)
        method.loss(batch).total.backward()
        found = method.laplace.curvature
        for name, value in reference.state_dict().items():
            if "basis" not in name:  # eigenvectors of eigenvalues that are alike turn with the last digit
                torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-3, atol=1e-6)
    assert method.head.weight.grad is not None
    assert not method.repeats_its_step


def test_a_step_between_factorisations_reads_nothing_back_to_the_host() -> None:
    """Fake tensors have no values: waiting for one would raise."""
    with FakeTensorMode():
        method = a_method()
        for _ in range(2):
            inputs = torch.empty(8, 1, 12, 12), torch.zeros(8, dtype=torch.long), torch.arange(8)
            method.loss(Batch(*inputs)).total.backward()


def four_steps(rank: int | None) -> list[torch.Tensor]:
    """A after each step."""
    method = a_method(refactor=2)
    found = []
    for _ in descend(method, [share_of(a_batch(step), rank) for step in range(4)], lr=0.05):
        found.append(method.laplace.curvature.of_inputs.clone())
    return found


def test_two_processes_hold_the_curvature_of_one(two_processes: TwoProcesses) -> None:
    alone, ranks = four_steps(None), two_processes(four_steps)
    for step, expected in enumerate(alone):
        assert torch.equal(ranks[0][step], ranks[1][step])
        if step < 2:  # then draws follow eigenvectors, which turn with the last digit
            torch.testing.assert_close(ranks[0][step], expected, rtol=1e-4, atol=1e-6)


def test_online_training_ends_with_a_posterior_that_is_loaded_again(tiny_config, tmp_path: Path) -> None:
    config = config_of(tiny_config, "lam-online", refactor=3)
    trained = train_run(config, tmp_path / "run", quiet=True)
    method = trained.load_method()
    posterior = method.laplace.posterior(method.head)
    assert isinstance(posterior, KroneckerPosterior)
    assert float(posterior.input_curvature.max()) > 0
    running = method.laplace.curvature.of_inputs
    values = torch.linalg.eigvalsh(running).clamp_min(0)  # what was factorised last is the last average
    torch.testing.assert_close(
        posterior.input_curvature.double(), values, rtol=1e-3, atol=1e-4 * float(values.max())
    )
    assert json.loads((trained.path / "model.json").read_text())["record"]["steps"] > 0
    images = torch.randint(0, 256, (3, 1, 12, 12), dtype=torch.uint8)
    assert bool((method.embed(images).uncertainty > 0).all())


def test_what_is_no_posterior_is_refused(tiny_config) -> None:
    for method in ("lam-posthoc", "lam-online"):
        config = config_of(tiny_config, method, approximation="full")
        from doubtless.methods import method_class

        with pytest.raises(InputError, match="takes the approximation 'fixed'"):
            method_class(method)(config, DataSpec(channels=1, size=12, label_names=["a"]))


def test_the_ratio_of_prior_and_scale_by_classes_left_out(
    tiny_config, tiny_run: Path, tmp_path: Path
) -> None:
    config = config_of(
        {**tiny_config, "base": str(tiny_run)},
        "lam-posthoc",
        tune={"grid": 4, "refine": 0, "prior": "unknowns"},
    )
    made = train_run(config, tmp_path / "run", quiet=True)
    record = json.loads((made.path / "model.json").read_text())["record"]
    scores = {float(ratio): score for ratio, score in record["unknowns_auroc"].items()}
    best = max(scores, key=lambda ratio: scores[ratio])
    assert record["prior_precision"] / record["scale"] / record["mean_curvature"] == pytest.approx(
        best, rel=1e-3
    )
    assert record["prior"] == "unknowns"


@pytest.mark.parametrize(
    "laplace", [{"geometry": "linear"}, {"geometry": "euclidean"}, {"covariance": "diagonal"}]
)
def test_another_posterior_can_be_made_of_its_network(
    run: Run, tmp_path: Path, laplace: dict[str, Any]
) -> None:
    plain = run.config.to_dict()
    plain["laplace"] |= laplace
    made = train_run(make_config({**plain, "base": str(run.path)}), tmp_path / "run", quiet=True)
    images = torch.randint(0, 256, (3, 1, 12, 12), dtype=torch.uint8)
    assert bool((made.load_method().embed(images).uncertainty > 0).all())
