"""`doubtless serve`: an index over HTTP, with a page."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.errors import InputError
from doubtless.memory import SERVING, keep_freed

if TYPE_CHECKING:
    from doubtless.server.http.connections import ConnectionLimits
    from doubtless.server.http.logs import Format

TOKEN, READ_TOKEN = "DOUBTLESS_TOKEN", "DOUBTLESS_READ_TOKEN"


def serve(
    index: GalleryPlace,
    host: Annotated[
        str, typer.Option(help="Address to bind; other than 127.0.0.1 needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    model: Annotated[Path | None, typer.Option(help="Run whose model embeds, if it was moved.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Nothing is stored or removed.")] = False,
    page: Annotated[bool, typer.Option(help="Serve the page at /, or the API alone.")] = True,
    images: Annotated[
        Path | None, typer.Option(help="Show only images below this folder (and those added over HTTP).")
    ] = None,
    audit: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of queries drawn to be judged, kept with their pictures (doubtless review).",
        ),
    ] = 0.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests answered by one call of the model.")] = 32,
    batch_wait: Annotated[
        float, typer.Option(min=0, max=60_000, help="Milliseconds a batch waits for requests on their way.")
    ] = 5.0,
    max_upload: Annotated[
        float, typer.Option(min=0.01, max=100_000, help="Largest body, in megabytes.")
    ] = 20.0,
    max_pixels: Annotated[
        float | None,
        typer.Option(min=0.001, max=1000, help="Largest image, in million pixels; default: 50."),
    ] = None,
    connections: Annotated[int, typer.Option(min=1, help="Connections open at a time.")] = 512,
    per_client: Annotated[
        int, typer.Option(min=1, help="Of them from one address; behind a proxy, set it to as many.")
    ] = 128,
    decode_seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="Time to decode an image.")
    ] = 10.0,
    log_format: Annotated[str, typer.Option(help="text, or json: one object per line.")] = "text",
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request: route, status, time, client.")
    ] = False,
) -> None:
    """Serve an index: API at /v1, its documentation at /docs, a page at /.

    Callers must know the token in the environment variable DOUBTLESS_TOKEN where it is set, or that in
    DOUBTLESS_READ_TOKEN, which may ask and look and change no item; without either only this machine is served.
    Stopping (Ctrl-C, SIGTERM) finishes what was accepted.

    Example: doubtless serve gallery

    Example: DOUBTLESS_TOKEN=... doubtless serve gallery --host 0.0.0.0 --read-only
    """
    from doubtless.server.http.security import LOOPBACK, check_binding

    refuse_without_extra()
    form = _log_format(log_format)
    given = (max_upload, decode_seconds, batch_wait, audit, 1.0 if max_pixels is None else max_pixels)
    if any(value != value for value in given):  # "nan" lies between all bounds
        raise InputError("Sizes, times and shares are numbers, got nan.")
    token, read_token = (os.environ.get(name) or None for name in (TOKEN, READ_TOKEN))
    check_binding(host, token, read_token)
    from doubtless.server.http.app import create_app
    from doubtless.server.http.connections import ConnectionLimits
    from doubtless.server.service.decoder import Limits
    from doubtless.server.service.queue import Batching
    from doubtless.server.service.service import Service

    pixels = Limits().pixels if max_pixels is None else int(max_pixels * 1e6)
    service = Service.open(
        index,
        model=model,
        read_only=read_only,
        limits=Limits(upload=int(max_upload * 1e6), pixels=pixels, seconds=decode_seconds),
        batching=Batching(size=batch_size, wait=batch_wait / 1000),
        image_root=images,
        audit=audit,
    )
    try:
        hosts = None if token or read_token else LOOPBACK | {host}
        app = create_app(service, token=token, read_token=read_token, page=page, hosts=hosts)
        run(
            app,
            host=host,
            port=port,
            limits=ConnectionLimits(connections, per_client),
            logs=(form, access_log),
        )
    finally:
        service.close()


def run(
    app: Any,
    *,
    host: str,
    port: int,
    limits: ConnectionLimits | None = None,
    logs: tuple[Format, bool] = ("text", False),
) -> None:
    """Serves an application until it is told to stop; prints where, once it listens.

    logs: how it logs, and whether every request is
    """
    from doubtless.server.http.listening import BoundedServer, log
    from doubtless.server.http.logs import install

    class Server(BoundedServer):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            for name, number in self.addresses():
                shown = f"[{name}]" if ":" in name else name
                words = f"serving on http://{shown}:{number} (API: /docs, stop: Ctrl-C)"
                if logs[0] == "json":  # every line is to be JSON
                    log.info(words)
                else:
                    _say(words)

    keep_freed(kept=SERVING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # raised again by uvicorn, when all is done
    try:
        server = Server(app, host=host, port=port, limits=limits)
        install(logs[0], access=logs[1])
        server.run()
    except KeyboardInterrupt:
        return


def _say(words: str) -> None:
    """On standard output; that it is full, or nobody reads it, is no reason not to serve."""
    try:
        typer.echo(f"doubtless: {words}")
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (to be flushed at the end)


def _log_format(name: str) -> Format:
    from doubtless.server.http.logs import FORMATS

    for known in FORMATS:
        if name == known:
            return known
    raise InputError(f"--log-format is text or json, got {name!r}.")


def refuse_without_extra() -> None:
    """Says what must be installed before anything can be served."""
    from importlib.util import find_spec

    needed = ["fastapi", "uvicorn", "python_multipart", "prometheus_client"]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Serving needs {', '.join(missing)}; install the extra: pip install 'doubtless[serve]'."
        )
