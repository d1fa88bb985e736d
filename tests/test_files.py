"""Atomic writes: the old file or the new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doubtless.errors import FileError
from doubtless.files import atomic_writer, read_json, write_json, write_text


def test_an_error_inside_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), atomic_writer(path) as file:
        file.write(b"half" * (1 // 0))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_real_full_device_is_a_sentence(tmp_path: Path) -> None:
    """/dev/full answers every write with "no space left"."""

    def write() -> None:
        with atomic_writer(tmp_path / "x") as file:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, file.fileno())
            os.close(full)
            file.write(b"data")

    with pytest.raises(FileError, match="No space left"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_a_sentence(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "in the way")
    with pytest.raises(FileError, match="cannot be written"):
        write_text(tmp_path / "file" / "x", "y")


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    assert read_json(tmp_path / "a.json") == {"x": 1}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "b.json", float("nan"))
    with pytest.raises(FileError, match="no file"):
        read_json(tmp_path / "none.json")
