"""When work is recorded, what is kept, and equal answers: on a CPU, with a recorder that only pretends."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import doubtless.sphere.projected_gaussian as quadrature
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.sphere.projected_gaussian import unit_moments
from doubtless.sphere.replay import Answer, Replays, Work, from_blocks, in_blocks


class Rerun:
    """Does the work again, on its own copies of the inputs and into blocks, as a recording does."""

    def __init__(self, work: Work, inputs: Sequence[Tensor]) -> None:
        with torch.inference_mode(False):
            self.work, self.inputs, self.calls = work, torch.stack(list(inputs)), 0

    def __call__(self, inputs: Sequence[Tensor]) -> Answer:
        torch.stack(list(inputs), out=self.inputs)
        self.calls += 1
        *outputs, numbers = self.work(*self.inputs.unbind())
        kinds = [(output.dtype, output.shape) for output in outputs]
        return from_blocks(in_blocks(outputs), kinds), numbers.tolist()


class Recorder:
    """Makes such recordings and remembers them."""

    def __init__(self) -> None:
        self.made: list[Rerun] = []
        self.kept: list[object] = []

    def __call__(self, work: Work, inputs: Sequence[Tensor], keep: object) -> Rerun:
        self.made.append(Rerun(work, inputs))
        self.kept.append(keep)
        return self.made[-1]


def add(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return one + other, (one - other).sum(0).double(), one.amax().view(1)


def ask(replays: Replays, rows: int, name: str = "add", value: float = 1.0) -> Answer | None:
    return replays(add, (torch.full((rows, 3), value), torch.ones(rows, 3)), name=name)


def test_the_second_time_is_recorded_and_later_ones_replayed() -> None:
    recorder = Recorder()
    replays = Replays(recorder)
    assert ask(replays, 2) is None
    assert not recorder.made
    for number in range(1, 5):
        answer = ask(replays, 2, value=float(number))
        assert answer is not None
        (total, difference), numbers = answer
        assert torch.equal(total, torch.full((2, 3), number + 1.0))
        assert torch.equal(difference, torch.full((3,), 2.0 * (number - 1), dtype=torch.float64))
        assert numbers == [number]
    assert [recording.calls for recording in recorder.made] == [4]
    assert len(replays) == 1


def test_names_shapes_and_dtypes_are_told_apart() -> None:
    recorder = Recorder()
    replays = Replays(recorder)
    assert ask(replays, 2) is ask(replays, 3) is ask(replays, 2, "other") is None
    assert replays(add, (torch.ones(2, 3).double(),) * 2, name="add") is None
    assert not recorder.made
    assert ask(replays, 3) is not None
    assert len(recorder.made) == 1


def test_outputs_are_not_written_over_by_the_next_call() -> None:
    replays = Replays(Recorder())
    ask(replays, 2)
    first, second = ask(replays, 2, value=1.0), ask(replays, 2, value=5.0)
    assert first is not None
    assert second is not None
    assert float(first[0][0][0, 0]) == 2
    assert float(second[0][0][0, 0]) == 6


def test_the_least_recently_used_recording_is_dropped_and_must_come_twice_again() -> None:
    recorder = Recorder()
    replays = Replays(recorder, size=2)
    for rows in (1, 1, 2, 2, 1, 3, 3):  # 2 is the one that was not asked for again
        ask(replays, rows)
    assert len(recorder.made) == 3
    assert len(replays) == 2
    assert ask(replays, 1) is not None
    assert ask(replays, 3) is not None
    assert len(recorder.made) == 3
    assert ask(replays, 2) is None
    assert ask(replays, 2) is not None
    assert len(recorder.made) == 4


def test_many_shapes_that_come_once_drop_no_recording_and_are_forgotten() -> None:
    recorder = Recorder()
    replays = Replays(recorder, size=2, remembered=5)
    ask(replays, 1)
    ask(replays, 1)
    for rows in range(2, 30):
        assert ask(replays, rows) is None
    assert ask(replays, 1) is not None
    assert ask(replays, 2) is None  # too long ago
    assert ask(replays, 29) is not None
    assert len(recorder.made) == 2


def test_what_cannot_be_recorded_is_left_to_the_caller_with_one_warning() -> None:
    tries = 0

    def fail(work: Work, inputs: Sequence[Tensor], keep: object) -> Rerun:
        nonlocal tries
        tries += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    replays = Replays(fail)
    assert ask(replays, 2) is None
    with pytest.warns(UserWarning, match="step by step: operation not permitted"):
        assert ask(replays, 2) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(replays, 2) is None
    assert tries == 1
    assert len(replays) == 0


def test_threads_take_turns() -> None:
    """Without a lock inputs of one thread would be written over by another before its answer is read."""
    recorder = Recorder()
    replays = Replays(recorder)
    wrong: list[float] = []

    def work(number: int) -> None:
        for _ in range(200):
            answer = ask(replays, 50, value=float(number))
            if answer is not None and answer[1] != [number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(recorder.made) == 1
    assert recorder.made[0].calls == 4 * 200 - 1


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([torch.float32, torch.float64]),
            st.lists(st.integers(0, 4), min_size=0, max_size=3),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_blocks_give_the_tensors_back(kinds: list[tuple[torch.dtype, list[int]]]) -> None:
    tensors = [torch.randn(shape, dtype=dtype) for dtype, shape in kinds]
    blocks = in_blocks(tensors)
    assert len(blocks) == len({dtype for dtype, _ in kinds})
    found = from_blocks(blocks, [(tensor.dtype, tensor.shape) for tensor in tensors])
    assert all(torch.equal(one, other) for one, other in zip(found, tensors, strict=True))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """The quadrature records on the CPU too."""
    recorder = Recorder()
    monkeypatch.setattr(quadrature, "_replays", Replays(recorder))
    monkeypatch.setitem(quadrature.REPLAYED, "cpu", quadrature.CHUNK["cpu"])
    return recorder


def a_problem(
    rows: int, dim: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    location = torch.randn(rows, dim, generator=generator, dtype=dtype)
    return location, torch.rand(rows, dim, generator=generator, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 40])
def test_replayed_moments_are_the_same(recorder: Recorder, dim: int, dtype: torch.dtype) -> None:
    for seed in range(4):
        location, variance = a_problem(7, dim, seed, dtype)
        found = unit_moments(location, variance)
        expected = quadrature._answers(quadrature.mean_direction(location, variance), dtype)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert [recording.calls for recording in recorder.made] == [3]
    assert recorder.kept[0] is not None  # the tables it reads


def test_rows_that_need_more_nodes_get_them_from_a_recording_too(recorder: Recorder) -> None:
    location, variance = a_problem(6, 20)
    variance[2, 1:] *= 1e-9
    first = unit_moments(location, variance)
    again = unit_moments(location, variance)
    assert recorder.made[0].calls == 1
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    alone = unit_moments(location[2:3], variance[2:3])
    torch.testing.assert_close(first.uncertainty[2:3], alone.uncertainty)


@pytest.mark.parametrize("made_in", [True, False])
@pytest.mark.parametrize("asked_in", [True, False])
def test_inside_and_outside_inference_mode(recorder: Recorder, made_in: bool, asked_in: bool) -> None:
    with torch.inference_mode(made_in):
        problems = [a_problem(5, 8, seed) for seed in range(3)]
    with torch.inference_mode(asked_in):
        found = [Embedding.projected_gaussian(*problem).uncertainty for problem in problems]
    with torch.inference_mode(not asked_in):  # the same recording in the other mode
        again = [Embedding.projected_gaussian(*problem).uncertainty for problem in problems]
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    assert [recording.calls for recording in recorder.made] == [5]


def test_one_dimension_other_dtypes_nothing_and_too_much_are_not_recorded(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    location, variance = a_problem(6, 10)
    monkeypatch.setitem(quadrature.REPLAYED, "cpu", 100)
    for _ in range(3):
        unit_moments(location, variance)
    monkeypatch.setitem(quadrature.REPLAYED, "cpu", quadrature.CHUNK["cpu"])
    for _ in range(3):
        unit_moments(location[:, :1], variance[:, :1])
        unit_moments(location, variance.double())
        assert unit_moments(location[:0], variance[:0]).direction.shape == (0, 10)
    assert not recorder.made


def test_invalid_values_are_refused_by_a_recording_too(recorder: Recorder) -> None:
    location, variance = a_problem(6, 10)
    for _ in range(3):
        unit_moments(location, variance)
        with pytest.raises(InputError, match=r"variance must not be negative, got -0\.5"):
            unit_moments(location, variance - variance.min() - 0.5)
        broken = location.clone()
        broken[2, 3] = torch.nan
        with pytest.raises(InputError, match="location has NaN"):
            unit_moments(broken, variance)
        broken[2, 3] = -torch.inf
        with pytest.raises(InputError, match="location has NaN or infinite"):
            unit_moments(broken, variance)
        with pytest.raises(InputError, match="variance has NaN or infinite"):
            unit_moments(location, broken.abs())
    assert recorder.made[0].calls == 14


def test_one_variance_an_item_is_spread(recorder: Recorder) -> None:
    location, variance = a_problem(6, 10)
    for _ in range(3):
        narrow = unit_moments(location, variance[:, :1])
        wide = unit_moments(location, variance[:, :1].repeat(1, 10))
        torch.testing.assert_close(narrow, wide, rtol=1e-7, atol=0)
    assert len(recorder.made) == 1
