"""How long a visitor waits for the verdict, beside how long the API takes for the same picture.

    python benchmarks/speed/page.py                    # the demo's gallery, made where it is not there
    python benchmarks/speed/page.py runs/demo --turns 30

The server is a process of its own. Page and API ask with the same file in turns, so that a machine others use
slows both alike; the best and the median turn of each are told. For the page the clock runs in the browser,
from the choice of the file until the verdict stands in the document; the frame that shows it, which comes up to
a sixtieth of a second later whatever is done, is told beside it. For the API it is a call over a connection
that stays open, from the same browser by `fetch` until its reply is read, and from Python by httpx. Promised is
a best turn of the page of at most 1.2 times that of `fetch`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PROMISED = 1.2
CHOOSER = "main input[type=file]:not([capture])"
CLOCK = """() => {
  let last = null;
  document.addEventListener('change', () => { window.chosen = performance.now(); }, {capture: true});
  window.verdict = () => new Promise(done => {
    const watch = new MutationObserver(() => {
      const found = document.querySelector('.verdict:not(.waiting) .sentence');
      if (!found || found === last) return;
      last = found;
      watch.disconnect();
      const there = performance.now();
      requestAnimationFrame(() => setTimeout(() => done([there - chosen, performance.now() - chosen])));
    });
    watch.observe(document.querySelector('main'), {childList: true, subtree: true});
  });
  const own = document.createElement('input');
  Object.assign(own, {type: 'file', id: 'measuring'});
  document.body.append(own);
}"""
FETCH = """async () => {
  const file = document.getElementById('measuring').files[0];
  const started = performance.now(), form = new FormData();
  form.append('k', 10);
  form.append('image', file, 'photo');
  await (await fetch('/v1/search', {method: 'POST', body: form})).json();
  return performance.now() - started;
}"""


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """`doubtless demo --serve` on a finished demo."""
    command = [sys.executable, "-m", "doubtless", "demo", "--out", str(run), "--serve", "--no-browser"]
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://\S+", line):
                yield found[0].rstrip("/")
                break
        else:
            raise SystemExit("The server did not start.")
    finally:
        process.terminate()
        process.wait(timeout=60)


def page_turn(page: Any, picture: Path) -> tuple[float, float]:
    """Milliseconds from the choice of a file until the verdict is there, and until it is seen."""
    coming = page.evaluate_handle("() => ({promise: window.verdict()})")
    page.set_input_files(CHOOSER, picture)
    there, seen = coming.evaluate("one => one.promise")
    page.wait_for_selector(".tiles")  # what comes below must not weigh on the next turn
    page.wait_for_load_state("networkidle")
    return there, seen


def api_turn(client: httpx.Client, picture: bytes) -> float:
    started = time.perf_counter()
    client.post("/v1/search", data={"k": 10}, files={"image": picture}).raise_for_status()
    return 1000 * (time.perf_counter() - started)


def measured(address: str, picture: Path, turns: int) -> dict[str, list[float]]:
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"page": [], "page, seen": [], "API, fetch": [], "API, httpx": []}
    with sync_playwright() as playwright, httpx.Client(base_url=address) as client:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(address)
        page.wait_for_selector(".welcome")
        page.evaluate(CLOCK)
        page.set_input_files("#measuring", picture)
        for turn in range(turns + 2):
            there, seen = page_turn(page, picture)
            each = there, seen, page.evaluate(FETCH), api_turn(client, picture.read_bytes())
            if turn >= 2:  # the first ones warm up
                for name, value in zip(found, each, strict=True):
                    found[name].append(value)
        browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, help="folder of a demo; a new one is made by default")
    parser.add_argument("--turns", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = given.run or Path(folder) / "demo"
        if not run.is_dir():
            subprocess.run([sys.executable, "-m", "doubtless", "demo", "--out", str(run)], check=True)
        picture = sorted((run / "asked").glob("*.png"))[0]
        with serving(run) as address:
            found = measured(address, picture, given.turns)
    print(f"milliseconds to the verdict, {given.turns} turns\n")
    for name, values in found.items():
        print(f"{name:<12} best {min(values):6.1f}   median {statistics.median(values):6.1f}")
    best = min(found["page"]) / min(found["API, fetch"])
    middle = statistics.median(found["page"]) / statistics.median(found["API, fetch"])
    print(
        f"\npage / API   best {best:6.2f}   median {middle:6.2f}   (promised: at most {PROMISED} by the best)"
    )
    if best > PROMISED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
