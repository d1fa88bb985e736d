"""Files of the package that a browser is given: the page at `/` and /page/, the API's documentation at /docs.

Which there are is read once, when the server starts; no address reaches the file system after that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from doubtless.server.http.looking import has_tag

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
"""Endings of files that are served → what they are."""
INDEX = "index.html"


@dataclass(frozen=True)
class StaticFile:
    """A file as it is sent."""

    body: bytes
    media_type: str

    @property
    def tag(self) -> str:
        """Another one for other bytes."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


def docs() -> dict[str, StaticFile]:
    """What renders the OpenAPI document and tries it out: address → file."""
    folder = resources.files("doubtless.server") / "docs"
    names = {"/docs": "docs.html", "/docs/docs.js": "docs.js", "/docs/docs.css": "docs.css"}
    return {address: _read(folder / name) for address, name in names.items()}


def page(folder: Traversable | None = None) -> dict[str, StaticFile]:
    """The page and its files: address → file."""
    place = resources.files("doubtless.server.page") / "static" if folder is None else folder
    if not place.is_dir():
        return {}
    found = _below(place, "")
    index = found.pop(INDEX, None)
    others = {f"/page/{name}": file for name, file in found.items()}
    # Reports hold the same colours and type inside: one file of them, in the room of reports.
    others["/page/tokens.css"] = _read(resources.files("doubtless.report") / "tokens.css")
    return others if index is None else {"/": index, **others}


def add(app: FastAPI, files: Mapping[str, StaticFile]) -> None:
    """Serves files at their addresses."""
    for address, file in files.items():
        app.add_route(address, _sent(file), include_in_schema=False)


def _sent(file: StaticFile) -> Callable[[Request], Response]:
    headers = {"ETag": file.tag, "Cache-Control": "no-cache"}  # kept, and asked whether it is still the same

    def send(request: Request) -> Response:
        if has_tag(request, file.tag):
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return send


def _below(folder: Traversable, prefix: str) -> dict[str, StaticFile]:
    found: dict[str, StaticFile] = {}
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir():
            found |= _below(entry, f"{name}/")
        elif _ending(entry.name) in KINDS:
            found[name] = _read(entry)
    return found


def _read(entry: Traversable) -> StaticFile:
    return StaticFile(entry.read_bytes(), KINDS[_ending(entry.name)])


def _ending(name: str) -> str:
    return name[name.rfind(".") :].lower() if "." in name else ""
