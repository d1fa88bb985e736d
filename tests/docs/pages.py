"""Code blocks of the documentation, and how they are run.

Python blocks of a page share their names and run in order; lines of `sh` blocks run in between, `doubtless …` in
this process. What a page finds in its folder is said in a comment, `<!-- given: runs/first photos -->`. What cannot
be run says why in a comment directly above its block: `<!-- not run: needs two machines -->` for all of it, or
`<!-- not run (pip install): fetches packages -->` for lines that begin so; a command of doubtless must still have
options that exist.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Furnish = Callable[[Iterable[str]], None]
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN, SHOWN = ("python", "sh"), ("text", "yaml", "toml", "json")
"""Languages that are executed, and those that are read only."""

FENCE = re.compile(
    r"(?:^<!-- not run(?: \((?P<start>[^)]+)\))?:(?P<reason>[^\n]*)-->\n)?"
    r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
SMALLER = {
    "train": ["--set", "training.epochs=1", "--set", "data.source=digits", "--no-evaluate"],
    "posterior": ["--set", "laplace.tune.grid=5", "--no-evaluate"],
    "evaluate": ["--bootstrap", "0"],
    "serve": ["--no-page"],
}
"""What is added to a command so that a page takes seconds; the page has browser tests of its own."""


@dataclass(frozen=True)
class Block:
    """A fenced block; `reason` why it, or its lines that begin with `start`, are not run."""

    place: str  # docs/index.md:12
    language: str
    code: str
    reason: str | None = None
    start: str = ""

    @property
    def lines(self) -> list[str]:
        """Commands of a shell block, continued lines joined, comments left out."""
        joined = self.code.replace("\\\n", " ")
        return [line for line in joined.splitlines() if shlex.split(line, comments=True)]

    def is_run(self, line: str = "") -> bool:
        """Whether a line of it is executed; without a line: whether all of it is."""
        return self.reason is None or (self.start != "" and not line.startswith(self.start))


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(
            f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name}:"
            f"{text.count(chr(10), 0, found.start('code'))}",
            found["language"],
            re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE),
            None if found["reason"] is None else found["reason"].strip(),
            found["start"] or "",
        )
        for found in FENCE.finditer(text)
    ]


def given_to(page: Path) -> list[str]:
    """What a page finds in its folder."""
    found = re.search(r"<!-- given: (.*?) -->", page.read_text())
    return found[1].split() if found else []


@dataclass
class PageRun:
    """Runs the blocks of a page one after the other, in the current folder."""

    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__page__"})
    printed: list[str] = field(default_factory=list)  # by every block or line that was run
    _server: subprocess.Popen[str] | None = None
    _port: int = 0

    def run(self, block: Block) -> None:
        """Executes a block, or what of it is to be executed."""
        if block.language == "python" and block.is_run():
            with self._capture():
                exec(compile("\n" * _line(block) + block.code, block.place, "exec"), self.names)
        elif block.language == "sh":
            for line in block.lines:
                if block.is_run(line):
                    self._run_line(line)
                elif line.startswith("doubtless "):
                    check_options(line)

    def close(self) -> None:
        """Stops the server that the page has started; it must stop in peace."""
        if self._server is not None:
            self._server.terminate()
            _, errors = self._server.communicate(timeout=60)
            assert self._server.returncode == 0, errors
            self._server = None

    @contextlib.contextmanager
    def _capture(self) -> Iterator[None]:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            yield
        self.printed.append(printed.getvalue())

    def _run_line(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if words[:2] == ["doubtless", "serve"]:
            self._serve(words[2:])
        elif words[0] == "doubtless":
            with self._capture():
                command(words[1:] + SMALLER.get(words[1], []))
        else:
            program = {"python": sys.executable, "python3": sys.executable}.get(words[0], words[0])
            words = [program, *(word.replace(":8000", f":{self._port}") for word in words[1:])]
            done = subprocess.run(words, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
            self.printed.append(done.stdout)

    def _serve(self, words: list[str]) -> None:
        self.close()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "doubtless",
                "serve",
                *words,
                *SMALLER["serve"],
                "--port",
                str(self._port),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(600):
            assert self._server.poll() is None, self._server.communicate()[1]
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=5)
                return
            time.sleep(0.1)
        raise AssertionError("the server does not answer")


def command(words: list[str]) -> None:
    """`doubtless WORDS` in this process; what goes wrong is an AssertionError with its sentence."""
    from doubtless import cli

    before, sys.argv = sys.argv, ["doubtless", *words]
    errors, code = io.StringIO(), None
    try:
        with contextlib.redirect_stderr(errors):
            cli.main()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        sys.argv = before
    assert not code, f"doubtless {shlex.join(words)}: {errors.getvalue()}"


def check_options(line: str) -> None:
    """Refuses a command with a verb or an option that does not exist."""
    from typer.main import get_command

    from doubtless.cli import app

    verb: Any = get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while hasattr(verb, "commands"):
        assert words, line
        assert words[0] in verb.commands, f"{line}: there is no command {words[0]}"
        verb = verb.commands[words.pop(0)]
    known = {
        option
        for parameter in verb.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("-")
    }
    for word in words:
        if word.startswith("-") and not re.fullmatch(r"-[\d.]+", word):
            assert word.split("=")[0] in known, f"{line}: there is no option {word}"


def missing_programs(blocks: list[Block]) -> set[str]:
    """Programs that a page calls and this machine does not have."""
    called = {
        shlex.split(line)[0]
        for block in blocks
        if block.language == "sh"
        for line in block.lines
        if block.is_run(line)
    }
    return {name for name in called - {"doubtless", "python", "python3"} if shutil.which(name) is None}


def _line(block: Block) -> int:
    """Its place in the page, so that a traceback points there."""
    return int(block.place.rpartition(":")[2])
