"""Images are resized, cropped and made grey as torchvision does, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as torchvision

from doubtless.data.geometry import grey, middle_square, short_side_to

sides = st.integers(1, 90)


@settings(max_examples=60, deadline=None)
@given(
    height=sides,
    width=sides,
    size=st.integers(2, 70),  # torch cannot make one pixel of a colour picture
    channels=st.sampled_from([1, 3]),
    floats=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_as_torchvision_does(
    height: int, width: int, size: int, channels: int, floats: bool, last: bool, seed: int
) -> None:
    shape = (height, width, channels) if last else (channels, height, width)
    image = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    image = image.permute(2, 0, 1) if last else image
    image = image.float() / 255 if floats else image
    expected = torchvision.resize(image, [size], interpolation=InterpolationMode.BILINEAR, antialias=True)
    found = short_side_to(image, size)
    assert torch.equal(found, expected)
    assert torch.equal(middle_square(found, size), torchvision.center_crop(expected, [size, size]))
    if channels == 3:
        assert torch.equal(grey(image), torchvision.rgb_to_grayscale(image, num_output_channels=1))


GREY = """
from pathlib import Path
import torch
from doubtless.data.geometry import grey

def most():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

grey(torch.zeros(3, 100, 100, dtype=torch.uint8))
image = torch.ones(3, 5000, 5000, dtype=torch.uint8)
before = most()
grey(image)
print(most() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="says by /proc what it takes")
def test_grey_takes_little_beside_a_large_picture() -> None:
    """Of 25 million pixels: as floats, 200 MB."""
    done = subprocess.run([sys.executable, "-c", GREY], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 70 * 1024


def test_grey_of_a_large_picture_is_that_of_its_parts() -> None:
    image = torch.randint(0, 256, (3, 3000, 3001), dtype=torch.uint8)
    assert torch.equal(grey(image), torchvision.rgb_to_grayscale(image, num_output_channels=1))
