"""The page's files, without a browser: both languages say everything, little is sent, nothing is from elsewhere."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from doubtless.server.http.static import page

HEAVIEST = 150_000
"""Bytes of everything together, as it is sent."""
LONGEST = 400
LANGUAGES = ("en", "de")
ENTRY = re.compile(r'^  "([^"]+)": "((?:[^"\\]|\\.)*)",$', re.MULTILINE)


@cache
def sent() -> dict[str, str]:
    return {address: file.body.decode() for address, file in page().items()}


@cache
def texts(language: str) -> dict[str, str]:
    body = sent()[f"/page/texts.{language}.js"]
    found = ENTRY.findall(body)
    names = [name for name, _ in found]
    assert len(names) == len(set(names)), "a name stands there twice"
    assert len(names) == body.count('": "'), "an entry is not on a line of its own"
    return dict(found)


def test_both_languages_say_everything_with_the_same_places() -> None:
    english, german = texts("en"), texts("de")
    assert set(english) == set(german)
    assert len(english) > 150
    for name, words in english.items():
        places = [set(re.findall(r"\{(\w+)\}", one)) for one in (words, german[name])]
        assert places[0] == places[1] or name.endswith(".one"), name
        assert words.strip()
        assert german[name].strip()
    same = [name for name in english if english[name] == german[name] and len(english[name]) > 12]
    assert same == []


def test_every_text_that_is_asked_for_is_there_and_none_is_left_over() -> None:
    words = [f"/page/texts.{language}.js" for language in LANGUAGES]
    code = "".join(
        body for address, body in sent().items() if address.endswith(".js") and address not in words
    )
    known = set(texts("en"))
    plain = {name.removesuffix(".other").removesuffix(".one") for name in known}
    asked = set(re.findall(r'\b(?:t|parts)\("([^"]+)"', code))
    assert asked <= known | plain
    # Names that are put together (`t(`part.${part}`)`) are known by how they begin.
    begun = tuple(re.findall(r"\bt\(`([\w.-]+)\$\{", code))
    written = set(re.findall(r'"([\w.-]+)"', code))
    assert [name for name in plain if name not in written and not name.startswith(begun)] == []


def test_the_page_is_light() -> None:
    assert sum(len(body.encode()) for body in sent().values()) <= HEAVIEST
    for address, body in sent().items():
        assert len(body.splitlines()) <= LONGEST, address


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    for address, body in sent().items():
        outside = re.findall(r"(?:https?:)?//[\w.-]+\.\w{2,}[^\s\"'`)]*", body)
        assert [one for one in outside if not one.startswith("http://www.w3.org/")] == [], address
        assert "innerHTML" not in body, address
        assert not re.search(r"\b(?:eval|new Function|document\.write)\b", body), address
    html = sent()["/"]
    assert not re.search(r"<[^>]+\s(?:style|on\w+)=", html)
    assert "<style" not in html
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="/page/main.js">']
    for name in re.findall(r'(?:href|src)="(/page/[^"]+)"', html):
        assert name in sent()


def test_modules_import_what_is_there() -> None:
    for address, body in sent().items():
        for name in re.findall(r'from "\./([^"]+)"', body):
            assert f"/page/{name}" in sent(), address


def test_colours_and_type_are_those_of_reports() -> None:
    tokens = sent()["/page/tokens.css"]
    assert tokens == files("doubtless.report").joinpath("tokens.css").read_text(encoding="utf-8")
    own = "".join(sent()[f"/page/{name}.css"] for name in ("page", "views"))
    used = set(re.findall(r"var\((--[\w-]+)", own))
    defined = set(re.findall(r"(--[\w-]+):", tokens + own))
    set_by_script = {"--share", "--ratio", "--x", "--y"}
    assert used <= defined | set_by_script
