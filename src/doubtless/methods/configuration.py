"""Configurations of methods: a file or plain values, checked against the sections that the named method has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from doubtless.config import Config, check_config, fine_tunes, with_fine_tuning, with_overrides
from doubtless.errors import InputError, nearest_few
from doubtless.files import shipped
from doubtless.methods import method_class


def make_config(data: Mapping[str, Any]) -> Config:
    """A checked configuration from plain values; with `FINE_TUNING` where a pretrained network is trained.

    >>> make_config({"method": "deterministic", "data": {"source": "fashion-sample"}}).training.epochs
    20
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("method"), str):
        raise InputError("A configuration needs the key method, such as `method: deterministic`.")
    method = method_class(data["method"])
    if method.learns and fine_tunes(data):
        data = with_fine_tuning(data)
    return check_config(data, method.sections)


def load_config(path: str | Path, *, overrides: Sequence[str] = ()) -> Config:
    """Reads a YAML file and applies `key=value` overrides, such as ``training.epochs=3``."""
    path = _found(Path(path))
    try:
        data = yaml.safe_load(path.read_text())
    except (
        OSError,
        ValueError,
        RecursionError,
        yaml.YAMLError,
    ) as error:  # ValueError: numbers of 4,300 digits
        raise InputError(f"{path} is no readable YAML file: {error}.") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} must hold keys and values, such as `method: deterministic`.")
    return make_config(with_overrides(data, overrides))


def _found(path: Path) -> Path:
    """A configuration's file: as written, or that of a shipped one, `fashion-sample/deterministic`."""
    if path.exists():
        return path
    folder = shipped("configs")
    known = {str(file.relative_to(folder).with_suffix("")): file for file in folder.rglob("*.yaml")}
    name = str(path.with_suffix("") if path.suffix in (".yaml", ".yml") else path).removeprefix("configs/")
    if name in known:
        return known[name]
    raise InputError(
        f"There is no configuration {path}, and none that is shipped is called so{nearest_few(name, known)}"
    )
