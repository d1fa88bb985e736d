"""A process that decodes pictures of strangers for a service, one after the other, and may be ended at any moment.

    python -P decode_worker.py PIXELS HEADERS NICE     # files of doubtless that it loads, and nothing else of it

It knows Pillow and numpy, and starts in a tenth of a second. What it may allocate for a picture is limited before a
decoder is called: by what the picture says of its size, whatever it turns out to hold.

    asked      length, JSON {bytes, formats, pixels, memory, reduced}, the file
    answered   length, JSON {format, width, height} and uint8 (3, H, W), or {error, …}
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import struct
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import IO, Any


def loaded(name: str, path: str) -> ModuleType:
    """A module by its file: importing its package would import torch."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def limit_memory(more: int) -> None:
    """What the process may map from here on, beyond what it has; where the system can say that."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (now + more, hard))
    except (ImportError, OSError, ValueError):
        return


def decoded(
    data: bytes, asked: Mapping[str, Any], pixels: ModuleType, headers: ModuleType
) -> tuple[dict[str, Any], bytes | memoryview]:
    """What is answered: a record, and the pixels where there are any."""
    from PIL import Image, UnidentifiedImageError

    limit_memory(asked["memory"])
    try:
        with Image.open(io.BytesIO(data), formats=asked["formats"]) as image:
            width, height = image.size
            if width * height > asked["pixels"]:
                return {"error": "large", "width": width, "height": height}, b""
            if image.format == "AVIF" and headers.TILED.search(data):
                return {"error": "tiles"}, b""
            if asked["reduced"] is not None:  # of JPEG alone; other decoders leave it
                image.draft(None, (asked["reduced"], asked["reduced"]))
            found = pixels.rgb_pixels(image)
            record = {"format": image.format, "width": found.shape[2], "height": found.shape[1]}
            return record, memoryview(found.reshape(-1))
    except UnidentifiedImageError:
        return {"error": "unsupported"}, b""
    except Image.DecompressionBombError:
        return {"error": "large", "width": None, "height": None}, b""
    except MemoryError:
        return {"error": "memory"}, b""
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        return {"error": "damaged", "reason": f"{type(error).__name__}: {error}"[:500]}, b""


def main() -> None:
    """Answers until nobody asks any more."""
    answers: IO[bytes] = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    if sys.platform != "win32":
        os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[3]))
    pixels, headers = loaded("pixels", sys.argv[1]), loaded("headers", sys.argv[2])
    from PIL import Image

    Image.preinit()
    requests = sys.stdin.buffer
    heic = False
    while len(start := requests.read(4)) == 4:
        asked = json.loads(requests.read(struct.unpack("<I", start)[0]))
        if "HEIF" in asked["formats"] and not heic:
            from pillow_heif import register_heif_opener

            register_heif_opener()
            heic = True
        data = requests.read(asked["bytes"])
        record, found = decoded(data, asked, pixels, headers)
        said = json.dumps(record).encode()
        answers.write(struct.pack("<I", len(said)) + said)
        answers.write(found)
        answers.flush()
        del data, found


if __name__ == "__main__":
    main()
