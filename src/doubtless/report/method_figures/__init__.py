"""Figures that belong to one method, as sections of its runs' reports. One file per method registers itself."""

from __future__ import annotations

import importlib
import pkgutil

from doubtless.report.method_figures.registry import DRAWERS, Context, draws_for
from doubtless.report.page import Section


def method_sections(context: Context) -> list[Section]:
    """What is to be shown of this run besides what every report shows."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return [section for draw in DRAWERS.get(context.method.name, []) for section in draw(context)]


__all__ = ["Context", "draws_for", "method_sections"]
