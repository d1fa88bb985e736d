"""proxy: its configurations, warm start, learning-rate groups, log, saving, resuming, two processes as one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize

from doubtless.data import Batch
from doubtless.errors import InputError
from doubtless.losses.proxy import proxy_nca_loss
from doubtless.methods import DataSpec, Subset
from doubtless.methods.configuration import make_config
from doubtless.methods.proxy import Proxy, roles_of_the_norm, starting_values
from doubtless.runs import Run
from doubtless.training import train_run
from tests.reference.stopped import train_until
from tests.reference.two_processes import TwoProcesses, descend, share_of

ABLATION = [
    {"similarity": "elk", "family": "nivmf"},
    {"similarity": "elk", "family": "vmf"},
    {"similarity": "bhattacharyya", "family": "vmf"},
    {"similarity": "kl", "family": "vmf"},
    {"similarity": "log-likelihood", "family": "nivmf"},
    {"similarity": "log-likelihood", "family": "vmf"},
    {"similarity": "bhattacharyya", "family": "nivmf"},
    {"similarity": "kl", "family": "nivmf"},
    {"similarity": "cosine", "family": "point"},
    {"similarity": "l2", "family": "point"},
    {"similarity": "cosine", "family": "point", "loss": "anchor"},
    {"similarity": "elk", "family": "nivmf", "anchor_weight": 3.0},
]
every_row = pytest.mark.parametrize("row", ABLATION, ids=lambda row: "-".join(map(str, row.values())))


def a_method(
    backbone: str = "conv-fashion", *, freeze: bool = False, head: str = "random", **proxy: Any
) -> Proxy:
    torch.manual_seed(0)
    config = {
        "method": "proxy",
        "data": {"source": "digits"},
        "model": {"backbone": backbone, "dim": 6, "freeze": freeze, "head_start": head},
        "proxy": proxy,
    }
    size = 12 if backbone == "conv-fashion" else 32
    return Proxy(make_config(config), DataSpec(channels=1, size=size, label_names=list("abcd"))).train()


def a_batch(seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    classes = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    return Batch(torch.rand(8, 1, 12, 12, generator=generator), classes, torch.arange(8))


def a_part(method: Proxy, labels: list[int]) -> Subset:
    generator = torch.Generator().manual_seed(3)
    features = torch.rand(len(labels), method.encoder.feature_dim, generator=generator)
    return Subset(labels=torch.tensor(labels), features=lambda: features)


@every_row
def test_every_row_of_the_ablation_is_a_configuration(row: dict[str, Any]) -> None:
    method = a_method(**row)
    found = method.loss(a_batch())
    found.total.backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name  # data-parallel training waits for every one
        assert bool(parameter.grad.isfinite().all()), name
    embedding = method.embed(a_batch().inputs)
    assert embedding.family == "vmf"
    length = embedding.location.norm(dim=1)
    factor = method.proxy_loss.norm_factor
    torch.testing.assert_close(embedding.uncertainty, 1 / (factor * length))


def test_the_loss_is_cross_entropy_over_temperature() -> None:
    method, batch = a_method(similarity="kl", family="vmf", temperature=0.5, norm_factor=3.0), a_batch()
    similarities = method.proxy_loss.similarities(method.head(method.encoder(batch.inputs)))
    expected = proxy_nca_loss(similarities, batch.labels, temperature=0.5)
    torch.testing.assert_close(method.loss(batch).total, expected)


def test_a_step_reads_nothing_back_to_the_host() -> None:
    """Fake tensors have no values: waiting for one would raise."""
    for row in ABLATION:
        with FakeTensorMode(allow_non_fake_inputs=True):
            method = a_method(**row)
            labels = torch.zeros(8, dtype=torch.long)
            losses = method.loss(Batch(torch.empty(8, 1, 12, 12), labels, torch.arange(8)))
            losses.total.backward()
            assert method.head.weight.grad is not None
            assert losses.terms["weight_long"].shape == ()


def test_no_tensor_is_as_large_as_batch_times_classes_times_dim() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = function(*arguments, **(keywords or {}))
            if torch.is_tensor(result):
                largest = max(largest, result.numel())
            return result

    batch, classes, dim, samples = 16, 400, 64, 3
    for row in ABLATION[:10]:
        loss = a_method(**row, samples=samples).proxy_loss
        loss = type(loss)(classes, dim, similarity=loss.similarity, family=loss.family, samples=samples)
        embeddings = torch.randn(batch, dim, requires_grad=True)
        largest = 0
        with Watch():
            loss.terms(embeddings, torch.arange(batch)).total.backward()
        assert 0 < largest < batch * classes * dim // 4, row


def test_warm_start_puts_proxies_at_class_means() -> None:
    method = a_method(similarity="cosine", family="point")
    part = a_part(method, [0, 1, 2, 3, 0, 0])
    method.start(part)
    with torch.no_grad():
        unit = normalize(method.head(part.features()), dim=1)
    mean = unit[part.labels == 0].mean(0)
    torch.testing.assert_close(method.proxy_loss.location[0].detach(), mean / mean.norm())
    cold = a_method(similarity="cosine", family="point", warm_start=False)
    before = cold.proxy_loss.location.detach().clone()
    cold.start(a_part(cold, [0, 1, 2, 3, 0, 0]))
    assert torch.equal(cold.proxy_loss.location.detach(), before)


def started(**options: Any) -> tuple[Proxy, Tensor, Tensor]:
    """A method after `start`, what it makes of what it was shown, and the labels."""
    method = a_method(**options)
    labels = torch.arange(80) % 4
    generator = torch.Generator().manual_seed(3)
    width = method.encoder.feature_dim
    features = 20 * torch.randn(4, width, generator=generator)[labels]
    features = features + 20 * torch.randn(80, width, generator=generator)
    method.start(Subset(labels=labels, features=lambda: features))
    return method, method.head(features).detach(), labels


@every_row
def test_a_half_whitened_head_starts_at_its_own_lengths_and_classes(row: dict[str, Any]) -> None:
    method, embedded, labels = started(head="half-whitened", **{**row, "samples": 200})
    loss = method.proxy_loss
    expected = starting_values(loss.similarity, loss.family, 6)
    assert float(embedded.norm(dim=1).mean()) > 5  # far from 1, for which the fixed values are meant
    assert float(loss.norm_factor * embedded.norm(dim=1).mean()) == pytest.approx(expected.norm_factor)
    if loss.objective == "anchor":
        return
    with torch.no_grad():
        logits = loss.similarities(embedded) / loss.log_temperature.exp()
    own = logits[torch.arange(80), labels]
    others = torch.stack(
        [row[torch.arange(4) != label].mean() for row, label in zip(logits, labels, strict=True)]
    )
    assert float((own - others).mean()) == pytest.approx(math.log(4), rel=0.1)
    wider, _, _ = started(head="half-whitened", gap=2 * math.log(4), **{**row, "samples": 200})
    ratio = (loss.log_temperature - wider.proxy_loss.log_temperature).exp().detach()
    assert float(ratio) == pytest.approx(2, rel=1e-4)


def test_what_is_given_and_what_is_fixed_is_not_measured() -> None:
    fixed = starting_values("elk", "nivmf", 6)
    for options in ({"start": "fixed", "head": "half-whitened"}, {"head": "random"}):
        loss = started(**options)[0].proxy_loss
        assert loss.norm_factor == fixed.norm_factor
        assert float(loss.log_temperature.detach()) == math.log(fixed.temperature)
    loss = started(head="half-whitened", norm_factor=3.0, temperature=0.7)[0].proxy_loss
    assert (loss.norm_factor, float(loss.log_temperature.detach().exp())) == (3.0, pytest.approx(0.7))
    cold = started(head="half-whitened", warm_start=False)[0].proxy_loss  # random proxies have no class
    assert float(cold.log_temperature.detach()) == math.log(fixed.temperature)
    assert cold.norm_factor != fixed.norm_factor


def test_proxies_of_a_pretrained_network_learn_faster() -> None:
    for head, given, expected in (
        ("random", {}, 3.0),
        ("half-whitened", {}, 100.0),
        ("half-whitened", {"proxy_lr": 7.0}, 7.0),
    ):
        method = a_method(head=head, **given)
        groups = method.parameter_groups()
        found = {id(p): group["lr_factor"] for group in groups for p in group["params"]}
        assert found[id(method.proxy_loss.location)] == expected


def test_a_label_without_a_proxy_is_a_sentence() -> None:
    method = a_method()
    with pytest.raises(InputError, match="There are 4 proxies, for the labels 0 … 3; got label 4"):
        method.start(a_part(method, [0, 1, 4]))


def test_learning_rate_factors_and_shared_groups() -> None:
    method = a_method(proxy_lr=7.0, concentration_lr=20.0, temperature_lr=3.0)
    loss = method.proxy_loss
    groups = {group["lr_factor"]: {id(p) for p in group["params"]} for group in method.parameter_groups()}
    assert set(groups) == {1.0, 7.0, 20.0, 3.0}
    assert groups[7.0] == {id(loss.location)}
    assert groups[20.0] == {id(loss.log_concentration)}
    assert groups[3.0] == {id(loss.log_temperature)}
    assert id(method.head.weight) in groups[1.0]
    shared = a_method(proxy_lr=5.0, concentration_lr=5.0, temperature_lr=5.0).parameter_groups()
    assert [len(group["params"]) for group in shared] == [6, 3]
    everything = [id(p) for group in shared for p in group["params"]]
    assert len(everything) == len(set(everything)) == 9


def test_a_key_of_before_is_read_where_it_said_nothing() -> None:
    assert a_method(freeze_batch_norm=False).options == a_method().options
    with pytest.raises(InputError, match=r"no configuration key 'proxy\.freeze_batch_norm'"):
        a_method(freeze_batch_norm=True)


@pytest.mark.parametrize(
    ("proxy", "sentence"),
    [
        ({"similarity": "l2"}, "l2 compares points, and proxies of family nivmf are distributions"),
        ({"family": "point"}, "a point has none"),
        ({"loss": "anchor"}, "ProxyAnchor alone compares directions"),
        ({"similarity": "elk2"}, r"'proxy\.similarity' cannot be 'elk2'"),
        ({"proxy_family": "vmf"}, r"no configuration key 'proxy\.proxy_family'"),
        ({"temperature": 0}, r"'proxy\.temperature' cannot be 0"),
    ],
)
def test_what_has_no_meaning_is_a_sentence(proxy: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        a_method(**proxy)


def test_roles_of_the_norm_by_hand() -> None:
    """Six images whose gradient and softmax are known: two short, two middle, two long."""
    length = torch.tensor([3.0, 1.0, 2.0, 1.1, 2.1, 3.1])
    unit = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    across = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    across = normalize(across - (across * unit).sum(1, keepdim=True) * unit, dim=1)
    # The gradient of the direction has length c·κ; what lies along the embedding must not count.
    gradient = 0.25 * across + 5 * unit
    logits = torch.tensor([[0.0, 0.0]] * 6)
    logits[[1, 3], 0] = 50.0  # the short ones are sure, and wrong
    labels = torch.tensor([0, 1, 0, 1, 0, 0])
    found = roles_of_the_norm(length[:, None] * unit, gradient, logits, labels)
    force, error = 0.25 * length, torch.where(length < 1.5, 2.0, 0.5).sqrt()
    overall = force.sum() / error.sum()
    for name, rows in {"short": [1, 3], "middle": [2, 4], "long": [0, 5]}.items():
        expected = force[rows].sum() / error[rows].sum() / overall
        torch.testing.assert_close(found[f"weight_{name}"], expected)
        flat = 0.0 if name == "short" else 1.0
        torch.testing.assert_close(found[f"flatness_{name}"], torch.tensor(flat))
    few = roles_of_the_norm(unit[:2], gradient[:2], logits[:2], labels[:2])
    assert all(bool(value.isfinite()) for value in few.values())


def test_with_cosines_the_norm_has_no_role_and_with_log_likelihood_neither() -> None:
    """The direction's gradient is then that of a function of the direction: scaling an image changes nothing."""
    method, batch = a_method(similarity="log-likelihood", family="vmf"), a_batch()
    embeddings = method.head(method.encoder(batch.inputs)).detach()
    found = []
    for scale in (1.0, 9.0):
        scaled = (scale * embeddings).requires_grad_()
        terms = method.proxy_loss.terms(scaled, batch.labels)
        (gradient,) = torch.autograd.grad(terms.total, scaled)
        found.append(roles_of_the_norm(scaled, gradient, terms.logits, batch.labels))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def config(tiny_config: dict[str, Any]) -> dict[str, Any]:
    return {**tiny_config, "method": "proxy"}


@pytest.fixture(scope="module")
def run(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_run(make_config(config), tmp_path_factory.mktemp("proxy") / "run", quiet=True)


def test_it_learns_and_logs_the_roles_of_the_norm(run: Run) -> None:
    assert run.log[-1]["train_loss"] < 0.7 * run.log[0]["train_loss"]
    for row in run.log:
        assert all(0 <= row[f"train_flatness_{third}"] <= 1 for third in ("short", "middle", "long"))
        assert all(row[f"train_weight_{third}"] > 0 for third in ("short", "middle", "long"))
    record = json.loads((run.path / "model.json").read_text())["record"]
    assert record["temperature"] > 0
    assert 0 < record["concentration"][0] <= record["concentration"][1]


def test_loaded_embeddings_are_equal_whatever_the_batch(run: Run) -> None:
    images = torch.randint(0, 256, (7, 1, 12, 12), dtype=torch.uint8)
    one, other = run.load_method(), run.load_method()
    whole, again, alone = one.embed(images), other.embed(images), one.embed(images[3:4])
    for name, value in whole.parameters.items():
        assert torch.equal(again.parameters[name], value)
        torch.testing.assert_close(alone.parameters[name], value[3:4], rtol=1e-5, atol=1e-6)


def test_stopped_and_resumed_is_bit_equal(config: dict[str, Any], run: Run, tmp_path: Path) -> None:
    train_until(12, config, tmp_path / "run")
    torch.rand(5)
    resumed = train_run(make_config(config), tmp_path / "run", resume=True, quiet=True)
    expected = load_file(run.path / "model.safetensors")
    for name, value in load_file(resumed.path / "model.safetensors").items():
        assert torch.equal(value, expected[name]), name
    for row, other in zip(run.log, resumed.log, strict=True):
        timeless = {"seconds": 0, "seconds_validating": 0}
        assert row | timeless == other | timeless


DISTRIBUTED = ABLATION[:1] + ABLATION[-2:]


def three_steps(rank: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """The first gradient, and what the parameters are in the end."""
    method = a_method(**options)
    gradients = list(descend(method, [share_of(a_batch(step), rank) for step in range(3)], lr=1e-3))
    return {"gradients": gradients[0], "parameters": dict(method.state_dict()), "noise": torch.rand(3)}


def _steps_of_rank(rank: int) -> list[dict[str, Any]]:
    return [three_steps(rank, row) for row in DISTRIBUTED]


def test_two_processes_have_the_gradient_of_one(two_processes: TwoProcesses) -> None:
    of_ranks = two_processes(_steps_of_rank)
    for number, row in enumerate(DISTRIBUTED):
        alone = three_steps(None, row)
        for found in (rank[number] for rank in of_ranks):
            assert torch.equal(found["noise"], alone["noise"])  # as many draws everywhere
            for name, value in alone["gradients"].items():
                difference = (found["gradients"][name] - value).abs().max()
                assert difference <= 1e-5 * max(1.0, float(value.abs().max())), (row, name)
            for name, value in alone["parameters"].items():  # three steps apart, each off by rounding
                difference = (found["parameters"][name] - value).abs().max()
                assert difference <= 1e-4 * max(1.0, float(value.abs().max())), (row, name)
