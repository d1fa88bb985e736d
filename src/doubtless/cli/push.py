"""`doubtless push`: a model into a folder of its own, or to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from doubtless.cli.records import AsCsv, print_record, refuse_both
from doubtless.errors import InputError
from doubtless.registry import HUB


def push(
    model: Annotated[
        str, typer.Argument(help="A run, a gallery, timm:NAME, an .onnx file, or any other model by name.")
    ],
    place: Annotated[str, typer.Argument(help="A new folder, or hub:USER/NAME.")],
    weights: Annotated[Path | None, typer.Option(help="Weights of timm:NAME, a safetensors file.")] = None,
    private: Annotated[bool, typer.Option("--private", help="On the Hub: for you alone.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print where it is as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Save a model as safetensors and JSON, here or on the Hugging Face Hub (HF_TOKEN, or `hf auth login`).

    Others then name it: doubtless create gallery photos --model hub:USER/NAME

    Example: doubtless push runs/first my-model

    Example: doubtless push shop hub:USER/NAME --private
    """
    refuse_both(json, csv)
    if not place.startswith(HUB):
        if private:
            raise InputError("--private is for the Hub; a folder is as private as its place.")
        if Path(place).exists() and (not Path(place).is_dir() or any(Path(place).iterdir())):
            raise InputError(f"{place} exists already; name another folder.")
    from doubtless.runs.names import open_model

    opened = open_model(model, weights=weights)
    if place.startswith(HUB):
        where = opened.push_to_hub(place.removeprefix(HUB), private=private)
    else:
        where = str(opened.save_pretrained(place))
    if json or csv:
        print_record({"model": model, "place": where}, csv=csv)
        return
    typer.echo(f"Saved: {where}")
