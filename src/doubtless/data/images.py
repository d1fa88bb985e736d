"""Which files are images, and opening them: kinds that are read, and one limit on their size for everybody.

JPEG, PNG, BMP, GIF, WebP, TIFF, PPM and AVIF are read by Pillow alone; HEIC, as telephones make it, needs the extra
`heic` (pillow-heif). What is larger than the limits here is refused by training, galleries and questions alike.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from PIL import Image, UnidentifiedImageError, features


@dataclass(frozen=True)
class Kind:
    """A kind of image file.

    name       what people call it
    suffixes   ends of its files' names, the usual one first
    uploaded   whether it is taken from strangers too: TIFF is not, for its decoder reads whole files at once, in
               too many dialects, nor PPM, which nobody sends
    """

    name: str
    media_type: str
    suffixes: tuple[str, ...]
    uploaded: bool = True


KINDS = {
    "JPEG": Kind("JPEG", "image/jpeg", (".jpg", ".jpeg")),
    "PNG": Kind("PNG", "image/png", (".png",)),
    "WEBP": Kind("WebP", "image/webp", (".webp",)),
    "BMP": Kind("BMP", "image/bmp", (".bmp",)),
    "GIF": Kind("GIF", "image/gif", (".gif",)),
    "AVIF": Kind("AVIF", "image/avif", (".avif",)),
    "HEIF": Kind("HEIC", "image/heic", (".heic", ".heif")),
    "TIFF": Kind("TIFF", "image/tiff", (".tif", ".tiff"), uploaded=False),
    "PPM": Kind("PPM", "image/x-portable-anymap", (".ppm", ".pgm"), uploaded=False),
}
"""Pillow's name of a format → what is known of it: all that is read, where Pillow or an extra can."""
SUFFIXES = {suffix for kind in KINDS.values() for suffix in kind.suffixes}
NOTES = {
    "", ".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".html", ".htm", ".log", ".ini",
    ".toml", ".db", ".npy", ".npz", ".safetensors", ".arrow", ".py", ".pdf", ".cls", ".lock",
}  # fmt: skip
"""Ends of names of files that lie beside pictures and that nobody takes for one: they are passed over unsaid."""

MAX_BYTES = 256 << 20
"""An image file beyond this is not read."""
MAX_PIXELS = 89_478_485
"""An image beyond this is taken for a decompression bomb, by Pillow too: 256 MiB as bytes."""

HEIC_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}


def is_image(name: str) -> bool:
    """Whether a file is one that is read, by the end of its name.

    >>> is_image("IMG_0001.HEIC"), is_image("IMG_0001.MOV")
    (True, False)
    """
    return Path(name).suffix.lower() in SUFFIXES


@cache
def uploaded_kinds() -> dict[str, Kind]:
    """Of `KINDS` those that are taken from strangers and can be decoded here: AVIF by Pillow, HEIC by its extra.

    >>> [kind.media_type for kind in uploaded_kinds().values()][:2]
    ['image/jpeg', 'image/png']
    """
    missing = {"AVIF"} if not features.check("avif") else set()
    missing |= set() if _knows_heic() else {"HEIF"}
    return {name: kind for name, kind in KINDS.items() if kind.uploaded and name not in missing}


def is_heic(first: bytes) -> bool:
    """Whether a file is HEIC, by its first twelve bytes or more.

    >>> is_heic(b"\\0\\0\\0\\x1cftypheic"), is_heic(b"\\x89PNG")
    (True, False)
    """
    return first[4:8] == b"ftyp" and first[8:12] in HEIC_BRANDS


def unread_kind(name: str) -> str | None:
    """Why a file that lies among pictures is not read; None for images, and for notes beside them.

    >>> unread_kind("IMG_0001.MOV"), unread_kind("labels.csv")
    ('files of the kind .mov are not read', None)
    """
    suffix = Path(name).suffix.lower()
    return None if suffix in SUFFIXES | NOTES else f"files of the kind {suffix} are not read"


def too_large(size: int) -> str | None:
    """Why a file of so many bytes is not read; None: it is."""
    if size <= MAX_BYTES:
        return None
    return f"it has {size:,} bytes, more than the {MAX_BYTES:,} that are read"


def open_image(file: str | Path | bytes | IO[bytes]) -> Image.Image:
    """A Pillow image of a file or of its bytes, not yet decoded; ValueError where it is too large.

    To be closed by the caller. Other problems raise what Pillow raises: `reason_of` puts them into words.
    """
    if isinstance(file, str | Path):
        size = Path(file).stat().st_size
    else:
        size = len(file) if isinstance(file, bytes) else 0
    if (problem := too_large(size)) is not None:
        raise ValueError(problem)
    readable = io.BytesIO(file) if isinstance(file, bytes) else file
    _prepare_for(_first_bytes(readable))
    image = Image.open(readable)
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise ValueError(
            f"it has {image.width}×{image.height} pixels, more than the {MAX_PIXELS:,} that are decoded"
        )
    return image


def reason_of(error: Exception) -> str:
    """What a decoder said, in one line, without addresses of objects."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no image that Pillow knows"
    if isinstance(error, Image.DecompressionBombError):
        return f"it has more than the {MAX_PIXELS:,} pixels that are decoded"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text or type(error).__name__


def kinds_of(names: Iterable[str]) -> str:
    """How files are called that are not read, with their numbers.

    >>> kinds_of(["a.mov", "b.MOV", "c.cr2"])
    '2 .mov, 1 .cr2'
    """
    counted: dict[str, int] = {}
    for name in names:
        suffix = Path(name).suffix.lower()
        counted[suffix] = counted.get(suffix, 0) + 1
    return ", ".join(
        f"{count} {suffix}" for suffix, count in sorted(counted.items(), key=lambda pair: -pair[1])
    )


def _first_bytes(file: str | Path | IO[bytes]) -> bytes:
    if isinstance(file, str | Path):
        with Path(file).open("rb") as opened:
            return opened.read(12)
    start = file.tell()
    data = file.read(12)
    file.seek(start)
    return data


def _prepare_for(first: bytes) -> None:
    """Has Pillow learn HEIC where a file is one."""
    if is_heic(first) and not _knows_heic():
        raise ValueError("it is HEIC; reading it needs pillow-heif: pip install 'doubtless[heic]'")


@cache
def _knows_heic() -> bool:
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True
