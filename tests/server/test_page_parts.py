"""What the page says and does to a picture, without a browser: sentences, disturbances, HTML."""

from __future__ import annotations

import base64
import io
import itertools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from doubtless.errors import InputError
from doubtless.evaluation.result import Curve
from doubtless.gallery.answer import Answer, AnswerHit
from doubtless.server.page.answer_view import (
    covering_sentence,
    covering_view,
    decision_sentence,
    decision_view,
    doubt_view,
    hits_view,
    near_tie,
    percent,
    score,
)
from doubtless.server.page.gallery_view import (
    BY_PROBABILITY,
    GalleryPicture,
    curves_view,
    extremes,
    gallery_view,
    map_view,
)
from doubtless.server.page.layout import page_head
from doubtless.server.page.question import CORRUPTIONS, blur, bytes_of, disturb, noise, occlude, shrunk
from doubtless.server.service.decoder import Limits
from doubtless.server.service.drift import DriftState


def hit(id: str, label: str | None, cosine: float, chance: float | None) -> AnswerHit:
    return AnswerHit(id, label, cosine, chance, 2 - 2 * cosine)


def answer(
    decision: Any,
    *hits: AnswerHit,
    parts: Mapping[str, float] | None = None,
    covering: tuple[str, ...] | None = None,
    warnings: tuple[str, ...] = (),
) -> Answer:
    first = hits[0].probability if hits else None
    return Answer(
        decision, hits, covering, None if first is None else 1 - first, parts or {}, "Why.", warnings
    )


SNEAKER, SANDAL = hit("s1", "Sneaker", 0.9, 0.97), hit("s2", "Sandal", 0.3, 0.02)
NEAR_SANDAL = hit("s2", "Sandal", 0.899, 0.45)
DRIFT = DriftState(True, 300, 0.4, 1e-9).sentence()
ZERO = {"image": 0.0, "model": 0.0, "gallery": 0.0, "distance": 0.0, "novelty": 0.0}


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("Sneaker, 97 % sure", answer("answer", SNEAKER, SANDAL)),
        ("item s9, 62 % sure", answer("answer", hit("s9", None, 0.8, 0.62))),
        ("Sneaker, more than 99 % sure", answer("answer", hit("a", "Sneaker", 1.0, 1.0))),
        (
            "Sneaker, score .83 (no probability before `doubtless calibrate`)",
            answer("answer", hit("a", "Sneaker", 0.834, None)),
        ),
        (
            "Sneaker, 97 % sure by a calibration that recent queries no longer fit",
            answer("answer", SNEAKER, warnings=(DRIFT,)),
        ),
        ("Sneaker, 97 % sure", answer("answer", SNEAKER, warnings=("Even the first 20 hits …",))),
        (
            "Nothing like this in the gallery",
            answer("not-in-gallery", SNEAKER, parts=ZERO | {"novelty": 0.9}),
        ),
        ("The gallery is empty", answer("not-in-gallery")),
        (
            "Not sure: two products are equally near, Sneaker and Sandal",
            answer("abstain", SNEAKER, NEAR_SANDAL),
        ),
        (
            "Not sure: two products are equally near, Sneaker and Sandal",
            answer("abstain", SNEAKER, NEAR_SANDAL, parts=ZERO | {"gallery": 0.6, "image": 0.5}),
        ),
        (
            "Not sure: two items are equally near",
            answer("abstain", hit("a", None, 0.7, 0.4), hit("b", None, 0.7, 0.4)),
        ),
        (
            "Not sure: the nearest items contradict each other",
            answer("abstain", SNEAKER, SANDAL, parts=ZERO | {"gallery": 0.6}),
        ),
        (
            "Not sure: the picture itself is too poor",
            answer("abstain", SNEAKER, NEAR_SANDAL, parts=ZERO | {"gallery": 0.5, "image": 0.6}),
        ),
        (
            "Not sure: the model is unsure about pictures like this",
            answer("abstain", SNEAKER, SANDAL, parts=ZERO | {"model": 0.3}),
        ),
        (
            "Not sure: even the nearest item is far away",
            answer("abstain", SNEAKER, SANDAL, parts=ZERO | {"distance": 0.3}),
        ),
        (
            "Not sure: this is unlike anything known",
            answer("abstain", SNEAKER, SANDAL, parts=ZERO | {"novelty": 0.3}),
        ),
        (
            "Not sure: the best guess, Sneaker, is only 41 % likely",
            answer("abstain", hit("a", "Sneaker", 0.9, 0.41), SANDAL),
        ),
        (
            "Not sure: Sneaker is 97 % likely, which is less than was asked for",
            answer("abstain", SNEAKER, SANDAL, parts=ZERO),
        ),
    ],
)
def test_decision_in_words(said: str, given: Answer) -> None:
    assert decision_sentence(given) == said


def test_two_of_one_product_are_no_tie() -> None:
    twin = hit("s7", "Sneaker", 0.9, 0.9)
    assert not near_tie([SNEAKER, twin])
    assert near_tie([SNEAKER, NEAR_SANDAL])
    assert not near_tie([SNEAKER, SANDAL])
    assert not near_tie([SNEAKER])


@given(st.floats(0, 1))
def test_percent_never_claims_certainty(chance: float) -> None:
    said = percent(chance)
    assert said not in {"0 %", "100 %"}
    number = float(re.findall(r"\d+", said)[0]) / 100
    assert abs(number - chance) <= 0.0101


def test_a_score_does_not_look_like_a_probability() -> None:
    assert [score(value) for value in (0.834, -0.2, 1.0, 0.0)] == [".83", "−.20", "1.00", ".00"]


def test_covering_set_in_words() -> None:
    both = answer("answer", SNEAKER, SANDAL, covering=("s1", "s2"))
    said = "Of pictures that have a match, 90 % have one in their set. Here it is the first 2 items."
    assert covering_sentence(both, confidence=0.9) == said
    alone = answer("answer", SNEAKER, covering=("s1",))
    assert covering_sentence(alone, confidence=0.5).endswith("Here it is the first item alone.")
    assert "do not promise" in covering_sentence(answer("answer", SNEAKER), confidence=0.99)
    bare = answer("answer", hit("a", "x", 0.5, None))
    assert "calibrate" in covering_sentence(bare, confidence=0.9)


# -- disturbances ------------------------------------------------------------------------------------


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
    with pytest.raises(InputError, match="blur, noise, occlude"):
        disturb(picture(), {"melt": 0.1})


# -- uploads -----------------------------------------------------------------------------------------


def test_only_data_addresses_are_read() -> None:
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "PNG")
    address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    assert bytes_of(address, Limits()) == file.getvalue()
    for bad in (None, "", "/etc/passwd", "http://127.0.0.1/x.png", "data:image/png,xx", "data:;base64,@@"):
        with pytest.raises(InputError, match="data address"):
            bytes_of(bad, Limits())
    with pytest.raises(InputError, match="bytes that are accepted"):
        bytes_of(address, Limits(upload=20))


def test_large_pictures_are_shrunk() -> None:
    assert shrunk(picture(3, 1280, 100)).shape == (3, 640, 50)
    assert shrunk(picture(3, 1, 2000)).shape == (3, 1, 640)
    assert shrunk(picture()).shape == (3, 30, 40)


# -- HTML --------------------------------------------------------------------------------------------

EVIL = '<img src=x onerror="alert(1)">`${1+1}{{value}}'


def test_nothing_from_the_index_is_markup() -> None:
    bad = hit(EVIL, EVIL, 0.9, 0.9)
    given = Answer("answer", (bad,), (EVIL,), 0.1, {"gallery": 0.1}, EVIL, (EVIL,))
    shown = (
        decision_view(given) + hits_view(given, {}) + covering_view(given, confidence=0.9) + doubt_view(given)
    )
    gallery = GalleryPicture(
        2, [EVIL, "b"], [EVIL, None], np.eye(2), np.array([0.1, 0.2]), BY_PROBABILITY, None, None, None, EVIL
    )
    shown += gallery_view(gallery, {})
    assert "<img" not in shown
    assert 'onerror="' not in shown


def test_frames_bars_and_the_covering_set() -> None:
    likely, maybe, hardly = (
        hit(name, name, cosine, chance)
        for name, cosine, chance in (("a", 0.9, 0.97), ("b", 0.8, 0.5), ("c", 0.1, 0.01))
    )
    shown = hits_view(answer("answer", likely, maybe, hardly, covering=("a", "b")), {"a": "data:,"})
    assert re.findall(r'class="hit (\w+)"', shown) == ["high", "middle", "low"]
    assert re.findall(r"width:([\d.]+)%", shown) == ["97.0", "50.0", "1.0"]
    assert shown.count("in the set") == 2
    assert shown.count("<img") == 1
    bare = hits_view(answer("answer", hit("a", "x", 0.83, None)), {})
    assert 'class="hit bare"' in bare
    assert "score .83" in bare
    assert "%</b>" not in bare


def test_covering_set_is_counted_by_label() -> None:
    hits = [hit(str(i), "Shirt" if i < 3 else "Coat", 0.9 - i / 10, 0.5) for i in range(5)]
    shown = covering_view(answer("answer", *hits, covering=("0", "1", "2", "3")), confidence=0.9)
    assert "Shirt <span>× 3</span>" in shown
    assert "<li>Coat</li>" in shown


def test_parts_of_the_doubt_are_bars_in_their_order() -> None:
    shown = doubt_view(answer("answer", SNEAKER, parts=ZERO | {"novelty": 0.25}))
    assert re.findall(r"<dt>(\w+)<", shown) == [
        "Image",
        "Model",
        "Gallery",
        "Distance",
        "Novelty",
        "Altogether",
    ]
    assert "width:25.0%" in shown
    assert doubt_view(answer("answer", hit("a", "x", 0.5, None))) == ""


def example_gallery(n: int = 30) -> GalleryPicture:
    rng = np.random.default_rng(0)
    return GalleryPicture(
        items=100,
        ids=[f"i{i}" for i in range(n)],
        names=[f"label {i % 3}" for i in range(n)],
        coordinates=rng.normal(size=(n, 2)) * [5, 1],
        doubt=rng.uniform(size=n),
        by=BY_PROBABILITY,
        sheet="data:,",
        reliability=Curve([0.5, 0.9], [0.4, 0.95], [0.5, 0.5]),
        risk_coverage=Curve([0.5, 1.0], [0.0, 0.1]),
        promise="At most 5.0% of answers are wrong.",
    )


def test_doubt_is_size_and_every_item_is_a_dot_inside() -> None:
    gallery = example_gallery()
    shown = map_view(gallery)
    places = re.findall(r'data-place="(\d+)" data-x="([\d.]+)" data-y="([\d.]+)"', shown)
    assert sorted(int(place) for place, _, _ in places) == list(range(30))
    assert all(0 < float(x) < 720 and 0 < float(y) < 520 for _, x, y in places)
    order = [int(place) for place, _, _ in places]
    assert order == sorted(order, key=lambda i: -gallery.doubt[i]), "large dots are drawn first"
    circles = {int(p): float(r) for p, r in re.findall(r'data-place="(\d+)"[^>]* r="([\d.]+)"', shown)}
    ranked = sorted(circles, key=lambda i: gallery.doubt[i])
    assert [circles[i] for i in ranked] == sorted(circles.values())
    assert "30 of 100 items" in shown


def test_extremes_do_not_overlap() -> None:
    gallery = example_gallery(9)
    most, least = extremes(gallery)
    assert not set(most) & set(least)
    assert max(gallery.doubt[most]) <= min(gallery.doubt[least])
    assert most[0] == int(gallery.doubt.argmin())
    assert least[0] == int(gallery.doubt.argmax())


def test_curves_are_drawn_or_said_to_be_missing() -> None:
    gallery = example_gallery()
    assert curves_view(gallery).count("<figure") == 2
    without = GalleryPicture(**{**vars(gallery), "reliability": None, "risk_coverage": None})
    assert "doubtless calibrate" in curves_view(without)
    assert "at least two items" in gallery_view(None, {})


def test_head_asks_nobody_for_anything() -> None:
    assert not re.search(r"https?://|@import|<link|src=", page_head())
