"""Five hundred malformed uploads: each is refused with a problem, none is an error of ours, and it still serves."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from doubtless.server.service.decoder import Limits, decode
from doubtless.server.service.errors import ImageError, LargeImageError, UnsupportedImageError
from doubtless.server.service.service import Service
from tests.ingest.pictures import bomb
from tests.server import hostile
from tests.server.asking import asked, check_problem, send

COUNT = 500


def test_malformed_uploads(service: Service, picture: bytes) -> None:
    statuses: Counter[int] = Counter()

    async def talk(client: httpx.AsyncClient) -> None:
        async def one(seed: int) -> None:
            method, address, request = hostile.request(seed)
            response = await client.request(method, address, **request)
            statuses[response.status_code] += 1
            assert response.status_code < 500, (seed, address, response.text)
            if response.status_code >= 400:
                check_problem(response, response.status_code)

        for start in range(0, COUNT, 25):
            await asyncio.gather(*(one(seed) for seed in range(start, start + 25)))
        assert (await client.post("/v1/search", files={"image": picture})).status_code == 200

    asked(service, talk)
    print(dict(statuses))
    assert sum(statuses.values()) == COUNT
    assert statuses[200] + statuses[201] < COUNT // 8  # a flipped byte may leave an image that can be read
    assert {400, 413, 415, 422} <= set(statuses)


@pytest.mark.parametrize("kind", hostile.FORMATS)
def test_accepted_types_are_decoded(kind: str) -> None:
    file, pixels = io.BytesIO(), np.zeros((5, 7, 3), np.uint8)
    pixels[..., 0] = 255
    Image.fromarray(pixels).save(file, kind)
    found = decode(file.getvalue(), Limits())
    assert found.pixels.shape == (3, 5, 7)
    assert found.media_type == ("image/heic" if kind == "HEIF" else f"image/{kind.lower()}")
    assert int(found.pixels[0].min()) > 200
    assert int(found.pixels[1].max()) < 50


def test_bombs_are_refused_before_they_are_decoded() -> None:
    began = time.perf_counter()
    for data in (bomb(), bomb(20_000, 20_000), bomb(10_000, 9000)):
        with pytest.raises(LargeImageError, match="pixels"):
            decode(data, Limits())
    with pytest.raises(ImageError, match="times the other"):
        decode(bomb(100_000, 1), Limits())
    assert time.perf_counter() - began < 1
    tiff = io.BytesIO()
    Image.new("L", (3, 3)).save(tiff, "TIFF")
    with pytest.raises(UnsupportedImageError):
        decode(tiff.getvalue(), Limits())
    with pytest.raises(LargeImageError, match="bytes"):
        decode(b"x" * 11, Limits(upload=10))


def test_bodies_are_limited_while_they_arrive(own_index: Path, picture: bytes) -> None:
    async def endless(start: bytes = b"") -> AsyncIterator[bytes]:
        yield start
        for _ in range(1000):
            yield b"x" * 10_000

    with Service.open(own_index, limits=Limits(upload=50_000)) as service:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        check_problem(send(service, "POST", "/v1/search", content=b"x" * 50_001, headers=headers), 413)
        start = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
        check_problem(send(service, "POST", "/v1/search", content=endless(start), headers=headers), 413)
        json_headers = {"content-type": "application/json"}
        check_problem(send(service, "POST", "/v1/search", content=endless(), headers=json_headers), 413)
        assert send(service, "POST", "/v1/search", files={"image": picture}).status_code == 200


def test_problems_say_what_was_wrong(service: Service, picture: bytes) -> None:
    check_problem(send(service, "GET", "/v1/nothing"), 404)
    check_problem(send(service, "PUT", "/v1/search"), 405)
    assert (
        "JPEG" in check_problem(send(service, "POST", "/v1/embed", files={"image": b"text"}), 415)["detail"]
    )
    found = check_problem(send(service, "POST", "/v1/search", files={"image": picture}, data={"k": "x"}), 422)
    assert found["errors"][0]["at"] == "k"
    wrong = {"embedding": {"location": [1.0, 2.0]}}
    assert "dimension 8" in check_problem(send(service, "POST", "/v1/search", json=wrong), 422)["detail"]
    service.batcher.close()
    service.gallery.index.close()  # a fault inside is said to be one, and no more
    check_problem(send(service, "GET", "/v1/info"), 500)
    check_problem(send(service, "POST", "/v1/search", files={"image": picture}), 503)


def test_an_address_is_no_command_to_who_reads_the_log(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.batcher.close()
    service.gallery.index.close()  # a fault inside, which is logged with its address
    check_problem(send(service, "GET", "/v1/items/a%0D12:00%20all%20is%20well%1B[2J/image"), 500)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "doubtless.server"]
    assert said == "GET /v1/items/a%0D12%3A00%20all%20is%20well%1B%5B2J/image failed"
