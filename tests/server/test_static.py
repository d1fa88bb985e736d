"""The page's files, their headers, and an API that answers with and without the page as its documentation says."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from doubtless.server.http import static
from doubtless.server.service.service import Service
from tests.server.asking import asked, check_problem, send

POLICY = {
    "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'",
    "img-src": "'self' blob: data:", "media-src": "'self' blob:", "base-uri": "'none'", "form-action": "'none'",
    "frame-ancestors": "'none'",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "main.js").write_text("import './texts/de.js';")
    (tmp_path / "texts" / "de.js").write_text("export default {};")
    (tmp_path / "page.css").write_text("body {}")
    for unserved in ("notes.py", ".hidden.js", "data.sqlite", "README"):
        (tmp_path / unserved).write_text("nothing for a browser")
    return tmp_path


def test_only_files_for_browsers_have_an_address(folder: Path) -> None:
    files = static.page(folder)
    assert set(files) == {"/", "/page/main.js", "/page/texts/de.js", "/page/page.css", "/page/tokens.css"}
    assert files["/"].media_type.startswith("text/html")
    assert files["/page/main.js"].media_type.startswith("text/javascript")
    assert files["/page/page.css"].media_type.startswith("text/css")
    assert static.page(folder / "nothing") == {}


def test_files_are_sent_once_and_under_a_strict_policy(
    service: Service, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = static.page(folder)
    monkeypatch.setattr(static, "page", lambda: files)

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        first = await client.get("/")
        kept = {"If-None-Match": first.headers["etag"]}
        found = [first, await client.get("/", headers=kept)]
        for address in ("/page/texts/de.js", "/page/main.js", "/docs", "/v1/info", "/nothing"):
            found.append(await client.get(address))
        return found

    first, again, *others = asked(service, talk, page=True)
    assert (first.text, first.status_code) == ("<!doctype html><title>page</title>", 200)
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    for reply in (first, *others):
        policy = reply.headers["content-security-policy"]
        assert dict(part.strip().split(" ", 1) for part in policy.split(";")) == POLICY
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "camera=(self)" in reply.headers["permissions-policy"]
        assert "access-control-allow-origin" not in reply.headers
    for outside in ("/page/notes.py", "/page/../app.py", "/page/%2e%2e/__init__.py", "/page/", "/page"):
        check_problem(send(service, "GET", outside, page=True), 404)


@pytest.mark.parametrize("page", [True, False])
def test_methods_and_addresses_are_refused_alike_with_and_without_the_page(
    service: Service, page: bool
) -> None:
    for method, address in (
        ("PUT", "/v1/search"), ("GET", "/v1/search"), ("DELETE", "/v1/items"), ("POST", "/v1/map"),
        ("PATCH", "/v1/items/x"), ("POST", "/healthz"), ("DELETE", "/v1/labels"), ("PUT", "/v1/items/x/label"),
        ("POST", "/docs"),
    ):  # fmt: skip
        reply = send(service, method, address, page=page)
        check_problem(reply, 405)
        assert reply.headers["allow"]
    for address in ("/v1/nothing", "/nothing", "/v1", "/v1/", "/config", "/gradio_api/queue/join"):
        check_problem(send(service, "GET", address, page=page), 404)
        check_problem(send(service, "POST", address, page=page), 404)


def test_with_a_token_the_page_asks_for_it_as_a_password(service: Service) -> None:
    reply = send(service, "GET", "/", page=True, token="a-token-that-nobody-guesses")
    check_problem(reply, 401)
    assert reply.headers["www-authenticate"].startswith("Basic")
