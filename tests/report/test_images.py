"""Pictures: what goes in comes out, the order is that of the uncertainty, bad arrays get a sentence."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from doubtless.errors import InputError
from doubtless.evaluation.result import QueryRecord
from doubtless.report.images import ImageLookup, data_uri, grid, most_and_least_certain


def decoded(uri: str) -> Image.Image:
    head, data = uri.split(",", 1)
    assert head in ("data:image/png;base64", "data:image/jpeg;base64")
    return Image.open(io.BytesIO(base64.b64decode(data)))


def record(uncertainty: list[float] | None, *, distance: list[float] | None = None) -> QueryRecord:
    q = len(uncertainty or distance or [])
    return QueryRecord(
        index=torch.arange(q),
        neighbor=torch.arange(q).flip(0),
        correct=torch.arange(q) % 2 == 0,
        uncertainty=None if uncertainty is None else torch.tensor(uncertainty),
        values={} if distance is None else {"baseline/distance": torch.tensor(distance)},
    )


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1), (20, 31, 3), (1, 1)])
def test_small_images_come_back_exactly(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(
        np.asarray(decoded(data_uri(image))), image.squeeze(2) if shape[2:] == (1,) else image
    )


def test_large_images_shrink_to_a_jpeg_of_the_same_proportions() -> None:
    uri = data_uri(np.full((300, 600, 3), 200, np.uint8))
    assert uri.startswith("data:image/jpeg")
    assert decoded(uri).size == (80, 40)
    assert np.asarray(decoded(uri)).mean() == pytest.approx(200, abs=2)


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4), np.uint8), np.zeros(4, np.uint8)],
)
def test_other_arrays_are_refused_with_a_sentence(image: np.ndarray) -> None:
    with pytest.raises(InputError, match="uint8 images of shape"):
        data_uri(image)


def test_order_is_by_uncertainty_and_each_list_starts_with_its_extreme() -> None:
    values = np.random.default_rng(1).permutation(100).astype(float).tolist()
    found = most_and_least_certain(record(values))
    assert found is not None
    source, most, least = found
    assert source == "uncertainty"
    assert [values[row] for row in most] == list(range(12))
    assert [values[row] for row in least] == list(range(99, 87, -1))


def test_points_are_ordered_by_distance_or_not_at_all() -> None:
    found = most_and_least_certain(record(None, distance=[0.3, 0.1, 0.2, 0.4]))
    assert found is not None
    assert "distance" in found[0]
    assert (found[1], found[2]) == ([1, 2], [3, 0])
    assert most_and_least_certain(record(None)) is None


@pytest.mark.parametrize("q", [1, 2, 5, 23, 24, 25])
def test_no_query_stands_in_both_lists(q: int) -> None:
    found = most_and_least_certain(record([float(place) for place in range(q)]))
    assert found is not None
    assert not set(found[1]) & set(found[2])
    assert len(found[1]) + len(found[2]) == min(q, 24)


def test_grid_shows_query_and_neighbour_with_a_sign_besides_the_colour() -> None:
    queries = np.arange(4, dtype=np.uint8)[:, None, None] * np.ones((4, 8, 8), np.uint8)
    gallery = ImageLookup.from_arrays(queries + 100, [1, 1, 0, 0])
    html = grid(
        record([0.1, 0.2, 0.3, 0.4]),
        [0, 1],
        images=ImageLookup.from_arrays(queries, [0, 1, 0, 1], gallery=gallery),
        names=["cat", "<dog>"],
    )
    shades = [int(np.asarray(decoded(uri))[0, 0]) for uri in re.findall(r'src="([^"]+)"', html)]
    assert shades == [0, 103, 1, 102]
    assert html.count("✓") == html.count("✗") == 1
    assert html.count('class="right"') == html.count('class="wrong"') == 1
    assert "<dog>" not in html
    assert "&lt;dog&gt;" in html
    assert html.count("alt=") == html.count("<img") == 4
