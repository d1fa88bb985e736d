"""Preparation, batches and loaders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.data import (
    BalancedBatches,
    ImageSet,
    Preparation,
    holding,
    in_order,
    open_source,
    tensor_source,
)
from doubtless.data.loading import TensorBatches, WorkerBatches, training_batches
from doubtless.errors import InputError

AUGMENT = [{"RandomResizedCrop": {"scale": [0.3, 1.0]}}, "RandomHorizontalFlip"]


def an_image_set(augment=(), count: int = 40) -> ImageSet:
    source = open_source("digits")
    return ImageSet(source, torch.arange(count), Preparation(channels=1, size=28, augment=augment))


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(5, 60),
    width=st.integers(5, 60),
    channels=st.sampled_from([1, 3]),
    wanted=st.sampled_from([1, 3]),
)
def test_any_image_gets_the_shape_asked_for(height: int, width: int, channels: int, wanted: int) -> None:
    image = torch.randint(256, (channels, height, width), dtype=torch.uint8)
    assert Preparation(channels=wanted, size=16)(image).shape == (wanted, 16, 16)


def test_augmentation_is_fixed_by_seed_epoch_and_image() -> None:
    images = an_image_set(AUGMENT)
    torch.manual_seed(0)
    first = images[3].inputs
    torch.manual_seed(99)
    torch.rand(7)
    assert torch.equal(images[3].inputs, first)
    images.epoch = 1
    assert not torch.equal(images[3].inputs, first)


def test_augmentation_leaves_the_global_generator_alone() -> None:
    images = an_image_set(AUGMENT)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    images[0]
    assert torch.equal(torch.rand(1), expected)


@settings(max_examples=30, deadline=None)
@given(classes=st.integers(2, 30), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_batches_are_balanced_and_ranks_share_them(classes: int, seed: int, epoch: int) -> None:
    labels = torch.arange(400) % classes
    batches = BalancedBatches(labels, batch_size=32, seed=seed)
    whole = batches.epoch(epoch)
    for batch in whole:
        counts = torch.bincount(labels[batch])
        assert set(counts[counts > 0].tolist()) == {batches.per_class}
        assert len(counts[counts > 0]) >= 2
    parts = [batches.epoch(epoch, rank=rank, world_size=4) for rank in range(4)]
    assert torch.equal(torch.cat(parts, dim=1), whole)


def test_an_epoch_depends_on_its_number_alone() -> None:
    labels = torch.arange(100) % 5
    one, other = (BalancedBatches(labels, batch_size=20, seed=3) for _ in range(2))
    other.epoch(0), other.epoch(1)
    assert torch.equal(one.epoch(2), other.epoch(2))
    assert not torch.equal(one.epoch(2), one.epoch(3))
    seeded = BalancedBatches(labels, batch_size=20, seed=4)
    assert not torch.equal(one.epoch(2), seeded.epoch(2))


@pytest.mark.parametrize(("members", "per_class"), [(3, 5), (5, 5), (12, 5), (60, 5), (400, 5)])
def test_every_image_comes_as_often_and_none_twice(members: int, per_class: int) -> None:
    """Whichever way a class's images are drawn: too few, few, or many."""
    labels = torch.arange(4 * members) % 4
    batches = BalancedBatches(labels, batch_size=2 * per_class, per_class=per_class)
    rows = torch.cat([batches.epoch(number) for number in range(8000 // len(batches))])
    groups = rows.view(-1, per_class)
    assert (labels[groups] == labels[groups[:, :1]]).all()
    distinct = torch.tensor([len(group.unique()) for group in groups])
    assert (distinct == per_class).all() if members >= per_class else (distinct <= members).all()
    counts = torch.bincount(rows.flatten(), minlength=len(labels)).double()
    expected = rows.numel() / len(labels)
    # As often as chance allows: the mean of a standardised square is 1, its spread over images √(2/n).
    spread = ((counts - expected).square() / expected).mean()
    assert spread < 1 + 6 * (2 / len(labels)) ** 0.5
    assert counts.min() > 0
    pairs = torch.bincount(labels[groups[0::2, 0]] * 4 + labels[groups[1::2, 0]], minlength=16).view(4, 4)
    assert (pairs.diagonal() == 0).all()  # the two classes of a batch differ, in all twelve ways alike
    assert float((pairs[~torch.eye(4, dtype=torch.bool)] / pairs.sum() * 12 - 1).abs().max()) < 0.2


def test_each_set_of_images_is_as_likely_as_the_other() -> None:
    """Two of five, all ten pairs alike, by the way of many images: 5 ≥ 2²."""
    labels = torch.arange(10) % 2
    batches = BalancedBatches(labels, batch_size=4, per_class=2)
    groups = torch.cat([batches.epoch(number) for number in range(3000)]).view(-1, 2)
    low, high = (groups[labels[groups[:, 0]] == 0] // 2).sort(1).values.unbind(1)
    counts = torch.bincount(low * 5 + high, minlength=25).double()
    counts = counts[counts > 0]
    assert len(counts) == 10
    assert float((counts / counts.mean() - 1).abs().max()) < 0.15


def test_memory_and_workers_give_the_same_batches() -> None:
    images = an_image_set()
    batches = BalancedBatches(images.labels, batch_size=8, per_class=2)
    held = images.in_memory()
    assert held is not None
    for a, b in zip(
        TensorBatches(held, images.labels, batches), WorkerBatches(images, batches, workers=0), strict=True
    ):
        assert torch.equal(a.inputs, b.inputs)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.position, b.position)


@pytest.mark.parametrize("workers", [0, 2])
def test_augmented_batches_do_not_depend_on_workers(workers: int) -> None:
    images = an_image_set(AUGMENT)
    loader = training_batches(
        images,
        batch_size=8,
        per_class=2,
        seed=0,
        workers=workers,
        device=torch.device("cpu"),
        augment_on_device=False,
    )
    assert isinstance(loader, WorkerBatches)
    loader.epoch = 2
    total = sum(int(batch.inputs.long().sum()) for batch in loader)
    images.epoch = 2
    plan = BalancedBatches(images.labels, batch_size=8, per_class=2, seed=0).epoch(2)
    assert total == sum(int(images[i].inputs.long().sum()) for i in plan.flatten().tolist())


def on_device(images: ImageSet, *, device: str = "cpu") -> TensorBatches | WorkerBatches:
    return training_batches(
        images,
        batch_size=8,
        per_class=2,
        seed=0,
        workers=0,
        device=torch.device(device),
    )


def test_augmentation_on_the_device_keeps_the_batches() -> None:
    images = an_image_set(AUGMENT)
    loader = on_device(images)
    assert isinstance(loader, TensorBatches)
    still = ImageSet(images.source, images.index, images.preparation.without_augmentation()).in_memory()
    assert torch.equal(loader.inputs, still)  # digits are drawn at 28: nothing larger to hold
    loader.epoch = 2
    plan = BalancedBatches(images.labels, batch_size=8, per_class=2, seed=0).epoch(2)
    batches = list(loader)
    assert torch.equal(torch.stack([batch.position for batch in batches]), plan)
    for step, batch in enumerate(batches):
        assert (batch.inputs.dtype, batch.inputs.shape) == (torch.uint8, (8, 1, 28, 28))
        assert torch.equal(batch.labels, images.labels[batch.position])
        expected = loader.augment(still[batch.position], seed=0, epoch=2, step=step)
        assert torch.equal(batch.inputs, expected)
        assert not torch.equal(batch.inputs, still[batch.position])


def test_augmentation_on_the_device_is_repeated_by_a_resumed_run() -> None:
    first, resumed = (on_device(an_image_set(AUGMENT)) for _ in range(2))
    list(first)  # epoch 0, which the resumed run does not see
    first.epoch = resumed.epoch = 1
    for one, other in zip(first, resumed, strict=True):
        assert torch.equal(one.inputs, other.inputs)
    resumed.epoch = 2
    assert not torch.equal(next(iter(first)).inputs, next(iter(resumed)).inputs)


@pytest.mark.parametrize(
    ("augment", "originals", "held"),
    [
        ("crop-flip", (28, 28), 28),
        ("crop-flip", (64, 80), 32),  # larger originals keep detail for the crops
        ("crop-flip", (30, 64), 30),
        ("crop-flip", (20, 20), 28),
        (["RandomHorizontalFlip"], (64, 64), 28),  # nothing is enlarged
        ([{"RandomCrop": {"size": 28, "padding": 4}}], (28, 28), 28),
        ([{"RandomCrop": {"size": 28, "padding": 4}}], (64, 64), None),  # 28 pixels of the original
        (["RandomHorizontalFlip", {"GaussianBlur": {"kernel_size": 3}}], (28, 28), None),
    ],
)
def test_images_are_held_as_large_as_their_augmentation_needs(
    augment, originals: tuple[int, int], held: int | None
) -> None:
    source = tensor_source("some", torch.rand(16, *originals), torch.arange(16) % 4)
    images = ImageSet(source, torch.arange(16), Preparation(channels=1, size=28, augment=augment))
    loader = on_device(images)
    if held is None:
        assert isinstance(loader, WorkerBatches)
    else:
        assert isinstance(loader, TensorBatches)
        assert loader.inputs.shape == (16, 1, held, held)
    assert next(iter(loader)).inputs.shape == (8, 1, 28, 28)


def test_images_that_do_not_fit_are_left_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(on_device(an_image_set(AUGMENT)), TensorBatches)
    monkeypatch.setattr(holding, "MEMORY_BUDGET", 40 * 28 * 28 - 1)
    assert isinstance(on_device(an_image_set(AUGMENT)), WorkerBatches)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_augments_by_itself_and_without_waiting() -> None:
    loader = training_batches(
        an_image_set(AUGMENT), batch_size=8, per_class=2, seed=0, workers=0, device=torch.device("cuda")
    )
    assert isinstance(loader, TensorBatches)
    batches = iter(loader)
    next(batches)  # the plan of an epoch is sent with its first batch
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = next(batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert {value.device.type for value in batch} == {"cuda"}
    assert (batch.inputs.dtype, batch.inputs.shape) == (torch.uint8, (8, 1, 28, 28))


def test_in_order_is_complete() -> None:
    images = an_image_set()
    for held in (None, images.in_memory()):
        batches = list(in_order(images, batch_size=16, held=held))
        assert [len(batch.labels) for batch in batches] == [16, 16, 8]
        assert torch.cat([batch.position for batch in batches]).tolist() == list(range(40))


def test_bad_batches_are_sentences() -> None:
    labels = torch.arange(100) % 5
    for arguments, sentence in [
        ({"batch_size": 32, "per_class": 3}, "must divide batch_size 32"),
        ({"batch_size": 64, "per_class": 4}, "at least 13"),
        ({"batch_size": 7}, "cannot be filled evenly"),
    ]:
        with pytest.raises(InputError, match=sentence):
            BalancedBatches(labels, **arguments)
    with pytest.raises(InputError, match="at least 2 classes"):
        BalancedBatches(torch.zeros(50), batch_size=8)
    with pytest.raises(InputError, match="multiple of the 3 processes"):
        BalancedBatches(labels, batch_size=20).epoch(0, world_size=3)


def test_bad_transforms_are_sentences() -> None:
    for augment, sentence in [
        (["RandomHorizontalFlop"], "did you mean 'RandomHorizontalFlip'"),
        ([{"RandomRotation": {"angle": 3}}], "does not take"),
        ("crop-flop", "did you mean 'crop-flip'"),
    ]:
        with pytest.raises(InputError, match=sentence):
            Preparation(channels=1, size=28, augment=augment)
    with pytest.raises(InputError, match=r"needs data\.size"):
        Preparation(channels=1, augment="crop-flip")


def test_files_without_a_size_are_refused(tmp_path) -> None:
    from doubtless.runs.data import native_size

    wide = tensor_source("wide", torch.zeros(4, 8, 9, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(InputError, match="8×9"):
        native_size(wide)
