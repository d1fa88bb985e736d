"""Ids, labels, metadata and names of files that are commands to a terminal, or markup: shown, not obeyed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from doubtless.index.folder import FolderIndex
from tests.reference.gallery import drawn

HOSTILE = [
    "\x1b]0;title\x07",
    "\x1b[2J",
    "[/red]",
    "[bold]x",
    "a\rb",
    "\x9b31m",
    "\u202eabc",
    "\x7f",
    "new\nline",
]
ITEM = f"{HOSTILE[0]}0"
SEVERAL = """
import sys
from doubtless.cli import main
place, item = sys.argv[1:]
for words in ("list", place), ("show", place, item), ("stats", place), ("review", place), ("create", item, item):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as ended:
        print(words[0], "ended with", ended.code)
"""


@pytest.fixture(scope="module")
def hostile_gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whoever made it has called things as above."""
    path = tmp_path_factory.mktemp("terminal") / "gallery"
    with FolderIndex.create(path, family="point", dim=8) as index:
        count = len(HOSTILE)
        index.add(
            drawn("point", 2 * count, dim=8, seed=1),
            [f"{HOSTILE[n % count]}{n}" for n in range(2 * count)],
            labels=[HOSTILE[n % count] for n in range(2 * count)],
            paths=[HOSTILE[n % count] for n in range(2 * count)],
            metadata=[{HOSTILE[n % count]: HOSTILE[n % count]} for n in range(2 * count)],
        )
    return path


def on_a_terminal(*words: str) -> str:
    """All that a process writes to its terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "300", "TERM": "xterm-256color"},
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while data := os.read(ours, 1 << 16):
                said += data
        except OSError:  # how Linux says that nobody writes any more
            pass
        process.wait(timeout=60)
    os.close(ours)
    return said.decode()


def test_a_terminal_is_shown_names_and_obeys_none(hostile_gallery: Path) -> None:
    said = on_a_terminal("-c", SEVERAL, str(hostile_gallery), ITEM)
    assert "Traceback" not in said, said
    for command, code in [("list", 0), ("show", 0), ("stats", 0), ("review", 0), ("create", 2)]:
        assert f"{command} ended with {code}" in said, said
    assert "␛]0;title␇" in said
    assert "[/red]" in said
    for word in HOSTILE:
        assert word not in said.replace("\r\n", "\n") or word.isprintable() or word == "new\nline", repr(word)


def test_a_program_is_given_what_was_stored(hostile_gallery: Path) -> None:
    command = [sys.executable, "-m", "doubtless", "list", str(hostile_gallery), "--csv", "-"]
    listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    assert all(word in listed for word in HOSTILE)
