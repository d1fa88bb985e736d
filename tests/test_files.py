"""Atomic writes: the old file or the new one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
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


def test_a_device_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """Renamed over, /dev/null became a file, for whoever may write in /dev, and no other program ran as before."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.stat("/dev/null").st_rdev)
    except PermissionError:
        pytest.skip("only root makes devices")
    write_text(device, "gone")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert list(tmp_path.iterdir()) == [device]


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_standard_output_is_written_to_and_its_name_stays(kind: str, tmp_path: Path) -> None:
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    program = f"from doubtless.files import write_text; write_text({str(tmp_path / 'stdout')!r}, 'leek')"
    if kind == "pipe":
        written = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout
    else:
        with (tmp_path / "out.txt").open("wb") as out:
            subprocess.run([sys.executable, "-c", program], check=True, stdout=out)
        written = (tmp_path / "out.txt").read_bytes()
    assert written == b"leek"
    assert (tmp_path / "stdout").is_symlink()


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
