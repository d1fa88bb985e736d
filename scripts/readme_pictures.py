"""Makes docs/demo.png, what the demo prints, and docs/readme.png, the README's first screen; Chromium draws both.

doubtless demo --out runs/demo
python scripts/readme_pictures.py runs/demo
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt
from rich.console import Console
from rich.terminal_theme import MONOKAI

ROOT = Path(__file__).parents[1]
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 920px; margin: 32px auto; padding: 0 32px; color: #1f2328; }
h1 { border-bottom: 1px solid #d1d9e0; padding-bottom: .3em; } img { max-width: 100%; }
pre { background: #f6f8fa; padding: 16px; border-radius: 6px; overflow: hidden; font-size: 85%; }
code { font-family: ui-monospace, monospace; font-size: 85%; background: #f6f8fa; }
table { border-collapse: collapse; }
td, th { border: 1px solid #d1d9e0; padding: 6px 13px; }
"""


def draw(page: Path, picture: Path, *, width: int, height: int) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("Chromium is not installed (apt-get install chromium).")
    size = f"--window-size={width},{height}"
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1", size]
    subprocess.run(
        [chromium, *flags, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True
    )


def draw_demo(run: Path) -> None:
    """The demo's last page, as a terminal of a hundred characters shows it."""
    from doubtless.cli.demo import OWN, ask_about, five_of, make_gallery, tally
    from doubtless.cli.shown import print_shown
    from doubtless.runs import Run

    opened = Run.open(run)
    gallery = make_gallery(opened)
    asked = ask_about(opened, gallery)
    console = Console(
        file=io.StringIO(), record=True, force_terminal=True, color_system="truecolor", width=100
    )
    console.print("[dim]$[/dim] doubtless demo\n", highlight=False)
    print_shown(five_of(asked), console)
    console.print(f"{gallery.promise} {tally(asked)}\n", highlight=False)
    console.print("[bold]Now with your own pictures[/bold]\n", highlight=False)
    console.print(OWN, highlight=False)
    form = (
        "<html><head><meta charset='utf-8'><style>{stylesheet} body {{ margin: 16px; background: {background}; "
        "color: {foreground}; }} pre {{ font: 14px/1.15 'DejaVu Sans Mono', monospace; }}</style></head><body><pre>"
        "{code}</pre></body></html>"
    )
    page = console.export_html(theme=MONOKAI, code_format=form, inline_styles=True)
    lines = page.count("\n") + 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo.html"
        file.write_text(page)
        draw(file, ROOT / "docs" / "demo.png", width=900, height=16 * lines + 60)


def draw_readme() -> None:
    """What GitHub shows first, about."""
    body = MarkdownIt("commonmark").enable("table").render((ROOT / "README.md").read_text())
    page = ROOT / ".readme.html"
    page.write_text(
        f"<html><head><meta charset='utf-8'><style>{STYLE}</style></head><body>{body}</body></html>"
    )
    try:
        draw(page, ROOT / "docs" / "readme.png", width=1024, height=1400)
    finally:
        page.unlink()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw_demo(Path(sys.argv[1]))
    draw_readme()
