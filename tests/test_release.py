"""scripts/release.py in a repository of its own: what it refuses, what it builds, that it does not upload."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import doubtless
from scripts import release

ROOT = Path(__file__).parents[1]
PARTS = ["src", "configs", "benchmarks/suites", "scripts", "tests"]
TAG = f"v{doubtless.__version__}"


def git(folder: Path, *words: str) -> None:
    author = ["-c", "user.name=Nobody", "-c", "user.email=nobody@example.com"]
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, tag: str | None = TAG) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--message", "A change", "--allow-empty")
    if tag is not None:
        git(folder, "tag", "--annotate", "--force", tag, "--message", "A release")


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a release is made of, as it is here, with a day in the changelog, committed and tagged."""
    folder = tmp_path_factory.mktemp("repository")
    for part in PARTS:
        shutil.copytree(
            ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, folder)
    changelog = folder / "CHANGELOG.md"
    heading = rf"^## {re.escape(doubtless.__version__)}.*$"
    dated, count = re.subn(
        heading, f"## {doubtless.__version__} (2026-12-01)", changelog.read_text(), flags=re.MULTILINE
    )
    assert count == 1
    changelog.write_text(dated)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


@pytest.fixture
def clone(tagged: Path, tmp_path: Path) -> Path:
    git(tagged, "clone", "--quiet", str(tagged), str(tmp_path / "clone"))
    return tmp_path / "clone"


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def refusal(clone: Path, tag: str = TAG) -> str:
    with pytest.raises(release.RefusedError) as refused:
        release.release(tag, clone.parent / "dist", clone)
    assert not (clone.parent / "dist").exists()
    return str(refused.value)


def test_a_tag_that_is_not_there_or_not_the_versions_is_refused(clone: Path) -> None:
    assert "v9.9.9" in refusal(clone, "v9.9.9")
    commit(clone, "v9.9.9")
    assert refusal(clone, "v9.9.9") == f"The tag v9.9.9 is not that of version {TAG[1:]}, {TAG}."


def test_a_tag_without_a_message_is_refused(clone: Path) -> None:
    git(clone, "tag", "--delete", TAG)
    git(clone, "tag", TAG)
    assert "has no message" in refusal(clone)


def test_a_tree_with_changes_is_refused(clone: Path) -> None:
    (clone / "note.txt").write_text("not committed")
    assert refusal(clone) == "The tree has changes; commit or remove them."


def test_a_changelog_without_the_version_or_its_day_is_refused(clone: Path) -> None:
    change(clone / "CHANGELOG.md", "(2026-12-01)", "(unreleased)")
    commit(clone)
    assert "has no day" in refusal(clone)
    change(clone / "CHANGELOG.md", f"## {TAG[1:]} (unreleased)", "## 9.9.9 (2026-12-01)")
    commit(clone)
    assert refusal(clone) == f"CHANGELOG.md says nothing of {TAG[1:]}."


def test_a_citation_of_another_version_is_refused(clone: Path) -> None:
    change(clone / "CITATION.cff", f"version: {TAG[1:]}", "version: 0.0.1")
    commit(clone)
    assert refusal(clone) == f"CITATION.cff does not name version {TAG[1:]}."


def test_files_that_are_there_are_not_written_over(clone: Path) -> None:
    out = clone.parent / "dist"
    out.mkdir()
    there = out / f"doubtless-{TAG[1:]}.tar.gz"
    there.write_bytes(b"released long ago")
    with pytest.raises(release.RefusedError, match="there already"):
        release.release(TAG, out, clone)
    assert there.read_bytes() == b"released long ago"


def test_here_version_changelog_and_citation_agree() -> None:
    assert release.version_of(ROOT) == doubtless.__version__
    assert re.search(rf"^version: {re.escape(TAG[1:])}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert re.search(rf"^## {re.escape(TAG[1:])} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_what_is_built_is_looked_into(clone: Path, tmp_path: Path) -> None:
    pytest.importorskip("build", reason="needs build")
    sdist, wheel = release.build(clone, tmp_path / "made")
    release.check_wheel(wheel, clone)
    release.check_sdist(sdist, clone)
    with zipfile.ZipFile(wheel) as opened:
        metadata = opened.read(f"doubtless-{TAG[1:]}.dist-info/METADATA")
    for name in ("doubtless/py.typed", "doubtless/server/page/static/index.html"):
        with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / "less.whl", "w") as less:
            for entry in whole.namelist():
                if entry != name:
                    less.writestr(entry, whole.read(entry))
        with pytest.raises(release.RefusedError, match=f"The wheel lacks {name}"):
            release.check_wheel(tmp_path / "less.whl", clone)
    with zipfile.ZipFile(wheel, "a") as more:
        more.writestr("doubtless/secret.txt", "left here by mistake")
    with pytest.raises(release.RefusedError, match=r"not of the package: doubtless/secret\.txt"):
        release.check_wheel(wheel, clone)
    with pytest.raises(release.RefusedError, match="Nobody knows the classifier Topic :: Nonsense"):
        release.check_metadata(metadata.replace(b"Typing :: Typed", b"Topic :: Nonsense"), clone)


@pytest.mark.slow
def test_a_release_ends_before_the_upload(clone: Path) -> None:
    words = [sys.executable, "scripts/release.py", TAG, "--out", "../dist"]
    done = subprocess.run(words, cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = sorted((clone.parent / "dist").iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    for file in files:
        assert f"{hashlib.sha256(file.read_bytes()).hexdigest()}  ../dist/{file.name}" in done.stdout
    assert "- One front door" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("uvx twine upload ../dist/doubtless-")
    assert subprocess.run(words, cwd=clone, capture_output=True).returncode == 1  # once only
