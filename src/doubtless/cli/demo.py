"""`doubtless demo`: from nothing to a trained, measured, reported model on shipped data, and a page to ask
it.

The gallery that `--serve` shows holds the run's test images, calibrated, with a fitted doubt. The model has
seen none of them, so a calibration on the gallery's own items holds for pictures like them. A few are kept
out to be asked about, and handwritten digits with them, which are nothing the gallery knows.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.data import Source
    from doubtless.runs import Run


FOREIGN = 4  # pictures of a kind that the gallery does not hold
TARGET_ERROR, UNKNOWN = 0.1, 0.05
"""The demo trains for two minutes on 3,000 images of ten labels; 5 % could be promised for few of its answers."""
IMAGES, INDEX = "gallery-images", "gallery"


@dataclass(frozen=True)
class DemoGallery:
    """An index ready to be served, and pictures to ask it about."""

    index: Path
    examples: list[tuple[str, str]]
    """Names and ``data:`` addresses."""
    promise: str
    """What the calibration promises, a sentence."""


def make_gallery(run: Run, *, foreign: str = "digits") -> DemoGallery:
    """Writes the test images beside the run, indexes them with its model and calibrates the index.

    What an earlier call has made is taken as it is.
    """
    from doubtless.data import open_source
    from doubtless.gallery import Gallery
    from doubtless.runs import open_run_data

    data = open_run_data(run.config, split=run.split)
    test = [int(position) for position in data.test.index]
    asked = one_of_each(data.source, test)
    if not (run.path / INDEX).is_dir():
        _write_images(run.path / IMAGES, data.source, [row for row in test if row not in set(asked)])
        Gallery.create(run.path / INDEX, run.path / IMAGES, model=run.path).close()
    others = open_source(foreign)
    examples = [_example(data.source, row) for row in asked]
    examples += [_example(others, row) for row in range(min(FOREIGN, len(others)))]
    return DemoGallery(run.path / INDEX, examples, _calibrated(run.path / INDEX))


def _calibrated(path: Path) -> str:
    """Calibrates a gallery that is not; the sentence of its promise."""
    from doubtless.gallery import Gallery
    from doubtless.gallery.calibration import Targets

    with Gallery.open(path, writable=True) as gallery:
        if gallery.status()["promise"] is None:
            gallery.calibrate(Targets(target_error=TARGET_ERROR, unknown=UNKNOWN))
        return str(gallery.status()["promise"]["sentence"])


def one_of_each(source: Source, rows: Sequence[int]) -> list[int]:
    """The first of the rows of every class."""
    found: dict[int, int] = {}
    for row in rows:
        found.setdefault(int(source.labels[row]), row)
    return [found[label] for label in sorted(found)]


def _write_images(folder: Path, source: Source, rows: Sequence[int]) -> None:
    """One folder per class, as anyone's photographs would lie there."""
    from PIL import Image

    for row in rows:
        file = folder / source.label_names[int(source.labels[row])] / f"{row:05d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = source.image(row).permute(1, 2, 0).numpy()
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file)


def _example(source: Source, row: int) -> tuple[str, str]:
    from doubtless.server.page.thumbnails import picture_address

    return source.label_names[int(source.labels[row])], picture_address(source.image(row))


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
    from doubtless.runs import Run

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
    from doubtless.cli.tables import print_evaluation, print_json, recorded_command
    from doubtless.methods.configuration import make_config
    from doubtless.progress import bar
    from doubtless.runs.evaluation import RunEvaluation
    from doubtless.training import train_run

    run = train_run(make_config(DEMO), out, progress=bar)
    found = RunEvaluation(run, progress=bar).measure(command=recorded_command())
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
    from doubtless.cli.serve import run as serve_app
    from doubtless.progress import spinner
    from doubtless.server.http.app import create_app
    from doubtless.server.page import mount_page
    from doubtless.server.service.service import Service

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
