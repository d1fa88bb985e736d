"""Draws all pages anew."""

from __future__ import annotations

from benchmarks.results_page.drawing import draw_front, draw_page
from benchmarks.results_page.methods import draw_text, texts
from benchmarks.results_page.pages import FRONT, PAGES, ROOT
from doubtless.files import write_text


def main() -> None:
    """Every page, the front page, and what other pages take from the results, each written in place."""
    for page in PAGES:
        write_text(page.path, draw_page(page, page.path.read_text()))
        print(f"wrote {page.path.relative_to(ROOT)}")
    write_text(FRONT, draw_front(FRONT.read_text()))
    for path in texts():
        write_text(path, draw_text(path.read_text()))
    print(f"wrote {FRONT.relative_to(ROOT)}, and the figures of the README, of methods and guides")


if __name__ == "__main__":
    main()
