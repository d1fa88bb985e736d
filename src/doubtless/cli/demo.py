"""`doubtless demo`: from nothing to five pictures that were asked about, on shipped data; and a page to ask more.

A network is trained on shipped pictures of garments, and the test images become a gallery, calibrated, with a
fitted doubt. The model has seen none of them, so a calibration on the gallery's own items holds for pictures like
them. Some are kept out to be asked about, and handwritten digits with them, which are nothing the gallery knows.
"""

from __future__ import annotations

import io
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

from doubtless.cli.records import records_csv, refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from doubtless.cli.shown import ShownAnswer
    from doubtless.data import Source
    from doubtless.evaluation import Evaluation
    from doubtless.runs import Run


FOREIGN = 4  # pictures of a kind that the gallery does not hold
KEPT_OUT = 5
"""Pictures of each label that are not in the gallery, to be asked about."""
TARGET_ERROR, UNKNOWN = 0.1, 0.05
"""The demo trains for two minutes on 3,000 images of ten labels; 5 % could be promised for few of its answers."""
IMAGES, INDEX, ASKED = "gallery-images", "gallery", "asked"
OWN = """doubtless create shop photos/      # a folder per product, or one folder and --labels labels.csv
doubtless ask shop photo.jpg       # a label, a probability, or a refusal, and why
doubtless serve shop               # the same as an API and a page"""
"""What comes after the demo."""


@dataclass(frozen=True)
class DemoGallery:
    """An index ready to be served, and pictures to ask it about."""

    index: Path
    examples: list[tuple[str, bytes]]
    """Names and PNG files."""
    promise: str
    """What the calibration promises, a sentence."""
    kept_out: list[int]
    """Rows of the run's source that are not in it."""


def make_gallery(run: Run, *, foreign: str = "digits") -> DemoGallery:
    """Writes the test images beside the run, indexes them with its model and calibrates the index.

    What an earlier call has made is taken as it is.
    """
    from doubtless.data import open_source
    from doubtless.gallery import Gallery
    from doubtless.runs import open_run_data

    data = open_run_data(run.config, split=run.split)
    test = [int(position) for position in data.test.index]
    kept_out = some_of_each(data.source, test, KEPT_OUT)
    if not (run.path / INDEX).is_dir():
        _write_images(run.path / IMAGES, data.source, [row for row in test if row not in set(kept_out)])
        Gallery.create(run.path / INDEX, run.path / IMAGES, model=run.path).close()
    others = open_source(foreign)
    examples = [_example(data.source, row) for row in some_of_each(data.source, test, 1)]
    examples += [_example(others, row) for row in range(min(FOREIGN, len(others)))]
    return DemoGallery(run.path / INDEX, examples, _calibrated(run.path / INDEX), kept_out)


def ask_about(run: Run, gallery: DemoGallery, *, foreign: str = "digits") -> list[ShownAnswer]:
    """Asks the gallery about every picture that was kept out, and about some of a kind that it does not hold."""
    from doubtless.cli.shown import ShownAnswer
    from doubtless.data import open_source
    from doubtless.gallery import Gallery
    from doubtless.runs import open_run_data

    source, others = open_run_data(run.config, split=run.split).source, open_source(foreign)
    asked = [(source, row, source.label_names[int(source.labels[row])]) for row in gallery.kept_out]
    asked += [
        (others, row, f"the digit {others.label_names[int(others.labels[row])]}") for row in range(FOREIGN)
    ]
    files = [run.path / ASKED / f"{truth} {row}.png".replace(" ", "-").lower() for _, row, truth in asked]
    pictures = [kind.image(row) for kind, row, _ in asked]
    for file, pixels in zip(files, pictures, strict=True):
        _write_image(file, pixels)
    with Gallery.open(gallery.index) as opened:
        answers = list(opened.ask(pictures, 5))
    return [
        ShownAnswer(file, truth, pixels, answer)
        for file, (_, _, truth), pixels, answer in zip(files, asked, pictures, answers, strict=True)
    ]


def five_of(asked: Sequence[ShownAnswer]) -> list[ShownAnswer]:
    """Three that are answered, of different labels, one that is not, and one of a kind that is not there; as far as
    there are such."""
    by_decision: dict[str, list[ShownAnswer]] = {"answer": [], "abstain": [], "not-in-gallery": []}
    for one in asked:
        strange = one.truth.startswith("the digit")
        labels = {other.answer.label for other in by_decision["answer"]}
        if (
            strange == (one.answer.decision == "not-in-gallery")
            and (one.answer.label or strange) not in labels
        ):
            by_decision[one.answer.decision].append(one)
    answered, refused, absent = by_decision.values()
    absent.sort(key=lambda one: -(one.answer.none or 0.0))
    return [*answered[:3], *refused[:1], *absent[:1]]


def tally(asked: Sequence[ShownAnswer]) -> str:
    """What became of all pictures that were asked about, in a sentence."""
    known = [one for one in asked if not one.truth.startswith("the digit")]
    answered = [one for one in known if one.answer.decision == "answer"]
    wrong = sum(one.answer.label != one.truth for one in answered)
    digits = [one for one in asked if one.truth.startswith("the digit")]
    told = sum(one.answer.decision == "answer" for one in digits)
    return (
        f"Of {len(known)} garments that the gallery has not seen {len(answered)} are answered, {wrong} of them "
        f"wrongly; of {len(digits)} digits {told} are."
    )


def _calibrated(path: Path) -> str:
    """Calibrates a gallery that is not; the sentence of its promise."""
    from doubtless.gallery import Gallery
    from doubtless.gallery.calibration.fit import Targets

    with Gallery.open(path, writable=True) as gallery:
        if gallery.status()["promise"] is None:
            gallery.calibrate(Targets(target_error=TARGET_ERROR, unknown=UNKNOWN))
        return str(gallery.status()["promise"]["sentence"])


def some_of_each(source: Source, rows: Sequence[int], count: int) -> list[int]:
    """The first `count` of the rows of every class: the first of each, then the second, …"""
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(int(source.labels[row]), []).append(row)
    return [
        found[label][turn] for turn in range(count) for label in sorted(found) if turn < len(found[label])
    ]


def _write_images(folder: Path, source: Source, rows: Sequence[int]) -> None:
    """One folder per class, as anyone's photographs would lie there."""
    for row in rows:
        _write_image(
            folder / source.label_names[int(source.labels[row])] / f"{row:05d}.png", source.image(row)
        )


def _write_image(file: Path, image: Tensor) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_png(image))


def _png(image: Tensor) -> bytes:
    from PIL import Image

    pixels, file = image.permute(1, 2, 0).numpy(), io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def _example(source: Source, row: int) -> tuple[str, bytes]:
    return source.label_names[int(source.labels[row])], _png(source.image(row))


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
    json: Annotated[bool, typer.Option("--json", help="Print answers and metrics as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the five answers as CSV.")] = False,
) -> None:
    """Train on shipped pictures of garments, ask about five, write the report; a minute or two on two cores.

    With --serve a folder of a finished demo is not trained again.

    Example: doubtless demo

    Example: doubtless demo --serve
    """
    from doubtless.cli.tables import print_json
    from doubtless.progress import spinner
    from doubtless.runs import Run

    refuse_both(json, csv)
    if serve:
        if json or csv:
            raise InputError("--json and --csv print and end; --serve goes on. Give one of the two.")
        from doubtless.cli.serve import refuse_without_extra

        refuse_without_extra()  # before the training, not after it
    if serve and out is not None and Run(out).is_finished:
        _serve(Run.open(out), port=port, browser=browser)
        return
    run, measured = _trained(out or _fresh_folder())
    with spinner("indexing and calibrating the test images"):
        gallery = make_gallery(run)
        asked = ask_about(run, gallery)
    answers = [one.to_json() for one in five_of(asked)]
    if csv:
        typer.echo(records_csv(answers), nl=False)
        return
    if json:
        print_json({"run": str(run.path), "answers": answers, **measured.to_json()})
        return
    _print(run, gallery, asked, measured)
    if serve:
        _serve(run, port=port, browser=browser)


def _trained(out: Path) -> tuple[Run, Evaluation]:
    """A run of the demo's configuration, and what it is worth."""
    from doubtless.cli.tables import recorded_command
    from doubtless.methods.configuration import make_config
    from doubtless.progress import bar
    from doubtless.runs.evaluation import RunEvaluation
    from doubtless.training import train_run

    run = train_run(make_config(DEMO), out, progress=bar)
    return run, RunEvaluation(run, progress=bar).measure(command=recorded_command())


def _print(run: Run, gallery: DemoGallery, asked: list[ShownAnswer], measured: Evaluation) -> None:
    """Five pictures, what is promised and what was kept of it, and what to do next."""
    from doubtless.cli.shown import print_shown
    from doubtless.terminal import Terminal

    console = Terminal()
    console.print("\nFive pictures, and what the gallery says of them\n", style="bold", highlight=False)
    print_shown(five_of(asked), console)
    recall = measured.measures["recall@1"].value
    for sentence in (
        gallery.promise,
        tally(asked),
        f"The network behind it was trained a minute ago (recall@1 {recall:.2f}); the report with every figure: "
        f"{(run.path / 'report.html').resolve()}",
    ):
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print("\nNow with your own pictures\n", style="bold", highlight=False)
    typer.echo(OWN)


def _serve(run: Run, *, port: int, browser: bool) -> None:
    """Indexes and calibrates the run's test images, and serves them until it is stopped."""
    from doubtless.cli.serve import run as serve_app
    from doubtless.progress import spinner
    from doubtless.server.http.app import create_app
    from doubtless.server.service.service import Service

    with spinner("indexing and calibrating the test images"):
        gallery = make_gallery(run)
    typer.echo(gallery.promise)
    with Service.open(gallery.index, read_only=True) as service:
        app = create_app(service, demo=gallery.examples)
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
