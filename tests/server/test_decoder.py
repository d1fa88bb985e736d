"""Pictures of strangers: decoded in processes that can be ended, within one budget of pixels and of memory."""

from __future__ import annotations

import io
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features
from torch import Tensor

from doubtless.server.service import decoder as decoding
from doubtless.server.service.decoder import Decoder, Limits, decode
from doubtless.server.service.errors import (
    ImageError,
    LargeImageError,
    OverloadedError,
    UnsupportedImageError,
)
from doubtless.server.service.headers import declared_size
from doubtless.server.service.workers import BEHIND
from tests.server.hostile import FORMATS


def written(kind: str, mode: str = "RGB", *, width: int = 31, height: int = 20, **options: Any) -> bytes:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    shape = (height, width) if mode in ("L", "I;16") else (height, width, len(mode))
    values = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint16 if mode == "I;16" else np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind, **options)
    return file.getvalue()


def plain(side: int, kind: str = "WEBP") -> bytes:
    """A few bytes that become side² pixels."""
    file = io.BytesIO()
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    Image.new("RGB", (side, side), (9, 99, 199)).save(file, kind, **options)
    return file.getvalue()


def small(pixels: Tensor) -> Tensor:
    return pixels[:, :4, :4].clone()


def slow_jpeg() -> bytes:
    """A progressive JPEG that takes a good part of a second to decode."""
    return written("JPEG", width=3000, height=3000, progressive=True, quality=90)


@pytest.fixture
def one() -> Iterator[Decoder]:
    """Of one process."""
    made = Decoder(lambda pixels: pixels, workers=1)
    yield made
    made.close()


def test_another_process_finds_the_same_pixels(one: Decoder) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    files = [written(kind) for kind in FORMATS]
    files += [written("PNG", mode) for mode in ("L", "RGBA", "I;16")]
    files += [written("JPEG", exif=turned), written("WEBP", "RGBA", lossless=True), plain(40, "GIF")]
    for file in files:
        said, found = declared_size(file), Image.open(io.BytesIO(file))
        assert said == found.size or (found.format == "HEIF" and said == (64, 64))  # as it is coded
        here, there = decode(file, Limits()), one.submit(file).result(timeout=30)
        assert torch.equal(here.pixels, there.pixels)
        assert (here.media_type, here.suffix) == (there.media_type, there.suffix)


def test_what_cannot_be_decoded_is_the_same_sentence(one: Decoder) -> None:
    for data, error in (
        (b"text", UnsupportedImageError),
        (b"", UnsupportedImageError),
        (written("PNG")[:200], ImageError),
        (written("JPEG")[:80], ImageError),
        (written("PNG", width=3000, height=20), ImageError),
    ):
        with pytest.raises(error) as here:
            decode(data, Limits())
        with pytest.raises(error) as there:
            one.submit(data).result(timeout=30)
        assert str(here.value) == str(there.value)
    with pytest.raises(LargeImageError, match=r"30000×30000 pixels; at most 50,000,000"):
        one.submit(b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", 30_000, 30_000))


def test_a_process_knows_no_torch_and_ends_with_its_service(one: Decoder) -> None:
    one.submit(written("PNG")).result(timeout=30)
    number = one._processes[0].number
    assert "libtorch" not in Path(f"/proc/{number}/maps").read_text()
    one.close()
    until = time.monotonic() + 10
    while Path(f"/proc/{number}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{number}").exists()


def test_decoding_stops_when_its_time_is_over_and_others_go_on() -> None:
    slow, picture = slow_jpeg(), written("PNG")
    made = Decoder(small, Limits(seconds=0.15), workers=2)
    warm = [made.submit(picture) for _ in range(2)]
    assert [future.exception(timeout=30) for future in warm[1:]] in ([None], [warm[1].exception()])
    late = [made.submit(slow) for _ in range(3)]
    good = made.submit(picture)
    for future in late:
        with pytest.raises(ImageError, match=r"longer than 0\.15 s"):
            future.result(timeout=60)
    assert good.exception(timeout=60) is None or "longer" in str(good.exception())
    made.close()


def test_a_process_that_hangs_is_replaced(one: Decoder) -> None:
    picture = written("PNG")
    one.submit(picture).result(timeout=30)
    number = one._processes[0].number
    assert number is not None
    object.__setattr__(one.limits, "seconds", 1.0)
    os.kill(number, signal.SIGSTOP)
    with pytest.raises(ImageError, match="longer than 1 s"):
        one.submit(picture).result(timeout=30)
    object.__setattr__(one.limits, "seconds", 10.0)
    assert one.submit(picture).result(timeout=30).pixels.shape == (3, 20, 31)
    assert one._processes[0].number != number
    assert one.pending == 0


def test_a_picture_whose_process_is_killed_is_decoded_by_another(one: Decoder) -> None:
    """It is no fault of the picture. One that ends two processes is damaged."""
    one.submit(written("PNG")).result(timeout=30)
    numbers = []
    for kills in (1, 2):
        late = one.submit(slow_jpeg())
        for _ in range(kills):
            until = time.monotonic() + 20
            while (number := one._processes[0].number) in [None, *numbers] and time.monotonic() < until:
                time.sleep(0.002)
            assert number is not None
            time.sleep(0.1)  # it is at it
            os.kill(number, signal.SIGKILL)
            numbers.append(number)
        if kills == 1:
            assert late.result(timeout=30).pixels.shape == (3, 3000, 3000)
        else:
            with pytest.raises(ImageError, match="damaged"):
                late.result(timeout=30)
    assert one.submit(written("PNG")).result(timeout=30).pixels.shape == (3, 20, 31)
    assert one.pending == 0


def test_one_budget_is_shared_and_small_ones_go_first() -> None:
    side, done = 3000, []
    made = Decoder(small, Limits(together=10_000_000), workers=3)
    assert made.submit(written("PNG")).result(timeout=30)
    file, picture = plain(side, "PNG"), written("PNG")
    large = [made.submit(file) for _ in range(5)]
    small_one = made.submit(picture)
    for name, future in [("large", one) for one in large] + [("small", small_one)]:
        future.add_done_callback(lambda _, name=name: done.append(name))
    assert [future.result(timeout=60).pixels.tolist() for future in large] == [
        [[[value] * 4] * 4 for value in (9, 99, 199)]
    ] * 5
    small_one.result(timeout=60)
    assert done.index("small") <= 1  # those behind it were submitted before it
    assert side**2 <= made.budget.most <= 10_000_000
    made.close()


def niceness(number: int | None) -> int:
    assert number is not None
    return os.getpriority(os.PRIO_PROCESS, number)


def test_large_pictures_leave_processes_to_small_ones_and_yield_to_them() -> None:
    prepared: dict[bool, set[int]] = {True: set(), False: set()}
    here = os.getpriority(os.PRIO_PROCESS, 0)

    def noted(pixels: Tensor) -> Tensor:
        own = threading.get_native_id() if sys.platform == "linux" else 0
        prepared[pixels.shape[1] == 3000].add(os.getpriority(os.PRIO_PROCESS, own) - here)
        return small(pixels)

    made, file, picture = Decoder(noted, workers=3), plain(3000, "PNG"), written("PNG")
    made.submit(picture).result(timeout=30)
    large = [made.submit(file) for _ in range(8)]
    for _ in range(4):
        made.submit(picture).result(timeout=30)
    assert not all(future.done() for future in large)  # those that came later did not wait for them
    for future in large:
        assert future.result(timeout=60).pixels.shape == (3, 4, 4)
    assert made.budget.most < 2 * 3000**2  # one at a time
    started = [niceness(process.number) - here for process in made._processes if process.number is not None]
    assert started[0] == BEHIND
    assert prepared == {True: {BEHIND if sys.platform == "linux" else 0}, False: {0}}
    assert started[1:]
    assert not any(started[1:])
    numbers = [process.number for process in made._processes if process.number is not None]
    assert {os.getsid(number) for number in numbers} == {os.getsid(0)}  # else each gets as much as all of us
    assert os.getpgid(0) not in map(os.getpgid, numbers)  # whom Ctrl-C is for
    made.close()


def test_small_pictures_that_wait_for_a_large_one_go_before_the_next() -> None:
    """However long large ones are sent: where the budget has no room beside them, small ones come in between."""
    made, done = Decoder(small, Limits(together=16_000_000), workers=3), list[str]()
    file, picture = plain(3900, "PNG"), plain(1500, "PNG")
    made.submit(written("PNG")).result(timeout=30)
    kinds = [("large", file)] * 6 + [("small", picture)] * 2
    for name, data in kinds:
        made.submit(data).add_done_callback(lambda _, name=name: done.append(name))
    until = time.monotonic() + 60
    while len(done) < len(kinds) and time.monotonic() < until:
        time.sleep(0.01)
    assert done.count("large") == 6
    assert done.index("small") <= 2
    assert made.budget.most <= 16_000_000
    made.close()


def test_two_decoders_stay_within_one_budget() -> None:
    """As those who ask and those who look at thumbnails do."""
    first = Decoder(small, Limits(together=10_000_000), workers=2)
    second = Decoder(small, Limits(together=10_000_000), workers=2, budget=first.budget)
    file = plain(3000, "PNG")
    for future in [decoder.submit(file) for decoder in (first, second) * 3]:
        future.result(timeout=60)
    assert first.budget.most == 3000**2
    assert second.budget.pixels == first.budget.pixels == 0 or first.pending or second.pending
    first.close()
    second.close()


def test_a_jpeg_is_decoded_smaller_where_that_is_enough() -> None:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((1600, 1200)).convert("RGB").save(file, "JPEG", quality=95)
    whole, reduced = (Decoder(lambda pixels: pixels, workers=1, reduced=size) for size in (None, 300))
    large, less = (decoder.submit(file.getvalue()).result(timeout=30).pixels for decoder in (whole, reduced))
    assert large.shape == (3, 1200, 1600)
    assert less.shape == (3, 300, 400)
    torch.testing.assert_close(torch.nn.functional.avg_pool2d(large.float(), 4), less.float(), atol=3, rtol=0)
    whole.close()
    reduced.close()


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def prepare(pixels: Tensor) -> Tensor:
        assert go_on.wait(30)
        return pixels

    made, picture = Decoder(prepare, workers=1), written("PNG")
    first = made.submit(picture)
    until = time.monotonic() + 20
    while made._waiting and time.monotonic() < until:
        time.sleep(0.01)
    monkeypatch.setattr(decoding, "WAITING_BYTES", 3 * len(picture))
    others = [made.submit(picture) for _ in range(3)]
    with pytest.raises(OverloadedError, match="try again later") as told:
        made.submit(picture)
    assert told.value.status == 503
    monkeypatch.setattr(decoding, "PATIENCE", 0.0)
    assert others[0].cancel()
    go_on.set()
    first.result(timeout=30)
    for future in others[1:]:
        with pytest.raises(OverloadedError, match="try again later"):
            future.result(timeout=30)
    made.close()


def peak(number: int | None) -> int:
    """The most memory that a process had, in bytes."""
    (line,) = [line for line in Path(f"/proc/{number}/status").read_text().splitlines() if "VmHWM" in line]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
def test_an_avif_that_lies_about_its_size_gets_no_more_memory_than_it_says(one: Decoder) -> None:
    if not features.check("avif"):
        pytest.skip("This Pillow knows no AVIF.")
    file = io.BytesIO()
    Image.new("RGB", (12_000, 12_000)).save(file, "AVIF", speed=10, subsampling="4:4:4")
    data = bytearray(file.getvalue())
    place = data.index(b"ispe") + 8
    data[place : place + 8] = struct.pack(">II", 64, 64)
    one.submit(written("PNG")).result(timeout=30)
    with pytest.raises(ImageError):
        one.submit(bytes(data)).result(timeout=60)
    one.submit(written("PNG")).result(timeout=30)
    assert peak(one._processes[0].number) < 400 << 20


@pytest.mark.slow
def test_a_bomb_within_the_limits_leaves_the_service_its_memory() -> None:
    """A few bytes of WebP with 7,071² pixels took 1.5 GB, twelve at once 5 to 11; so many are refused now."""
    made, bomb = Decoder(small, workers=3), plain(4999)
    with pytest.raises(LargeImageError, match=r"7071×7071 pixels; at most 25,000,000"):
        made.submit(plain(7071))
    assert len(bomb) < 2000
    before = peak(os.getpid())
    futures = [made.submit(bomb) for _ in range(12)]
    numbers, most = set(), 0
    while not all(future.done() for future in futures):
        numbers |= {process.number for process in made._processes} - {None}
        with_them = 0
        for number in numbers:
            try:
                pages = int(Path(f"/proc/{number}/statm").read_text().split()[1])
            except OSError:
                continue
            with_them += pages * os.sysconf("SC_PAGE_SIZE")
        most = max(most, with_them)
        time.sleep(0.02)
    assert all(
        future.exception() is None or isinstance(future.exception(), OverloadedError) for future in futures
    )
    print(f"processes together {most >> 20} MB, this one {(peak(os.getpid()) - before) >> 20} MB more")
    assert most < 600 << 20
    assert peak(os.getpid()) - before < 400 << 20
    made.close()
