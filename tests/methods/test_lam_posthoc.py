"""lam-posthoc: deterministic weights, a posterior around them, saved, loaded, tuned; and from a base run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from doubtless.errors import InputError, RunError
from doubtless.laplace import CurvatureOptions, fit
from doubtless.methods.configuration import make_config
from doubtless.methods.deterministic import Deterministic
from doubtless.methods.laplace_head import TuneOptions, curvature_options
from doubtless.runs import Run, open_run_data
from doubtless.runs.data import features_of, subset_of
from doubtless.training import train_run


def posthoc(config: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(config), "method": "lam-posthoc", **more}


@pytest.fixture(scope="module")
def run(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("posthoc") / "run"
    return train_run(make_config(posthoc(tiny_config, laplace={"tune": {"grid": 12}})), path, quiet=True)


def state(run: Run | Path) -> dict[str, torch.Tensor]:
    return load_file((run.path if isinstance(run, Run) else run) / "model.safetensors")


def test_weights_and_log_are_bit_equal_to_deterministic(run: Run, tiny_run: Path) -> None:
    found = state(run)
    for name, value in state(tiny_run).items():
        assert torch.equal(found[name], value), name

    def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]

    assert without_time(run.log) == without_time(Run(tiny_run).log)


def test_posterior_is_the_fit_around_the_head(run: Run) -> None:
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    expected = fit(
        features_of(method, data.train),
        data.train.labels,
        method.head,
        options=curvature_options(run.config),
        generator=torch.Generator().manual_seed(run.config.seed),
    )
    found = method.laplace.posterior(method.head)
    torch.testing.assert_close(found.weight_curvature, expected.weight_curvature)
    torch.testing.assert_close(found.bias_curvature, expected.bias_curvature)
    assert float(found.weight_curvature.max()) > 0


def test_record_names_what_was_tuned_and_the_buffers_hold_it(run: Run) -> None:
    record = json.loads((run.path / "model.json").read_text())["record"]
    assert record["criterion"] == "consensus-ece"
    assert record["trials"] == 12 + TuneOptions().refine
    assert record["lowest_score"] <= record["score"] <= 0
    assert record["scales_tried"][0] <= record["scale"] * 1.0001
    assert record["scale"] <= record["scales_tried"][1] * 1.0001
    assert float(state(run)["laplace.scale"]) == record["scale"]
    assert float(state(run)["laplace.prior_precision"]) == record["prior_precision"]


def test_loaded_embeddings_are_equal_whatever_the_batch(run: Run) -> None:
    images = torch.randint(0, 256, (9, 1, 12, 12), dtype=torch.uint8)
    one, other = run.load_method(), run.load_method()
    whole = one.embed(images)
    assert whole.family == "projected-gaussian"
    for name, value in other.embed(images).parameters.items():
        assert torch.equal(value, whole.parameters[name])
    parts = [one.embed(images[:1]), one.embed(images[1:4]), one.embed(images[4:])]
    for name, value in whole.parameters.items():
        together = torch.cat([part.parameters[name] for part in parts])
        torch.testing.assert_close(together, value, rtol=1e-5, atol=1e-6)
    assert bool((whole.uncertainty > 0).all())


def test_the_kept_posterior_follows_changes_of_the_head(run: Run) -> None:
    method = run.load_method()
    features = torch.randn(3, method.head.in_features)
    before = method.embed_features(features)
    assert method.laplace.posterior(method.head) is method.laplace.posterior(method.head)
    with torch.no_grad():
        method.head.weight.mul_(2)
    torch.testing.assert_close(
        method.embed_features(features).location - method.head.bias,
        2 * (before.location - method.head.bias),
        rtol=1e-4,
        atol=1e-5,
    )
    method.laplace.scale.mul_(1e6)
    assert bool(
        (method.embed_features(features).parameters["variance"] < before.parameters["variance"]).all()
    )


def test_from_a_base_run_the_posterior_is_the_same(
    run: Run, tiny_config, tiny_run: Path, tmp_path: Path
) -> None:
    config = posthoc(tiny_config, base=str(tiny_run), laplace={"tune": {"grid": 12}})
    made = train_run(make_config(config), tmp_path / "run", quiet=True)
    assert made.log == []
    expected, found = state(run), state(made)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=0)
    (made.path / "config.yaml").write_text(
        make_config({**config, "base": str(tmp_path / "gone")}).to_yaml()
    )  # a finished run stands without its base
    made.load_method()


def test_a_base_of_other_data_or_another_network_is_refused(
    tiny_config, tiny_run: Path, tmp_path: Path
) -> None:
    def start(**changes: Any) -> None:
        config = posthoc(tiny_config, base=str(tiny_run))
        for section, values in changes.items():
            config[section] = {**config[section], **values}
        train_run(make_config(config), tmp_path / str(len(list(tmp_path.iterdir()))), quiet=True)

    with pytest.raises(InputError, match=r"data.split_seed differ .* test images"):
        start(data={"split_seed": 1})
    with pytest.raises(InputError, match=r"model.dim differ"):
        start(model={"dim": 4})
    raw = {**tiny_config, "method": "pretrained", "features": {"head": "raw"}}
    train_run(make_config(raw), tmp_path / "raw", quiet=True)
    with pytest.raises(InputError, match=r"a pretrained model has no head\.weight"):
        train_run(
            make_config(posthoc(tiny_config, base=str(tmp_path / "raw"))), tmp_path / "none", quiet=True
        )
    with pytest.raises(RunError, match="There is no run folder"):
        train_run(make_config(posthoc(tiny_config, base="nowhere")), tmp_path / "nowhere", quiet=True)


def test_untrained_half_whitened_head_and_given_scale(tiny_config, tmp_path: Path) -> None:
    config = posthoc(tiny_config, laplace={"scale": 50.0, "tune": {"criterion": "none"}})
    config["training"]["epochs"], config["model"]["head_start"] = 0, "half-whitened"
    made = train_run(make_config(config), tmp_path / "run", quiet=True)
    record = json.loads((made.path / "model.json").read_text())["record"]
    method = made.load_method()
    assert record["scale"] == 50.0
    assert record["prior_precision"] == pytest.approx(1 / float(method.head.weight.square().mean()), rel=1e-5)
    assert "score" not in record
    data = open_run_data(made.config, split=made.split)
    from doubtless.laplace import half_whitened

    features = features_of(method, data.train)
    torch.testing.assert_close(method.head.weight, half_whitened(features, 8).weight, rtol=1e-4, atol=1e-5)


def options_of(tiny_config, loss: dict[str, Any] | None = None, **laplace: Any) -> CurvatureOptions:
    return curvature_options(make_config(posthoc(tiny_config, loss=loss or {}, laplace=laplace)))


def test_any_loss_may_train_it(tiny_config) -> None:
    assert options_of(tiny_config, {"name": "triplet", "margin": 0.2}).margin == 0.7  # 0.2 is no distance
    over_all = {"margin": 0.9, "negative_weight": 0.3, "reduction": "all"}
    assert options_of(tiny_config, over_all).margin == 0.9
    assert options_of(tiny_config, over_all).negative_weight == 0.3
    given = options_of(tiny_config, margin=1.1, negative_weight=0.0)
    assert (given.margin, given.negative_weight) == (1.1, 0.0)


@pytest.mark.parametrize(("reduction", "most"), [("active", 0.2), ("all", 0.5)])
def test_negatives_do_not_weigh_more_than_the_curvature_bears(
    tiny_config, reduction: str, most: float
) -> None:
    repelling = {"negative_weight": 0.85, "reduction": reduction}
    assert options_of(tiny_config, repelling).negative_weight == most  # or most of it would be cut off
    assert options_of(tiny_config, repelling, negative_weight=0.85).negative_weight == 0.85  # as asked
    assert options_of(tiny_config, {**repelling, "negative_weight": 0.1}).negative_weight == 0.1


def test_the_curvature_averages_over_the_pairs_of_the_contrastive_loss(tiny_config) -> None:
    assert options_of(tiny_config).reduction == "active"
    assert options_of(tiny_config, {"reduction": "all"}).reduction == "all"
    assert options_of(tiny_config, {"reduction": "active"}, reduction="all").reduction == "all"
    triplet = {"name": "triplet", "margin": 0.2}
    assert options_of(tiny_config, triplet).reduction == "all"  # which has no active pairs
    assert options_of(tiny_config, triplet).negative_weight == 0.5
    assert options_of(tiny_config, triplet, reduction="active").reduction == "active"
    assert options_of(tiny_config, triplet, reduction="active").negative_weight == 0.2


@pytest.mark.parametrize(
    ("gallery", "expected"),
    [(None, (20, None)), (30, (30, 20)), (1000, (48, 20)), (2, (20, None))],
)
def test_tuning_takes_no_more_images_than_asked_for(
    run: Run, gallery: int | None, expected: tuple[int, int | None]
) -> None:
    """Images and, where their neighbours are more than themselves, which of them are asked."""
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    seen: list[tuple[int, int | None]] = []
    part = subset_of(method, data.validation)
    from doubtless.methods import laplace_head

    original = laplace_head.tune
    options = method.laplace.options.tune.model_copy(update={"images": 20, "grid": 2, "gallery": gallery})
    method.laplace.options = method.laplace.options.model_copy(update={"tune": options})

    def watching(posterior: Any, features: torch.Tensor, labels: torch.Tensor, **named: Any) -> Any:
        queries = named["queries"]
        seen.append((len(features), None if queries is None else len(queries.unique())))
        return original(posterior, features, labels, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(laplace_head, "tune", watching)
        method.laplace.tune(method.head, part, part, run.config)
    assert seen == [expected]
    assert len(part.labels) == 48


def test_a_ratio_that_is_given_is_held(run: Run) -> None:
    """λ/(τ · mean H), at whatever τ the criterion chooses."""
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    for ratio in (1e-3, 10.0):
        options = method.laplace.options.tune.model_copy(update={"grid": 5, "ratio": ratio})
        method.laplace.options = method.laplace.options.model_copy(update={"tune": options})
        parts = subset_of(method, data.validation), subset_of(method, data.train)
        method.laplace.tune(method.head, *parts, run.config)
        tau, prior = float(method.laplace.scale), float(method.laplace.prior_precision)
        mean = float(method.laplace.posterior(method.head).flat_curvature().mean())
        assert prior / (tau * mean) == pytest.approx(ratio, rel=1e-4)
        assert method.record()["trials"] == 5 + options.refine


def test_pairs_are_chosen_for_training_only(tiny_config) -> None:
    """The posterior is that of all pairs, whichever the loss took."""
    mined = make_config(posthoc(tiny_config, loss={"pairs": "semi-hard"}))
    assert curvature_options(mined) == curvature_options(make_config(posthoc(tiny_config)))


def test_it_is_deterministic_until_it_is_finished(tiny_config, run: Run) -> None:
    method = type(run.load_method())(make_config(posthoc(tiny_config)), run.load_method().spec)
    assert isinstance(method, Deterministic)
    assert method.embed(torch.zeros(1, 1, 12, 12)).family == "point"
