"""Every Python and shell block of README and docs runs, page by page, or says why it cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import (
    PAGES,
    ROOT,
    RUN,
    SHOWN,
    Block,
    Furnish,
    PageRun,
    blocks_of,
    given_to,
    missing_programs,
)

EXECUTED = [page for page in PAGES if any(block.language in RUN for block in blocks_of(page))]
PRINTED = {
    "python.md": [r"torch\.Size\(\[100, 32\]\)", r"^answer class \d+ [01]\.\d+ class \d+ with probability"],
}
"""What must be among the things a page prints."""


GROUPS = {f"doubtless.{kind}" for kind in ("methods", "losses", "sources", "backbones", "indexes", "metrics")}
"""Entry point groups of plugins, which are no modules."""
DIFFERENCES = ROOT / "docs" / "why-our-numbers-differ.md"
"""Its blocks are proofs: each stands alone and asserts something."""


@pytest.mark.parametrize(
    "page", [page for page in EXECUTED if page != DIFFERENCES], ids=lambda page: page.stem
)
def test_blocks_run_in_order(page: Path, furnish: Furnish) -> None:
    blocks = blocks_of(page)
    if missing := missing_programs(blocks):
        pytest.skip(f"{page.name} calls {', '.join(sorted(missing))}, which is not installed")
    furnish(given_to(page))
    (Path.cwd() / "configs").symlink_to(ROOT / "configs")
    run = PageRun()
    try:
        for block in blocks:
            try:
                run.run(block)
            except Exception as error:
                raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error
    finally:
        run.close()
    printed = "\n".join(run.printed)
    for expected in PRINTED.get(page.name, []):
        assert re.search(expected, printed, re.MULTILINE) is not None, expected
    assert "nan" not in printed.lower().split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_name_their_language_and_reasons_are_given(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in RUN + SHOWN, f"{block.place}: a block of {block.language or 'no language'}"
        assert block.reason is None or len(block.reason.split()) > 1, f"{block.place}: no reason"
        if block.start:
            assert any(line.startswith(block.start) for line in block.lines), f"{block.place}: {block.start}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_hides_from_being_run(page: Path) -> None:
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert (
        re.findall(r"^    (?:doubtless|pip|curl|python3?|import|from|with|for) .*", text, re.MULTILINE) == []
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_and_names_of_the_text_exist(page: Path) -> None:
    text = page.read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|benchmarks|examples|configs|scripts)/[\w./-]+)`", text):
        assert (ROOT / path.rstrip("/")).exists(), path
    for name in set(re.findall(r"`(doubtless(?:\.\w+)+)", text)) - GROUPS:
        _look_up(name)


def _look_up(name: str) -> object:
    """A dotted name of the package; AssertionError where there is none."""
    from importlib import import_module

    words = name.split(".")
    for count in range(len(words), 0, -1):
        try:
            found: object = import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            assert hasattr(found, word), f"there is no {name}"
            found = getattr(found, word)
        return found
    raise AssertionError(f"there is no {name}")


@pytest.mark.parametrize("block", blocks_of(DIFFERENCES), ids=lambda block: block.place)
def test_every_difference_is_shown(block: Block) -> None:
    assert "assert " in block.code
    assert block.is_run()
    PageRun().run(block)


def test_every_difference_has_one_block() -> None:
    sections = re.split(r"^## .+$", DIFFERENCES.read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) == len(blocks_of(DIFFERENCES))
    assert all(len(re.findall(r"^```python$", section, re.MULTILINE)) == 1 for section in sections)


def test_the_harness_sees_what_is_wrong(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- not run: needs a GPU -->\n```sh\ndoubtless train x.yaml --nonsense\n```\n\n"
        "```python\nvalue = 1\n```\n\n```python\nassert value == 2\n```\n"
    )
    skipped, first, second = blocks_of(page)
    assert skipped.reason == "needs a GPU"
    run = PageRun()
    with pytest.raises(AssertionError, match="no option --nonsense"):
        run.run(skipped)
    run.run(first)
    with pytest.raises(AssertionError):
        run.run(second)
    failing = Block("page.md:1", "sh", "doubtless search nowhere --embedding none.npy\n")
    with pytest.raises(AssertionError, match="nowhere"):
        run.run(failing)
