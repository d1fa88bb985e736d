"""From a tag to two files that are ready to be uploaded; it stops there.

    python scripts/release.py v0.2.0 [--out dist]

Refuses a tag that is not that of the version, a tree with changes, a changelog or CITATION.cff without the version,
and files that are there already. Builds sdist and wheel in a copy of the tagged commit, looks into both, installs
the wheel into an empty environment and asks it for its version. The steps around it: docs/development/releases.md.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BROUGHT = {
    "src/doubtless": "doubtless",
    "configs": "doubtless/configs",
    "benchmarks/suites": "doubtless/bench/suites",
}
"""Folder of the repository → where its files are in the wheel."""
NEEDED = (
    "doubtless/py.typed",
    "doubtless/configs/fashion-sample/triplet.yaml",
    "doubtless/bench/suites/demo.yaml",
    "doubtless/server/page/static/index.html",
    "doubtless/report/tokens.css",
    "doubtless/data/samples/fashion_sample.npz",
    "doubtless/data/samples/LICENSE-fashion-mnist.txt",
)
"""What a wheel must have, whatever the tree has."""


class RefusedError(Exception):
    """A reason why there is no release."""


def check(holds: bool, reason: str) -> None:
    """Refuses for a reason."""
    if not holds:
        raise RefusedError(reason)


def git(root: Path, *words: str) -> bytes:
    """What git prints; a refusal with its own words where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True)
    check(done.returncode == 0, f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def copy_of(root: Path, tag: str, folder: Path) -> None:
    """The tagged commit's files, and nothing that lies beside them."""
    with tarfile.open(fileobj=io.BytesIO(git(root, "archive", tag))) as archive:
        archive.extractall(folder, filter="data")


def version_of(tree: Path) -> str:
    found = re.search(r'__version__ = "(.+?)"', (tree / "src/doubtless/version.py").read_text())
    check(found is not None, "src/doubtless/version.py names no version.")
    assert found is not None
    return found[1]


def notes_of(tree: Path, version: str) -> str:
    """The changelog's part of a version, which must have a day."""
    for part in re.split(r"^## ", (tree / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        if heading.split()[:1] == [version]:
            dated = re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", heading.strip())
            check(
                dated is not None,
                f"CHANGELOG.md has no day for {version}: '## {heading}', not '## {version} (2026-01-31)'.",
            )
            return body.strip()
    raise RefusedError(f"CHANGELOG.md says nothing of {version}.")


def check_tree(root: Path, tree: Path, tag: str) -> str:
    """The version; refuses what is not the same everywhere."""
    check(git(root, "status", "--porcelain") == b"", "The tree has changes; commit or remove them.")
    version = version_of(tree)
    check(tag == f"v{version}", f"The tag {tag} is not that of version {version}, v{version}.")
    check(
        git(root, "cat-file", "-t", tag).strip() == b"tag",
        f"{tag} has no message; make it with git tag --annotate.",
    )
    cited = re.search(r"^version: (\S+)$", (tree / "CITATION.cff").read_text(), re.MULTILINE)
    check(cited is not None and cited[1] == version, f"CITATION.cff does not name version {version}.")
    notes_of(tree, version)
    return version


def build(tree: Path, out: Path) -> tuple[Path, Path]:
    """sdist and wheel, the wheel from the sdist, so that the sdist has all that it takes."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True)
    check(done.returncode == 0, f"It cannot be built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def check_wheel(wheel: Path, tree: Path) -> None:
    """Its files are those of the tree, none more and none less; its metadata are whole."""
    with zipfile.ZipFile(wheel) as opened:
        check(opened.testzip() is None, f"{wheel.name} is damaged.")
        names = set(opened.namelist())
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = opened.read(info)
    there = {name for name in names if ".dist-info/" not in name}
    wanted = {
        f"{place}/{path.relative_to(tree / folder).as_posix()}"
        for folder, place in BROUGHT.items()
        for path in (tree / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    check(not (lacking := sorted({*wanted, *NEEDED} - there)), f"The wheel lacks {', '.join(lacking)}.")
    check(not (odd := sorted(there - wanted)), f"The wheel has what is not of the package: {', '.join(odd)}.")
    check(any("/licenses/LICENSE" in name for name in names), "The wheel lacks the licence.")
    check_metadata(metadata, tree)


def check_metadata(metadata: bytes, tree: Path) -> None:
    """As the standard wants them (packaging and trove-classifiers know it), and complete."""
    from packaging.metadata import Metadata
    from trove_classifiers import classifiers

    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    read = Metadata.from_email(metadata, validate=True)
    check(str(read.version) == version_of(tree), f"The metadata say version {read.version}.")
    check(
        bool(read.summary and read.keywords and read.requires_python),
        "Summary, keywords or Python's version are missing.",
    )
    check(
        read.license_expression == project["license"] and bool(read.license_files),
        "The metadata name no licence.",
    )
    check(
        read.description_content_type == "text/markdown" and bool(read.description),
        "The README is not in the metadata.",
    )
    extras = set(read.provides_extra or ())
    check(extras == set(project["optional-dependencies"]), f"The extras are {', '.join(sorted(extras))}.")
    named = set(read.classifiers or ())
    check(not (named - classifiers), f"Nobody knows the classifier {', '.join(named - classifiers)}.")
    for kind in ("Development Status", "Intended Audience", "Programming Language", "Topic", "Typing"):
        check(any(name.startswith(f"{kind} ::") for name in named), f"No classifier says {kind}.")


def check_sdist(sdist: Path, tree: Path) -> None:
    """It has the sources, and what a person wants who builds or cites it."""
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    sources = {path.relative_to(tree).as_posix() for path in (tree / "src").rglob("*") if path.is_file()}
    wanted = {*sources, "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"}
    check(not (lacking := sorted(wanted - names)), f"The sdist lacks {', '.join(lacking)}.")


def check_installed(wheel: Path, tree: Path, version: str, folder: Path) -> None:
    """The wheel in an empty environment says its version."""
    venv.create(folder, with_pip=True)
    steps = [
        [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"],
        [
            folder / "bin/uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            folder / "bin/python",
            "--constraint",
            tree / "constraints.txt",
            wheel,
        ],
        [folder / "bin/doubtless", "--version"],
    ]
    for step in steps:
        done = subprocess.run([str(word) for word in step], capture_output=True, text=True, cwd=folder)
        check(
            done.returncode == 0,
            f"{Path(step[0]).name} failed in an empty environment:\n{done.stdout[-1000:]}{done.stderr[-2000:]}",
        )
    check(version in done.stdout.split(), f"The installed wheel says its version is {done.stdout.strip()}.")


def release(tag: str, out: Path, root: Path = ROOT) -> list[Path]:
    """All of it; the files."""
    with tempfile.TemporaryDirectory() as folder:
        tree, made = Path(folder) / "tree", Path(folder) / "made"
        copy_of(root, tag, tree)
        version = check_tree(root, tree, tag)
        there = sorted(out.glob(f"doubtless-{version}[-.]*"))
        check(not there, f"{', '.join(map(str, there))}: there already; a version is released once.")
        sdist, wheel = build(tree, made)
        check_wheel(wheel, tree)
        check_sdist(sdist, tree)
        check_installed(wheel, tree, version, Path(folder) / "empty")
        out.mkdir(parents=True, exist_ok=True)
        files = [(out / path.name) for path in (sdist, wheel)]
        for path, file in zip((sdist, wheel), files, strict=True):
            file.write_bytes(path.read_bytes())
        tell(files, notes_of(tree, version))
    return files


def tell(files: Sequence[Path], notes: str) -> None:
    """What a person needs who uploads them."""
    for file in files:
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file}")
    print(f"\n{notes}\n\nNothing was uploaded. When you want it to be:\n")
    print(f"uvx twine upload {' '.join(map(str, files))}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tag")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the two files go")
    given = parser.parse_args(words)
    try:
        release(given.tag, given.out)
    except RefusedError as reason:
        print(f"No release: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
