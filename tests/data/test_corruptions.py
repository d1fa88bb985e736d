"""Pictures are made as much worse as is said, and more of the same with more strength."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.data.corruptions import CORRUPTIONS, blur, crop, disturb, noise, occlude
from doubtless.errors import InputError


def picture(channels: int = 3, height: int = 30, width: int = 40, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (channels, height, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("name", CORRUPTIONS)
@settings(max_examples=20, deadline=None)
@given(
    strength=st.floats(0, 1),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 70),
    width=st.integers(1, 70),
)
def test_disturbed_pictures_stay_pictures(
    name: str, strength: float, channels: int, height: int, width: int
) -> None:
    image = picture(channels, height, width)
    before = image.clone()
    found = CORRUPTIONS[name](image, strength)
    assert found.shape == image.shape
    assert found.dtype == torch.uint8
    assert bool((image == before).all()), "the picture that was given must stay as it is"
    assert bool((found == CORRUPTIONS[name](image, strength)).all()), "the same twice"


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_nothing_at_zero_and_more_with_strength(name: str) -> None:
    image = picture()
    assert bool((CORRUPTIONS[name](image, 0.0) == image).all())
    away = [
        float((CORRUPTIONS[name](image, s).float() - image.float()).square().mean())
        for s in np.linspace(0, 1, 11)
    ]
    assert all(later > earlier for earlier, later in itertools.pairwise(away)), away


def test_blur_is_the_gaussian_mean() -> None:
    """Against a direct sum over the whole kernel, edges continued."""
    image, strength = picture(1, 12, 12), 0.5
    spread = strength * 0.12 * 12
    reach = max(1, round(3 * spread))
    offsets = torch.arange(-reach, reach + 1)
    weights = torch.exp(-(offsets.double() ** 2) / (2 * spread**2))
    weights /= weights.sum()
    for y, x in [(0, 0), (5, 7), (11, 3)]:
        rows, columns = (y + offsets).clamp(0, 11), (x + offsets).clamp(0, 11)
        expected = float(weights @ image[0].double()[rows][:, columns] @ weights)
        assert abs(float(blur(image, strength)[0, y, x]) - expected) <= 0.51


def test_noise_has_the_strength_it_says_and_grows_in_place() -> None:
    grey = torch.full((3, 64, 64), 128, dtype=torch.uint8)
    weak, strong = noise(grey, 0.2).float() - 128, noise(grey, 0.4).float() - 128
    assert abs(float(weak.std()) / 255 - 0.2 * 0.2) < 0.004
    assert bool((weak[0] == weak[1]).all()), "alike in all channels"
    moved = weak.abs() > 2
    assert bool((strong.sign() == weak.sign())[moved].all())
    assert not bool((noise(grey, 0.2) == noise(grey, 0.2, seed=1)).all())


def test_noise_of_a_photograph_survives_scaling_down() -> None:
    grey = torch.full((1, 512, 512), 128, dtype=torch.uint8)
    small = torch.nn.functional.avg_pool2d(noise(grey, 0.5).float(), 8)
    assert float(small.std()) > 0.9 * 0.5 * 0.2 * 255


@pytest.mark.parametrize("strength", [0.1, 0.4, 0.8, 1.0])
def test_occlusion_hides_the_share_it_says_and_nests(strength: float) -> None:
    black = torch.zeros(1, 80, 80, dtype=torch.uint8)
    hidden = occlude(black, strength) > 0
    assert abs(float(hidden.float().mean()) - 0.8 * strength) < 0.01
    assert bool((occlude(black, 1.0) > 0)[hidden].all())


def test_what_cannot_be_disturbed_is_said() -> None:
    with pytest.raises(InputError, match=r"between 0 and 1, got 1\.5"):
        blur(picture(), 1.5)
    with pytest.raises(InputError, match="uint8"):
        noise(picture().float(), 0.5)
    with pytest.raises(InputError, match="blur, noise, occlusion"):
        disturb(picture(), {"melt": 0.1})
    with pytest.raises(InputError, match=r"above 0 and up to 1, got 0"):
        crop(picture(), 0.0)


def test_every_picture_has_noise_and_blocks_of_its_own() -> None:
    black = torch.zeros(1, 40, 40, dtype=torch.uint8)
    for kind in ({"noise": 0.5}, {"occlusion": 0.5}):
        assert not bool((disturb(black + 90, kind, seed=1) == disturb(black + 90, kind, seed=2)).all())


@settings(max_examples=30, deadline=None)
@given(
    area=st.floats(0.01, 1),
    smaller=st.floats(0.1, 1),
    seed=st.integers(0, 50),
    height=st.integers(1, 60),
    width=st.integers(1, 60),
)
def test_a_crop_has_the_area_it_says_and_a_smaller_one_lies_inside(
    area: float, smaller: float, seed: int, height: int, width: int
) -> None:
    places = torch.arange(height * width).view(1, height, width)  # too many for bytes: cropped in two halves
    parts = [(places // 256).to(torch.uint8), (places % 256).to(torch.uint8)]

    def kept(share: float) -> set[int]:
        high, low = (crop(part, share, seed=seed).long() for part in parts)
        return set((high * 256 + low).flatten().tolist())

    assert len(kept(area)) == max(1, round(area**0.5 * height)) * max(1, round(area**0.5 * width))
    assert kept(area * smaller) <= kept(area)
    assert len(kept(1.0)) == height * width
