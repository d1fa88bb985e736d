"""The page in Gradio's blocks: what can be chosen and moved, and which part of the page it changes.

In its head stand the report's colours and charts, the page's own rules and a script.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from doubtless.data.images import uploaded_kinds
from doubtless.errors import DoubtlessError
from doubtless.report.page import text
from doubtless.server.page.answer_view import error_view, waiting_view
from doubtless.server.page.gallery_view import GalleryPictures, extremes, gallery_view
from doubtless.server.page.question import CORRUPTIONS, Asking, View, failed
from doubtless.server.page.thumbnails import Thumbnails

if TYPE_CHECKING:
    import gradio
    from torch import Tensor

    from doubtless.server.service.service import Service


PACKAGE = "doubtless.server.page"


def page_head() -> str:
    """Styles and script, inline: nothing is requested for them."""
    return f"<style>{_palette()}{_charts()}{read('page.css')}</style><script>{read('map.js')}</script>"


@cache
def read(name: str) -> str:
    """A file of the page, as text."""
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _report(name: str) -> str:
    return files("doubtless.report").joinpath(name).read_text(encoding="utf-8")


def _palette() -> str:
    """The report goes by the system's preference, Gradio by the class ``dark``, which follows it."""
    light, dark = re.findall(r":root\s*{([^}]*)}", _report("tokens.css"))[:2]
    return f":root{{{light}color-scheme:light}}.dark,:root:has(.dark){{{dark}color-scheme:dark}}"


def _charts() -> str:
    """The report's rules for figures, below ``.charts`` only; rules for whole pages match nothing there.

    Classes that colour series are wanted on the map, too.
    """
    plain = re.sub(r"(?s)@media print.*", "", _report("style.css"))
    colours = "".join(re.findall(r"\.s\d \{[^}]*\}", plain))
    return f"{colours}.charts{{{plain}}}"


log = logging.getLogger(__name__)
TITLE = "doubtless"
SLIDERS = {"blur": "Blur", "noise": "Noise", "occlude": "Occlude"}
Example = tuple[str, str]
"""Its name, and a ``data:`` address of its picture."""
CONFIDENCE = "Confidence of the covering set (%)"
BROKEN = "Something went wrong on the server; its log says what."
KEPT_PICTURE_SECONDS = 3600
PLAIN: dict[str, Any] = {"elem_classes": "dl", "apply_default_css": False}
"""HTML that the page's own rules dress."""


def build_blocks(service: Service, *, examples: Sequence[Example] = ()) -> gradio.Blocks:
    """Both tabs, with their events."""
    import gradio as gr

    thumbnails = Thumbnails(service)
    asking, pictures = Asking(service, thumbnails), GalleryPictures(service, thumbnails)
    with gr.Blocks(title=TITLE, analytics_enabled=False) as blocks:
        gr.HTML(_header(service), **PLAIN)
        with gr.Tabs():
            with gr.Tab("Ask", id="ask"):
                _ask_tab(service, asking, examples)
            with gr.Tab("Gallery", id="gallery") as tab:
                shown = gr.HTML(
                    '<p class="quiet">The map is being drawn…</p>', **PLAIN, elem_id="gallery-view"
                )
                tab.select(
                    _gallery(pictures, thumbnails),
                    outputs=shown,
                    show_progress="hidden",
                    api_visibility="private",
                )
    return blocks


def _ask_tab(service: Service, asking: Asking, examples: Sequence[Example]) -> None:
    import gradio as gr

    kept = gr.State(None, time_to_live=KEPT_PICTURE_SECONDS)
    with gr.Row(equal_height=False, elem_classes="ask"):
        with gr.Column(scale=2, min_width=280):
            picker = gr.HTML(
                "",
                html_template=_picker(examples),
                js_on_load=read("picker.js"),
                **PLAIN,
                elem_id="picker",
            )
            asked = gr.HTML("", **PLAIN, elem_id="asked")
            with gr.Group(elem_classes="sliders"):
                sliders = [
                    gr.Slider(0, 100, value=0, step=5, label=f"{label} (%)", elem_id=f"slider-{name}")
                    for name, label in SLIDERS.items()
                ]
                confidence = gr.Slider(
                    50,
                    99,
                    value=90,
                    step=1,
                    label=CONFIDENCE,
                    elem_id="slider-confidence",
                )
            reset = gr.Button("Undo blur, noise and occlusion", size="sm", elem_id="undo")
        with gr.Column(scale=3, min_width=320):
            decision = gr.HTML(waiting_view(len(service.gallery)), **PLAIN, elem_id="decision")
            judged, judging = _judging(service)
            found = gr.HTML("", **PLAIN, elem_id="found")
            doubt = gr.HTML("", **PLAIN, elem_id="doubt")
    places, moved = [asked, decision, found, doubt], [*sliders, confidence]
    live: dict[str, Any] = {
        "show_progress": "hidden",
        "trigger_mode": "always_last",
        "api_visibility": "private",
    }
    answer = gr.State(None, time_to_live=KEPT_PICTURE_SECONDS)
    picker.chosen(_choose(asking), [picker, *moved], [kept, answer, *places], **live)
    gr.on([slider.change for slider in moved], _move(asking), [kept, *moved], [answer, *places], **live)
    for said, (button, label) in judging.items():
        button.click(_judge(asking, said), [answer, label], judged, **live)
    reset.click(lambda: [0] * len(sliders), outputs=sliders, show_progress="hidden", api_visibility="private")


def _choose(asking: Asking) -> Callable[..., list[Any]]:
    """A new picture: it is decoded and kept, then answered."""

    def choose(address: str | None, *moved: float) -> list[Any]:
        kept: list[Tensor] = []

        def work() -> View:
            kept.append(asking.chosen(address))
            return _answered(asking, kept[0], moved, first=True)

        view = _safely(work)
        return [kept[0] if kept else None, view.answer, *_places(view)]

    return choose


def _move(asking: Asking) -> Callable[..., list[Any]]:
    """A slider has moved: the picture that was kept is answered again."""

    def move(image: Tensor | None, *moved: float) -> list[Any]:
        view = _safely(lambda: _answered(asking, image, moved))
        return [view.answer, *_places(view)]

    return move


def _judging(service: Service) -> tuple[Any, dict[str | None, tuple[Any, Any]]]:
    """Where a visitor says that the answer is right, wrong, or what it is, and where that is acknowledged."""
    import gradio as gr

    writable = not service.read_only
    with gr.Row(visible=writable, elem_id="judge"):
        right, wrong = (
            gr.Button(word, size="sm", elem_id=f"say-{word.lower()}") for word in ("Right", "Wrong")
        )
        label = gr.Textbox(placeholder="It is …", show_label=False, max_lines=1, elem_id="say-label")
        named = gr.Button("Say so", size="sm", elem_id="say-named")
    judged = gr.HTML("", **PLAIN, elem_id="judged", visible=writable)
    return judged, {"right": (right, label), "wrong": (wrong, label), None: (named, label)}


def _judge(asking: Asking, said: str | None) -> Callable[[str | None, str | None], str]:
    """What was said is kept, and that it is is said."""

    def judge(answer: str | None, label: str | None) -> str:
        try:
            return f'<p class="quiet" role="status">{text(asking.judge(answer, said, label))}</p>'
        except DoubtlessError as error:
            return error_view(str(error))
        except Exception:
            log.exception("what was said cannot be kept")
            return error_view(BROKEN)

    return judge


def _gallery(pictures: GalleryPictures, thumbnails: Thumbnails) -> Callable[[], str]:
    def draw() -> str:
        try:
            picture = pictures.get()
            chosen = [] if picture is None else [picture.ids[i] for side in extremes(picture) for i in side]
            return gallery_view(picture, thumbnails.of(chosen))
        except Exception:
            log.exception("the gallery cannot be drawn")
            return error_view(BROKEN)

    return draw


def _answered(asking: Asking, image: Tensor | None, moved: Sequence[float], *, first: bool = False) -> View:
    strengths = {name: value / 100 for name, value in zip(CORRUPTIONS, moved, strict=False)}
    return asking.view(image, strengths, confidence=moved[-1] / 100, first=first)


def _safely(work: Callable[[], View]) -> View:
    """What the visitor did wrong is said; what the server did wrong is logged, and said to be."""
    try:
        return work()
    except DoubtlessError as error:
        return failed(error)
    except Exception:
        log.exception("a picture cannot be answered")
        return View("", error_view(BROKEN), "", "")


def _places(view: View) -> list[str]:
    return [view.asked, view.decision, view.found, view.doubt]


def _header(service: Service) -> str:
    items, labels = len(service.gallery), len(service.gallery.index.label_names)
    named = f" of {labels:,} labels" if labels else ""
    return (
        '<header class="masthead"><h1>doubtless</h1>'
        f"<p>Image retrieval that knows when it does not know. {items:,} items{named}.</p></header>"
    )


def _picker(examples: Sequence[Example]) -> str:
    buttons = "".join(
        f'<li><button type="button" data-example aria-label="Ask about the example {text(name)}">'
        f'<img src="{text(address)}" alt=""></button></li>'
        for name, address in examples
    )
    kinds = uploaded_kinds().values()
    *names, last = (kind.name for kind in kinds)
    accepted = ",".join(end for kind in kinds for end in (kind.media_type, *kind.suffixes))
    shown = f'<div class="examples"><p>Or try one of these</p><ul>{buttons}</ul></div>' if buttons else ""
    return (
        '<div class="picker"><label class="drop"><strong>Drop, paste or choose a picture</strong>'
        f"<span>{', '.join(names)} or {last}. It stays on this server.</span>"
        f'<input type="file" accept="{accepted}" '
        f'aria-label="Choose a picture"></label>{shown}</div>'
    )
