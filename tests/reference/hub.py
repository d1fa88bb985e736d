"""A stand-in of the Hugging Face Hub's file API: repositories are made, written to by commits, listed and read."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """A server on this machine; `files` holds what was sent, by repository and path."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.seen: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                hub._post(self)

            def do_GET(self) -> None:
                hub._get(self)

            def do_HEAD(self) -> None:
                hub._get(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _post(self, call: BaseHTTPRequestHandler) -> None:
        body = _body(call)
        self.seen.append(f"POST {call.path}")
        words = call.path.strip("/").split("/")
        if call.path == "/api/repos/create":
            about = json.loads(body)
            name = f"{about.get('organization') or 'me'}/{about['name']}"
            self.files.setdefault(name, {})
            return _answer(call, {"url": f"{self.address}/{name}", "name": name})
        if call.path == "/api/validate-yaml":
            return _answer(call, {"errors": [], "warnings": []})
        name = "/".join(words[2:4])
        if words[4:5] == ["preupload"]:
            files = json.loads(body)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in files
            ]
            return _answer(call, {"files": modes})
        if words[4:5] == ["commit"]:
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = entry["value"]
                    self.files[name][content["path"]] = base64.b64decode(content["content"])
            told = {
                "commitUrl": f"{self.address}/{name}/commit/{COMMIT}",
                "commitOid": COMMIT,
                "success": True,
            }
            return _answer(call, told)
        return _answer(call, {"error": "not found"}, code=404)

    def _get(self, call: BaseHTTPRequestHandler) -> None:
        self.seen.append(f"{call.command} {call.path}")
        path = call.path.partition("?")[0]
        words = path.strip("/").split("/")
        if words[:2] == ["api", "models"]:
            name = "/".join(words[2:4])
            if name not in self.files:
                return _missing(call, "RepoNotFound")
            files = self.files[name]
            if words[4:5] == ["tree"]:
                tree = [
                    {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for file, data in files.items()
                ]
                return _answer(call, tree)
            about = {"_id": "0", "id": name, "modelId": name, "sha": COMMIT, "private": False, "tags": []}
            return _answer(call, about | {"siblings": [{"rfilename": file} for file in files]})
        name, file = "/".join(words[:2]), "/".join(words[4:])
        if name not in self.files:
            return _missing(call, "RepoNotFound")
        if words[2:3] != ["resolve"] or file not in self.files[name]:
            return _missing(call, "EntryNotFound")
        data = self.files[name][file]
        call.send_response(200)
        for key, value in {
            "Content-Length": len(data),
            "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
        }.items():
            call.send_header(key, str(value))
        call.end_headers()
        if call.command == "GET":
            call.wfile.write(data)
        return None


def _body(call: BaseHTTPRequestHandler) -> bytes:
    if "chunked" not in call.headers.get("Transfer-Encoding", ""):
        return call.rfile.read(int(call.headers.get("Content-Length", 0)))
    parts = []
    while size := int(call.rfile.readline().strip() or b"0", 16):
        parts.append(call.rfile.read(size))
        call.rfile.readline()
    return b"".join(parts)


def _answer(call: BaseHTTPRequestHandler, value: Any, *, code: int = 200) -> None:
    data = json.dumps(value).encode()
    call.send_response(code)
    call.send_header("Content-Type", "application/json")
    call.send_header("Content-Length", str(len(data)))
    call.end_headers()
    if call.command != "HEAD":
        call.wfile.write(data)


def _missing(call: BaseHTTPRequestHandler, what: str) -> None:
    call.send_response(404)
    call.send_header("X-Error-Code", what)
    call.send_header("Content-Length", "0")
    call.end_headers()
