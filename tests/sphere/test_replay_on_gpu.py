"""Recorded work on a GPU gives the bits of the work itself: shapes, changing inputs, modes, streams and threads."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import doubtless.sphere.projected_gaussian as quadrature
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.sphere.projected_gaussian import UnitMoments, unit_moments
from doubtless.sphere.replay import CudaRecorder, Replays

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replays]:
    """None recorded yet; a recording that fails is an error here."""
    fresh = Replays(CudaRecorder())
    monkeypatch.setattr(quadrature, "_replays", fresh)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Could not record")
        yield fresh


def a_problem(
    rows: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    location = torch.randn(rows, dim, generator=generator, dtype=dtype)
    return location.cuda(), torch.rand(rows, dim, generator=generator, dtype=dtype).cuda()


def step_by_step(location: Tensor, variance: Tensor) -> UnitMoments:
    return quadrature._answers(quadrature.mean_direction(location, variance), location.dtype)


def equal(one: UnitMoments, other: UnitMoments) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "dim"), [(1, 2), (7, 3), (64, 32), (64, 512), (33, 2048), (1024, 512)])
def test_replayed_is_equal_for_changing_inputs(
    replays: Replays, rows: int, dim: int, dtype: torch.dtype
) -> None:
    problems = [a_problem(rows, dim, seed, dtype) for seed in range(5)]
    expected = [step_by_step(*problem) for problem in problems]
    found = [unit_moments(*problem) for problem in problems]  # none is written over by a later one
    assert all(equal(one, other) for one, other in zip(found, expected, strict=True))
    assert len(replays) == 1


@pytest.mark.parametrize("made_in", [True, False])
@pytest.mark.parametrize("asked_in", [True, False])
def test_inside_and_outside_inference_mode(replays: Replays, made_in: bool, asked_in: bool) -> None:
    with torch.inference_mode(made_in):
        problems = [a_problem(64, 128, seed) for seed in range(4)]
    expected = [step_by_step(*problem) for problem in problems]
    for mode in (asked_in, not asked_in):
        with torch.inference_mode(mode):
            embeddings = [Embedding.projected_gaussian(*problem) for problem in problems]
            found = [(embedding.direction, embedding.uncertainty) for embedding in embeddings]
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one[0], other.direction)
            assert torch.equal(one[1], other.uncertainty)
    assert len(replays) == 1


def test_parameters_that_need_a_gradient_do_not_matter(replays: Replays) -> None:
    location, variance = a_problem(16, 24)
    expected = step_by_step(location, variance)
    location.requires_grad_()
    for _ in range(3):
        found = unit_moments(location, variance)
        assert equal(found, expected)
        assert not found.direction.requires_grad
    assert len(replays) == 1


def test_shapes_alternate_and_share_their_memory(replays: Replays) -> None:
    shapes = [(64, 512), (10, 512), (64, 100), (3, 5), (640, 512)]
    problems = [a_problem(*shape) for shape in shapes]
    expected = [step_by_step(*problem) for problem in problems]
    for turn in range(4):
        order = range(len(shapes)) if turn % 2 else reversed(range(len(shapes)))
        for number in order:
            assert equal(unit_moments(*problems[number]), expected[number])
    assert len(replays) == len(shapes)


def test_more_shapes_than_are_kept(replays: Replays) -> None:
    problems = [a_problem(rows, 30) for rows in range(1, 15)]
    expected = [step_by_step(*problem) for problem in problems]
    for _ in range(2):
        for problem, right in zip(problems, expected, strict=True):
            for _ in range(3):
                assert equal(unit_moments(*problem), right)
    assert len(replays) == 8


def test_tables_dropped_from_their_caches_stay_with_the_recording(replays: Replays) -> None:
    problem = a_problem(64, 512)
    expected = step_by_step(*problem)
    for _ in range(2):
        unit_moments(*problem)
    quadrature._rule.cache_clear()
    quadrature._inverse_table.cache_clear()
    torch.cuda.empty_cache()
    rubbish = [torch.full((512,), torch.nan, device="cuda", dtype=torch.float64) for _ in range(200)]
    assert equal(unit_moments(*problem), expected)
    assert len(rubbish) == 200


def test_more_nodes_one_variance_an_item_and_values_that_are_refused(replays: Replays) -> None:
    location, variance = a_problem(20, 40)
    long_way = variance.clone()
    long_way[3, 1:] *= 1e-9
    expected, far = step_by_step(location, variance), step_by_step(location, long_way)
    narrow = step_by_step(location, variance[:, :1].repeat(1, 40))
    for _ in range(4):
        assert equal(unit_moments(location, variance), expected)
        assert equal(unit_moments(location, long_way), far)
        found = unit_moments(location, variance[:, :1])
        torch.testing.assert_close(found.uncertainty, narrow.uncertainty, rtol=1e-6, atol=0)
        with pytest.raises(InputError, match="variance must not be negative, got -1"):
            unit_moments(location, -torch.ones_like(variance))
        with pytest.raises(InputError, match="location has NaN"):
            unit_moments(location * torch.nan, variance)
    assert len(replays) == 1


def test_streams_and_threads(replays: Replays) -> None:
    problems = [a_problem(64, 256, seed) for seed in range(4)]
    expected = [step_by_step(*problem) for problem in problems]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not equal(unit_moments(*problems[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(replays) == 1


def test_a_replay_is_few_launches(replays: Replays) -> None:
    from torch.profiler import ProfilerActivity, profile

    location, variance = a_problem(64, 512)
    for _ in range(3):
        unit_moments(location, variance)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        unit_moments(location, variance)
        torch.cuda.synchronize()
    names = [event.name() for event in trace.profiler.kineto_results.events()]
    assert sum(name.startswith("cudaGraphLaunch") for name in names) == 1
    launches = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpyAsync")
    assert sum(name.startswith(launches) for name in names) <= 5
