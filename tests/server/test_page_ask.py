"""The page's first view in Chromium: ask in every way, read the verdict, judge it, add the photo."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from doubtless.server.service.service import Service
from tests.server.visiting import CHOOSER, Served, serving, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
STARTS = {"answer": "This is ", "abstain": "Not sure: ", "not-in-gallery": "We do not have this."}


@pytest.mark.parametrize("decision", list(STARTS))
def test_every_decision_is_said_with_what_it_lies_between(
    browser: Browser, page: Served, decision: str
) -> None:
    answer = page.service.answer_images([page.files[decision].read_bytes()], k=10, watched=False)[0]
    with visiting(browser, page) as visit:
        said = visit.ask(decision)
        assert said.startswith(STARTS[decision])
        assert answer.labels[0].label in said or decision == "not-in-gallery"
        assert visit.page.locator(f".verdict.{decision}").count() == 1
        assert 2 <= visit.page.locator(".verdict .bars li").count() <= 3
        assert visit.page.locator(".tiles .tile").count() == len(answer.hits)
        shares = visit.page.locator(".tiles .share").all_inner_texts()
        assert all(share.strip().endswith("%") for share in shares)
        assert visit.page.inner_text("#said").startswith(STARTS[decision])  # read aloud


def test_why_says_what_was_measured_and_what_was_not(browser: Browser, page: Served) -> None:
    answer = page.service.answer_images([page.files["abstain"].read_bytes()], watched=False)[0]
    with visiting(browser, page) as visit:
        visit.ask("abstain")
        details = visit.page.locator(".why")
        assert details.get_attribute("open") is None  # on demand
        visit.page.get_by_text("Why?").click()
        assert details.locator(".part").count() == 6
        unmeasured = details.locator(".missing").all_inner_texts()
        assert len(unmeasured) == 5 - len(answer.parts) > 0
        assert all("not measured" in words for words in unmeasured)
        assert f"{answer.doubt:.2f}" in details.locator(".total").inner_text()


def test_dropped_and_pasted_photos_are_taken(browser: Browser, page: Served) -> None:
    data = base64.b64encode(page.files["answer"].read_bytes()).decode()
    give = """([kind, data]) => {
      const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), carried = new DataTransfer();
      carried.items.add(new File([bytes], 'x.png', {type: 'image/png'}));
      const event = kind === 'paste' ? new ClipboardEvent('paste', {clipboardData: carried, bubbles: true})
                                     : new DragEvent('drop', {dataTransfer: carried, bubbles: true});
      document.querySelector('main').dispatchEvent(event);
    }"""
    for kind in ("paste", "drop"):
        with visiting(browser, page) as visit:
            visit.page.evaluate(give, [kind, data])
            assert visit.told().startswith("This is ")


def test_photos_of_one_thing_are_judged_together(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.ask("answer")
        with visit.page.expect_request("**/v1/together"):
            visit.page.locator(".again").locator(CHOOSER).nth(1).set_input_files(page.files["answer"])
        visit.page.locator(".photos.several").wait_for()
        visit.told()
        assert visit.page.locator(".photos .photo").count() == 2
        assert "2 photos of one thing" in visit.page.inner_text(".photos")


def test_a_phone_is_asked_for_its_camera(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        assert visit.page.get_by_role("button", name="Take a photo").count() == 0
    with visiting(browser, page, device="phone") as visit:
        with visit.page.expect_file_chooser() as chooser:
            visit.page.get_by_role("button", name="Take a photo").click()
        assert chooser.value.element.get_attribute("capture") == "environment"
        chooser.value.set_files(page.files["answer"])
        assert visit.told().startswith("This is ")


def test_what_is_no_picture_gets_a_sentence(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        assert visit.ask("bad") == "This is no picture that can be read."
        assert visit.page.locator(".tile").count() == 0
        # The browser itself notes every refused request; nothing else may stand there.
        assert all("415" in one for one in visit.complaints)
        visit.complaints.clear()
        assert visit.ask("answer").startswith("This is ")


def test_right_wrong_and_the_label_are_kept(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.ask("answer")
        for name, said in (("Right", {"said": "right"}), ("Wrong", {"said": "wrong"})):
            with visit.page.expect_response("**/v1/feedback") as reply:
                visit.page.get_by_role("button", name=name, exact=True).click()
            assert reply.value.status == 201
            assert said.items() <= reply.value.request.post_data_json.items()
            assert reply.value.json()["verdict"] == name.lower()
            visit.page.locator(".feedback .outcome", has_text="Kept").wait_for()
        field = visit.page.get_by_role("combobox", name="It is …")
        field.press_sequentially("class-4")  # the keyboard will do
        visit.page.locator("[role=option]:only-child", has_text="class-4").wait_for()
        field.press("ArrowDown")
        assert visit.page.locator("[role=option][aria-selected=true]").inner_text().startswith("class-4")
        with visit.page.expect_response("**/v1/feedback") as reply:
            field.press("Enter")
        assert reply.value.json()["truth"] == "class-4"
        visit.page.locator(".feedback .outcome", has_text="class-4").wait_for()


def test_what_it_lies_between_can_be_chosen(browser: Browser, page: Served) -> None:
    answer = page.service.answer_images([page.files["abstain"].read_bytes()], k=10, watched=False)[0]
    with visiting(browser, page) as visit:
        visit.ask("abstain")
        choice = visit.page.locator(".feedback").get_by_role(
            "button", name=answer.labels[0].label, exact=True
        )
        with visit.page.expect_response("**/v1/feedback") as reply:
            choice.click()
        assert reply.value.json()["truth"] == answer.labels[0].label
        assert visit.page.get_by_role("button", name="Right", exact=True).count() == 0


def test_the_photo_is_added_under_a_label(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.ask("answer")
        visit.page.get_by_text("Add this photo to the gallery").click()
        field = visit.page.get_by_role("combobox", name="Label")
        field.fill("brand new")
        visit.page.get_by_role("button", name="Add", exact=True).click()
        visit.page.get_by_role("link", name="look at it").click()
        visit.page.locator(".view-item h1", has_text="brand new").wait_for()
    found = httpx.get(f"{page.address}/v1/items", params={"label": "brand new"}).json()
    assert found["total"] == 1
    page.service.remove([found["items"][0]["id"]])


def test_a_key_is_asked_for_where_it_is_needed(
    browser: Browser, page_gallery: Path, page: Served, tmp_path: Path
) -> None:
    service = Service.open(shutil.copytree(page_gallery, tmp_path / "index"))
    reading, writing = "a-token-that-only-reads", "a-token-that-may-write"
    with serving(service, page.files, token=writing, read_token=reading) as served:
        password = {"username": "", "password": reading}
        with visiting(browser, served, http_credentials=password) as visit:
            visit.ask("answer")
            visit.page.get_by_text("Add this photo to the gallery").click()
            key = visit.page.get_by_label("Key")
            key.fill(reading)
            visit.page.get_by_role("button", name="Use").click()
            visit.page.locator(".outcome", has_text="This key may not write.").wait_for()
            key.fill(writing)
            visit.page.get_by_role("button", name="Use").click()
            visit.page.get_by_role("button", name="Add", exact=True).click()
            visit.page.get_by_role("link", name="look at it").wait_for()
            assert visit.page.evaluate("sessionStorage.length") == 1
            assert visit.page.evaluate("localStorage.length") == 0


def test_the_start_explains_itself_with_pictures_that_do_not_count(browser: Browser, page: Served) -> None:
    drift = page.service.drift
    assert drift is not None
    before = len(drift._recent)
    with visiting(browser, page) as visit:
        assert visit.page.locator(".outcomes li").count() == 3
        assert visit.page.locator(".faces button").count() == 3
        visit.page.get_by_role("button", name="Ask about the example answer").click()
        assert visit.told().startswith("This is ")
        assert visit.page.locator(".feedback").count() == 0
        assert len(drift._recent) == before
        visit.page.get_by_role("button", name="Start over").click()
        visit.page.wait_for_selector(".welcome")
        visit.ask("answer")
    assert len(drift._recent) == before + 1


def test_without_examples_the_gallerys_own_pictures_are_asked_without_themselves(
    browser: Browser, page_gallery: Path, page: Served
) -> None:
    with (
        serving(Service.open(page_gallery, read_only=True), page.files) as served,
        visiting(browser, served) as visit,
    ):
        assert visit.page.locator(".faces button").count() >= 6
        visit.page.locator(".faces button").first.click()
        visit.told()
        assert "as if it were not" in visit.page.inner_text(".told")
        visit.ask("answer")
        visit.page.get_by_text("Add this photo to the gallery").click()
        assert "nothing can be changed here" in visit.page.inner_text(".adding")
        assert visit.page.locator(".feedback").count() == 0
