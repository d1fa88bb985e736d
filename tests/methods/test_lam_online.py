"""lam-online: H by hand, miners, empty batches, saving, resuming, and two processes as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.nn.functional import linear

from doubtless.data import Batch
from doubtless.errors import InputError
from doubtless.laplace import CurvatureOptions, contrastive_ggn, fit
from doubtless.losses import contrastive_loss
from doubtless.methods import DataSpec
from doubtless.methods.configuration import make_config
from doubtless.methods.deterministic import Deterministic
from doubtless.methods.lam_online import LamOnline
from doubtless.runs import Run, open_run_data
from doubtless.runs.data import features_of
from doubtless.training import train_run
from tests.reference.launches import Launches
from tests.reference.stopped import train_until
from tests.reference.two_processes import TwoProcesses, descend, share_of


def a_method(loss: dict[str, Any] | None = None, **laplace: Any) -> LamOnline:
    torch.manual_seed(0)
    config = {
        "method": "lam-online",
        "data": {"source": "digits"},
        "model": {"backbone": "conv-fashion", "dim": 6},
        "loss": {"name": "contrastive", "margin": 0.7, **(loss or {})},
        "laplace": {"memory": 0.1, "scale": 1e4, **laplace},
    }
    return LamOnline(make_config(config), DataSpec(channels=1, size=12, label_names=list("abcd"))).train()


def a_batch(seed: int = 1, labels: list[int] | None = None) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    classes = torch.tensor(labels or [0, 1, 2, 3, 0, 1, 2, 3])  # most positive pairs span the ranks
    return Batch(torch.rand(8, 1, 12, 12, generator=generator), classes, torch.arange(8))


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("geometry", ["arccos", "euclidean"])
@pytest.mark.parametrize(("reduction", "weight"), [("active", 0.2), ("all", 0.5)])
def test_curvature_and_loss_are_those_of_an_explicit_loop(
    samples: int, geometry: str, reduction: str, weight: float
) -> None:
    """`weight` is what negative pairs weigh in the curvature where nothing is asked for."""
    options = {"samples": samples, "geometry": geometry, "prior_precision": 2e3}
    method, memory = a_method({"reduction": reduction}, **options), 0.1
    settings = {"margin": 0.7, "reduction": reduction}
    negative_weight = weight
    sums = [torch.zeros(6, 1024), torch.zeros(6)]
    head = method.head
    for step in range(5):
        batch = a_batch(step)
        features = method.encoder(batch.inputs).detach()
        total = 1 - (1 - memory) ** step
        now = [value / total if step else value for value in sums]  # the zero start divided out
        torch.manual_seed(step)
        losses, curvatures = [], []
        for _ in range(samples):
            weight, bias = (
                mean.detach() + torch.randn(mean.shape) / (1e4 * curvature + 2e3).sqrt()
                for mean, curvature in zip((head.weight, head.bias), now, strict=True)
            )
            losses.append(contrastive_loss(linear(features, weight, bias), batch.labels, **settings))
            curvatures.append(
                contrastive_ggn(
                    features, weight, bias, batch.labels, geometry=geometry, negative_weight=negative_weight,
                    **settings,
                )
            )  # fmt: skip
        for number, parts in enumerate(zip(*curvatures, strict=True)):
            clamped = torch.stack(parts).mean(0).clamp_min(0)
            sums[number] = (1 - memory) * sums[number] + memory * clamped
        torch.manual_seed(step)
        found = method.loss(batch)
        torch.testing.assert_close(found.total, torch.stack(losses).mean(), rtol=1e-4, atol=1e-6)
        total = 1 - (1 - memory) ** (step + 1)
        for buffer, value in zip(method.laplace.curvature.value(), sums, strict=True):
            torch.testing.assert_close(buffer, value / total, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(found.terms["curvature"], sums[0].mean() / total, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("reduction", "most"), [("active", 0.2), ("all", 0.5)])
def test_the_curvature_is_not_cut_off_where_negatives_weigh_more(reduction: str, most: float) -> None:
    """The loss repels by .85, its curvature counts them by less: else most of it is below 0."""
    repelled, counted, bounded = (
        a_method({"negative_weight": 0.85, "reduction": reduction}, prior_precision=1e6, **laplace)
        for laplace in ({}, {"negative_weight": 0.85}, {"negative_weight": most})
    )
    totals = []
    for method in (repelled, counted, bounded):
        torch.manual_seed(3)
        totals.append(float(method.loss(a_batch()).total.detach()))
    assert totals[0] == totals[1] == totals[2]  # the loss itself is the same
    found = [method.laplace.curvature.value()[0] for method in (repelled, counted, bounded)]
    assert torch.equal(found[0], found[2])
    assert (found[0] == 0).float().mean() < (found[1] == 0).float().mean()


@pytest.mark.parametrize(
    ("loss", "laplace", "expected"),
    [
        ("active", {}, ("active", 0.2)),
        ("all", {}, ("all", 0.5)),
        ("active", {"reduction": "all"}, ("all", 0.5)),
        ("all", {"reduction": "active", "negative_weight": 0.3}, ("active", 0.3)),
    ],
)
def test_the_curvature_averages_as_the_loss_does_or_as_asked(loss, laplace, expected) -> None:
    """Without noise the draw is the head itself, and after one step H is that of the batch."""
    method, batch = a_method({"reduction": loss, "margin": 0.4}, prior_precision=1e12, **laplace), a_batch()
    features, head = method.encoder(batch.inputs).detach(), method.head
    total = method.loss(batch).total.detach()
    plain = contrastive_loss(head(features), batch.labels, margin=0.4, reduction=loss)
    torch.testing.assert_close(total, plain.detach(), rtol=1e-4, atol=1e-6)
    curvatures = {
        (reduction, weight): contrastive_ggn(
            features, head.weight, head.bias, batch.labels, margin=0.4, reduction=reduction,
            negative_weight=weight,
        )[0].clamp_min(0)
        for reduction, weight in (("active", 0.2), ("all", 0.5), ("active", 0.3))
    }  # fmt: skip
    found = method.laplace.curvature.weight
    assert [key for key, h in curvatures.items() if (found - h).norm() < 1e-2 * h.norm()] == [expected]


@pytest.mark.parametrize("miner", [None, {"name": "MultiSimilarityMiner"}])
def test_a_batch_without_pairs_leaves_the_curvature_and_gives_no_nan(miner: dict[str, Any] | None) -> None:
    method = a_method({"miner": miner, "margin": 1e-3})
    method.loss(a_batch())
    before = {name: value.clone() for name, value in method.laplace.state_dict().items()}
    lonely = a_batch(2, labels=list(range(8)))  # no two alike, and nothing so near
    total = method.loss(lonely).total
    total.backward()
    assert float(total.detach()) == 0
    assert all(torch.equal(value, before[name]) for name, value in method.laplace.state_dict().items())
    gradients = [p.grad for p in method.parameters() if p.grad is not None]
    assert gradients
    assert all(not g.any() for g in gradients)
    method.loss(a_batch())
    assert int(method.laplace.curvature.steps) == int(before["curvature.steps"]) + 1


def test_a_step_reads_nothing_back_to_the_host() -> None:
    """Fake tensors have no values: waiting for one would raise."""
    with FakeTensorMode():
        method = a_method()
        losses = method.loss(
            Batch(torch.empty(8, 1, 12, 12), torch.zeros(8, dtype=torch.long), torch.arange(8))
        )
        losses.total.backward()
        assert method.head.weight.grad is not None
        assert losses.terms["curvature"].shape == ()


@pytest.mark.parametrize("approximation", ["fixed", "positive", "full"])
def test_only_steps_that_read_nothing_back_say_that_they_repeat(approximation: str) -> None:
    """A GPU could not record the others: how many pairs count is known when they have been counted."""
    method, batch = a_method(approximation=approximation), a_batch()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = Batch(*(mode.from_tensor(value) for value in batch))
        try:
            method.loss(fake)
            repeats = True
        except DynamicOutputShapeException:
            repeats = False
    assert method.repeats_its_step == repeats
    assert not a_method({"miner": {"name": "MultiSimilarityMiner"}}).repeats_its_step


def test_a_step_launches_hardly_more_than_a_deterministic_one() -> None:
    """A small network on a GPU waits for the launch of every operation.

    The plain loss once took six more; the step of LAM takes as many as it did then.
    """
    counts, online = [], a_method()
    shared = {name: getattr(online.config, name) for name in ("data", "model", "loss")}
    plain = Deterministic(make_config({"method": "deterministic", **shared}), online.spec)
    for method in (plain.train(), online):
        method.loss(a_batch()).total.backward()  # gradients are there
        with Launches() as launches:
            method.loss(a_batch()).total.backward()
        counts.append(len(launches.names))
    assert counts[1] <= counts[0] + 9


def test_evaluation_mode_does_not_touch_the_curvature() -> None:
    method = a_method().eval()
    method.loss(a_batch())
    assert int(method.laplace.curvature.steps) == 0


@pytest.mark.parametrize("reduction", ["active", "all"])
@pytest.mark.parametrize("miner", ["BatchHardMiner", "TripletMarginMiner", "PairMarginMiner"])
def test_mined_pairs_are_those_of_the_miner(miner: str, reduction: str) -> None:
    loss = {"miner": {"name": miner}, "reduction": reduction}
    method = a_method(loss, prior_precision=1e12, scale=1.0, approximation="full")
    batch = a_batch()
    outputs = method.head(method.encoder(batch.inputs)).detach()
    method.laplace.scale.fill_(1.0)
    picked = method.miner(outputs, batch.labels)
    anchors, positives, others, negatives = (
        picked if len(picked) == 4 else (picked[0], *picked[1:2], picked[0], picked[2])
    )
    pulled = {frozenset(pair) for pair in zip(anchors.tolist(), positives.tolist(), strict=True)}
    pushed = {frozenset(pair) for pair in zip(others.tolist(), negatives.tolist(), strict=True)}
    unit = torch.nn.functional.normalize(outputs)

    def squared(pair: frozenset[int]) -> float:
        i, j = pair
        return float((unit[i] - unit[j]).square().sum())

    expected = sum(0.5 * squared(pair) for pair in pulled) / max(len(pulled), 1)
    terms = [0.5 * max(0.0, 0.49 - squared(pair)) for pair in pushed]
    if reduction == "active":
        terms = [term for term in terms if term > 0]
    expected += sum(terms) / max(len(terms), 1)
    assert pulled | pushed
    assert float(method.loss(batch).total.detach()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["semi-hard", "hard"])
def test_chosen_pairs_are_those_of_the_miner(kind: str) -> None:
    """Loss, gradient and curvature of `loss.pairs` are those of the miner that picks such triplets."""
    found = {}
    miner = {
        "name": "TripletMarginMiner",
        "arguments": {"margin": 0.7, "type_of_triplets": kind.replace("-", "")},
    }
    for name, loss in {"ours": {"pairs": kind}, "miner": {"miner": miner}, "all": {}}.items():
        method = a_method(loss, prior_precision=1e9)
        torch.manual_seed(3)
        total = method.loss(a_batch()).total
        total.backward()
        found[name] = (total.detach(), method.head.weight.grad, *method.laplace.curvature.value())
    for one, other in zip(found["ours"], found["miner"], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert float(found["ours"][0]) != pytest.approx(float(found["all"][0]), rel=1e-3)


@pytest.mark.parametrize("kind", ["semi-hard", "hard"])
def test_choosing_pairs_reads_nothing_back_and_may_choose_none(kind: str) -> None:
    with FakeTensorMode():
        method = a_method({"pairs": kind})
        inputs = torch.empty(8, 1, 12, 12), torch.zeros(8, dtype=torch.long), torch.arange(8)
        method.loss(Batch(*inputs)).total.backward()
    method = a_method({"pairs": kind})
    total = method.loss(a_batch(2, labels=list(range(8)))).total  # no two alike: no triplet
    total.backward()
    assert float(total.detach()) == 0
    assert int(method.laplace.curvature.steps) == 0
    gradients = [p.grad for p in method.parameters() if p.grad is not None]
    assert gradients
    assert not any(bool(g.any()) for g in gradients)


def test_other_losses_and_miners_get_a_sentence() -> None:
    with pytest.raises(InputError, match="contrastive loss only, got loss 'triplet'"):
        a_method({"name": "triplet"})
    with pytest.raises(InputError, match="contrastive loss only, got loss 'contrastive' with arguments"):
        a_method({"arguments": {"pos_margin": 0}})
    with pytest.raises(InputError, match="did you mean 'MultiSimilarityMiner'"):
        a_method({"miner": {"name": "MultiSimilarityMinr"}})
    with pytest.raises(InputError, match="both choose pairs; set one of them"):
        a_method({"miner": {"name": "MultiSimilarityMiner"}, "pairs": "hard"})
    with pytest.raises(InputError, match=r"laplace\.margin is for lam-posthoc"):
        a_method(margin=0.5)


def test_prior_makes_noise_as_strong_as_the_signal_before_the_first_step() -> None:
    method = a_method()
    features = torch.randn(2000, 1024, generator=torch.Generator().manual_seed(0))
    embedding = method.embed_features(features)
    centred = embedding.location - method.head.bias
    ratio = float((embedding.parameters["variance"].sum() / centred.square().sum()).detach())
    assert ratio == pytest.approx(1, rel=0.1)


@pytest.fixture(scope="module")
def config(tiny_config: dict[str, Any]) -> dict[str, Any]:
    return {**tiny_config, "method": "lam-online", "laplace": {"memory": 0.05, "tune": {"grid": 12}}}


@pytest.fixture(scope="module")
def run(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(make_config(config), tmp_path_factory.mktemp("online") / "run", quiet=True)


def test_it_learns_and_logs_its_curvature(run: Run) -> None:
    assert all(row["train_curvature"] > 0 for row in run.log)
    assert run.log[-1]["train_loss"] < 0.7 * run.log[0]["train_loss"]
    record = json.loads((run.path / "model.json").read_text())["record"]
    best = max(range(3), key=lambda epoch: run.log[epoch]["validation_map@r"])
    assert record["steps"] == (best + 1) * 8  # of the epoch that was kept: 192 images in batches of 24
    assert record["trials"] == 12 + 8  # a grid, and between the neighbours of its best


def test_loaded_embeddings_are_equal_whatever_the_batch(run: Run) -> None:
    images = torch.randint(0, 256, (7, 1, 12, 12), dtype=torch.uint8)
    one, other = run.load_method(), run.load_method()
    whole, again = one.embed(images), other.embed(images)
    alone = one.embed(images[3:4])
    for name, value in whole.parameters.items():
        assert torch.equal(again.parameters[name], value)
        torch.testing.assert_close(alone.parameters[name], value[3:4], rtol=1e-5, atol=1e-6)


def test_stopped_and_resumed_is_bit_equal(config, run: Run, tmp_path: Path) -> None:
    train_until(12, config, tmp_path / "run")
    torch.rand(5)
    resumed = train_run(make_config(config), tmp_path / "run", resume=True, quiet=True)
    expected = load_file(run.path / "model.safetensors")
    for name, value in load_file(resumed.path / "model.safetensors").items():
        assert torch.equal(value, expected[name]), name


def finished_again(config: dict[str, Any], run: Run, path: Path, **changed: Any) -> Run:
    """A run's network with another end: `base`, and no epochs."""
    values = {**config, "base": str(run.path), "training": {**config["training"], "epochs": 0}, **changed}
    return train_run(make_config(values), path, quiet=True)


def test_tau_and_lambda_of_a_run_are_chosen_again_without_training(config, run: Run, tmp_path: Path) -> None:
    """Network and H are the run's; chosen as the run did, so are τ and λ."""

    def again(name: str, **tune: Any) -> dict[str, torch.Tensor]:
        laplace = {**config["laplace"], "tune": {**config["laplace"]["tune"], **tune}}
        found = finished_again(config, run, tmp_path / name, laplace=laplace)
        return load_file(found.path / "model.safetensors")

    expected = load_file(run.path / "model.safetensors")
    same, other = again("same"), again("other", ratio=100.0, meant_for=48)
    chosen = {"laplace.scale", "laplace.prior_precision"}
    for name, value in expected.items():
        assert torch.equal(same[name], value), name
        assert torch.equal(other[name], value) == (name not in chosen), name
    curvature = torch.cat(
        [other["laplace.curvature.weight"].flatten(), other["laplace.curvature.bias"]]
    ).mean()
    ratio = other["laplace.prior_precision"] / other["laplace.scale"] / curvature
    assert float(ratio) == pytest.approx(100, rel=1e-4)


def test_refitted_curvature_is_that_of_all_training_images(config, run: Run, tmp_path: Path) -> None:
    """`refit`: the network is the run's, H what `fit` finds around its head, whatever pairs had trained it."""
    laplace = {**config["laplace"], "refit": True}
    again = finished_again(config, run, tmp_path / "again", laplace=laplace, loss={"pairs": "hard"})
    method, data = again.load_method(), open_run_data(again.config, split=again.split)
    expected = fit(
        features_of(method, data.train),
        data.train.labels,
        method.head,
        options=CurvatureOptions(reduction="active", negative_weight=0.2),
        generator=torch.Generator().manual_seed(again.config.seed),
    )
    torch.testing.assert_close(method.laplace.curvature.weight, expected.weight_curvature)
    torch.testing.assert_close(method.laplace.curvature.bias, expected.bias_curvature)
    before, after = load_file(run.path / "model.safetensors"), load_file(again.path / "model.safetensors")
    changed = {name for name, value in before.items() if not torch.equal(after[name], value)}
    assert changed
    assert all(name.startswith("laplace.") for name in changed)
    record = json.loads((again.path / "model.json").read_text())["record"]
    assert record["refit"] is True
    assert "steps" not in record  # which counted the batches of the running one


def four_steps(rank: int | None) -> dict[str, Any]:
    """The first gradient, and H after each step."""
    method = a_method(samples=2)
    gradients, curvatures = [], []
    for found in descend(method, [share_of(a_batch(step), rank) for step in range(4)], lr=0.05):
        gradients.append(found)
        curvatures.append(method.laplace.curvature.value())
    return {"gradients": gradients[0], "curvatures": curvatures, "noise": torch.rand(3)}


def test_two_processes_hold_the_curvature_of_one(two_processes: TwoProcesses) -> None:
    alone = four_steps(None)
    ranks = two_processes(four_steps)
    for step, expected in enumerate(alone["curvatures"]):
        for number, value in enumerate(expected):
            one, other = (found["curvatures"][step][number] for found in ranks)
            assert torch.equal(one, other)
            assert float((one - value).abs().max()) <= 1e-5 * max(1.0, float(value.max()))
    for found in ranks:
        assert torch.equal(found["noise"], alone["noise"])  # as many draws everywhere
        for name, gradient in alone["gradients"].items():
            difference = (found["gradients"][name] - gradient).abs().max()
            assert difference <= 1e-6 * max(1.0, float(gradient.abs().max())), name
