"""The other views of the page in Chromium: gallery, item, compare, review, map, how well it knows, lab."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

import doubtless
from doubtless.ingest.create import create_index_of_images
from doubtless.server.service.service import Service
from tests.ingest.pictures import tiny_images, write_folder
from tests.server.visiting import Served, serving, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


def test_the_gallery_is_searched_filtered_and_paged(browser: Browser, page: Served) -> None:
    page.service.add("a/b c.png", page.files["answer"].read_bytes(), label="class-1", metadata={"shelf": 3})
    total = httpx.get(f"{page.address}/v1/items").json()["total"]
    with visiting(browser, page) as visit:
        visit.go("gallery")
        counted = visit.page.locator("#counted")

        def shows(words: str) -> None:
            visit.page.locator("#counted", has_text=words).wait_for()

        assert counted.inner_text() == f"1 to 48 of {total}"
        first = visit.page.locator(".tile a").first.get_attribute("href")
        visit.page.get_by_role("link", name="Next").click()
        shows(f"49 to 96 of {total}")
        assert visit.page.locator(".tile a").first.get_attribute("href") != first
        visit.page.get_by_role("link", name="Next").click()
        shows(f"97 to {total} of {total}")
        assert visit.page.get_by_role("link", name="Next").count() == 0
        visit.page.get_by_role("link", name="Previous").click()
        shows(f"49 to 96 of {total}")
        visit.page.get_by_role("link", name="Previous").click()
        shows(f"1 to 48 of {total}")
        assert visit.page.locator(".tile a").first.get_attribute("href") == first
        visit.page.get_by_label("Search").fill("b c.png")
        visit.page.keyboard.press("Enter")
        shows("1 to 1 of 1")
        visit.page.get_by_role("link", name="Show all").click()
        shows(f"1 to 48 of {total}")
        label = visit.page.get_by_role("combobox", name="Label")
        label.fill("class-4")
        label.press("Enter")
        shows("1 to 20 of 20")
        assert set(visit.page.locator(".tile .caption").all_inner_texts()) == {"class-4"}
        visit.go("gallery?key=shelf&value=3")
        assert counted.inner_text() == "1 to 1 of 1"
        assert "shelf: 3" in visit.page.inner_text(".tile")
        visit.go("gallery?text=nothing-is-called-so")
        assert counted.inner_text() == "Nothing is like that."
    page.service.remove(["a/b c.png"])


def test_an_item_with_its_neighbours_and_its_doubt_is_relabelled(browser: Browser, page: Served) -> None:
    id = (
        "class-2/"
        + httpx.get(f"{page.address}/v1/items?label=class-2").json()["items"][3]["id"].split("/")[1]
    )
    about = httpx.get(f"{page.address}/v1/items/{id}/about").json()
    with visiting(browser, page) as visit:
        visit.go(f"item/{id.replace('/', '%2F')}")
        visit.told()
        assert visit.page.inner_text("h1") == "class-2"
        assert visit.page.locator(".tiles .tile").count() == 10
        first = visit.page.locator(".tiles .caption").first.inner_text()
        assert first == about["neighbours"][0]["label"]
        assert "would be" in visit.page.inner_text(".own")
        visit.page.get_by_text("Change its label").click()
        field = visit.page.get_by_role("combobox", name="Label")
        for label in ("class-0", "class-2"):
            field.fill(label)
            visit.page.get_by_role("button", name="Change", exact=True).click()
            visit.page.locator(".outcome", has_text=f"its label is {label}").wait_for()
            assert httpx.get(f"{page.address}/v1/items/{id}/about").json()["label"] == label
        visit.page.locator(".tiles a").first.click()
        visit.page.wait_for_function("old => !location.hash.includes(old)", arg=id.split("/")[1])
        visit.told()


def test_two_photos_are_compared(browser: Browser, page: Served) -> None:
    said = {"same": "The same", "different": "Not the same", "cannot-tell": "It cannot be told"}
    for second in ("answer", "not-in-gallery"):
        files = {
            name: page.files[one].read_bytes() for name, one in (("first", "answer"), ("second", second))
        }
        decision = httpx.post(f"{page.address}/v1/compare", files=files).json()["decision"]
        with visiting(browser, page) as visit:
            visit.go("compare")
            for place, name in ((0, "answer"), (1, second)):
                side = visit.page.locator(".side").nth(place)
                side.locator("input:not([capture])").set_input_files(page.files[name])
                side.locator("img").wait_for()
            assert visit.told().startswith(said[decision])
            visit.page.get_by_text("Why?").click()
            assert "cosine" in visit.page.inner_text(".why")


def test_review_shows_duplicates_wrong_labels_and_the_least_certain(browser: Browser, page: Served) -> None:
    found = httpx.get(f"{page.address}/v1/review?limit=24").json()
    kinds = [one["kind"] for one in found["questions"]]
    assert {"label", "duplicate"} <= set(kinds)
    with visiting(browser, page) as visit:
        visit.go("review")
        for kind in ("label", "duplicate"):
            assert visit.page.locator(f".card.{kind}").count() == kinds.count(kind)
        assert visit.page.locator(".card.duplicate").first.locator("img").count() == 2
        assert visit.page.get_by_role("heading", name="Least certain").count() == 1
        twice = next(one for one in found["questions"] if one["kind"] == "duplicate")
        pair = visit.page.locator(".card.duplicate").first
        label = twice["other"]["label"]
        pair.get_by_role("button", name=f"Both are {label}", exact=True).click()
        pair.get_by_text("Kept: its label is").wait_for()
        assert [label_of(page, twice[which]["id"]) for which in ("item", "other")] == [label, label]
        old = next(one for one in found["questions"] if one["kind"] == "label")
        card = visit.page.locator(".card.label").first
        card.get_by_role("button", name="Change to").first.click()
        card.get_by_text("Kept: its label is").wait_for()
        assert label_of(page, old["item"]["id"]) == old["options"][0]["label"] != old["label"]


def label_of(page: Served, id: str) -> str:
    found: str = httpx.get(f"{page.address}/v1/items/{id}/about").json()["label"]
    return found


def test_the_map_is_walked_pointed_at_and_narrowed_to_one_label(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.go("map")
        dots, card = visit.page.locator(".dot"), visit.page.locator(".map-card")
        assert dots.count() == httpx.get(f"{page.address}/v1/map").json()["sampled"]
        visit.page.locator(".plane svg").focus()
        words = []
        for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"):
            visit.page.keyboard.press(key)
            words.append(card.inner_text())
        assert all("doubt" in one for one in words)
        assert len(set(words)) > 1
        visit.page.keyboard.press("Escape")
        assert card.is_hidden()
        dots.last.hover()
        assert card.locator("img").count() == 1
        chip = visit.page.get_by_role("button", name="class-3", exact=True)
        chip.click()
        assert chip.get_attribute("aria-pressed") == "true"
        shown = visit.page.locator(".dot.on").count()
        assert 0 < shown < dots.count()
        visit.page.get_by_role("button", name="class-4", exact=True).click()
        assert visit.page.locator("[aria-pressed=true]").count() == 1  # one at a time
        visit.page.get_by_role("button", name="All labels").click()
        assert visit.page.locator(".dot.on").count() == 0
        visit.page.locator(".plane svg").focus()
        visit.page.keyboard.press("ArrowRight")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_selector(".view-item .tiles")


def test_how_well_it_knows_is_said_and_drawn(browser: Browser, page: Served) -> None:
    promise = httpx.get(f"{page.address}/v1/info").json()["promise"]
    with visiting(browser, page) as visit:
        visit.go("known")
        assert "of its answers are wrong" in visit.page.inner_text(".standing .verdict >> nth=0")
        assert f"{promise['queries']:,}" in visit.page.inner_text(".standing .facts")
        assert visit.page.locator("figure svg[role=img][aria-label]").count() == 2
        visit.page.get_by_text("In numbers").first.click()
        assert visit.page.locator("figure table").first.locator("tbody tr").count() > 2
        said = visit.page.inner_text(".standing .verdict >> nth=1")
        assert "holds" in said


def test_before_calibration_it_says_what_to_run(
    browser: Browser, page: Served, tiny_run: Path, tiny_npz: Path, tmp_path: Path
) -> None:
    write_folder(tmp_path / "pictures", *tiny_images(tiny_npz, 12))
    create_index_of_images(tmp_path / "index", doubtless.load(tiny_run), [tmp_path / "pictures"])
    with (
        serving(Service.open(tmp_path / "index"), page.files) as served,
        visiting(browser, served) as visit,
    ):
        assert visit.page.get_by_role("link", name="Lab").count() == 0  # the demo's own
        assert visit.ask("answer").startswith("Most similar: class-")
        assert "doubtless calibrate" in visit.page.inner_text(".verdict")
        assert visit.page.locator(".share .bar").count() == 0  # a similarity is no probability
        visit.go("known")
        assert "doubtless calibrate" in visit.page.inner_text("main")
        for view in ("gallery", "review", "map", "lab"):
            visit.go(view)
        assert visit.page.locator(".view-ask").count() == 1


def test_the_lab_moves_the_verdict_and_back(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.go("lab")
        visit.told()
        total = visit.page.locator(".part.total small").last
        before, sentence = total.inner_text(), visit.told()
        shown = "document.querySelector('canvas').toDataURL()"
        untouched = visit.page.evaluate(shown)
        drawn = {untouched}
        for name in ("Blur", "Noise", "Hidden"):
            visit.page.get_by_label(name).focus()
            with visit.page.expect_response("**/v1/search") as reply:
                visit.page.keyboard.press("End")
            assert reply.value.ok
            drawn.add(visit.page.evaluate(shown))
        assert len(drawn) == 4
        visit.page.wait_for_function(
            "old => [...document.querySelectorAll('.part.total small')].at(-1).innerText > old", arg=before
        )
        visit.page.get_by_role("button", name="Undo all").click()
        assert visit.page.evaluate(shown) == untouched
        visit.page.wait_for_function(
            "old => [...document.querySelectorAll('.part.total small')].at(-1).innerText === old", arg=before
        )
        assert visit.told() == sentence


def test_addresses_lead_where_they_say_and_a_view_begins_anew(browser: Browser, page: Served) -> None:
    with visiting(browser, page) as visit:
        visit.ask("answer")
        visit.page.get_by_role("link", name="Ask", exact=True).click()
        visit.page.wait_for_selector(".welcome")
        visit.page.get_by_role("link", name="Compare").click()
        visit.page.wait_for_selector(".view-compare .side")
        visit.page.go_back()
        visit.page.wait_for_selector(".view-ask .welcome")
        visit.page.goto(f"{page.address}/#/item/%E0%A4%A")  # cannot be decoded
        visit.page.locator(".verdict.error", has_text="There is no such thing.").wait_for()
        assert all("404" in one for one in visit.complaints)
        visit.complaints.clear()
