"""A gallery for agents: an MCP server (Model Context Protocol) with four tools, spoken over stdin and stdout.

What a tool returns is what everybody else is told: `Answer.to_json` with its decision and its reason. Pictures are
files of this machine or `data:` addresses, decoded within the limits of the HTTP server; no network is used.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import torch
from pydantic import Field

from doubtless.embedding import Embedding
from doubtless.errors import DoubtlessError, InputError
from doubtless.gallery.answer import code_of, finite, plain, values_of
from doubtless.server.service.queue import Query
from doubtless.server.service.service import Service, answer_of
from doubtless.version import __version__

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

Arguments = ParamSpec("Arguments")
LABELS_SHOWN = 200
"""Labels that `describe` names; the number of all is beside them."""
DATA = "data:"

INSTRUCTIONS = """Image retrieval that knows when it does not know. Every result has a `decision` and a `reason`.
Only decision "answer" (of ask) and "same" or "different" (of compare) may be reported as found; "abstain" and
"cannot-tell" mean that the gallery does not know, "not-in-gallery" that it holds nothing like it. `probability` is
calibrated; `score` is not. Repeat `warnings` to whoever relies on an answer."""

Image = Annotated[
    str,
    Field(description="A picture: the path of a file on the server's machine, or data:image/png;base64,…"),
]
Vector = Annotated[
    list[float] | None, Field(description="Instead of a picture: an embedding by the gallery's own model.")
]
Hits = Annotated[int, Field(description="Items that are shown with the answer.", ge=1)]
Where = Annotated[
    dict[str, Any] | None,
    Field(description='Only items with these values: {"label": ["leek", "garlic"], "year": 2024}.'),
]
Confidence = Annotated[
    float, Field(description="Of the covering set: labels that hold the true one so often.", gt=0, lt=1)
]
Prior = Annotated[float, Field(description="How likely two such pictures show the same, beforehand.")]
TargetError = Annotated[
    float | None,
    Field(description="Share of the pairs decided alike that may be wrong; by default as calibrated."),
]
ItemId = Annotated[
    str | None, Field(description="An item's id, as hits have it; without one the gallery is described.")
]


class Tools:
    """What an agent may ask; every method is a tool, its docstring what the agent reads of it."""

    def __init__(self, service: Service, *, image_root: Path | None = None) -> None:
        """image_root: only pictures below this folder are read; None: whatever this user may read."""
        self.service = service
        self.image_root = None if image_root is None else image_root.resolve()
        self._one_at_a_time = threading.Lock()  # tools are called from several threads, a model from one

    def ask(
        self,
        image: Image | None = None,
        vector: Vector = None,
        k: Hits = 5,
        where: Where = None,
        confidence: Confidence = 0.9,
    ) -> dict[str, Any]:
        """What does this picture show, and can that be told? Says so only as often wrong as was promised.

        `decision` is "answer" (then `label` with its `probability`), "abstain" (it cannot be told; `between` names
        what it lies between) or "not-in-gallery". `reason` says why in a sentence, `doubt` and `parts` how unsure
        and from what, `covering_set` which labels hold the true one, `hits` what was found.
        """
        if (image is None) == (vector is None):
            raise InputError("Ask with an image or with a vector: one of the two.")
        if image is not None:
            told = self.service.answer_images([self.picture(image)], k, where=where, confidence=confidence)
            return told[0].to_json()
        embedding = self.service.fitted(Embedding.point(torch.tensor([vector], dtype=torch.float32)))
        question = self.service.question(k, where=where, confidence=confidence)
        return answer_of(
            self.service.submit(Query(embedding=embedding, question=question)).result()
        ).to_json()

    def compare(
        self, first: Image, second: Image, prior: Prior = 0.5, target_error: TargetError = None
    ) -> dict[str, Any]:
        """Do two pictures show the same thing? `decision` is "same", "different" or "cannot-tell".

        `probability` is that of the same, under `prior`; `reason` says why in a sentence.
        """
        one, other = (self.picture(what) for what in (first, second))
        found = self.service.compare(one, other, prior=prior, target_error=target_error)
        told = {name: finite(one) if isinstance(one, float) else one for name, one in asdict(found).items()}
        code = {"reason_code": code_of(found.reason), "reason_values": plain(values_of(found.reason))}
        return {**told, "reason": str(found.reason), **code}

    def status(self) -> dict[str, Any]:
        """What the gallery holds and promises, and whether that still holds.

        `promise` is what was promised when it was calibrated (null: nothing), `watch` what people's judgements say
        of it, `drift` whether recent questions are unlike those it was calibrated on, `change` what became of its
        items since.
        """
        return {**self.service.status(), "change": self.service.gallery.status()["change"]}

    def describe(self, id: ItemId = None, k: Hits = 5) -> dict[str, Any]:
        """What the gallery is: how many items of which labels, by which model. With an item's id: that item.

        Of an item its label, metadata and picture are told, and what the gallery would say of it among all others
        (`answer`), with the probability of its own label (`own_label`): low where the label may be wrong.
        """
        return self._gallery() if id is None else self._item(id, k)

    def picture(self, image: str) -> bytes:
        """The bytes of a picture that an agent has named."""
        if image.startswith(DATA):
            return _decoded(image)
        if "://" in image:
            raise InputError("Addresses are not fetched; give the path of a file, or data:image/…;base64,….")
        try:
            return self._read(image)
        except InputError:
            raise
        except (
            OSError,
            ValueError,
            RuntimeError,
        ):  # a name that cannot be, links in a ring, no right to read
            raise InputError(f"There is no picture {_short(image)} that can be read.") from None

    def _read(self, image: str) -> bytes:
        path, largest = Path(image).expanduser().resolve(), self.service.limits.upload
        if self.image_root is not None and not path.is_relative_to(self.image_root):
            raise InputError(f"Only pictures below {self.image_root} are read, got {_short(image)}.")
        # Neither a folder, nor a pipe that never ends, nor what the system writes as it is read: that has no size.
        if not path.is_file() or path.stat().st_size == 0:
            raise InputError(f"There is no picture {_short(image)}.")
        with path.open("rb") as file:
            data = file.read(largest + 1)
        if len(data) > largest:
            raise InputError(f"{_short(image)} has more than the {largest:,} bytes that are accepted.")
        return data

    def _gallery(self) -> dict[str, Any]:
        counts, info = self.service.gallery.label_counts(), self.service.info()
        shown = dict(list(counts.items())[:LABELS_SHOWN])
        told = {name: info[name] for name in ("items", "labels", "model", "calibrated", "promise", "accepts")}
        return {**told, "label_counts": shown, "version": __version__}

    def _item(self, id: str, k: int) -> dict[str, Any]:
        found = self.service.gallery.considered(id, k)
        item = found.item
        return {
            "id": item.id,
            "label": item.label,
            "metadata": dict(item.metadata),
            "image": item.path,
            "own_label": found.own,
            "answer": None if found.answer is None else found.answer.to_json(),
        }

    def one_at_a_time(self, tool: Callable[Arguments, dict[str, Any]]) -> Callable[Arguments, dict[str, Any]]:
        """A tool whose refusals reach the agent as their sentence."""
        from mcp.server.mcpserver.exceptions import ToolError

        @wraps(tool)
        def called(*arguments: Arguments.args, **named: Arguments.kwargs) -> dict[str, Any]:
            try:
                with self._one_at_a_time:
                    return tool(*arguments, **named)
            except DoubtlessError as error:
                raise ToolError(str(error)) from error

        return called


def mcp_server(service: Service, *, image_root: Path | None = None) -> MCPServer[Any]:
    """The tools over a service, as a server of the official package; `.run("stdio")` serves."""
    from mcp.server.mcpserver import MCPServer
    from mcp.types import ToolAnnotations

    tools = Tools(service, image_root=image_root)
    server: MCPServer[Any] = MCPServer(
        "doubtless", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    reads = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    for tool in (tools.ask, tools.compare, tools.status, tools.describe):
        server.add_tool(tools.one_at_a_time(tool), annotations=reads)
    return server


def _short(words: str) -> str:
    """
    >>> _short("photo.png"), len(_short("a" * 100_000))
    ("'photo.png'", 203)
    """
    return repr(words) if len(words) <= 200 else f"{words[:200]!r}…"


def _decoded(address: str) -> bytes:
    """Bytes of a `data:` address.

    >>> _decoded("data:image/png;base64,aGVsbG8=")
    b'hello'
    """
    kind, comma, data = address.partition(",")
    if not comma or not kind.endswith(";base64"):
        raise InputError(f"A data: address reads data:image/png;base64,…, got {address[:40]!r}.")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("What follows base64, is no base64.") from None
