"""Reads a page as a browser would: which tags are open, what is loaded, what text is seen."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "img", "br", "input"}
LOADING = {
    "src",
    "href",
    "srcset",
    "data",
    "action",
    "poster",
    "background",
    "xlink:href",
    "formaction",
    "ping",
}


class Page(HTMLParser):
    """The parsed page; unbalanced tags fail while parsing."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.styles: list[str] = []
        self.data: dict[str, str] = {}
        self.feed(html)
        self.close()
        assert not self.open, f"left open: {self.open}"

    @classmethod
    def read(cls, path: Path) -> Page:
        return cls(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "style":
            self.styles.append(data)
        elif self.open and self.open[-1] == "script":
            identifier = self.tags[-1][1].get("id")
            self.data[str(identifier)] = data
        else:
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def _is_allowed(self) -> bool:
        """Whether the page's policy names the page's own script, by its hash."""
        digest = hashlib.sha256(self.data.get("None", "").encode()).digest()
        policies = [meta.get("content") or "" for meta in self.all("meta") if "http-equiv" in meta]
        return any(
            f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in policy for policy in policies
        )

    def outside(self) -> list[str]:
        """Everything that a browser would fetch or run."""
        found = []
        for tag, attributes in self.tags:
            for name, value in attributes.items():
                value = value or ""
                if name in LOADING and not value.startswith(("data:", "#")):
                    found.append(f"{tag} {name}={value}")
                if name.startswith("on") or (name == "style" and "url(" in value):
                    found.append(f"{tag} {name}={value}")
            if tag in ("iframe", "object", "embed", "base", "audio", "video"):
                found.append(tag)
            if tag == "script" and attributes.get("type") != "application/json" and not self._is_allowed():
                found.append(f"script {attributes}")
        for style in self.styles:
            found += re.findall(r"@import.*|url\((?!data:).*|@font-face", style)
        return found
