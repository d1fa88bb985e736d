"""Methods, one a file. Every module of this package is imported once, and its methods register themselves."""

from __future__ import annotations

import importlib
import pkgutil

from doubtless.errors import InputError, nearest
from doubtless.methods.base import METHODS, DataSpec, Described, Losses, Method, Subset


def method_class(name: str) -> type[Method]:
    """A method by its name."""
    methods = all_methods()
    if name not in methods:
        raise InputError(f"There is no method {name!r}{nearest(name, methods)}")
    return methods[name]


def all_methods() -> dict[str, type[Method]]:
    """Every registered method, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(METHODS.items()))


__all__ = ["Method", "Losses", "DataSpec", "Described", "Subset", "method_class", "all_methods"]
