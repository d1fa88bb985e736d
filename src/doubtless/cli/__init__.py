"""The command line, one file per verb. Bad input is one sentence and exit code 2, never a traceback."""

from __future__ import annotations

import os
import sys

import typer

from doubtless.cli import (
    ask,
    bench,
    calibrate,
    compare,
    create,
    demo,
    embed,
    evaluate,
    export,
    feedback,
    index,
    items,
    listing,
    mcp,
    posterior,
    push,
    recalibrate,
    review,
    safekeeping,
    serve,
    status,
    train,
    upkeep,
)
from doubtless.cli import evaluate as report
from doubtless.cli import listing as sources
from doubtless.cli.stopping import (
    STOPPED,
    Stopped,
    how_to_go_on,
    noting_interrupts,
    refused,
    system_sentence,
    tell,
)
from doubtless.errors import DoubtlessError
from doubtless.memory import keep_freed
from doubtless.screen import shield_terminal
from doubtless.version import __version__

app = typer.Typer(
    name="doubtless",
    help="Image retrieval that knows when it does not know.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("create")(create.create)
app.command("ask")(ask.ask)
app.command("serve")(serve.serve)
app.command("mcp")(mcp.mcp)
app.command("calibrate")(calibrate.calibrate)
app.command("recalibrate")(recalibrate.recalibrate)
app.command("compare")(compare.compare)
app.command("feedback")(feedback.feedback)
app.command("review")(review.review)
app.command("status")(status.status)
app.command("add")(create.add)
app.command("remove")(upkeep.remove)
app.command("list")(items.list_items)
app.command("show")(items.show)
app.command("relabel")(items.relabel)
app.command("stats")(upkeep.stats)
app.command("compact")(upkeep.compact)
app.command("migrate")(upkeep.migrate)
app.command("check")(safekeeping.check)
app.command("backup")(safekeeping.backup)
app.command("restore")(safekeeping.restore)
app.command("salvage")(safekeeping.salvage)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("posterior")(posterior.posterior)
app.command("embed")(embed.embed)
app.command("export")(export.export)
app.command("push")(push.push)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("methods")(listing.methods)
app.add_typer(sources.app, name="sources")
app.add_typer(index.index, name="index", hidden=True)  # names of earlier versions
app.command("search", hidden=True)(ask.ask)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _open_what_was_closed() -> None:
    """Whoever started this may have closed its output; the next file that is opened would be taken for it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)


def main() -> None:
    """Runs the command line; errors that a user can act on leave with 2 and a sentence."""
    _open_what_was_closed()
    interrupted = noting_interrupts()
    keep_freed()
    shield_terminal()
    try:
        code = app(prog_name="doubtless", standalone_mode=False)
        sys.stdout.flush()
    except DoubtlessError as error:
        tell(str(error))
        sys.exit(2)
    except BrokenPipeError:  # whoever read has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (to be flushed at the end)
        sys.exit(0)
    except Stopped as how:
        tell(str(how))
        sys.exit(STOPPED)
    except OSError as error:  # of files that somebody named, or of a standard output that is full
        tell(system_sentence(error))
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (as above)
        sys.exit(2)
    except Exception as error:
        if interrupted:  # what an import makes of Ctrl-C may be anything
            code = STOPPED
        elif refused(error):
            sys.exit(2)
        else:
            raise
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED
    if code == STOPPED:
        tell(how_to_go_on(sys.argv[1:]))
    sys.exit(code if isinstance(code, int) else 0)


__all__ = ["app", "main"]
