"""Two tokens: one may do everything, the other ask, look and judge; wrong ones are answered slowly."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubtless.errors import InputError
from doubtless.server.http.security import SLOWER, check_binding
from doubtless.server.service.service import Service
from tests.server.asking import asked, check_problem

TOKEN, READ = "a-token-that-nobody-guesses", "another-that-may-only-read"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def ask(
    service: Service, given: str, *requests: tuple[str, str, dict[str, Any]], **tokens: Any
) -> list[httpx.Response]:
    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.request(method, address, **more) for method, address, more in requests]

    own = {"token": TOKEN, "read_token": READ, **tokens}
    return asked(service, talk, headers=bearer(given) if given else None, **own)


def test_a_reader_asks_looks_and_judges_and_changes_nothing(service: Service, picture: bytes) -> None:
    id = service.gallery.items(count=1)[0].id
    info, found, listed, drawn = ask(
        service,
        READ,
        ("GET", "/v1/info", {}),
        ("POST", "/v1/search", {"files": {"image": picture}}),
        ("GET", "/v1/items", {}),
        ("GET", "/v1/map", {}),
    )
    assert [one.status_code for one in (info, found, listed, drawn)] == [200] * 4
    rights = {name: info.json()[name] for name in ("may_write", "may_judge", "read_only", "demo")}
    assert rights == {"may_write": False, "may_judge": True, "read_only": False, "demo": False}
    said = {"answer": found.json()["id"], "said": "right"}
    assert ask(service, READ, ("POST", "/v1/feedback", {"json": said}))[0].status_code == 201
    writes: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", "/v1/items", {"files": {"image": picture}}),
        ("DELETE", f"/v1/items/{id}", {}),
        ("POST", f"/v1/items/{id}/label", {"json": {"label": "class-1"}}),
        ("POST", "/v1/recalibrate", {}),
        ("GET", "/v1/answers/x/image", {}),
    ]
    for reply in ask(service, READ, *writes):
        assert "may ask and look" in check_problem(reply, 403)["detail"]
    assert len(service.gallery) == 120
    info, stored = ask(service, TOKEN, ("GET", "/v1/info", {}), writes[0])
    assert (info.json()["may_write"], stored.status_code) == (True, 201)


def test_a_reader_alone_is_enough_to_be_served(service: Service, picture: bytes) -> None:
    info, stored = ask(
        service,
        READ,
        ("GET", "/v1/info", {}),
        ("POST", "/v1/items", {"files": {"image": picture}}),
        token=None,
    )
    assert info.json()["may_write"] is False
    check_problem(stored, 403)
    check_problem(ask(service, "", ("GET", "/v1/info", {}), token=None)[0], 401)


def test_without_tokens_whoever_is_here_may_write_unless_nothing_may(
    service: Service, served_index: Path
) -> None:
    assert ask(service, "", ("GET", "/v1/info", {}), token=None, read_token=None)[0].json()["may_write"]
    with Service.open(served_index, read_only=True) as other:
        (info,) = ask(other, TOKEN, ("GET", "/v1/info", {}))
        assert (info.json()["may_write"], info.json()["may_judge"]) == (False, False)


def test_a_browser_gives_either_as_a_password(service: Service) -> None:
    async def talk(client: httpx.AsyncClient) -> list[int]:
        codes = []
        for secret in (TOKEN, READ):
            given = base64.b64encode(f"anyone:{secret}".encode()).decode()
            codes.append((await client.get("/docs", headers={"Authorization": f"Basic {given}"})).status_code)
        return codes

    assert asked(service, talk, token=TOKEN, read_token=READ) == [200, 200]


def test_wrong_tokens_wait_and_nobody_else_does(service: Service) -> None:
    async def talk(client: httpx.AsyncClient) -> tuple[list[float], list[float], float]:
        async def timed(headers: dict[str, str] | None, status: int) -> float:
            start = time.monotonic()
            reply = await client.get("/v1/info", headers=headers)
            assert reply.status_code == status
            return time.monotonic() - start

        alone = await timed(None, 401)  # who gives none is told at once that one is needed
        wrong = [asyncio.create_task(timed(bearer("x" * 20), 401)) for _ in range(4)]
        await asyncio.sleep(0.05)
        right = [await timed(bearer(TOKEN), 200) for _ in range(2)]
        return [await one for one in wrong], right, alone

    wrong, right, alone = asked(service, talk, token=TOKEN)
    assert min(wrong) >= 0.9 * SLOWER
    assert max(wrong) >= 3.5 * SLOWER  # one after the other
    assert max(right) < max(wrong)
    assert alone < SLOWER


def test_tokens_that_can_be_guessed_are_refused() -> None:
    check_binding("0.0.0.0", None, READ)
    with pytest.raises(InputError, match="DOUBTLESS_READ_TOKEN must be at least"):
        check_binding("127.0.0.1", TOKEN, "short")
    with pytest.raises(InputError, match="must differ"):
        check_binding("127.0.0.1", TOKEN, TOKEN)
    with pytest.raises(InputError, match="lets other machines ask"):
        check_binding("0.0.0.0", None, None)
