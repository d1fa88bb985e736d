"""Wrong calls of every verb and every option that there is, made out of what the command line says of itself.

With those that are written down one by one (`test_wrong_calls`, `test_hostile_calls`) they are more than 500.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

from doubtless.cli import app
from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from tests.cli.test_commands import in_process
from tests.cli.test_hostile_calls import calls as hostile_calls
from tests.cli.test_wrong_calls import listed as wrong_calls

ASK = ("ask", "shop", "good.npy")
ODD_TEXTS = (
    "", "\0", "\ud800", "x" * 5000, "../..", "-", "=", "a=b=c", "{", "[1", "nan", "é\n", "/dev/null", "9" * 400,
)  # fmt: skip
"""Words that an option of text may take or not; whichever, it ends with a sentence."""
TRIED = {
    "ask": [*ASK], "list": ["list", "shop"], "show": ["show", "shop", "0"], "relabel": ["relabel", "shop", "0"],
    "stats": ["stats", "shop"], "check": ["check", "shop"], "status": ["status", "shop"],
    "review": ["review", "shop"], "feedback": ["feedback", "shop"], "compare": ["compare", "good.npy", "good.npy"],
    "evaluate": ["evaluate", "--embeddings", "good.npy"], "calibrate": ["calibrate", "shop"],
}  # fmt: skip
"""Verbs that end soon, called as they should be but for one option of text."""

Verb = tuple[list[str], Any]


def verbs(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[Verb]:
    """Words and command of every verb."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, (*words, name))
        elif "index" not in words:  # names of earlier versions of the same verbs
            yield [*words, name], command


def wrong() -> dict[tuple[str, ...], str]:
    """Call → a word of the sentence that it gets."""
    found: dict[tuple[str, ...], str] = {}
    for words, command in verbs():
        needed = ["shop" for one in command.params if one.param_type_name == "argument" and one.required]
        found[(*words, *needed, "--frobnicate")] = "--frobnicate"
        if needed:
            found[(*words,)] = "lacks the argument"
        for option in (one for one in command.params if one.param_type_name == "option"):
            name = option.opts[-1]
            if option.is_flag:
                found[(*words, *needed, f"{name}=perhaps")] = name
                continue
            found[(*words, *needed, name)] = name  # and no value
            kind = option.type_descriptor.annotation
            for value in {int: ("many", "1.5", ""), float: ("many", "", "1,5")}.get(kind, ()):
                found[(*words, *needed, name, value)] = name
            if kind is float and words != ["demo"]:
                found[(*words, *needed, name, "nan")] = ""
    return found


def odd() -> list[list[str]]:
    """Calls whose option of text is odd; some are right."""
    found = []
    for words, command in verbs():
        if words[0] in TRIED and len(words) == 1:
            for option in command.params:
                text = option.param_type_name == "option" and not option.is_flag
                if text and option.type_descriptor.annotation not in (int, float):
                    found += [[*TRIED[words[0]], option.opts[-1], value] for value in ODD_TEXTS]
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    vectors = Embedding.point(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)))
    Gallery.create(folder / "shop", embedding=vectors, labels=["a", "b", "c"] * 20).close()
    np.save(folder / "good.npy", np.random.default_rng(0).normal(size=(6, 4)).astype("f"))
    return folder


def test_there_are_five_hundred() -> None:
    written = {tuple(call.split()) for call, _ in wrong_calls()}
    assert len(written | {tuple(call) for call in hostile_calls()} | set(wrong())) >= 500


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_wrong_call_is_one_sentence(step: int, home: Path, monkeypatch, capsys) -> None:
    """One in eight; `slow` makes all of them."""
    monkeypatch.chdir(home)
    before = sorted(home.iterdir())
    for words, said in list(wrong().items())[::step]:
        code, out, err = in_process(monkeypatch, capsys, *words)
        assert (code, out, err.count("\n")) == (2, "", 1), (words, out, err)
        assert err.startswith("doubtless: "), (words, err)
        assert err.endswith((".\n", "?\n")), (words, err)
        assert said in err, (words, err)
    assert sorted(home.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("verb", list(TRIED))
def test_odd_texts_never_give_a_traceback(verb: str, home: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(home)
    for words in (one for one in odd() if one[0] == verb):
        code, _, err = in_process(monkeypatch, capsys, *words)  # anything but SystemExit fails here
        assert code in (0, 1, 2), (words, err)
        assert code == 0 or err.startswith("doubtless: "), (words, err)
