"""`doubtless posterior`: a finished run, or features of any encoder, get a Laplace posterior around the head."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.records import AsCsv, print_record, refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from doubtless.config import Config
    from doubtless.laplace import Head, Posterior

METHOD = "lam-posthoc"
FEATURE_KEYS = ("laplace.", "loss.margin=", "loss.negative_weight=", "seed=")
SHOWN = ("recall@1", "map@r", "error_auroc", "ausc", "ece")


def posterior(
    run: Annotated[Path | None, typer.Argument(help="Finished run of a method with a linear head.")] = None,
    features: Annotated[Path | None, typer.Option(help="Instead of a run: features (n, F), .npy.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Whole numbers (n,), .npy, with --features.")] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="half-whitened (default), identity, or .npy (D, F), or (D, F+1) with the bias last."
        ),
    ] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Dimensions of a half-whitened head.")] = None,
    validation: Annotated[
        float, typer.Option(help="Share of the features that chooses scale and prior, held out of the rest.")
    ] = 0.2,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New run folder, or .safetensors with --features.")
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", "-s", help="Override, such as laplace.tune.grid=20.")
    ] = [],  # noqa: B006
    evaluate: Annotated[bool, typer.Option(help="Measure the new run and write its report.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Make a trained encoder probabilistic: curvature in one pass, scale and prior by validation images.

    Example: doubtless posterior runs/first --out runs/first-posterior

    Example: doubtless posterior --features f.npy --labels y.npy --out posterior.safetensors

    Example: doubtless posterior runs/first --set laplace.covariance=kronecker
    """
    refuse_both(json, csv)
    if (run is None) == (features is None):
        raise InputError("Name either a run, or --features with --labels.")
    if run is not None:
        if labels or head or dim:
            raise InputError("--labels, --head and --dim go with --features; a run has its own.")
        _of_run(run, out or run.with_name(f"{run.name}-posterior"), set_, evaluate, json=json, csv=csv)
        return
    if labels is None or out is None or features is None:
        raise InputError("--features needs --labels, one whole number each, and --out, a .safetensors file.")
    found = _of_features(features, labels, out, head=head, dim=dim, share=validation, overrides=set_)
    if json or csv:
        print_record(found, csv=csv)
    else:
        _print_found(found)


def _of_run(run: Path, out: Path, overrides: list[str], evaluate: bool, *, json: bool, csv: bool) -> None:
    """A run of its own that starts from another one's weights."""
    from doubtless.cli.tables import print_evaluation, print_json, recorded_command
    from doubtless.files import read_json
    from doubtless.progress import bar
    from doubtless.runs import Run
    from doubtless.runs.evaluation import RunEvaluation
    from doubtless.training import train_run

    base = Run.open(run)
    base.load_method()  # an unfinished or damaged one is a sentence before a new folder is made
    made = train_run(_config_of_run(base, overrides), out, quiet=True, progress=bar)
    record = read_json(made.path / "model.json")["record"]
    found = RunEvaluation(made, progress=bar).measure(command=recorded_command()) if evaluate else None
    if json:
        print_json({"run": str(made.path), "record": record, **(found.to_json() if found else {})})
        return
    if csv:
        values = {name: one.value for name, one in found.measures.items()} if found else {}
        print_record({"run": str(made.path), "record": record, "measures": values}, csv=True)
        return
    if found is not None:
        print_evaluation(found, f"{METHOD} on {made.config.data.source}")
    typer.echo(f"{_chosen(record)}\nrun: {made.path}")


def _config_of_run(run: Any, overrides: list[str]) -> Config:
    """The run's own configuration with the method changed and the run itself as the base."""
    from doubtless.config import Config, with_overrides
    from doubtless.methods.configuration import make_config

    known = run.config.to_dict()
    common = {key: known[key] for key in Config.model_fields if key in known}
    if "laplace" in known:
        common["laplace"] = known["laplace"]
    common["training"] |= {"devices": 1, "nodes": 1}
    return make_config(with_overrides(common | {"method": METHOD, "base": str(run.path)}, overrides))


def _of_features(
    features: Path,
    labels: Path,
    out: Path,
    *,
    head: str | None,
    dim: int | None,
    share: float,
    overrides: list[str],
) -> dict[str, Any]:
    """Writes a posterior into a file of its own, from arrays alone; what was found."""
    from safetensors.torch import save

    from doubtless.evaluation import EvaluationOptions, evaluate
    from doubtless.files import write_bytes

    config = _config_of_features(overrides)
    values, classes = _arrays(features, labels)
    rows, held_out = _held_out(len(values), share, config.seed)
    start = _head(head, values.shape[1])
    record, tuned = _fit(
        config, (values[rows], classes[rows]), (values[held_out], classes[held_out]), start, dim
    )
    write_bytes(out, save(tuned.to_tensors(), metadata={"schema": "1", "kind": "posterior"}))
    options = EvaluationOptions(bootstrap=0, clusters=False)
    found = evaluate(tuned.predict(values[held_out]), classes[held_out], options=options)
    measures = {name: found[name] for name in SHOWN if name in found.measures}
    return {"posterior": str(out), "record": record, "held_out": len(held_out), "validation": measures}


def _print_found(found: dict[str, Any]) -> None:
    typer.echo(_chosen(found["record"]))
    typer.echo(f"on the {found['held_out']:,} images that chose them, each searched among the others:")
    for name, value in found["validation"].items():
        typer.echo(f"  {name:<12} {value:.4f}")
    typer.echo(f"posterior: {found['posterior']}")


def _fit(
    config: Config, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], start: Any, dim: int | None
) -> tuple[dict[str, Any], Posterior]:
    """The same steps as the method's: curvature, then τ and λ."""
    import torch

    from doubtless.laplace import fit
    from doubtless.methods import Subset
    from doubtless.methods.laplace_head import LaplaceHead, LaplaceOptions, curvature_options

    generator = torch.Generator().manual_seed(config.seed)
    options = config.section("laplace", LaplaceOptions)
    found = fit(
        *train,
        start,
        dim=dim,
        covariance=options.covariance,
        options=curvature_options(config),
        generator=generator,
    )
    weight, bias = found.head()
    layer = torch.nn.Linear(weight.shape[1], len(weight), bias=bias is not None)
    layer.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
    laplace = LaplaceHead(layer, options)
    laplace.start(layer, images=len(train[0]))
    laplace.keep(found.with_scale(float(laplace.scale), float(laplace.prior_precision)))
    chosen_on, fitted = Subset(held_out[1], lambda: held_out[0]), Subset(train[1], lambda: train[0])
    laplace.tune(layer, chosen_on, fitted, config)
    return laplace.record(), laplace.posterior(layer)


def _config_of_features(overrides: list[str]) -> Config:
    from doubtless.config import with_overrides
    from doubtless.methods.configuration import make_config

    if foreign := [key for key in overrides if not key.startswith(FEATURE_KEYS)]:
        raise InputError(
            f"With --features there is nothing to train or load, so {foreign[0]!r} means nothing; "
            "accepted: laplace.…, loss.margin, loss.negative_weight and seed."
        )
    plain = {"method": METHOD, "data": {"source": "features"}, "loss": {"reduction": "all"}}  # as `fit` does
    return make_config(with_overrides(plain, overrides))


def _arrays(features: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Features (n, F), float32, and labels (n,)."""
    import numpy as np
    import torch

    values, classes = _array(features), _array(labels)
    if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating) or not np.isfinite(values).all():
        raise InputError(
            f"{features} must hold features (n, F), floats without NaN, got {values.dtype} {values.shape}."
        )
    if classes.shape != (len(values),) or not np.issubdtype(classes.dtype, np.integer):
        raise InputError(
            f"{labels} must hold {len(values)} whole numbers, one for each row of {features}, "
            f"got {classes.dtype} {classes.shape}."
        )
    return torch.from_numpy(values.astype(np.float32)), torch.from_numpy(classes.astype(np.int64))


def _array(path: Path) -> np.ndarray:
    import numpy as np

    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        found = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises many kinds for damaged files
        raise InputError(f"{path} is no readable .npy file: {error}.") from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path} holds several arrays; one .npy is needed.")
    return found


def _head(head: str | None, width: int) -> Head | str | None:
    """What `fit` takes: a name, or weight and bias out of a file."""
    import numpy as np
    import torch

    from doubtless.laplace import Head

    if head is None or head in ("half-whitened", "identity"):
        return head
    values = _array(Path(head))
    if values.ndim != 2 or values.shape[1] not in (width, width + 1) or not np.isfinite(values).all():
        raise InputError(
            f"{head} must hold a head (D, {width}), or (D, {width + 1}) with the bias last, without NaN, "
            f"got {values.shape}."
        )
    whole = torch.from_numpy(values.astype(np.float32))
    return Head(whole[:, :width].contiguous(), whole[:, width] if whole.shape[1] > width else None)


def _held_out(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    import torch

    if not 0 < share < 1 or not 2 <= round(count * share) <= count - 2:
        raise InputError(
            f"--validation must leave at least two images on either side; {share} of {count} does not."
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = round(count * share)
    return order[held:].sort().values, order[:held].sort().values


def _chosen(record: dict[str, Any]) -> str:
    """τ and λ in a line, and a word of warning where the grid did not reach far enough."""
    line = f"scale τ {record['scale']:.4g}   prior precision λ {record['prior_precision']:.4g}"
    if "score" not in record:
        return f"{line}   (as given, not tuned)"
    line += f"   ({record['criterion']} {abs(record['score']):.4f} over {record['trials']} trials)"
    if record["best_scale_at_the_end"]:
        line += "\nthe best scale is the outermost one tried: the criterion has no optimum within the grid."
    return line
