"""Methods, one per file. Every module of this package is imported once, and its methods register themselves."""

from __future__ import annotations

import importlib
import pkgutil

from doubtless.methods.base import METHODS, DataSpec, Described, Losses, Method, Subset


def method_class(name: str) -> type[Method]:
    """A method by its name; its own file alone is imported where the name says which."""
    file = name.replace("-", "_")
    if file in {module.name for module in pkgutil.iter_modules(__path__)}:
        importlib.import_module(f"{__name__}.{file}")
    if name not in METHODS:
        _import_ours()
    return METHODS.get(name)


def all_methods() -> dict[str, type[Method]]:
    """Every registered method, by name."""
    _import_ours()
    return dict(sorted(METHODS.items()))


def _import_ours() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


__all__ = ["METHODS", "Method", "Losses", "DataSpec", "Described", "Subset", "method_class", "all_methods"]
