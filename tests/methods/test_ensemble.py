"""ensemble: members of their own seeds, turned onto each other, in evaluation mode, retrained alone."""

from __future__ import annotations

import copy
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.errors import InputError, RunError
from doubtless.methods import DataSpec, Subset
from doubtless.methods.configuration import load_config, make_config
from doubtless.methods.deterministic import Deterministic
from doubtless.methods.ensemble import Ensemble, align, cross_products, inner_products, procrustes
from doubtless.models.networks import conv_fashion
from doubtless.runs import Run, embed_images, open_run_data
from doubtless.runs.evaluation import RunEvaluation
from doubtless.runs.model import Model
from doubtless.training import train_run
from doubtless.training.module import validation_scores

CONFIGS = Path(__file__).parents[2] / "configs"


def ensemble(config: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**copy.deepcopy(config), "method": "ensemble", "ensemble": {"members": 3, **options}}


def some_images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 1, 12, 12), dtype=torch.uint8, generator=generator)


def turns(count: int, dim: int, *, seed: int = 0, reflect: bool = False) -> Tensor:
    """Random orthogonal maps (count, D, D), all of determinant 1, or all of −1."""
    found = torch.linalg.qr(
        torch.randn(count, dim, dim, generator=torch.Generator().manual_seed(seed)).double()
    ).Q
    found[:, :, 0] *= torch.linalg.det(found).sign().unsqueeze(1) * (-1 if reflect else 1)
    return found


@pytest.fixture(scope="module")
def run(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three members; tests must not write into it."""
    return train_run(
        make_config(ensemble(tiny_config)), tmp_path_factory.mktemp("ensemble") / "run", quiet=True
    )


@pytest.fixture
def copied(run: Run, tmp_path: Path) -> Run:
    shutil.copytree(run.path, tmp_path / "run")
    return Run(tmp_path / "run")


# -- alignment -------------------------------------------------------------------------------------------


@given(dim=st.integers(1, 12), seed=st.integers(0, 10**6), reflect=st.booleans())
@settings(max_examples=30, deadline=None)
def test_procrustes_recovers_a_known_map_reflections_included(dim: int, seed: int, reflect: bool) -> None:
    points = torch.randn(5 * dim, dim, generator=torch.Generator().manual_seed(seed)).double()
    turn = turns(1, dim, seed=seed, reflect=reflect)[0]
    found = procrustes(points.T @ (points @ turn))
    torch.testing.assert_close(found, turn, atol=1e-9, rtol=0)
    assert float(torch.linalg.det(found)) == pytest.approx(-1 if reflect else 1)


def test_procrustes_is_no_worse_than_a_thousand_others() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(40, 4, generator=generator).double() for _ in range(2))
    best = (one @ procrustes(one.T @ other) - other).square().sum()
    others = torch.cat([turns(500, 4, seed=1), turns(500, 4, seed=2, reflect=True)])
    assert bool(((one @ others - other).square().sum((1, 2)) >= best).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("reflect", [False, True])
def test_align_undoes_known_maps(dtype: torch.dtype, reflect: bool) -> None:
    points = normalize(torch.randn(300, 6, generator=torch.Generator().manual_seed(0)), dim=1).double()
    spaces = torch.stack([points, *(points @ turns(3, 6, reflect=reflect))]).to(dtype)
    maps = align(spaces)
    assert maps.dtype == dtype
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(maps[0], torch.eye(6, dtype=dtype), atol=tolerance, rtol=0)
    for turned in spaces @ maps:
        torch.testing.assert_close(turned, points.to(dtype), atol=tolerance, rtol=0)


def noisy_spaces(members: int, seed: int, *, count: int = 80, dim: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, dim, generator=generator).double()
    noise = torch.randn(members, count, dim, generator=generator).double()
    return normalize(points @ turns(members, dim, seed=seed) + 1.5 * noise, dim=-1)


@pytest.mark.parametrize("seed", range(3))
def test_align_is_a_joint_optimum_better_than_onto_the_first(seed: int) -> None:
    """No small turn of any one map brings the spaces nearer, by a loop over pairs of spaces."""
    spaces = noisy_spaces(4, seed)

    def together(maps: Tensor) -> float:
        turned = [space @ turn for space, turn in zip(spaces, maps, strict=True)]
        return sum(float((turned[i] * turned[j]).sum()) for i in range(4) for j in range(4) if i != j)

    maps = align(spaces)
    onto_first = torch.stack([procrustes(space.T @ spaces[0]) for space in spaces])
    assert together(maps) > together(onto_first)
    assert inner_products(cross_products(spaces), maps) == pytest.approx(together(maps), rel=1e-10)
    torch.testing.assert_close(maps @ maps.mT, torch.eye(5).double().expand(4, -1, -1), atol=1e-10, rtol=0)
    generator = torch.Generator().manual_seed(9)
    for member in range(4):
        skew = torch.randn(5, 5, generator=generator).double()
        nearby = maps.clone()
        nearby[member] = maps[member] @ torch.matrix_exp(1e-3 * (skew - skew.T))
        assert together(nearby) < together(maps)


@pytest.mark.parametrize(("count", "dim"), [(3, 8), (1, 4), (20, 1)])
def test_align_of_few_items_is_orthogonal_still(count: int, dim: int) -> None:
    maps = align(normalize(torch.randn(3, count, dim, generator=torch.Generator().manual_seed(1)), dim=-1))
    torch.testing.assert_close(maps @ maps.mT, torch.eye(dim).expand(3, -1, -1), atol=1e-5, rtol=0)


# -- a run -----------------------------------------------------------------------------------------------


def test_members_are_runs_of_seeds_that_no_other_ensemble_has(tiny_config, run: Run) -> None:
    def seeds(seed: int, members: int) -> set[int]:
        config = make_config({**ensemble(tiny_config, members=members), "seed": seed})
        stages = Ensemble(config, run.load_method().spec).stages()
        assert list(stages) == [f"members/{number}" for number in range(members)]
        return {stage.seed for stage in stages.values()}

    drawn = [seeds(seed, members) for seed, members in ((0, 5), (1, 5), (2, 40), (3, 2))]
    assert len(set.union(*drawn)) == 52
    alone = make_config(tiny_config).to_dict()
    states = []
    for number in range(3):
        member = Run(run.path / "members" / str(number))
        assert member.config.to_dict() == {**alone, "seed": member.config.seed}
        assert member.split.train.equal(run.split.train)
        states.append(member.load_method().state_dict())
    assert not any(torch.equal(a["head.weight"], b["head.weight"]) for a, b in pairwise(states))


def test_samples_are_the_members_embeddings_turned_by_a_loop(run: Run) -> None:
    images, method = some_images(4), run.load_method()
    found = method.embed(images)
    assert found.family == "empirical"
    assert found.samples.shape == (3, 4, 8)
    assert bool((found.uncertainty > 0).all())
    for number in range(3):
        member = Run(run.path / "members" / str(number)).load_method()
        for item in range(4):
            alone = member.embed(images[item : item + 1]).location[0]
            expected = (alone / alone.norm()) @ method.alignment[number]
            torch.testing.assert_close(found.samples[number, item], expected, atol=1e-6, rtol=1e-5)


def test_alone_in_a_batch_twice_loaded_and_copied_are_equal(run: Run) -> None:
    images, method = some_images(9), run.load_method()
    untouched = copy.deepcopy(method)  # before its members are loaded
    whole = method.embed(images).samples
    for other in (method, run.load_method(), untouched, copy.deepcopy(method)):
        assert torch.equal(other.embed(images).samples, whole)
    assert torch.equal(method.embed_features(method.encode(images)).samples, whole)
    for rows in (slice(0, 1), slice(2, 7)):
        torch.testing.assert_close(method.embed(images[rows]).samples, whole[:, rows], atol=1e-6, rtol=1e-5)


def test_the_state_holds_maps_only_and_members_load_when_needed(run: Run) -> None:
    state = load_file(run.path / "model.safetensors")
    assert set(state) == {"alignment", "fingerprints"}
    method = run.load_method()
    assert method._members == []
    assert list(method.parameters()) == []
    assert method.device == torch.device("cpu")
    method.embed(some_images(1))
    assert set(method.state_dict()) == {"alignment", "fingerprints"}
    assert not any(value.requires_grad for member in method.members() for value in member.parameters())


def test_alignment_is_that_of_the_training_images_and_helps(run: Run) -> None:
    method, data = run.load_method(), open_run_data(run.config, split=run.split)
    members = [Run(run.path / "members" / str(number)).load_method() for number in range(3)]
    training = torch.stack([embed_images(member, data.train).direction for member in members])
    torch.testing.assert_close(method.alignment, align(training), atol=1e-5, rtol=0)
    record = json.loads((run.path / "model.json").read_text())["record"]
    apart = torch.stack([embed_images(member, data.validation).direction for member in members])
    turned = embed_images(method, data.validation).samples
    for name, spaces in (("cosine_unaligned", apart), ("cosine_between_members", turned)):
        cosines = [(spaces[i] * spaces[j]).sum(1).mean() for i in range(3) for j in range(3) if i != j]
        assert record[name] == pytest.approx(float(torch.stack(cosines).mean()), abs=1e-5)
    assert record["cosine_between_members"] > record["cosine_unaligned"] + 0.3

    def score(direction: Tensor) -> float:
        return validation_scores(direction, data.test.labels)["recall@1"]

    own = [score(embed_images(member, data.test).direction) for member in members]
    assert score(embed_images(method, data.test).direction) >= sum(own) / 3


def test_measured_and_reported(copied: Run) -> None:
    found = RunEvaluation(copied).measure(bootstrap=20)
    assert found["recall@1"] > 0.5
    assert (copied.path / "report.html").exists()


def test_a_deleted_member_is_retrained_alone(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before, images = copied.load_method(), some_images(5)
    expected = before.embed(images).samples
    with pytest.raises(InputError, match="there is nothing to resume"):
        train_run(copied.config, copied.path, resume=True, quiet=True)
    kept = {number: (copied.path / f"members/{number}/model.json").stat().st_mtime_ns for number in (0, 2)}
    shutil.rmtree(copied.path / "members/1")
    with pytest.raises(
        RunError, match=r"lacks its member 1: .*members/1 holds no finished run; train that one"
    ):
        copied.load_method().embed(images)
    trained: list[int] = []
    original = Deterministic.finish

    def watching(self: Deterministic, *parts: Subset) -> None:
        trained.append(self.config.seed)
        original(self, *parts)

    monkeypatch.setattr(Deterministic, "finish", watching)
    train_run(copied.config, copied.path, resume=True, quiet=True)
    assert trained == [before.stages()["members/1"].seed]
    for number, time in kept.items():
        assert (copied.path / f"members/{number}/model.json").stat().st_mtime_ns == time
    assert torch.equal(copied.load_method().embed(images).samples, expected)


def test_a_failed_member_goes_on_where_it_stopped(
    tiny_config, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies in the second member's second epoch."""
    config, original = make_config(ensemble(tiny_config)), Deterministic.loss
    steps = 0

    def dying(self: Deterministic, batch: Any) -> Any:
        nonlocal steps
        steps += self.config.seed == config.seed + 1001
        if steps == 12:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(Deterministic, "loss", dying)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train_run(config, tmp_path / "run", quiet=True)
    monkeypatch.undo()
    assert [path.name for path in sorted((tmp_path / "run/members").iterdir())] == ["0", "1"]
    resumed = train_run(config, tmp_path / "run", resume=True, quiet=True)
    images = some_images(5)
    assert torch.equal(resumed.load_method().embed(images).samples, run.load_method().embed(images).samples)


def test_another_member_than_was_aligned_is_refused(copied: Run) -> None:
    shutil.rmtree(copied.path / "members/1")
    shutil.copytree(copied.path / "members/2", copied.path / "members/1")
    with pytest.raises(RunError, match=r"members/1 is not the member .* was aligned with; delete"):
        copied.load_method().embed(some_images(1))
    (copied.path / "model.json").unlink()
    train_run(copied.config, copied.path, resume=True, quiet=True)
    samples = copied.load_method().embed(some_images(3)).samples
    torch.testing.assert_close(samples[1], samples[2], atol=1e-5, rtol=0)  # twins, turned alike


# -- evaluation mode and devices -------------------------------------------------------------------------


def test_batch_norm_never_moves(tiny_config, tmp_path: Path) -> None:
    config = ensemble({**tiny_config, "model": {"backbone": "test_resnet", "dim": 4}}, members=2)
    config["training"]["epochs"] = 1
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    method, images = run.load_method(), some_images(6)

    def statistics() -> dict[str, Tensor]:
        return {
            f"{number} {name}": value.clone()
            for number, member in enumerate(method.members())
            for name, value in member.named_buffers()
            if "running" in name or "num_batches" in name
        }

    before, expected = statistics(), method.embed(images).samples
    assert len(before) > 10
    assert any(
        float((value - 1).abs().max()) > 1e-3 for name, value in before.items() if "running_var" in name
    )
    method.train()
    assert method.training
    assert not any(module.training for member in method.members() for module in member.modules())
    assert torch.equal(method.embed(images).samples, expected)
    assert torch.equal(method.embed_features(method.encode(images)).samples, expected)
    for name, value in statistics().items():
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(method.embed(images[:1]).samples, expected[:, :1], atol=1e-5, rtol=1e-4)


def test_members_follow_the_ensemble_to_another_device(run: Run) -> None:
    early, late = run.load_method(), run.load_method()
    late.embed(some_images(1))
    early.to("meta").fingerprints = torch.zeros(3, dtype=torch.int64)  # a meta tensor has no value to compare
    for method in (early, late.to("meta"), copy.deepcopy(late)):
        members = method.members()
        assert {value.device.type for member in members for value in member.parameters()} == {"meta"}
        assert {member.device.type for member in members} == {method.device.type}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree(run: Run) -> None:
    images, method = some_images(5), run.load_method()
    expected = method.embed(images).samples
    for other in (run.load_method(), method, copy.deepcopy(method)):
        found = other.to("cuda").embed(images).samples
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(method.to("cpu").embed(images).samples, expected)


# -- rotated copies of one network -----------------------------------------------------------------------


def rotated_copies(config: dict[str, Any], path: Path, spec: DataSpec, **options: Any) -> Ensemble:
    """An ensemble whose members are one network, its head turned three times (twice with a reflection)."""
    method = Ensemble(make_config(ensemble(config, **options)), spec)
    torch.manual_seed(0)
    network = Deterministic(make_config(config), spec).eval()
    weight, bias = network.head.weight.detach().clone(), network.head.bias.detach().clone()
    maps = torch.cat([turns(1, 8), turns(2, 8, seed=1, reflect=True)]).float()
    for (name, stage), turn in zip(method.stages().items(), maps, strict=True):
        run = Run.create(path / name, stage)
        network.head.weight.data, network.head.bias.data = turn.T @ weight, turn.T @ bias
        run.save_model(network)
    Run(path).adopt(method)
    features = method.encode(some_images(100))
    part = Subset(labels=torch.zeros(100), features=lambda: features)
    method.finish(part, part)
    return method


def test_rotated_copies_have_no_doubt_once_aligned(tiny_config, run: Run, tmp_path: Path) -> None:
    spec, images = run.load_method().spec, some_images(20)
    aligned = rotated_copies(tiny_config, tmp_path / "aligned", spec).embed(images)
    torch.testing.assert_close(aligned.samples, aligned.samples[:1].expand(3, -1, -1), atol=1e-5, rtol=0)
    assert float(aligned.uncertainty.max()) < 1e-5
    apart = rotated_copies(tiny_config, tmp_path / "apart", spec, align=False)
    assert torch.equal(apart.alignment, torch.eye(8).expand(3, -1, -1))
    assert float(apart.embed(images).uncertainty.min()) > 1e-2


def test_another_ensemble_s_members_are_pooled_in_another_way(tiny_config, run: Run, tmp_path: Path) -> None:
    other = {**run.config.to_dict(), "base": str(run.path)}
    other["ensemble"] = {**other["ensemble"], "align": False}
    apart = train_run(make_config(other), tmp_path / "apart", quiet=True)
    assert not (apart.path / "members").exists()
    images, aligned = some_images(6), run.load_method()
    unturned = torch.stack([member.embed(images).direction for member in aligned.members()])
    torch.testing.assert_close(apart.load_method().embed(images).samples, unturned)
    other["ensemble"] |= {"members": aligned.options.members + 1}
    with pytest.raises(InputError, match="cannot be the base: its alignment has shape"):
        train_run(make_config(other), tmp_path / "more", quiet=True)
    alone = train_run(make_config(tiny_config), tmp_path / "alone", quiet=True)
    with pytest.raises(InputError, match="a deterministic model has no alignment"):
        train_run(make_config({**other, "base": str(alone.path)}), tmp_path / "none", quiet=True)


# -- sentences -------------------------------------------------------------------------------------------


def test_what_cannot_be_is_a_sentence(tiny_config, run: Run) -> None:
    spec = run.load_method().spec
    with pytest.raises(InputError, match=r"ensemble\.method cannot be ensemble"):
        Ensemble(make_config(ensemble(tiny_config, method="ensemble")), spec)
    with pytest.raises(InputError, match=r"no method 'determinstic'; did you mean 'deterministic'"):
        Ensemble(make_config(ensemble(tiny_config, method="determinstic")), spec).stages()
    with pytest.raises(InputError, match=r"key 'ensemble\.members' cannot be 1"):
        make_config(ensemble(tiny_config, members=1))
    with pytest.raises(InputError, match="has no run, and so no members"):
        Ensemble(make_config(ensemble(tiny_config)), spec).embed(some_images(1))


@pytest.mark.parametrize("data", ["fashion-sample", "omniglot"])
def test_configuration_that_ships(data: str) -> None:
    config = load_config(CONFIGS / data / "ensemble.yaml")
    same = load_config(CONFIGS / data / "deterministic.yaml").to_dict()
    assert {**config.to_dict(), "method": "deterministic", "ensemble": None} == {**same, "ensemble": None}
    assert (config.ensemble.members, config.ensemble.align) == (5, True)


def test_novelty_is_of_embeddings_and_of_the_first_member_s_features(run: Run) -> None:
    method, images = run.load_method(), some_images(6)
    members = method.members()
    directions = torch.cat([member.embed(images).direction for member in members], dim=1)
    features = method.encode(images)
    seen = method.novelty_features(features)
    assert seen.shape == features.shape
    both = (directions, members[0].encode(images))
    for part, one in zip(seen.split([directions.shape[1], both[1].shape[1]], dim=1), both, strict=True):
        torch.testing.assert_close(part, one / one.norm(dim=1, keepdim=True))
    torch.testing.assert_close(Model(method).describe(images).features, seen)
    plain = members[0]
    assert plain.novelty_features(both[1]) is both[1]


# -- members with one frozen encoder ---------------------------------------------------------------------


@pytest.mark.parametrize("has_weights", [True, False])
def test_a_frozen_encoder_with_weights_runs_once_for_all_members(
    tiny_config: dict[str, Any], tmp_path: Path, has_weights: bool
) -> None:
    """Without weights every member has drawn its own, and each must be asked."""
    weights = tmp_path / "weights.safetensors"
    save_file(conv_fashion(1).state_dict(), weights)
    model = {**tiny_config["model"], "freeze": True, **({"weights": str(weights)} if has_weights else {})}
    config = make_config(ensemble({**tiny_config, "model": model}))
    method = train_run(config, tmp_path / "run", quiet=True).load_method()
    assert isinstance(method, Ensemble)
    members, images = method.members(), some_images(7)
    directions = [member.embed(images).direction for member in members]
    expected = torch.cat([*directions, members[0].encode(images)], dim=1)
    calls: list[int] = []
    for place, member in enumerate(members):
        member.encoder.register_forward_hook(lambda *given, place=place: calls.append(place))
    torch.testing.assert_close(method.encode(images), expected, atol=0, rtol=0)
    assert calls == ([0] if has_weights else [0, 1, 2])
