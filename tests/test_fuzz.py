"""Every reader of outside files, given files that were changed at random: what is wrong is a sentence, or read.

Bytes are changed wherever they are. Where a file has values that a program gave names to, so are those: JSON, YAML,
the heads of safetensors, the arrays of .npz, words of tables. A reader that looks only at what it can parse would
pass the first alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubtless.errors import DoubtlessError
from tests.reference.outside_files import Kind, kinds

KINDS = kinds()
SLOW = ("run", "saved", "msls", "dataset", "npz measured", "safetensors measured")
"""What takes so long to read that it is read less often."""
ODD: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, float("nan"), "", "x", "9" * 40, "nan", "1e999", [], {}, [1], {"a": 1},
    [[None]], "../../x", "\0", "é",
]  # fmt: skip
ARRAYS: list[Any] = [
    np.zeros(0, np.float32), np.float32(1), np.zeros((6, 0), np.float32), np.full((6, 3), np.nan, np.float32),
    np.zeros((6, 3, 2), np.float32), np.array(["a"] * 6), np.arange(6), np.arange(5), np.zeros(6, bool),
    np.zeros(6, "c8"), np.array("text"), np.array(["2020-01-01"] * 6, "M8[D]"), np.full(6, 2**63, np.uint64),
]  # fmt: skip

Change = tuple[str, float, Any]
BYTES = st.tuples(
    st.sampled_from(["set", "cut", "insert", "repeat"]), st.floats(0, 1), st.binary(min_size=1, max_size=12)
)
VALUES = st.tuples(st.just("value"), st.floats(0, 1), st.integers(0, len(ODD)))
CHANGES = st.one_of(st.lists(BYTES, min_size=1, max_size=4), st.lists(VALUES, min_size=1, max_size=2))


def changed(data: bytes, changes: list[Change], suffix: str) -> bytes:
    """The file with all of the changes."""
    for kind, where, some in changes:
        place = int(where * len(data))
        if kind == "value":
            data = with_value(data, where, some, suffix)
        elif kind == "set":
            data = data[:place] + some + data[place + len(some) :]
        elif kind == "cut":
            data = data[:place]
        elif kind == "insert":
            data = data[:place] + some + data[place:]
        else:
            data = data[:place] + data[place : place + 40] * 3 + data[place + 40 :]
    return data


def with_value(data: bytes, where: float, odd: int, suffix: str) -> bytes:
    """One value of it, wherever it stands, is another or gone; the file itself is as it should be."""
    with contextlib.suppress(ValueError, KeyError, UnicodeDecodeError, yaml.YAMLError, struct.error):
        if suffix == ".json":
            return json.dumps(replaced(json.loads(data), where, odd)).encode()
        if suffix == ".yaml":
            return yaml.safe_dump(replaced(yaml.safe_load(data), where, odd)).encode()
        if suffix == ".safetensors":
            (length,) = struct.unpack("<Q", data[:8])
            head = json.dumps(replaced(json.loads(data[8 : 8 + length]), where, odd)).encode()
            return struct.pack("<Q", len(head)) + head + data[8 + length :]
        if suffix == ".npz":
            with np.load(io.BytesIO(data)) as file:
                arrays = dict(file)
            name = list(arrays)[min(int(where * len(arrays)), len(arrays) - 1)]
            file = io.BytesIO()
            np.savez(file, **{**arrays, name: ARRAYS[odd % len(ARRAYS)]})
            return file.getvalue()
        if suffix == ".npy":
            file = io.BytesIO()
            np.save(file, ARRAYS[odd % len(ARRAYS)])
            return file.getvalue()
        if suffix in (".csv", ".txt"):
            words = re.split(r"([,\s])", data.decode())
            words[int(where * (len(words) - 1))] = str(ODD[odd % len(ODD)])
            return "".join(words).encode()
    return data


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value: itself, and all that is in it."""
    yield place
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places_in(one, (*place, key))


def replaced(value: Any, where: float, odd: int) -> Any:
    """The same with one value replaced; with the last of the odd ones, left out."""
    *_, last = places = list(places_in(value))
    place = places[min(int(where * len(places)), len(places) - 1)] if last else ()
    if not place:
        return ODD[odd % len(ODD)]
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    if odd == len(ODD):
        del holder[place[-1]]
    else:
        holder[place[-1]] = ODD[odd]
    return value


@pytest.fixture(scope="module", params=list(KINDS))
def made(
    request: pytest.FixtureRequest, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Kind, Path]:
    """A file of some kind as it should be, which can be read."""
    name = request.param
    folder = tmp_path_factory.mktemp("made")
    KINDS[name].make(folder, tiny_run)
    return name, KINDS[name], folder / KINDS[name].file


def test_it_can_be_read(made: tuple[str, Kind, Path]) -> None:
    _, kind, file = made
    kind.read(file)


@pytest.mark.slow
def test_what_cannot_be_read_is_a_sentence(made: tuple[str, Kind, Path]) -> None:
    name, kind, file = made
    whole = file.read_bytes()

    @settings(
        max_examples=100 if name.startswith(SLOW) else 300,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(changes=CHANGES)
    def tried(changes: list[Change]) -> None:
        file.unlink(missing_ok=True)  # who has the one before mapped into memory keeps it
        file.write_bytes(changed(whole, changes, file.suffix))
        with warnings.catch_warnings(), contextlib.suppress(DoubtlessError):
            warnings.simplefilter("ignore")
            kind.read(file)

    try:
        tried()
    finally:
        file.write_bytes(whole)
