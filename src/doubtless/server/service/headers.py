"""What the first bytes of a picture say of its size, read before a decoder sees them: opening a WebP allocates it.

What they say may be wrong: it orders who is decoded first and how much memory that may take. A decoder that finds
more is stopped. Nothing is imported but the standard library: processes that decode load this file alone.
"""

from __future__ import annotations

import re
import struct

TILED = re.compile(rb"infe(?:\x02.{5}|\x03.{7})..grid", re.DOTALL)
"""Where an AVIF file lists an item that is put together of others."""
STARTS_OF_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def declared_size(data: bytes) -> tuple[int, int] | None:
    """Width and height, as a PNG, JPEG, WebP, GIF, BMP, AVIF or HEIC says; None where it does not.

    >>> declared_size(b"\\x89PNG\\r\\n\\x1a\\n" + bytes(8) + struct.pack(">II", 640, 480))
    (640, 480)
    """
    try:
        if data[:8] == b"\x89PNG\r\n\x1a\n":
            return struct.unpack(">II", data[16:24])
        if data[:4] == b"GIF8":
            return struct.unpack("<HH", data[6:10])
        if data[:2] == b"BM":
            width, height = struct.unpack("<ii", data[18:26])
            return abs(width), abs(height)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp(data)
        if data[:2] == b"\xff\xd8":
            return _jpeg(data)
        if data[4:8] == b"ftyp":
            return _boxed(data)
    except struct.error:  # cut short
        return None
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(data[place : place + 3], "little") for place in (24, 27))
        return width + 1, height + 1
    if kind == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 <= len(data):
        if data[place] != 0xFF:
            place += 1
            continue
        marker = data[place + 1]
        if marker in STARTS_OF_FRAMES:
            height, width = struct.unpack(">HH", data[place + 5 : place + 9])
            return width, height
        if marker == 0xFF:
            place += 1
            continue
        alone = marker == 0x01 or 0xD0 <= marker <= 0xD9
        place += 2 if alone else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


def _boxed(data: bytes) -> tuple[int, int] | None:
    """The largest of the sizes that AVIF and HEIC list: of a picture, its parts and its thumbnail."""
    places = [match.end() + 4 for match in re.finditer(b"ispe", data[:65536])]
    found: list[tuple[int, int]] = [struct.unpack(">II", data[place : place + 8]) for place in places]
    return max(found, key=lambda size: size[0] * size[1], default=None)
