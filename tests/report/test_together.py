"""Pictures in one order and pictures made worse: what is shown, and that it can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from doubtless.evaluation.ordered import JointOrder, joint_order
from doubtless.evaluation.result import Evaluation
from doubtless.report import ImageLookup, write_report
from doubtless.report.together import Strip, order_body, places_of, strips_body
from tests.report.test_browser import CONTRAST

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = np.random.default_rng(0).integers(0, 256, (40, 9, 9), dtype=np.uint8)


def order(known: int = 40, other: int = 30) -> JointOrder:
    generator = torch.Generator().manual_seed(0)
    inside = {"uncertainty": torch.rand(known, generator=generator).double()}
    return joint_order(inside, {"uncertainty": torch.rand(other, generator=generator).double() + 0.5})


@pytest.mark.parametrize("count", [0, 1, 4, 5, 7, 59, 60, 61, 1000])
def test_places_show_neighbours_and_nothing_twice(count: int) -> None:
    ranks = [rank for _, place in places_of(count) for rank in place]
    assert ranks == sorted(set(ranks))
    assert all(0 <= rank < count for rank in ranks)
    assert len(ranks) == (count if count < 5 else 5 * min(12, count // 5))
    if count:
        assert (ranks[0], ranks[-1]) == (0, count - 1)


def test_every_row_says_how_many_are_not_known() -> None:
    joint = order()
    body = order_body(
        {"<b>": joint}, {"<b>": PICTURES.__getitem__}, images=ImageLookup.from_arrays(PICTURES, [0] * 40)
    )
    rows = re.findall(r"<small>(\d+) of (\d+) out-of-distribution</small></h3>(.*?)</ul>", body)
    assert len(rows) == 5
    for (other, size, shown), (_, ranks) in zip(rows, places_of(70), strict=True):
        kinds = re.findall(r'<li class="(known|other)">', shown)
        assert kinds == ["other" if bool(joint.outside[rank]) else "known" for rank in ranks]
        assert (int(other), int(size)) == (kinds.count("other"), len(kinds))
    assert "<b>&lt;" not in body  # the set's name is escaped, and never bold
    assert "&lt;b&gt;" in body
    assert "by uncertainty" in body


def test_without_pictures_there_is_no_section() -> None:
    assert order_body({"x": order()}, {}, images=ImageLookup.from_arrays(PICTURES)) == ""
    assert order_body({"x": order()}, {"x": PICTURES.__getitem__}, images=None) == ""
    assert strips_body([]) == ""


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_pictures_fit_and_words_can_be_read(
    browser: Browser, tmp_path: Path, width: int, scheme: str
) -> None:
    write_report(
        tmp_path / "page.html",
        title="Pictures",
        evaluation=Evaluation({}, orders={"digits": order()}),
        config={},
        images=ImageLookup.from_arrays(PICTURES, [0] * 40),
        label_names=["a label that is much longer than its picture is wide"],
        strangers={"digits": PICTURES.__getitem__},
        strips=[Strip("Blur", list(PICTURES[:6]), [(f"strength {i}", "50 %") for i in range(6)])],
    )
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ratio, element = page.evaluate(CONTRAST)
    assert ratio >= 4.5, element
    assert page.locator("ul.strip li").count() == 66
    context.close()
