"""Kinds of image files and one limit on their size, for training, galleries and questions alike."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from doubtless.data import decode_image, images, open_source, pixels_of
from doubtless.data.prepare import Preparation, readable
from doubtless.data.streams.records import ImageRecord
from doubtless.errors import InputError
from doubtless.ingest.decode import decode
from doubtless.server.service.decoder import Limits
from tests.ingest.pictures import bomb


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 32, 3), dtype=np.uint8))


def heic() -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(picture()).save(file)
    return file.getvalue()


def test_heic_and_avif_are_read_everywhere(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.HEIC").write_bytes(heic())
    picture().save(tmp_path / "cat" / "b.avif")
    for file in sorted((tmp_path / "cat").iterdir()):
        assert decode_image(file).shape == (3, 24, 32)
        assert pixels_of(file.read_bytes()).shape == (3, 24, 32)
        assert readable(file) is None
    source = open_source(f"folder:{tmp_path}")
    assert (len(source), source.skipped) == (2, [])


def test_heic_without_its_extra_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = heic()
    monkeypatch.setattr(images, "_knows_heic", lambda: False)
    with pytest.raises(InputError, match=r"pip install 'doubtless\[heic\]'"):
        pixels_of(data)


def test_one_limit_on_pixels_for_all(tmp_path: Path) -> None:
    side = int(images.MAX_PIXELS**0.5) + 1
    (tmp_path / "large.png").write_bytes(bomb(side, side))
    (tmp_path / "larger.png").write_bytes(bomb(4 * side, side))
    for name in ("large.png", "larger.png"):
        file = tmp_path / name
        reasons = [readable(file), decode(ImageRecord(name, file), Preparation(channels=3, size=8))]
        with pytest.raises(InputError) as refused:
            decode_image(file)
        for reason in [*reasons, str(refused.value)]:
            assert f"more than the {images.MAX_PIXELS:,}" in str(reason)
    assert Limits().pixels < images.MAX_PIXELS  # of strangers less is taken


def test_one_limit_on_bytes_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.png"
    picture().save(file)
    monkeypatch.setattr(images, "MAX_BYTES", 100)
    with pytest.raises(InputError, match="more than the 100 that are read"):
        decode_image(file)
    with pytest.raises(InputError, match="more than the 100 that are read"):
        pixels_of(file.read_bytes())
    assert "more than the 100" in str(readable(file))
    assert "more than the 100" in str(decode(ImageRecord("a", file), Preparation(channels=3, size=8)))
