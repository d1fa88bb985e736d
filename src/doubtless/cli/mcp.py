"""`doubtless mcp`: a gallery as tools of an agent, over stdin and stdout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.cli.stopping import STOPPED, how_to_go_on, system_sentence, tell
from doubtless.errors import InputError
from doubtless.memory import SERVING, keep_freed


def mcp(
    gallery: GalleryPlace,
    model: Annotated[Path | None, typer.Option(help="Run whose model embeds, if it was moved.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Read only pictures below this folder; default: any that you may read."),
    ] = None,
) -> None:
    """Serve a gallery to an agent (Model Context Protocol): tools ask, compare, status and describe.

    An agent starts this command itself and speaks with it over stdin and stdout; nothing is stored or removed.

    Example: doubtless mcp shop --images photos
    """
    from importlib.util import find_spec

    if find_spec("mcp") is None:
        raise InputError("Serving agents needs mcp; install the extra: pip install 'doubtless[mcp]'.")
    if images is not None and not images.is_dir():
        raise InputError(f"There is no folder {str(images)!r} to read pictures from.")
    from doubtless.server.agents import mcp_server
    from doubtless.server.service.service import Service

    keep_freed(kept=SERVING)
    how: int | None = None
    with Service.open(gallery, model=model, read_only=True) as service:
        try:
            mcp_server(service, image_root=images).run("stdio")
        except* KeyboardInterrupt:
            how = STOPPED
        except* BrokenPipeError:  # the agent is gone, and nobody is left to be told
            how = 0
        except* OSError as errors:
            how = 2
            tell(system_sentence(_first(errors)))
    if how is not None:  # a thread of the package waits for the agent's next word, and nothing wakes it
        if how == STOPPED:
            tell(how_to_go_on(["mcp"]))
        os._exit(how)


def _first(errors: ExceptionGroup[OSError]) -> OSError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
