"""Runs of deep variational metric learning: logged, loaded, resumed, reported; configurations and suites."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from doubtless.methods.configuration import load_config, make_config
from doubtless.methods.dvml import LOSSES, Dvml
from doubtless.report.method_figures.dvml import nearest_real
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.runs.evaluation import RunEvaluation
from doubtless.training import train_run
from tests.reference.stopped import train_until

ROOT = Path(__file__).parents[2]


def with_dvml(config: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(config) | {"method": "dvml", "dvml": {"samples": 3, "phase1_epochs": 1}}


def some_images() -> Tensor:
    return torch.rand(8, 1, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def run(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(make_config(with_dvml(tiny_config)), tmp_path_factory.mktemp("dvml") / "run", quiet=True)


def test_a_run_learns_logs_all_losses_and_is_loaded_as_it_was(run: Run, tiny_config) -> None:
    assert run.log[-1]["train_reconstruction"] < run.log[0]["train_reconstruction"]
    assert [row["train_synthesised_weight"] for row in run.log] == pytest.approx([0.1, 0.2, 0.2])
    for row in run.log:
        total = sum(row[f"train_{name}"] * row[f"train_{name}_weight"] for name in LOSSES)
        assert row["train_loss"] == pytest.approx(total, rel=1e-4)
    method, other = run.load_method(), run.load_method()
    data = open_run_data(run.config, split=run.split)
    one, two = embed_images(method, data.test), embed_images(other, data.test)
    assert torch.equal(one.location, two.location)
    assert torch.equal(one.variance, two.variance)
    assert "weights" not in method.state_dict()  # they are the configuration's
    torch.manual_seed(0)
    fresh = Dvml(run.config, data.spec).embed(some_images())
    assert not torch.equal(fresh.variance, method.embed(some_images()).variance)


def test_report_shows_the_variation_and_the_images_nearest_to_samples(run: Run) -> None:
    RunEvaluation(run, ood=[]).measure(bootstrap=20)
    page = (run.path / "report.html").read_text()
    for wanted in ("Central latent space", "Embedding</b>", "Nearest real images to synthesised samples"):
        assert wanted in page
    synthesised = page.split('<section id="synthesised">')[1].split("</section>")[0]
    assert synthesised.count("<img") == 6 * (1 + 5)


def test_nearest_real_image_is_that_of_a_loop_and_never_the_image_itself() -> None:
    torch.manual_seed(0)
    samples, real = torch.randn(3, 4, 5), normalize(torch.randn(9, 5), dim=-1)
    own = torch.tensor([0, 3, 3, 8])
    for excluded in (None, own):
        found = nearest_real(samples, real, exclude=excluded)
        for draw in range(3):
            for query in range(4):
                near = [float(cosine_similarity(samples[draw, query], row, dim=0)) for row in real]
                if excluded is not None:
                    near[int(own[query])] = -2.0
                assert int(found[draw, query]) == near.index(max(near))
    itself = nearest_real(real[own][None], real, exclude=own)
    assert not bool((itself == own).any())


@pytest.mark.parametrize("step", [4, 9, 17])
def test_stopped_and_resumed_across_the_phase_switch_is_bit_equal(
    tiny_config, run: Run, tmp_path: Path, step: int
) -> None:
    """The process dies in phase 1, in the first epoch of phase 2 and in its second."""
    train_until(step, with_dvml(tiny_config), tmp_path / "run")
    torch.rand(5)
    resumed = train_run(make_config(with_dvml(tiny_config)), tmp_path / "run", resume=True, quiet=True)
    expected = run.load_method().state_dict()
    assert all(
        torch.equal(value, expected[name]) for name, value in resumed.load_method().state_dict().items()
    )
    for one, other in zip(resumed.log, run.log, strict=True):
        timeless = {"seconds": 0, "seconds_validating": 0}
        assert one | timeless == other | timeless


def test_on_features_of_a_frozen_encoder_and_with_proxies_of_their_own_rate(
    tiny_config, tmp_path: Path
) -> None:
    config = with_dvml(tiny_config) | {"loss": {"name": "ProxyAnchorLoss", "lr_factor": 10.0}}
    config["model"] |= {"freeze": True, "head_start": "half-whitened"}
    config["training"] |= {"epochs": 2}
    made_run = train_run(make_config(config), tmp_path / "run", quiet=True)
    method = made_run.load_method()
    assert method.batch_kind == "features"
    assert [group["lr_factor"] for group in method.parameter_groups()] == [1.0, 10.0]
    assert method.embed(some_images()).family == "gaussian"


@pytest.mark.parametrize(("data", "like"), [("fashion-sample", "deterministic"), ("omniglot", "triplet")])
def test_configuration_that_ships(data: str, like: str) -> None:
    config = load_config(ROOT / "configs" / data / "dvml.yaml").to_dict()
    same = load_config(ROOT / "configs" / data / f"{like}.yaml").to_dict()
    for section in ("data", "model", "loss", "training"):
        assert config[section] == same[section]
    assert config["dvml"]["samples"] == 20
