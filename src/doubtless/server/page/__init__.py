"""A page to look at an index with: ask with a picture, see the decision and where its doubt comes from.

Gradio at `/` of the server's app; it calls the `Service` in this process and asks no other machine for anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from doubtless.errors import InputError
from doubtless.server.page.answer_view import decision_sentence

if TYPE_CHECKING:
    from fastapi import FastAPI

    from doubtless.server.service.service import Service


def mount_page(app: FastAPI, service: Service, *, examples: Sequence[tuple[str, str]] = ()) -> FastAPI:
    """The same app with the page at `/`; routes that the app has already come first.

    examples: names and ``data:`` addresses of pictures that a visitor can ask about with one click.
    """
    try:
        import gradio
    except ImportError as error:
        raise InputError("The page needs Gradio: pip install 'doubtless[serve]'.") from error
    from doubtless.server.page.fence import Fence, Streams
    from doubtless.server.page.layout import build_blocks, page_head

    fonts = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")
    mounted: FastAPI = gradio.mount_gradio_app(
        app,
        build_blocks(service, examples=examples),
        path="/",
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=service.limits.upload,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        theme=gradio.themes.Base(font=fonts[0], font_mono=fonts[1]),
        head=page_head(),
    )
    streams = Streams()
    mounted.add_middleware(Fence, streams=streams)
    mounted.state.stop_page = streams.stop  # for the server, when it is told to stop
    return mounted


__all__ = ["mount_page", "decision_sentence"]
