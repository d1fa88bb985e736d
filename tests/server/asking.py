"""Ways to ask a service over HTTP: in this process, and as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from doubtless.server.http.app import create_app
from doubtless.server.service.service import Service

Got = TypeVar("Got")


def asked(
    service: Service,
    conversation: Callable[[httpx.AsyncClient], Coroutine[Any, Any, Got]],
    *,
    token: str | None = None,
    read_token: str | None = None,
    page: bool = False,
    headers: dict[str, str] | None = None,
    base: str = "http://127.0.0.1",
) -> Got:
    """What a conversation with a service gives. An error inside becomes a response, as it would outside."""
    app = create_app(service, token=token, read_token=read_token, page=page)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)

    async def talk() -> Got:
        async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as client:
            return await conversation(client)

    return asyncio.run(talk())


def send(service: Service, method: str, address: str, **request: Any) -> httpx.Response:
    """One request."""
    own = {name: request.pop(name) for name in ("token", "read_token", "page", "base") if name in request}
    return asked(service, lambda client: client.request(method, address, **request), **own)


def check_problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """That a response is a problem document of this status, and says nothing of the inside."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-content-type-options"] == "nosniff"
    found: dict[str, Any] = response.json()
    assert found["status"] == status
    assert found["title"]
    assert found["detail"]
    for inside in ("Traceback", "site-packages", "/tmp", ".py", "Error("):
        assert inside not in response.text
    return found


class ServedProcess:
    """`doubtless serve` as a process of its own."""

    def __init__(
        self,
        index: Path,
        *options: str,
        environment: dict[str, str] | None = None,
        files: int | None = None,
    ) -> None:
        """files: how many it may open."""
        limited = [] if files is None else ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]
        command = [
            *limited,
            sys.executable,
            "-m",
            "doubtless",
            "serve",
            str(index),
            "--port",
            "0",
            "--no-page",
            *options,
        ]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(r"http://\S+", line):
                self.address = found[0]
                break
        else:
            raise AssertionError("".join(self.said))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.said.extend(self.process.stdout)

    def memory(self) -> int:
        """Bytes that it holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def children(self) -> list[int]:
        """Processes that it has started: decoders."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(number) for task in tasks for number in (task / "children").read_text().split()]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def served(
    index: Path, *options: str, environment: dict[str, str] | None = None, files: int | None = None
) -> Iterator[ServedProcess]:
    process = ServedProcess(index, *options, environment=environment, files=files)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
        process.process.wait(timeout=60)
