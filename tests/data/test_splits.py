"""Splits: nobody in two parts, classes apart where they must be, the same every time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.data import Source, Split, make_split, open_source, tensor_source
from doubtless.errors import InputError, RunError


def a_source(classes: int, per_class: int, *, with_parts: bool = False) -> Source:
    labels = torch.arange(classes * per_class) % classes
    part = (torch.arange(len(labels)) >= len(labels) // 2).long() if with_parts else None
    return tensor_source("toy", torch.zeros(len(labels), 4, 4, dtype=torch.uint8), labels, given_split=part)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["closed", "open"]),
    classes=st.integers(8, 20),
    per_class=st.integers(8, 20),
    share=st.floats(0.1, 0.5),
    seed=st.integers(0, 5),
)
def test_parts_are_disjoint_and_complete(kind, classes: int, per_class: int, share: float, seed: int) -> None:
    source = a_source(classes, per_class)
    split = make_split(source, kind, validation=share, seed=seed)
    everything = torch.cat([split.train, split.validation, split.test])
    assert torch.equal(everything.sort().values, torch.arange(len(source)))
    seen, held_out = (set(source.labels[part].tolist()) for part in (split.train, split.test))
    chosen = set(source.labels[split.validation].tolist())
    if kind == "open":
        assert max(seen | chosen) < min(held_out)
        assert max(seen | chosen) == classes // 2 - 1
        assert not seen & chosen
    else:
        assert seen == held_out


def test_shipped_split_leaves_the_test_part_alone() -> None:
    source = open_source("fashion-sample")
    split = make_split(source, "closed")
    assert torch.equal(split.test, torch.arange(3000, 4000))
    assert len(split.train) == 2700
    assert torch.bincount(source.labels[split.validation]).tolist() == [30] * 10


def test_same_seed_same_split_other_seed_other_split() -> None:
    source = a_source(8, 10)
    assert torch.equal(make_split(source, "closed", seed=1).train, make_split(source, "closed", seed=1).train)
    assert not torch.equal(
        make_split(source, "closed", seed=1).train, make_split(source, "closed", seed=2).train
    )


def test_a_class_of_one_image_stays_in_training() -> None:
    labels = torch.tensor([0] * 10 + [1] * 10 + [2])
    source = tensor_source("toy", torch.zeros(21, 4, 4, dtype=torch.uint8), labels)
    split = make_split(source, "closed", validation=0.2)
    assert 20 in split.train.tolist()


def test_given_uses_the_source_s_own_parts() -> None:
    source = a_source(8, 10, with_parts=True)
    split = make_split(source, "given", validation=0.25)
    assert split.test.tolist() == list(range(40, 80))
    assert not set(source.labels[split.train].tolist()) & set(source.labels[split.validation].tolist())


def test_file_roundtrip(tmp_path) -> None:
    split = make_split(a_source(8, 10), "open")
    split.save(tmp_path / "split.json")
    again = Split.load(tmp_path / "split.json")
    assert torch.equal(again.validation, split.validation)
    assert (again.kind, again.fingerprint) == (split.kind, split.fingerprint)


def test_impossible_splits_are_sentences(tmp_path) -> None:
    with pytest.raises(InputError, match="at least 4 classes"):
        make_split(a_source(3, 10), "open")
    with pytest.raises(InputError, match="at least 4 training classes"):
        make_split(a_source(6, 10), "open")
    with pytest.raises(InputError, match="no train and test part"):
        make_split(a_source(6, 10), "given")
    with pytest.raises(InputError, match="leaves no image"):
        make_split(a_source(5, 1), "closed")
    (tmp_path / "split.json").write_text("{}")
    with pytest.raises(RunError, match="no split"):
        Split.load(tmp_path / "split.json")
