"""`Sentence`: words for people, with the code and the numbers that they were made of for programs."""

from __future__ import annotations

from typing import Any


class Sentence(str):
    """A string that also says, in a word and in values, what it says: whoever speaks another language starts there.

    >>> told = Sentence("The gallery had 3 items then and has 7 now.", "size-changed", then=3, now=7)
    >>> told.startswith("The gallery"), told.code, told.values["now"]
    (True, 'size-changed', 7)
    """

    code: str
    values: dict[str, Any]

    def __new__(cls, text: str, code: str = "", **values: Any) -> Sentence:
        """Of words, their code and their values."""
        made = super().__new__(cls, text)
        made.code, made.values = code, values
        return made

    def and_then(self, more: str, **values: Any) -> Sentence:
        """The same with more words and more values."""
        return Sentence(f"{self}{more}", self.code, **{**self.values, **values})


def code_of(words: str) -> str:
    """Of a sentence; "" of words that have none."""
    return words.code if isinstance(words, Sentence) else ""


def values_of(words: str) -> dict[str, Any]:
    """The values of a sentence; none of words that have none."""
    return dict(words.values) if isinstance(words, Sentence) else {}
