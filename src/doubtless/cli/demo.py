"""`doubtless demo`: from nothing to a trained, measured, reported model on shipped data, and a page to ask it."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.training import Run

HOST = "127.0.0.1"
DEMO: dict[str, Any] = {
    "method": "deterministic",
    "seed": 0,
    "data": {"source": "fashion-sample", "split": "closed", "ood": ["digits"]},
    "model": {"backbone": "conv-fashion", "dim": 32},
    "loss": {"name": "triplet", "margin": 0.1},
    "training": {"epochs": 20, "batch_size": 128, "optimizer": "adam", "lr": 1e-3, "lr_decay": 0.9},
}


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; a new one below runs/ by default.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Then serve a page on which to ask the model about pictures.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0: any that is free.")] = 8000,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Train on the shipped Fashion-MNIST sample, measure, write the report; about two minutes on two cores.

    With --serve a folder of a finished demo is not trained again.

    Example: doubtless demo

    Example: doubtless demo --serve
    """
    from doubtless.training import Run

    if serve:
        if json:
            raise InputError("--json prints metrics and ends; --serve goes on. Give one of the two.")
        from doubtless.cli.serve import refuse_without_extra

        refuse_without_extra(page=True)  # before the training, not after it
    if serve and out is not None and Run(out).is_finished:
        run = Run.open(out)
    else:
        run = _trained(out or _fresh_folder(), json=json)
    if serve:
        _serve(run, port=port, browser=browser)


def _trained(out: Path, *, json: bool) -> Run:
    from doubtless.cli.tables import print_evaluation, print_json
    from doubtless.config import make_config
    from doubtless.progress import bar
    from doubtless.training import train_run
    from doubtless.training.run_evaluation import RunEvaluation

    run = train_run(make_config(DEMO), out, progress=bar)
    found = RunEvaluation(run, progress=bar).measure()
    if json:
        print_json({"run": str(run.path), **found.to_json()})
        return run
    print_evaluation(
        found, "doubtless demo: 1,000 test images of fashion-sample, each searched among the others"
    )
    typer.echo(f"run:    {run.path}\nreport: {(run.path / 'report.html').resolve()}")
    return run


def _serve(run: Run, *, port: int, browser: bool) -> None:
    """Indexes and calibrates the run's test images, and serves them until it is stopped."""
    from doubtless.cli.demo_gallery import make_gallery
    from doubtless.cli.serve import run as serve_app
    from doubtless.progress import spinner
    from doubtless.server.app import create_app
    from doubtless.server.page import mount_page
    from doubtless.server.service import Service

    with spinner("indexing and calibrating the test images"):
        gallery = make_gallery(run)
    typer.echo(gallery.promise)
    with Service.open(gallery.index, read_only=True) as service:
        app = mount_page(create_app(service, page=False), service, examples=gallery.examples)
        port = port or _free_port()
        if browser:
            threading.Thread(target=_open_browser, args=(port,), daemon=True).start()
        serve_app(app, host=HOST, port=port)


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind((HOST, 0))
        return int(trial.getsockname()[1])


def _open_browser(port: int) -> None:
    """As soon as the server listens."""
    for _ in range(300):
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
            continue
        webbrowser.open(f"http://{HOST}:{port}/")
        return


def _fresh_folder() -> Path:
    """A folder that no earlier demo has used."""
    Path("runs").mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="demo-", dir="runs"))
