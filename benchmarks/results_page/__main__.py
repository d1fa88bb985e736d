"""Draws all pages anew."""

from __future__ import annotations

from benchmarks.results_page.claims import Results, refreshed
from benchmarks.results_page.drawing import draw_front, draw_page
from benchmarks.results_page.pages import FRONT, PAGES, ROOT
from doubtless.files import write_text


def main() -> None:
    """Every page, the front page, and the README's figures, each written in place."""
    for page in PAGES:
        write_text(page.path, draw_page(page, page.path.read_text()))
        print(f"wrote {page.path.relative_to(ROOT)}")
    write_text(FRONT, draw_front(FRONT.read_text()))
    readme = ROOT / "README.md"
    write_text(readme, refreshed(readme.read_text(), Results()))
    print(f"wrote {FRONT.relative_to(ROOT)} and the figures of README.md")


if __name__ == "__main__":
    main()
