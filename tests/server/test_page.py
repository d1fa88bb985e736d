"""The page in Chromium on a real server: ask, abstain, not in the gallery, sliders, gallery; no outside request."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from doubtless.gallery.answer import DECISIONS
from doubtless.server.page.answer_view import decision_sentence
from doubtless.server.service.service import Service
from tests.report.test_browser import CONTRAST

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("gradio", reason="needs the extra serve")
pytestmark = pytest.mark.browser
DEVICES = {"desktop": (1280, 900), "phone": (390, 844)}


@dataclass
class Served:
    """A server on loopback, and every address its process has connected to since."""

    address: str
    files: dict[str, Path]
    connections: list[Any]


@pytest.fixture(scope="module")
def service(served_index: Path) -> Iterator[Service]:
    with Service.open(served_index, read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def files(service: Service, tiny_npz: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A picture of every decision, found among held-out images, mixtures of two of them, and strangers."""
    with np.load(tiny_npz) as file:
        known = file["x_train"][::5].astype(float)
    rng = np.random.default_rng(0)
    mixed = (known + rng.permutation(known)) / 2
    strange = [rng.uniform(0, 255, (12, 12)) * scale for scale in (0.1, 0.5, 1.0)]
    strange += [np.full((12, 12), grey) for grey in (0, 128, 255)] + [255.0 - image for image in known]
    pictures = np.array([*known, *mixed, *strange]).clip(0, 255).astype(np.uint8)
    answers = service.answer_images([Image.fromarray(picture) for picture in pictures], watched=False)
    folder = tmp_path_factory.mktemp("asked")
    found = {}
    for decision in DECISIONS:
        place = next(place for place, answer in enumerate(answers) if answer.decision == decision)
        found[decision] = folder / f"{decision}.png"
        Image.fromarray(pictures[place]).save(found[decision])
    (folder / "bad.png").write_bytes(b"this is no picture")
    Image.fromarray(np.full((2000, 3000, 3), 90, np.uint8)).save(folder / "photo.jpg")
    return found | {"bad": folder / "bad.png", "photo": folder / "photo.jpg"}


@pytest.fixture(scope="module")
def served(service: Service, files: dict[str, Path]) -> Iterator[Served]:
    import uvicorn

    from doubtless.server.http.app import create_app

    connections: list[Any] = []
    sys.addaudithook(lambda event, given: connections.append(given[1]) if event == "socket.connect" else None)
    server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Served(f"http://127.0.0.1:{port}", files, connections)
    server.should_exit = server.force_exit = True
    thread.join(20)


@dataclass
class Visit:
    page: Page
    requests: list[str]
    complaints: list[str]

    def sentence(self) -> str:
        return self.page.inner_text("#decision .sentence span:last-child")

    def ask(self, file: Path) -> str:
        """Chooses a file; the sentence of what comes."""
        before = self.page.inner_html("#decision .decision")
        self.page.set_input_files("#picker input[type=file]", file)
        self.page.wait_for_function(
            "old => document.querySelector('.decision').innerHTML !== old", arg=before
        )
        return self.sentence()

    def hits(self, count: int) -> None:
        """Waits until so many are shown."""
        self.page.wait_for_function("n => document.querySelectorAll('.hit').length === n", arg=count)


def visit(browser: Browser, served: Served, *, device: str = "desktop", scheme: str = "light") -> Visit:
    width, height = DEVICES[device]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    found = Visit(page, [], [])
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("console", lambda message: found.complaints.append(message.text))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.goto(served.address)
    page.wait_for_selector("#picker .drop")
    return found


@pytest.mark.parametrize(("device", "scheme"), [("desktop", "light"), ("phone", "dark")])
def test_the_whole_visit(browser: Browser, served: Served, device: str, scheme: str) -> None:
    """Ask, move the sliders, look at the gallery: everything fits, can be read, and comes from this server."""
    seen = visit(browser, served, device=device, scheme=scheme)
    page = seen.page
    assert seen.sentence() == "What is it?"
    said = seen.ask(served.files["answer"])
    assert "% sure" in said
    assert said.startswith("class-")
    seen.hits(8)
    assert page.locator(".hit img").count() == 8
    page.wait_for_selector(".doubt .row")
    assert page.locator(".doubt .row").count() == 6
    assert page.get_attribute("#decision", "aria-live") == "polite"
    readable(page, DEVICES[device][0])
    page.get_by_role("tab", name="Gallery").click()
    page.wait_for_selector(".map .dot")
    assert page.locator(".map .dot").count() == 120
    assert page.locator("figure.chart").count() == 2
    assert page.locator(".extremes img").count() == 24
    readable(page, DEVICES[device][0])
    outside = [url for url in seen.requests if not url.startswith((served.address, "data:", "blob:"))]
    assert outside == []
    assert seen.complaints == []
    assert [
        to for to in served.connections if isinstance(to, tuple) and to[0] not in ("127.0.0.1", "::1")
    ] == []
    page.context.close()


@pytest.mark.parametrize("decision", ["answer", "abstain", "not-in-gallery"])
def test_every_decision_is_said(browser: Browser, served: Served, service: Service, decision: str) -> None:
    file = served.files[decision]
    expected = service.answer_images([file.read_bytes()], k=20, watched=False)[0]
    seen = visit(browser, served)
    said = seen.ask(file)
    assert said == decision_sentence(expected)
    assert seen.page.locator(f".decision.{decision}").count() == 1
    assert expected.reason in seen.page.inner_text(".reason")
    start = {
        "answer": "class-",
        "abstain": "Not sure: ",
        "not-in-gallery": "Nothing like this in the gallery",
    }
    assert said.startswith(start[decision])
    seen.page.context.close()


def readable(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ratio, element = page.evaluate(CONTRAST)
    assert ratio >= 4.5, element


def test_sliders_move_the_answer_live_and_back(browser: Browser, served: Served) -> None:
    seen = visit(browser, served)
    page = seen.page
    seen.ask(served.files["answer"])
    picture, decision = page.get_attribute("#asked img", "src"), page.inner_html("#decision .decision")
    doubt = altogether(page)
    slider = page.get_by_label("range slider for Occlude (%)")
    slider.focus()
    page.keyboard.press("End")  # the keyboard will do
    page.wait_for_function("old => document.querySelector('#asked img').src !== old", arg=picture)
    assert "occlusion 100 %" in page.inner_text("#asked")
    assert altogether(page) > doubt
    page.get_by_role("button", name="Undo blur, noise and occlusion").click()
    page.wait_for_function("old => document.querySelector('#asked img').src === old", arg=picture)
    page.wait_for_function("old => document.querySelector('.decision').innerHTML === old", arg=decision)
    assert slider.input_value() == "0"
    page.context.close()


def altogether(page: Page) -> float:
    return float(page.inner_text(".doubt .total b"))


def test_the_covering_set_grows_with_its_confidence(browser: Browser, served: Served) -> None:
    seen = visit(browser, served)
    page = seen.page
    seen.ask(served.files["answer"])
    sizes = []
    for confidence in ("50", "95"):
        said = page.inner_text(".covering")
        page.get_by_label("number input for Confidence of the covering set (%)").fill(confidence)
        page.keyboard.press("Enter")
        page.wait_for_function("old => document.querySelector('.covering').innerText !== old", arg=said)
        assert f"{confidence} %" in page.inner_text(".covering")
        sizes.append(page.locator(".hit .badge").count())
    assert sizes[0] <= sizes[1]
    assert sizes[0] >= 1
    page.context.close()


def test_a_bad_file_gets_a_sentence_and_a_photo_is_taken(browser: Browser, served: Served) -> None:
    seen = visit(browser, served)
    assert seen.ask(served.files["bad"]) == "This picture cannot be used"
    assert "no image of an accepted type" in seen.page.inner_text(".reason")
    seen.hits(0)
    seen.ask(served.files["photo"])  # six million pixels, shrunk in the browser
    seen.hits(8)
    seen.page.context.close()


def test_pasted_and_dropped_pictures_are_taken(browser: Browser, served: Served) -> None:
    import base64

    seen = visit(browser, served)
    page = seen.page
    data = base64.b64encode(served.files["answer"].read_bytes()).decode()
    give = """([kind, data]) => {
      const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), carried = new DataTransfer();
      carried.items.add(new File([bytes], 'x.png', {type: 'image/png'}));
      const event = kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: carried, bubbles: true})
                                     : new DragEvent('drop', {dataTransfer: carried, bubbles: true});
      document.querySelector(kind === 'paste' ? 'body' : '.drop').dispatchEvent(event);
    }"""
    for kind in ("paste", "drop"):
        page.evaluate(give, [kind, data])
        seen.hits(8)
        assert seen.sentence().startswith("class-")
        seen.ask(served.files["bad"])
        seen.hits(0)
    page.context.close()


def test_the_map_is_walked_with_the_keyboard_and_the_pointer(browser: Browser, served: Served) -> None:
    seen = visit(browser, served)
    page = seen.page
    page.get_by_role("tab", name="Gallery").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".map .dot")
    page.locator(".map svg").first.focus()
    words = []
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
        words.append(page.inner_text(".map .words"))
    assert all(word.startswith("class-") and "doubt" in word for word in words)
    assert len(set(words)) > 1
    page.keyboard.press("Escape")
    assert page.locator(".map .card").is_hidden()
    page.locator(".map .dot").last.hover()
    assert page.locator(".map .card").is_visible()
    page.context.close()


def test_controls_have_names_and_an_order(browser: Browser, served: Served) -> None:
    """Tab goes through tabs, the picture, the sliders, undo; every stop has a name."""
    seen = visit(browser, served)
    stops = []
    for _ in range(20):
        seen.page.keyboard.press("Tab")
        stops.append(
            seen.page.evaluate(
                """() => { const e = document.activeElement;
                return e.getAttribute('aria-label') || e.labels?.[0]?.innerText || e.innerText; }"""
            )
        )
    assert all(stops), stops
    wanted = ["Ask", "Choose a picture", "Blur", "Noise", "Occlude", "Confidence", "Undo"]
    places = [next(i for i, stop in enumerate(stops) if word in stop) for word in wanted]
    assert places == sorted(places), stops
    seen.page.context.close()


@pytest.mark.slow
def test_it_stops_at_once_while_a_page_is_open(browser: Browser, served_index: Path) -> None:
    command = [sys.executable, "-m", "doubtless", "serve", str(served_index), "--port", "0", "--read-only"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().split()[3]
    seen = visit(browser, Served(address, {}, []))
    with seen.page.expect_request("**/heartbeat/**"):
        seen.page.reload()
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in complaints
    seen.page.context.close()


def test_gradio_answers_only_what_the_page_needs(served: Served) -> None:
    import httpx

    with httpx.Client(base_url=served.address) as client:
        for path in ("upload", "file=/etc/passwd", "proxy=http://example.org/", "info", "api", "call/x"):
            assert client.get(f"/gradio_api/{path}").status_code == 404, path
            assert client.post(f"/gradio_api/{path}").status_code == 404, path
        assert client.get("/monitoring").status_code == 404
        assert "default-src 'self'" in client.get("/").headers["content-security-policy"]
        assert client.get("/healthz").status_code == 200
