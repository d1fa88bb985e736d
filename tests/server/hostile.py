"""Uploads that are not what they should be, by the hundred: (method, address, request) from a seed."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from doubtless.data.images import uploaded_kinds
from tests.ingest.pictures import bomb

FORMATS = tuple(uploaded_kinds())
"""By Pillow's names: what can be decoded here can be written too."""
Request = tuple[str, str, dict[str, Any]]


def picture(draw: random.Random, *, size: int = 24, kind: str | None = None) -> bytes:
    """A good image file of random pixels."""
    file, pixels = (
        io.BytesIO(),
        np.random.default_rng(draw.randrange(2**32)).integers(0, 256, (size, size, 3)),
    )
    Image.fromarray(pixels.astype(np.uint8)).save(file, kind or draw.choice(FORMATS))
    return file.getvalue()


def truncated(draw: random.Random) -> bytes:
    data = picture(draw)
    return data[: draw.randrange(len(data))]


def flipped(draw: random.Random) -> bytes:
    data = bytearray(picture(draw))
    for _ in range(draw.choice([1, 5, 100])):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def enormous(draw: random.Random) -> bytes:
    if draw.random() < 0.5:
        return bomb(draw.choice([2**31 - 1, 60_000, 10**6]), draw.choice([1, 60_000, 2**31 - 1]))
    data = bytearray(picture(draw, kind=draw.choice(["BMP", "GIF"])))
    if data[:2] == b"BM":
        data[18:26] = struct.pack("<ii", draw.choice([2**31 - 1, 50_000]), draw.choice([50_000, -(2**31)]))
    else:
        data[6:10] = data[draw.randrange(14) :][:4] = struct.pack("<HH", 65_535, 65_535)
    return bytes(data)


def thin(draw: random.Random) -> bytes:
    file = io.BytesIO()
    Image.new("L", draw.choice([(1, 100_000), (200_000, 3)])).save(file, "PNG")
    return file.getvalue()


def other_type(draw: random.Random) -> bytes:
    kinds: list[Callable[[], bytes]] = [
        lambda: b"",
        lambda: draw.randbytes(draw.choice([1, 10, 1000])),
        lambda: b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        lambda: b"%PDF-1.7\n%%EOF",
        lambda: b"GIF89a",
        lambda: b"\x89PNG\r\n\x1a\n" + draw.randbytes(50),
        lambda: b"\xff\xd8\xff\xe0" + draw.randbytes(200),
        lambda: b"RIFF\xff\xff\xff\xffWEBPVP8 " + draw.randbytes(100),
        lambda: b"cos\nsystem\n(S'true'\ntR.",
    ]
    if draw.random() < 0.3:
        file = io.BytesIO()
        Image.new("RGB", (5, 5)).save(file, draw.choice(["TIFF", "PPM", "ICO", "TGA"]))
        return file.getvalue()
    return draw.choice(kinds)()


def bad_location(draw: random.Random) -> str:
    """JSON text of numbers that are no embedding of dimension 8."""
    return draw.choice(
        [
            "[NaN, 1, 1, 1, 1, 1, 1, 1]", "[Infinity, 1, 1, 1, 1, 1, 1, 1]", "[1e999, 1, 1, 1, 1, 1, 1, 1]",
            "[1e300, 1, 1, 1, 1, 1, 1, 1]", "[3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38, 3e38]",
            "[0, 0, 0, 0, 0, 0, 0, 0]",
            "[1e-300, 0, 0, 0, 0, 0, 0, 0]", "[1, 2, 3]", "[]", "null", "7", '"1"', "{}",
            json.dumps([1.0] * 9), json.dumps([1.0] * 100_000), "[[1, 2], [3, 4]]", '["a", 1, 1, 1, 1, 1, 1, 1]',
            "[true, 1, 1, 1, 1, 1, 1, 1]", f"[1{'0' * 5000}, 1, 1, 1, 1, 1, 1, 1]", "[null, 1, 1, 1, 1, 1, 1, 1]",
        ]
    )  # fmt: skip


def broken_json(draw: random.Random) -> bytes:
    location = bad_location(draw)
    good = json.dumps([1.0] * 8)
    wrong_k = draw.choice(["0", "-1", "1e9", "true", "1.5", "null"])
    bodies: list[bytes] = [
        f'{{"embedding": {{"location": {location}}}}}'.encode(),
        f'{{"embedding": {{"location": {location}}}}}'.encode(),
        f'{{"embedding": {{"location": {good}, "variance": {location}}}}}'.encode(),
        f'{{"embedding": {{"location": {good}, "concentration": 3}}}}'.encode(),
        f'{{"embedding": {{"location": {good}}}, "k": {wrong_k}}}'.encode(),
        f'{{"embedding": {{"location": {good}}}, "where": {{"a\\"b": 1}}}}'.encode(),
        f'{{"embedding": {{"location": {good}}}, "where": {{"x": {10**30}}}}}'.encode(),
        f'{{"embedding": {{"location": {good}}}, "where": {{"x": [[1]]}}}}'.encode(),
        f'{{"embedding": {{"location": {good}}}, "where": {{"x": "\\ud800"}}}}'.encode(),
        f'{{"embedding": {{"location": {good}}}, "confidence": {draw.choice(["0", "1", "NaN", "2"])}}}'.encode(),
        f'{{"embedding": {{"location": {good}}}, "path": "/etc/passwd"}}'.encode(),
        b"[" * draw.choice([10, 100_000]),
        b'{"embedding": ' * 1000,
        draw.randbytes(100),
        b"",
        b"\xff\xfe{\x00}\x00",
    ]
    return draw.choice(bodies)


def broken_multipart(draw: random.Random) -> tuple[bytes, str]:
    """A body and its content type."""
    start, usual = b'--x\r\nContent-Disposition: form-data; name="', "multipart/form-data; boundary=x"
    part = start + b'image"; filename="a.png"\r\n\r\n' + picture(draw) + b"\r\n"
    end = b"\r\n--x--\r\n"
    whole = part + end[2:]
    others = ["text/plain", "image/png", "application/x-www-form-urlencoded", "", "application/xml"]
    kinds: list[tuple[bytes, str]] = [
        (whole[: draw.randrange(len(whole))], usual),
        (whole, "multipart/form-data"),
        (whole, "multipart/form-data; boundary=other"),
        (part * 5 + end[2:], usual),
        (whole.replace(b'name="image"', b'name="image\x00"'), usual),
        (whole.replace(b"Content-Disposition", b"Content-\xff"), usual),
        (start + b'image"\r\n\r\ntext' + end, usual),
        (start + b'k"\r\n\r\n' + b"9" * 300_000 + end, usual),
        (draw.randbytes(300), usual),
        (whole, "multipart/form-data; boundary=" + "y" * 500),
        (whole, draw.choice(others)),
    ]
    return draw.choice(kinds)


def bad_fields(draw: random.Random) -> dict[str, str]:
    return draw.choice(
        [
            {"k": "many"}, {"k": "-3"}, {"k": "1" * 400}, {"k": "nan"}, {"where": "{"}, {"where": "[1]"},
            {"where": '{"a": NaN}'}, {"where": json.dumps({"x": 10**25})}, {"where": "[" * 5000},
            {"confidence": "inf"},
            {"unknown": "1"}, {"path": "/etc/passwd"}, {"where": json.dumps({'"': 1})},
        ]
    )  # fmt: skip


def request(seed: int) -> Request:
    """One request that must be refused, whatever it is."""
    draw = random.Random(seed)
    address = draw.choice(["/v1/search", "/v1/search", "/v1/embed", "/v1/items", "/v1/compare"])
    names = ("first", "second") if address == "/v1/compare" else ("image",)
    kind = draw.choice(["image", "image", "image", "json", "json", "multipart", "fields"])
    if kind == "image":
        made = draw.choice([truncated, truncated, flipped, enormous, thin, other_type])(draw)
        return "POST", address, {"files": dict.fromkeys(names, ("a.png", made))}
    if kind == "json":
        address = "/v1/search" if address == "/v1/embed" else address
        return (
            "POST",
            address,
            {"content": broken_json(draw), "headers": {"content-type": "application/json"}},
        )
    if kind == "multipart":
        body, content_type = broken_multipart(draw)
        return "POST", address, {"content": body, "headers": {"content-type": content_type}}
    return "POST", "/v1/search", {"files": {"image": picture(draw)}, "data": bad_fields(draw)}
