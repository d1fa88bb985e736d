"""Makes docs/start-*.png: what the page says of photos, by Chromium on a server of its own.

python scripts/start_pictures.py SHOP answer=photo.jpg unsure=other.jpg absent=third.jpg
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
ADDRESS = "http://127.0.0.1:8123"
CHOOSER = "input[type=file]:not([capture])"


def serve(shop: str) -> subprocess.Popen[bytes]:
    """A server of the gallery, once it answers."""
    command = [sys.executable, "-m", "doubtless", "serve", shop, "--read-only", "--port", ADDRESS[-4:]]
    server = subprocess.Popen(command)
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{ADDRESS}/healthz", timeout=5)
        except urllib.error.URLError:
            time.sleep(0.2)
        else:
            return server
    sys.exit("The server did not start.")


def draw(browser: Browser, name: str, photo: str) -> None:
    """One verdict beside its photo, in few colours."""
    page = browser.new_page(viewport={"width": 400, "height": 640}, locale="en-GB", color_scheme="light")
    page.goto(f"{ADDRESS}/#/ask")
    page.wait_for_selector("main:not([aria-busy]) h1")
    page.set_input_files(CHOOSER, photo)
    page.wait_for_selector(".verdict:not(.waiting)")
    page.wait_for_selector("main:not([aria-busy])")
    page.wait_for_load_state("networkidle")
    shot = Image.open(io.BytesIO(page.screenshot()))
    shot.quantize(200).save(ROOT / "docs" / f"start-{name}.png", optimize=True)
    page.close()


def main(shop: str, *named: str) -> None:
    """Draws each photo under its name."""
    server = serve(shop)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            for one in named:
                name, _, photo = one.partition("=")
                draw(browser, name, photo)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
