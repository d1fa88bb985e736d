"""`doubtless export`: a run's model as one ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from doubtless.cli.records import AsCsv, print_record, refuse_both


def export(
    run: Annotated[Path, typer.Argument(help="Finished run whose model is exported.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("model.onnx"),
    input_type: Annotated[
        str, typer.Option("--input", help="What an image is: uint8 (0 to 255) or float32 (0 to 1).")
    ] = "uint8",
    json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Write a run's model as one ONNX file: images in, direction and uncertainty out, any number at a time.

    Normalisation is inside, resizing is not; the file's metadata says what to do before, and holds the names of the
    labels. It is run by onnxruntime and compared with the model before it is written.

    Example: doubtless export runs/first --out first.onnx
    """
    from dataclasses import asdict
    from typing import cast

    import doubtless
    from doubtless.export import InputType, export_onnx
    from doubtless.progress import spinner

    refuse_both(json, csv)
    model = doubtless.load(run)
    with spinner("exporting"):
        done = export_onnx(model, out, input_type=cast(InputType, input_type))
    if json or csv:
        print_record(asdict(done) | {"path": str(done.path)}, csv=csv)
        return
    shape = "×".join(map(str, done.inputs))
    typer.echo(
        f"{done.path}: n×{shape} {input_type} in, {', '.join(done.outputs)} out ({done.bytes / 1e6:.1f} MB)"
    )
    differences = f"directions by at most {done.direction_difference:.1e}"
    if done.uncertainty_difference is not None:
        differences += f", uncertainties by {done.uncertainty_difference:.1e} of themselves"
    typer.echo(f"onnxruntime and the model differ in {differences}")
