"""A visitor of the page: Chromium on a real server in this process, and everything either of them did."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from doubtless.gallery.answer import DECISIONS
from doubtless.server.service.service import Service
from tests.ingest.pictures import png

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DEVICES = {"laptop": (1280, 720), "phone": (390, 844)}
CHOOSER = "input[type=file]:not([capture])"
SHIFTS = """
window.shifts = [];
new PerformanceObserver(list => list.getEntries().forEach(one => window.shifts.push(
  {value: one.value, nodes: one.sources.map(source => source.node?.outerHTML?.slice(0, 120) ?? '')})
)).observe({type: 'layout-shift', buffered: true});
"""
"""Every movement of something that was drawn already, with what moved."""


HASH = """hash => new Promise(done => {
  if (location.hash === hash) { done(); return; }
  addEventListener('hashchange', () => setTimeout(done), {once: true});
  location.hash = hash;
})"""
"""Goes to another view of the page that is open, until the page has heard of it."""


@dataclass
class Served:
    """A server on loopback, pictures to ask it about, and whom its process has called since."""

    address: str
    service: Service
    files: dict[str, Path]
    connections: list[Any] = field(default_factory=list)


@contextlib.contextmanager
def serving(service: Service, files: dict[str, Path], **options: Any) -> Iterator[Served]:
    """The service at a free port, until it is left."""
    uvicorn = pytest.importorskip("uvicorn", reason="needs the extra serve")
    from doubtless.server.http.app import create_app

    app = create_app(service, **options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    found = Served(f"http://127.0.0.1:{port}", service, files)
    sys.addaudithook(
        lambda event, given: found.connections.append(given[1]) if event == "socket.connect" else None
    )
    yield found
    server.should_exit = True  # closes the service, too
    thread.join(20)
    assert not thread.is_alive()


def pictures_of(service: Service, npz: Path, folder: Path) -> dict[str, Path]:
    """A picture of every decision, found among held-out images, mixtures of two of them, and strangers."""
    with np.load(npz) as file:
        known = file["x_train"][::5].astype(float)
    rng = np.random.default_rng(0)
    mixed = (known + rng.permutation(known)) / 2
    strange = [rng.uniform(0, 255, (12, 12)) * scale for scale in (0.1, 0.5, 1.0)]
    strange += [np.full((12, 12), grey) for grey in (0, 128, 255)] + [255.0 - image for image in known]
    images = np.array([*known, *mixed, *strange]).clip(0, 255).astype(np.uint8)
    answers = service.answer_images([Image.fromarray(image) for image in images], watched=False)
    found = {}
    for decision in DECISIONS:
        place = next(place for place, answer in enumerate(answers) if answer.decision == decision)
        found[decision] = folder / f"{decision}.png"
        found[decision].write_bytes(png(images[place]))
    (folder / "bad.png").write_bytes(b"this is no picture")
    tall = Image.fromarray(images[0]).resize((300, 900))
    tall.save(folder / "portrait.jpg")
    return found | {"bad": folder / "bad.png", "portrait": folder / "portrait.jpg"}


@dataclass
class Visit:
    page: Page
    served: Served
    requests: list[str]
    complaints: list[str]

    def go(self, view: str) -> None:
        """To a view, until it has stopped loading."""
        if self.page.url.startswith(self.served.address):
            self.page.evaluate(HASH, f"#/{view}")
        else:
            self.page.goto(f"{self.served.address}/#/{view}")
        self.page.wait_for_selector("main:not([aria-busy]) h1")
        self.page.wait_for_load_state("networkidle")

    def ask(self, *names: str) -> str:
        """Chooses files in the first view; the sentence that comes."""
        paths = [self.served.files.get(name, name) for name in names]
        self.page.evaluate("document.querySelectorAll('.verdict').forEach(one => { one.dataset.old = ''; })")
        self.page.set_input_files(CHOOSER, paths if len(paths) > 1 else paths[0])
        return self.told()

    def told(self) -> str:
        self.page.wait_for_selector(".verdict:not(.waiting, [data-old])")
        self.page.wait_for_selector("main:not([aria-busy])")
        return self.page.inner_text(".verdict .sentence").replace("\u00a0", " ")

    def leave(self) -> None:
        """Nothing was said on the console, and nobody else was asked."""
        own = (self.served.address, "data:", "blob:")
        assert [address for address in self.requests if not address.startswith(own)] == []
        others = [
            to
            for to in self.served.connections
            if isinstance(to, tuple) and to[0] not in ("127.0.0.1", "::1")
        ]
        assert others == []
        assert self.complaints == []
        self.page.context.close()


@contextlib.contextmanager
def visiting(
    browser: Browser, served: Served, *, device: str = "laptop", scheme: str = "light", **options: Any
) -> Iterator[Visit]:
    """A visit that must end without a word on the console and without a request to anybody else."""
    width, height = DEVICES[device]
    options.setdefault("locale", "en-GB")
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        has_touch=device == "phone",
        is_mobile=device == "phone",
        **options,
    )
    context.add_init_script(SHIFTS)
    page = context.new_page()
    page.set_default_timeout(15_000)
    found = Visit(page, served, [], [])
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("console", lambda message: found.complaints.append(message.text))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.go("ask")
    yield found
    found.leave()
