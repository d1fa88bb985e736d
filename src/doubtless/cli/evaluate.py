"""`doubtless evaluate` and `doubtless report`: a finished run, or anyone's embeddings from files, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from doubtless.evaluation import Evaluation


def evaluate(
    run: Annotated[Path | None, typer.Argument(help="Run folder made by `doubtless train`.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Another source to measure on than the run's test part.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="Out-of-distribution source (or file); repeatable.")
    ] = None,
    gallery: Annotated[
        str | None, typer.Option(help="What is searched: train, a source, or a file. Default: leave-one-out.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="What is ranked by: direction, expected-distance, expected-likelihood or mutual-likelihood."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=8, help="Side of the images, where another than the run says.")
    ] = None,
    ood_ratio: Annotated[
        float | None,
        typer.Option(help="OOD images to one query in a paper to compare with: its AUPRC is given as well."),
    ] = None,
    open_set: Annotated[
        float | None,
        typer.Option(help="Leave this share of the labels out of the gallery: FNIR at FPIR, OSCR, …"),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(help="tuned: the consensus also at the variance scale that validation images choose."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="url: R-AUROC and recall@1 as the URL benchmark has them, beside its published means."
        ),
    ] = None,
    human_labels: Annotated[
        Path | None,
        typer.Option(help="With --protocol url: how people labelled the images, such as cifar10h-probs.npy."),
    ] = None,
    disturb: Annotated[
        int | None,
        typer.Option(min=2, help="Blur, hide and crop this many test images: does the uncertainty rise?"),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(help="Measure this file instead of a run: .safetensors, .npz, .npy or parquet."),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels of --embeddings that lie beside them: CSV, parquet or .npy.")
    ] = None,
    gallery_labels: Annotated[Path | None, typer.Option(help="The same of --gallery.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the results of --embeddings.")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Replicates behind the intervals; 0: no intervals.")
    ] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print measures and intervals as CSV.")] = False,
) -> None:
    """Measure a run, or embeddings that any method made, and write metrics.json and report.html.

    A file holds `location` (n, D) and `labels` (n,), and where there are any `variance`, `samples` or
    `uncertainty`; with --embeddings, --gallery and --ood name files too.

    Example: doubtless evaluate runs/first --ood digits --gallery train

    Example: doubtless evaluate --embeddings theirs.npz --ood strange.npz --out theirs

    Example: doubtless evaluate --embeddings vectors.npy --labels labels.csv
    """
    from doubtless.cores import limit_threads

    limit_threads()  # before torch is loaded
    from doubtless.cli.records import refuse_both
    from doubtless.cli.tables import evaluation_csv, print_evaluation, print_json
    from doubtless.errors import InputError

    refuse_both(json, csv)
    if (run is None) == (embeddings is None):
        raise InputError("Name either a run folder or --embeddings FILE, and not both.")
    if protocol is not None or human_labels is not None:
        from doubtless.cli.url import print_url

        others = [
            ood,
            gallery,
            score,
            size,
            ood_ratio,
            open_set,
            scale,
            disturb,
            embeddings,
            labels,
            gallery_labels,
            out,
        ]
        if protocol != "url" or run is None or csv or any(value is not None for value in others):
            raise InputError(
                "--protocol url measures a run, and goes with --data, --human-labels and --json; there is no other "
                "protocol."
            )
        print_url(run, data, human_labels, json=json)
        return
    changes = {
        "score": score,
        "ood_ratio": ood_ratio,
        "size": size,
        "open_set": open_set,
        "scale": scale,
        "disturbed": disturb,
    }
    if embeddings is not None:
        if data is not None:
            raise InputError("--data belongs to a run; embeddings are measured on their own labels.")
        if size is not None:
            raise InputError("--size belongs to a run; embeddings have no images.")
        if scale == "tuned":
            raise InputError("--scale tuned belongs to a run, whose validation images choose the scale.")
        if disturb is not None:
            raise InputError("--disturb belongs to a run; embeddings have no images.")
        beside = (labels, gallery_labels)
        evaluation, folder = _measure_files(embeddings, gallery, beside, ood or [], changes, out, bootstrap)
        title = embeddings.stem
    else:
        assert run is not None
        if labels is not None or gallery_labels is not None or out is not None:
            raise InputError("--labels, --gallery-labels and --out go with --embeddings; a run has its own.")
        evaluation, folder, title = _measure_run(run, data, ood, gallery, changes, bootstrap)
    if json:
        print_json(evaluation.to_json())
    elif csv:
        typer.echo(evaluation_csv(evaluation), nl=False)
    else:
        print_evaluation(evaluation, title)
        typer.echo(f"report: {folder / 'report.html'}")


def _measure_run(
    run: Path,
    data: str | None,
    ood: list[str] | None,
    gallery: str | None,
    changes: dict[str, Any],
    bootstrap: int,
) -> tuple[Evaluation, Path, str]:
    from doubtless.cli.tables import recorded_command
    from doubtless.config import evaluation_options
    from doubtless.progress import bar
    from doubtless.runs import Run
    from doubtless.runs.evaluation import RunEvaluation

    opened = Run.open(run)
    options = evaluation_options(opened.config.evaluation, **changes)
    work = RunEvaluation(opened, data=data, ood=ood, gallery=gallery, options=options, progress=bar)
    evaluation = work.measure(bootstrap=bootstrap, command=recorded_command())
    return evaluation, work.folder, f"{work.config.method} on {data or work.config.data.source}"


def _measure_files(
    embeddings: Path,
    gallery: str | None,
    labels: tuple[Path | None, Path | None],
    ood: list[str],
    changes: dict[str, Any],
    out: Path | None,
    bootstrap: int,
) -> tuple[Evaluation, Path]:
    from doubtless.cli.tables import recorded_command
    from doubtless.config import EvaluationConfig, evaluation_options
    from doubtless.evaluation import EvaluationOptions, OpenSetOptions, evaluate_files
    from doubtless.progress import spinner
    from doubtless.report import embedding_map, write_report
    from doubtless.runs.report import versions

    options = evaluation_options(EvaluationConfig(), **changes)
    divided = options.open_set
    with spinner("measuring"):
        evaluation, queries = evaluate_files(
            embeddings,
            labels=labels[0],
            gallery=gallery,
            gallery_labels=labels[1],
            ood=ood,
            options=EvaluationOptions(
                score=options.score,
                ood_ratio=options.ood_ratio,
                open_set=None if divided is None else OpenSetOptions(**divided.model_dump()),
                bootstrap=bootstrap,
            ),
        )
    folder = out or embeddings.with_name(f"{embeddings.stem}-evaluation")
    evaluation.save(folder / "metrics.json")
    uncertainty = queries.embedding.uncertainty if queries.uncertainty is None else queries.uncertainty
    assert queries.labels is not None
    write_report(
        folder / "report.html",
        title=f"Embeddings of {embeddings.name}",
        evaluation=evaluation,
        config={
            "family": queries.embedding.family,
            "items": len(queries.embedding),
            "dim": queries.embedding.dim,
        },
        versions=versions(),
        command=recorded_command(),
        embedding_map=embedding_map(queries.embedding.direction, queries.labels, uncertainty),
    )
    return evaluation, folder


def report(
    run: Annotated[Path, typer.Argument(help="Run folder made by `doubtless train`.")],
    json: Annotated[bool, typer.Option("--json", help="Print the path and the metrics as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print measures and intervals as CSV.")] = False,
) -> None:
    """Measure a run again on its own test part and write its report anew.

    Example: doubtless report runs/first
    """
    from doubtless.cores import limit_threads

    limit_threads()  # before torch is loaded
    from doubtless.cli.records import refuse_both
    from doubtless.cli.tables import evaluation_csv, print_json, recorded_command
    from doubtless.progress import bar
    from doubtless.runs import Run
    from doubtless.runs.evaluation import RunEvaluation

    refuse_both(json, csv)
    work = RunEvaluation(Run.open(run), progress=bar)
    evaluation = work.measure(command=recorded_command())
    path = work.folder / "report.html"
    if json:
        print_json({"report": str(path), **evaluation.to_json()})
    elif csv:
        typer.echo(evaluation_csv(evaluation), nl=False)
    else:
        typer.echo(f"report: {path}")
