"""The plan of the house, drawn from the code: rooms and what they import, and the ways that commands take.

    python scripts/house.py                       both
    python scripts/house.py --static              imports only, nothing is executed
    python scripts/house.py --src OTHER/src       of another checkout
    python scripts/house.py --walk                every function that the traced commands call, in order

*Rooms* are the packages and modules directly below `doubtless`. *Edges* are import statements, also those inside
functions and below TYPE_CHECKING. A *walk* is what a reader does who follows a command: all functions of the
package in the order in which they are called for the first time, without comprehensions, lambdas and the bodies of
modules. A *hop* is a step of the walk into another file, a *hop back* one into a file where the walk has been
before. Commands are traced when they run for the second time, so that imports are no part of their walks.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import statistics
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "doubtless"
UNNAMED = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")


# -- the plan ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported module of the package; `kind`: top (executed on import), lazy (in a function) or typing."""

    importer: str
    imported: str
    kind: str


def modules_of(src: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    modules = {}
    for path in sorted((src / PACKAGE).rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def imports_of(module: str, tree: ast.Module, modules: dict[str, Path]) -> Iterator[Import]:
    """What one module imports from the package, wherever in the file it does so."""

    def visit(node: ast.AST, kind: str) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.body:
                yield from visit(child, "typing")
            for child in node.orelse:
                yield from visit(child, kind)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and kind == "top":
            kind = "lazy"
        if isinstance(node, ast.Import):
            yield from (Import(module, name.name, kind) for name in node.names if name.name in modules)
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            inner = [f"{node.module}.{name.name}" for name in node.names]
            for target in sorted({name if name in modules else node.module for name in inner}):
                yield Import(module, target, kind)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, kind)

    yield from visit(tree, "top")


def room_of(module: str) -> str:
    """The room a module lies in: the first word below the package.

    >>> room_of("doubtless.index.milvus.store"), room_of("doubtless.config"), room_of("doubtless")
    ('index', 'config', 'doubtless')
    """
    words = module.split(".")
    return words[1] if len(words) > 1 else words[0]


def cycles_of(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of rooms that can all be reached from each other.

    >>> cycles_of({"a": {"b"}, "b": {"c"}, "c": {"b"}})
    [['b', 'c']]
    """

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for following in edges.get(ahead.pop(), set()) - seen:
                seen.add(following)
                ahead.append(following)
        return seen

    reach = {room: reached(room) for room in edges}
    groups = {
        frozenset(other for other in reach[room] if room in reach.get(other, set()))
        for room in edges
        if room in reach[room]
    }
    return sorted(sorted(group) for group in groups)


def print_plan(src: Path) -> None:
    """Files, rooms, edges and cycles."""
    modules = modules_of(src)
    texts = {name: path.read_text() for name, path in modules.items()}
    lengths = {name: len(text.splitlines()) for name, text in texts.items()}
    imports = [entry for name, text in texts.items() for entry in imports_of(name, ast.parse(text), modules)]
    print(
        f"{len(modules)} files, {sum(lengths.values())} lines, median {statistics.median(lengths.values()):g}"
    )
    longest = sorted(lengths, key=lambda name: -lengths[name])[:5]
    print("longest: " + ", ".join(f"{name} {lengths[name]}" for name in longest))
    print("\nroom            files  median  most  imports (+ lazily, ~ for types only)")
    edges: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    for entry in imports:
        here, there = room_of(entry.importer), room_of(entry.imported)
        if here != there:
            edges[here][there, entry.kind] += 1
    for room in sorted({room_of(name) for name in modules}):
        inside = [lengths[name] for name in modules if room_of(name) == room]
        line = f"{room:15} {len(inside):5}  {statistics.median(inside):6g}  {max(inside):4}  "
        print(
            line
            + ", ".join(_edge(there, edges[room]) for there in sorted({there for there, _ in edges[room]}))
        )
    cycles = cycles_of(
        {room: {there for there, _ in edges[room]} - {PACKAGE} for room in edges if room != PACKAGE}
    )
    print(f"\ncycles of rooms: {'; '.join(' ↔ '.join(cycle) for cycle in cycles) or 'none'}")
    files = defaultdict(set)
    for entry in imports:
        if entry.kind != "typing" and entry.importer != entry.imported:
            files[entry.importer].add(entry.imported)
    cycles = [cycle for cycle in cycles_of(dict(files)) if len(cycle) > 1]
    print(f"cycles of files: {'; '.join(' ↔ '.join(cycle) for cycle in cycles) or 'none'}")


def _edge(room: str, counts: Counter[tuple[str, str]]) -> str:
    marked = [f"{sign}{counts[room, kind]}" for kind, sign in KINDS.items() if counts[room, kind]]
    return f"{room} {' '.join(marked)}"


KINDS = {"top": "", "lazy": "+", "typing": "~"}


# -- the ways ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A function where the walk has come."""

    file: str
    function: str


def walk_of(action: Callable[[], object], home: Path) -> list[Step]:
    """Functions below `home` in the order of their first calls, in all threads."""
    seen: dict[Any, Step] = {}
    below = f"{home.resolve()}{os.sep}"

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name not in UNNAMED and code.co_filename.startswith(below):
            seen.setdefault(code, Step(code.co_filename.removeprefix(below), code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(seen.values())


def hops_of(files: list[str]) -> tuple[int, int]:
    """Hops, and hops back.

    >>> hops_of(["a", "a", "b", "a", "c"])
    (3, 1)
    """
    pairs = [(place, file) for place, file in enumerate(files) if place and file != files[place - 1]]
    return len(pairs), sum(file in files[:place] for place, file in pairs)


def print_way(name: str, action: Callable[[], object], home: Path, *, walk: bool) -> None:
    """Does something twice and says where the second time has led."""
    action()
    steps = walk_of(action, home)
    files = [step.file for step in steps]
    hops, back = hops_of(files)
    print(
        f"{name:10} {len(set(files)):3} files, {len(steps):3} functions, {hops:3} hops, {back:3} of them back"
    )
    if walk:
        for place, step in enumerate(steps):
            first = step.file if not place or step.file != files[place - 1] else ""
            print(f"    {first:36} {step.function}")


def print_ways(home: Path, *, walk: bool) -> None:
    """The ways of a training, and of searches with a picture, in a folder of their own."""
    config = (
        "method: lam-posthoc\ndata: {source: digits, validation: 0.2}\n"
        "model: {backbone: conv-fashion, dim: 8}\ntraining: {epochs: 1, batch_size: 128, accelerator: cpu}\n"
    )
    os.environ["DOUBTLESS_CACHE"] = str(Path("cache").resolve())
    Path("config.yaml").write_text(config)
    numbers = iter(range(2))
    print_way(
        "train", lambda: command("train", "config.yaml", "--out", f"run-{next(numbers)}"), home, walk=walk
    )
    photo = write_photos(Path("photos"))
    command("create", "gallery", "photos", "--model", "run-0", "--no-calibrate")
    command("calibrate", "gallery")
    print_way("command", lambda: command("ask", "gallery", photo), home, walk=walk)
    import doubtless

    if hasattr(doubtless, "open"):
        with doubtless.open("gallery") as gallery:
            print_way("ask", lambda: gallery.ask(photo), home, walk=walk)


def write_photos(folder: Path) -> str:
    """Shipped digits as a folder of images, a class per folder; one of the files."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:300], digits.target[:300], strict=True)):
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype("uint8")).save(path)
    return str(path)


def command(*words: str) -> None:
    """Runs `doubtless WORDS` in this process, silently."""
    from doubtless.cli import main

    sys.argv = ["doubtless", *words]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        try:
            main()
        except SystemExit as stopped:
            if stopped.code:
                raise RuntimeError(f"doubtless {' '.join(words)}: {printed.getvalue()}") from stopped


def main() -> None:
    """Prints the plan, then the ways."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--src", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--static", action="store_true")
    parser.add_argument("--walk", action="store_true")
    options = parser.parse_args()
    src = options.src.resolve()
    print_plan(src)
    if not options.static:
        sys.path.insert(0, str(src))
        print()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            print_ways(src / PACKAGE, walk=options.walk)


if __name__ == "__main__":
    main()
