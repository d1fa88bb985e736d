"""Which functions draw the figures of which method, and what they are given to draw from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.evaluation.result import Evaluation
from doubtless.methods import Method
from doubtless.report.images import ImageLookup
from doubtless.report.page import Section


@dataclass(frozen=True)
class Context:
    """A measured run."""

    method: Method
    evaluation: Evaluation
    embedding: Embedding  # of the queries
    labels: Tensor  # (n,) of the queries
    images: ImageLookup
    label_names: Sequence[str]
    gallery: Embedding | None = None  # None: the queries themselves, each left out of its own search
    ood: Mapping[str, Embedding] = field(default_factory=dict)
    log: Sequence[Mapping[str, Any]] = ()


Drawer = Callable[[Context], list[Section]]

DRAWERS: dict[str, list[Drawer]] = {}


def draws_for(*methods: str) -> Callable[[Drawer], Drawer]:
    """Registers a function that draws sections for the reports of these methods."""

    def register(draw: Drawer) -> Drawer:
        for name in methods:
            DRAWERS.setdefault(name, []).append(draw)
        return draw

    return register
