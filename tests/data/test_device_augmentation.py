"""Batched augmentation against torchvision's own functions, image by image, and against its draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp, kstest
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional

from doubtless.data.device_augmentation import (
    ORDERS,
    DeviceAugmentation,
    Draws,
    Erasing,
    Grayscale,
    Jitter,
    brighten,
    contrast,
    device_augmentation,
    gray,
    saturate,
    shift_hue,
)
from doubtless.data.device_geometry import (
    Fit,
    Flip,
    Geometric,
    PaddedCrop,
    ResizedCrop,
    Rotation,
    resample,
    whole_up_to,
)
from doubtless.data.prepare import PRESETS, Preparation
from doubtless.errors import InputError

CPU = torch.device("cpu")
BILINEAR = InterpolationMode.BILINEAR
EVERYTHING = [
    v2.RandomRotation(20),
    v2.RandomResizedCrop(24, scale=(0.3, 1.0)),
    v2.RandomCrop(24, padding=3),
    v2.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    v2.RandomGrayscale(p=0.3),
    v2.RandomHorizontalFlip(),
    v2.RandomErasing(p=0.5),
    v2.RandomVerticalFlip(),
]


def chance(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def photos(count: int, *frame: int, channels: int = 3, seed: int = 0) -> Tensor:
    """Floats of whole bytes, (count, channels, height, width)."""
    return (chance(count, channels, *frame, seed=seed) * 256).floor()


def column(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1)


def one_by_one(images: Tensor, change: Callable[[Tensor, int], Tensor]) -> Tensor:
    return torch.stack([change(image, number) for number, image in enumerate(images)])


def same_bytes_but_rarely(found: Tensor, expected: Tensor) -> None:
    """Equal, but where a value lies within rounding of a half."""
    apart = (found.int() - expected.int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 1e-3


# Each step alone


@settings(max_examples=40, deadline=None)
@given(
    high=st.integers(4, 30),
    wide=st.integers(4, 30),
    boxes=st.lists(st.tuples(*[st.floats(0, 0.999)] * 4), min_size=1, max_size=4),
)
def test_resized_crops_are_torchvisions(high: int, wide: int, boxes: list[tuple[float, ...]]) -> None:
    images = photos(len(boxes), high, wide)
    heights, widths = [1 + int(b[0] * high) for b in boxes], [1 + int(b[1] * wide) for b in boxes]
    tops = [int(b[2] * (high - h + 1)) for b, h in zip(boxes, heights, strict=True)]
    lefts = [int(b[3] * (wide - w + 1)) for b, w in zip(boxes, widths, strict=True)]
    step = ResizedCrop((30, 33), (0.1, 1.0), (0.75, 1.33))
    parameters = tuple(column(*map(float, values)) for values in (tops, lefts, heights, widths))
    expected = one_by_one(
        images,
        lambda image, i: functional.resized_crop(
            image, tops[i], lefts[i], heights[i], widths[i], [30, 33], antialias=True
        ),
    )
    torch.testing.assert_close(resample(images, [(step, parameters)]), expected, atol=5e-3, rtol=0)


def test_fitting_is_torchvisions_resize() -> None:
    images = photos(3, 20, 20)
    expected = functional.resize(images, [28, 28], antialias=True)
    torch.testing.assert_close(resample(images, [(Fit((28, 28)), ())]), expected, atol=5e-3, rtol=0)


@pytest.mark.parametrize("frame", [(24, 24), (17, 30)])
def test_rotations_are_torchvisions(frame: tuple[int, int]) -> None:
    images, angles = photos(8, *frame), [0.0, 1.0, -10.0, 30.0, 90.0, 135.0, 180.0, -200.0]
    found = resample(images, [(Rotation((-180, 180), 0.0), (column(*angles),))])
    for image, angle, turned in zip(images, angles, found, strict=True):
        # Not through `rotate` alone: at right angles it turns rather than samples, which must not matter.
        expected = functional.rotate(
            image, angle, interpolation=BILINEAR, center=[frame[1] / 2, frame[0] / 2]
        )
        torch.testing.assert_close(turned, expected, atol=1e-2, rtol=0)


def test_what_a_rotation_uncovers_is_filled() -> None:
    images = photos(3, 20, 20)
    step, angle = Rotation((-45, 45), 200.0), column(10.0, -33.0, 45.0)
    found = resample(images, [(step, (angle,))])
    wide = functional.pad(images, [20], fill=200.0)  # what is uncovered is there already
    expected = resample(wide, [(Rotation((-45, 45), 0.0), (angle,))])
    torch.testing.assert_close(found, functional.center_crop(expected, [20, 20]), atol=1e-2, rtol=0)


@pytest.mark.parametrize(("upright", "turn"), [(False, functional.hflip), (True, functional.vflip)])
def test_flips_are_exact(upright: bool, turn: Callable[[Tensor], Tensor]) -> None:
    images = photos(4, 19, 28)
    flips = column(1.0, 0.0, 0.0, 1.0) > 0
    found = resample(images, [(Flip(0.5, upright=upright), (flips,))])
    expected = one_by_one(images, lambda image, i: turn(image) if flips[i] else image)
    assert torch.equal(found.round(), expected)


@pytest.mark.parametrize("fill", [0.0, 130.0])
def test_padded_crops_are_exact(fill: float) -> None:
    images, tops, lefts = photos(4, 28, 28), [0, 3, 8, 5], [7, 8, 0, 2]
    step = PaddedCrop((26, 25), (1, 10, 4, 6), fill)
    found = resample(images, [(step, (column(*tops), column(*lefts)))])
    expected = one_by_one(
        images,
        lambda image, i: functional.crop(
            functional.pad(image, [1, 4, 10, 6], fill=fill), tops[i], lefts[i], 26, 25
        ),
    )
    assert step.room((28, 28)) == (12, 14)
    assert torch.equal(found.round(), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("part", "expected", "factors"),
    [
        (brighten, functional.adjust_brightness, [0.0, 0.4, 1.0, 1.7]),
        (contrast, functional.adjust_contrast, [0.0, 0.4, 1.0, 1.7]),
        (saturate, functional.adjust_saturation, [0.0, 0.4, 1.0, 1.7]),
        (shift_hue, functional.adjust_hue, [-0.5, -0.1, 0.0, 0.4]),
    ],
)
def test_colours_are_torchvisions(part: Any, expected: Any, factors: list[float], channels: int) -> None:
    images = photos(4, 16, 16, channels=channels)
    images[:, :, 0] = images[:, :1, 0]  # gray has no hue
    images[:, :, 1] = images[:, :, 1].clamp(100, 101)  # ties among channels
    images[:, :, 2, ::2], images[:, :, 2, 1::2] = 0.0, 255.0
    found = part(images, torch.tensor(factors).view(-1, 1, 1, 1))
    wanted = one_by_one(images, lambda image, i: expected(image / 255, factors[i]) * 255)
    torch.testing.assert_close(found, wanted, atol=2e-2, rtol=0)


def test_gray_is_torchvisions() -> None:
    images = photos(2, 8, 8)
    torch.testing.assert_close(gray(images), functional.rgb_to_grayscale(images), atol=1e-3, rtol=0)
    found = Grayscale(0.5).apply(images, torch.tensor([[0.4], [0.5]]), ORDERS[0])
    torch.testing.assert_close(found[0], gray(images)[0].expand(3, -1, -1))
    assert torch.equal(found[1], images[1])


def test_erasing_is_torchvisions() -> None:
    images, step = photos(64, 20, 26), Erasing(0.8, (0.02, 0.33), (0.3, 3.3), 77.0)
    draws = chance(64, step.draws)
    boxes = torch.cat(step.parameters(draws, (20, 26)), dim=1).int().tolist()
    assert {height == 0 for _, _, height, _ in boxes} == {True, False}
    expected = one_by_one(images, lambda image, i: functional.erase(image, *boxes[i], v=torch.tensor(77.0)))
    assert torch.equal(step.apply(images, draws, ORDERS[0]), expected)


# Several steps at once

RIGHT_ANGLE = (Rotation((-180, 180), 0.0), (column(90.0, -90.0),))
WINDOW = (PaddedCrop((24, 24), (4, 4, 4, 4), 0.0), (column(0.0, 7.0), column(8.0, 3.0)))
MIRROR = (Flip(0.5, upright=False), (column(1.0, 0.0) > 0,))
ZOOM = (
    ResizedCrop((24, 24), (0.1, 1.0), (0.5, 2.0)),
    (column(3.0, 0.0), column(0.0, 9.0), column(12.0, 24.0), column(20.0, 11.0)),
)
TURN = (Rotation((-180, 180), 0.0), (column(30.0, -50.0),))


def through_torchvision(image: Tensor, number: int, steps: list[tuple[Geometric, Any]]) -> Tensor:
    for step, parameters in steps:
        values = [float(value[number]) for value in parameters]
        if isinstance(step, Rotation):
            image = functional.rotate(image, values[0], interpolation=BILINEAR)
        elif isinstance(step, Flip):
            image = functional.hflip(image) if values[0] else image
        elif isinstance(step, PaddedCrop):
            image = functional.crop(functional.pad(image, [4]), *map(int, values), 24, 24)
        else:
            image = functional.resized_crop(image, *map(int, values), [24, 24], antialias=True)
    return image


@pytest.mark.parametrize(
    "steps",
    [
        [WINDOW, RIGHT_ANGLE, MIRROR, ZOOM],  # each keeps pixels whole but one: no second blur in torchvision
        [ZOOM, MIRROR, RIGHT_ANGLE, WINDOW],
        [WINDOW, TURN, MIRROR, WINDOW],
        [RIGHT_ANGLE, WINDOW, WINDOW, TURN, WINDOW],
    ],
)
def test_a_run_of_steps_is_one_after_the_other(steps: list[tuple[Geometric, Any]]) -> None:
    images = photos(2, 24, 24)
    expected = one_by_one(images, lambda image, number: through_torchvision(image, number, steps))
    torch.testing.assert_close(resample(images, steps), expected, atol=2e-2, rtol=0)


def test_a_whole_augmentation_is_torchvisions_with_the_same_draws() -> None:
    augmentation = device_augmentation(
        [v2.RandomResizedCrop(24, scale=(0.2, 0.7)), v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], size=24
    )
    assert augmentation is not None
    images = photos(16, 24, 24).to(torch.uint8)
    draws = augmentation.draw(16, seed=1, epoch=2, step=3, device=CPU)
    crop, jitter = augmentation.steps
    boxes = torch.cat(crop.parameters(draws.numbers[:, : crop.draws], (24, 24)), dim=1)
    boxes = boxes.squeeze(-1).int().tolist()
    factors = [
        low + draws.numbers[:, crop.draws + part] * (high - low)
        for part, (low, high) in enumerate(jitter.ranges)
    ]
    adjust = [
        functional.adjust_brightness,
        functional.adjust_contrast,
        functional.adjust_saturation,
        functional.adjust_hue,
    ]

    def expected(image: Tensor, number: int) -> Tensor:
        image = functional.resized_crop(image / 255, *boxes[number], [24, 24], antialias=True)
        for part in draws.order:
            image = adjust[part](image, float(factors[part][number]))
        return (image * 255).round().to(torch.uint8)

    same_bytes_but_rarely(augmentation.apply(images, draws), one_by_one(images, expected))


def test_flips_join_the_sampling_before_colours() -> None:
    jitter, flip = Jitter(((0.6, 1.4),) * 3 + ((-0.1, 0.1),)), Flip(0.5, upright=False)
    place = device_augmentation(Preparation(channels=3, size=24, augment="place").augmentation, size=24)
    assert place is not None
    assert [type(step) for step in place.steps] == [Rotation, ResizedCrop, Flip, Jitter]
    images, numbers = photos(8, 24, 24).to(torch.uint8), chance(8, 5)
    after = DeviceAugmentation([jitter, flip], size=24).apply(images, Draws(numbers, ORDERS[5]))
    before = DeviceAugmentation([flip, jitter], size=24).apply(
        images, Draws(numbers[:, [4, 0, 1, 2, 3]], ORDERS[5])
    )
    same_bytes_but_rarely(before, after)


def test_a_larger_image_is_cropped_and_resized_at_once() -> None:
    whole = device_augmentation([v2.RandomResizedCrop(28, scale=(1, 1), ratio=(1, 1))], size=28)
    assert whole is not None
    assert whole.largest_side == 32
    across = torch.linspace(0, 248, 32).expand(2, 3, 32, 32).round().to(torch.uint8)
    expected = functional.resize(across, [28, 28], antialias=True)
    found = whole(across, seed=0, epoch=0, step=0)
    assert (found.int() - expected.int()).abs().max() <= 1  # a ramp needs no smoothing


# Distributions

LEVEL = 1e-3 / 40  # one in a thousand for the 40 comparisons together


def torchvisions_draws(transform: Any, frame: tuple[int, int], count: int) -> list[dict[str, Any]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return [transform.make_params([torch.zeros(3, *frame)]) for _ in range(count)]


@pytest.mark.parametrize("frame", [(64, 64), (40, 90)])
@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.08, 1.0), (0.75, 4 / 3)), ((0.5, 1.3), (0.5, 2.0)), ((0.9, 1.1), (0.3, 2.0))]
)
def test_crops_are_drawn_as_torchvision_draws_them(
    frame: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    step = ResizedCrop((64, 64), scale, ratio)
    boxes = torch.cat(step.parameters(chance(10_000, step.draws), frame), dim=1).squeeze(-1)
    expected = torch.tensor(
        [
            [float(box[name]) for name in ("top", "left", "height", "width")]
            for box in torchvisions_draws(v2.RandomResizedCrop(64, scale, ratio), frame, 2000)
        ]
    )
    top, left, height, width = boxes.T
    assert ((top >= 0) & (top + height <= frame[0]) & (height >= 1)).all()
    assert ((left >= 0) & (left + width <= frame[1]) & (width >= 1)).all()
    for found, wanted in zip(_features(boxes), _features(expected), strict=True):
        assert ks_2samp(found, wanted).pvalue > LEVEL


def _features(boxes: Tensor) -> list[Tensor]:
    top, left, height, width = boxes.T
    return [height * width, height / width, top, left]


def test_crops_that_never_fit_are_the_middle() -> None:
    for frame in [(64, 64), (30, 90), (90, 30), (31, 64)]:
        for scale, ratio in [((4.0, 5.0), (0.75, 4 / 3)), ((4.0, 5.0), (2.0, 3.0))]:
            step = ResizedCrop((64, 64), scale, ratio)
            found = torch.cat(step.parameters(chance(3, step.draws), frame), dim=1).squeeze(-1)
            (box,) = torchvisions_draws(v2.RandomResizedCrop(64, scale, ratio), frame, 1)
            assert found.tolist() == [[box["top"], box["left"], box["height"], box["width"]]] * 3


@pytest.mark.parametrize(
    ("scale", "ratio"), [((0.02, 0.33), (0.3, 3.3)), ((0.5, 1.0), (0.2, 1.0)), ((1, 1), (1, 1))]
)
def test_erasing_is_drawn_as_torchvision_draws_it(
    scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    step, frame = Erasing(1.0, scale, ratio, 0.0), (40, 60)
    boxes = torch.cat(step.parameters(chance(10_000, step.draws), frame), dim=1)
    drawn = torchvisions_draws(v2.RandomErasing(1.0, scale, ratio), frame, 2000)
    expected = torch.tensor(
        [[box["i"], box["j"], box["h"], box["w"]] if box["v"] is not None else [0, 0, 0, 0] for box in drawn]
    )
    nothing = (boxes[:, 2] == 0).float().mean(), (expected[:, 2] == 0).float().mean()
    assert abs(nothing[0] - nothing[1]) < 0.02
    erased, wanted = boxes[boxes[:, 2] > 0], expected[expected[:, 2] > 0].float()
    assert (erased[:, :2] + erased[:, 2:] <= torch.tensor(frame)).all()
    for one, other in zip(_features(erased), _features(wanted), strict=True):
        if len(erased) and len(wanted):
            assert ks_2samp(one, other).pvalue > LEVEL


def test_plain_draws_are_uniform() -> None:
    numbers = chance(10_000, 2)
    (angles,) = Rotation((-20, 50), 0.0).parameters(numbers[:, :1], (28, 28))
    assert kstest(angles.flatten(), "uniform", args=(-20, 70)).pvalue > LEVEL
    (flips,) = Flip(0.3, upright=False).parameters(numbers[:, :1], (28, 28))
    assert abs(float(flips.float().mean()) - 0.3) < 4 * math.sqrt(0.21 / 10_000)
    tops, lefts = PaddedCrop((28, 28), (4, 4, 3, 3), 0.0).parameters(numbers, (28, 28))
    for offsets, places in ((tops, 7), (lefts, 9)):
        counts = torch.bincount(offsets.flatten().long(), minlength=places)
        assert len(counts) == places
        assert ((counts - 10_000 / places).abs() < 4 * math.sqrt(10_000 / places)).all()
    orders = [
        DeviceAugmentation([], size=8).draw(1, seed=0, epoch=0, step=step, device=CPU).order
        for step in range(2400)
    ]
    counts = torch.tensor([orders.count(order) for order in ORDERS])
    assert ((counts - 100).abs() < 45).all()


def test_the_largest_draw_stays_in_range() -> None:
    almost_one = torch.tensor([1 - 2**-24])
    for end in (0, 6, 256, 1024):
        assert whole_up_to(almost_one, end).item() == end
        assert whole_up_to(almost_one, torch.tensor([float(end)])).item() == end


# The whole


def test_draws_are_fixed_by_seed_epoch_and_step() -> None:
    augmentation = device_augmentation(EVERYTHING, size=24)
    assert augmentation is not None
    images = photos(8, 27, 27).to(torch.uint8)
    first = augmentation(images, seed=1, epoch=2, step=3)
    torch.manual_seed(99)
    assert torch.equal(augmentation(images, seed=1, epoch=2, step=3), first)
    for other in [
        {"seed": 2, "epoch": 2, "step": 3},
        {"seed": 1, "epoch": 3, "step": 2},
        {"seed": 1, "epoch": 2, "step": 4},
    ]:
        assert not torch.equal(augmentation(images, **other), first)


def test_augmentation_leaves_the_global_generator_alone() -> None:
    augmentation = device_augmentation(EVERYTHING, size=24)
    assert augmentation is not None
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    augmentation(photos(4, 24, 24).to(torch.uint8), seed=0, epoch=0, step=0)
    assert torch.equal(torch.rand(1), expected)


def test_processes_share_the_draws_of_a_batch() -> None:
    augmentation = device_augmentation(EVERYTHING, size=24)
    assert augmentation is not None
    images = photos(12, 24, 24).to(torch.uint8)
    whole = augmentation(images, seed=0, epoch=1, step=2)
    shares = [
        augmentation(share, seed=0, epoch=1, step=2, rank=rank, world_size=3)
        for rank, share in enumerate(images.chunk(3))
    ]
    assert torch.equal(torch.cat(shares), whole)


def test_images_of_a_batch_differ_and_are_bytes_of_the_size() -> None:
    augmentation = device_augmentation(EVERYTHING, size=24)
    assert augmentation is not None
    for channels in (1, 3):
        images = photos(1, 26, 26, channels=channels).to(torch.uint8).expand(16, -1, -1, -1)
        found = augmentation(images, seed=0, epoch=0, step=0)
        assert (found.dtype, found.shape) == (torch.uint8, (16, channels, 24, 24))
        assert len(torch.unique(found.flatten(1), dim=0)) == 16


@settings(max_examples=30, deadline=None)
@given(value=st.integers(0, 255), step=st.integers(0, 1000), side=st.integers(24, 27))
def test_uniform_images_stay_uniform(value: int, step: int, side: int) -> None:
    filled = {"fill": value}
    augmentation = device_augmentation(
        [
            v2.RandomRotation(90, **filled),
            v2.RandomResizedCrop(24, scale=(0.1, 1.0)),
            v2.RandomCrop(24, padding=5, **filled),
            v2.RandomHorizontalFlip(),
            v2.RandomErasing(value=value),
        ],
        size=24,
    )
    assert augmentation is not None
    images = torch.full((8, 3, side, side), value, dtype=torch.uint8)
    assert (augmentation(images, seed=0, epoch=0, step=step) == value).all()
    jitter = device_augmentation([v2.RandomResizedCrop(24), v2.ColorJitter(0.5, 0.5, 0.5, 0.5)], size=24)
    assert jitter is not None
    jittered = jitter(images, seed=0, epoch=0, step=step)
    assert (jittered == jittered[:, :1, :1, :1]).all()


@pytest.mark.parametrize("size", [12, 28, 33, 224])
def test_steps_that_do_nothing_give_the_very_bytes(size: int) -> None:
    nothing = DeviceAugmentation(
        [
            Rotation((0, 0), 9.0),
            ResizedCrop((size, size), (1, 1), (1, 1)),
            PaddedCrop((size, size), (0, 0, 0, 0), 9.0),
            Flip(0.0, upright=True),
            Jitter(((1, 1), (1, 1), (1, 1), (0, 0))),
            Grayscale(0.0),
            Erasing(0.0, (0.1, 0.3), (0.3, 3.3), 9.0),
            Fit((size, size)),
        ],
        size=size,
    )
    images = photos(4, size, size).to(torch.uint8)
    assert torch.equal(nothing(images, seed=0, epoch=0, step=0), images)


def test_presets_have_a_batched_version() -> None:
    for name in PRESETS:
        steps = Preparation(channels=3, size=28, augment=name).augmentation
        augmentation = device_augmentation(steps, size=28)
        assert augmentation is not None
        assert (augmentation.largest_side, augmentation.counts_pixels) == (32, False)
    crop = device_augmentation([v2.RandomCrop(28, padding=4)], size=28)
    assert crop is not None
    assert (crop.largest_side, crop.counts_pixels) == (28, True)


def test_a_smaller_window_grows_to_the_size() -> None:
    augmentation = device_augmentation([v2.RandomCrop(20)], size=24)
    assert augmentation is not None
    images = photos(4, 24, 24).to(torch.uint8)
    draws = augmentation.draw(4, seed=0, epoch=0, step=0, device=CPU)
    crop = augmentation.steps[0]
    tops, lefts = (values.flatten().int().tolist() for values in crop.parameters(draws.numbers, (24, 24)))
    expected = one_by_one(
        images,
        lambda image, i: functional.resized_crop(image, tops[i], lefts[i], 20, 20, [24, 24], antialias=True),
    )
    assert (augmentation.apply(images, draws).int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize(
    "step",
    [
        v2.GaussianBlur(3),
        v2.RandomResizedCrop(28, interpolation=InterpolationMode.BICUBIC),
        v2.RandomResizedCrop(14),  # would be shrunk without smoothing
        v2.RandomResizedCrop((28, 40)),
        v2.RandomResizedCrop(64),
        v2.RandomRotation(10, expand=True),
        v2.RandomRotation(10, center=[0, 0]),
        v2.RandomRotation(10, fill=[1, 2, 3]),
        v2.RandomCrop(28, padding=4, padding_mode="reflect"),
        v2.RandomCrop(40),
        v2.RandomCrop(40, pad_if_needed=True),
        v2.RandomErasing(value="random"),
        v2.RandomErasing(value=[1, 2, 3]),
    ],
)
def test_what_has_no_batched_version_says_so(step: v2.Transform) -> None:
    assert device_augmentation([v2.RandomHorizontalFlip(), step], size=28) is None


def test_other_images_are_refused_in_a_sentence() -> None:
    augmentation = device_augmentation([v2.RandomHorizontalFlip()], size=28)
    assert augmentation is not None
    for images, sentence in [
        (torch.zeros(2, 1, 28, 28), "takes square uint8 images"),
        (torch.zeros(2, 1, 28, 27, dtype=torch.uint8), "takes square uint8 images"),
        (torch.zeros(2, 1, 32, 32, dtype=torch.uint8), "of side 28 to 28, got 32"),
    ]:
        with pytest.raises(InputError, match=sentence):
            augmentation(images, seed=0, epoch=0, step=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_and_cpu_agree() -> None:
    augmentation = device_augmentation(EVERYTHING, size=24)
    assert augmentation is not None
    images = photos(64, 27, 27).to(torch.uint8)
    draws = augmentation.draw(64, seed=0, epoch=0, step=0, device=CPU)
    on_gpu = augmentation.apply(images.cuda(), draws._replace(numbers=draws.numbers.cuda()))
    assert on_gpu.device.type == "cuda"
    apart = (on_gpu.cpu().int() - augmentation.apply(images, draws).int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.01
    again, other = (augmentation(images.cuda(), seed=0, epoch=0, step=step) for step in (0, 1))
    assert torch.equal(again, augmentation(images.cuda(), seed=0, epoch=0, step=0))
    assert not torch.equal(again, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_waits_for_the_gpu() -> None:
    augmentation = device_augmentation(EVERYTHING, size=24)
    assert augmentation is not None
    images = photos(16, 27, 27).to(torch.uint8).cuda()
    expected = augmentation(images, seed=0, epoch=0, step=1)  # whatever is set up once is set up here
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = augmentation(images, seed=0, epoch=0, step=1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)
