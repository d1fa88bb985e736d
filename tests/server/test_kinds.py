"""Kinds of pictures that are sent: AVIF and HEIC are answered as by a gallery, and damaged ones are sentences."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from doubtless.data import images
from doubtless.data.images import KINDS, uploaded_kinds
from doubtless.server.page.layout import _picker
from doubtless.server.service import decoder
from doubtless.server.service.decoder import Limits, decode
from doubtless.server.service.errors import ImageError, LargeImageError, UnsupportedImageError
from doubtless.server.service.service import Service
from tests.server.asking import check_problem, send


def written(kind: str, *, width: int = 32, height: int = 24, frames: int = 1) -> bytes:
    """A picture of noise; skipped where nothing here writes its kind."""
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    elif not features.check("avif"):
        pytest.skip("This Pillow knows no AVIF.")
    draw = np.random.default_rng(0)
    first, *others = [
        Image.fromarray(draw.integers(0, 255, (height, width, 3), dtype=np.uint8)) for _ in range(frames)
    ]
    file = io.BytesIO()
    first.save(file, kind, save_all=frames > 1, append_images=others)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_they_are_answered_kept_and_shown(service: Service, kind: str) -> None:
    data = written(kind)
    answer = send(service, "POST", "/v1/search", files={"image": ("x.jpg", data)})
    assert answer.status_code == 200, answer.text
    assert answer.json()["hits"]
    made = send(service, "POST", "/v1/items", files={"image": data}, data={"id": "new", "label": "class-0"})
    assert made.status_code == 201, made.text
    shown = send(service, "GET", "/v1/items/new/image")
    assert (shown.content, shown.headers["content-type"]) == (data, KINDS[kind].media_type)


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_one_cut_short_is_a_sentence(service: Service, kind: str, share: float) -> None:
    data = written(kind)
    answer = send(service, "POST", "/v1/search", files={"image": data[: int(len(data) * share)]})
    told = check_problem(answer, answer.status_code)
    assert answer.status_code in (415, 422)
    assert told["detail"].endswith(".")


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_limits_are_read_from_the_header(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(image: Image.Image) -> None:
        raise AssertionError("decoded")

    large, thin = written(kind, width=64, height=64), written(kind, width=1640, height=16)
    monkeypatch.setattr(decoder, "image_tensor", never)
    with pytest.raises(LargeImageError, match=r"64×64 pixels; at most [24],000"):
        decode(large, Limits(pixels=4000))
    with pytest.raises(ImageError, match="times the other"):
        decode(thin, Limits())


def test_a_header_of_a_bomb_is_refused() -> None:
    for kind in ("AVIF", "HEIF"):
        data = bytearray(written(kind))
        place = data.index(b"ispe") + 8
        data[place : place + 8] = struct.pack(">II", 30_000, 30_000)
        with pytest.raises(ImageError):
            decode(bytes(data), Limits())


@pytest.mark.parametrize(
    "entry", [b"infe\x02\0\0\0" + b"\0\x01" + b"\0\0grid", b"infe\x03\0\0\0" + b"\0\0\0\x01" + b"\0\0grid"]
)
def test_avif_of_tiles_is_refused_and_heic_of_tiles_is_not(entry: bytes) -> None:
    box = struct.pack(">I", 8 + len(entry)) + b"free" + entry
    with pytest.raises(ImageError, match="put together of tiles"):
        decode(written("AVIF") + box, Limits())
    assert tuple(decode(written("HEIF") + box, Limits()).pixels.shape) == (3, 24, 32)  # as telephones make it


def test_an_avif_lists_its_item_where_tiles_would_be_listed() -> None:
    as_tiles = written("AVIF").replace(b"av01", b"grid")
    assert decoder.TILED.search(as_tiles)


def test_of_several_frames_the_first_is_taken() -> None:
    found = decode(written("AVIF", frames=3), Limits())
    assert tuple(found.pixels.shape) == (3, 24, 32)


def test_heic_without_its_extra_is_a_sentence_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written("HEIF")
    without = {name: kind for name, kind in uploaded_kinds().items() if name != "HEIF"}
    monkeypatch.setattr(decoder, "uploaded_kinds", lambda: without)
    with pytest.raises(UnsupportedImageError, match="lacks the extra heic"):
        decode(data, Limits())


def test_what_is_taken_is_what_galleries_read_less_tiff_and_ppm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {name for name, kind in KINDS.items() if not kind.uploaded} == {"TIFF", "PPM"}
    monkeypatch.setattr(images, "_knows_heic", lambda: False)
    assert "HEIF" not in uploaded_kinds.__wrapped__()
    monkeypatch.setattr(images, "_knows_heic", lambda: True)
    assert "HEIF" in uploaded_kinds.__wrapped__()


def test_the_page_and_the_documentation_name_them() -> None:
    page = _picker([])
    said = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    for kind in uploaded_kinds().values():
        assert kind.name in page
        assert kind.media_type in page
        assert kind.name in said
