"""benchmarks/few_labels.py counts what it says: a made-up set whose labels are known, against plain loops."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("few_labels")
        for name in ("few_labels", "few_labels_page", "divisions", "frozen_features"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def hidden(script: ModuleType) -> Any:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 40
    centre = torch.randn(40, 24, generator=generator)
    vectors = normalize(centre[labels] + 0.8 * torch.randn(400, 24, generator=generator))
    return script.Hidden.drawn(script.Photos(vectors, labels), 0)


def test_first_hits_are_those_of_a_loop(script: ModuleType) -> None:
    similarity = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.8, 0.7]])
    found = script.Found.of(similarity, torch.tensor([5, 7]), torch.tensor([5, 6, 7]))
    assert found.same.tolist() == [True, False]
    assert found.out.tolist() == pytest.approx([0.7, 0.7])


def test_items_and_queries_share_nothing_and_a_promise_is_counted_on_both(
    script: ModuleType, hidden: Any
) -> None:
    assert (len(hidden.items.out), len(hidden.queries.out)) == (280, 120)
    chance, asked = hidden.asked(0.2, script.by_review, lambda one: one.answered >= 120)
    told = script.outcome(hidden, chance, asked)
    assert told["met"]
    accepted = [1 - float(chance.of(out)) <= asked.threshold for out in hidden.items.out]
    wrong = [not same for same, taken in zip(hidden.items.same.tolist(), accepted, strict=True) if taken]
    assert told["by_items"] == pytest.approx(sum(wrong) / len(wrong))
    assert asked.coverage == pytest.approx(len(wrong) / 280)


def test_answers_that_were_needed_are_enough_and_no_more_than_all(script: ModuleType, hidden: Any) -> None:
    _, chosen = hidden.asked(0.2, script.by_review, lambda one: one.answered >= 120)
    by_review, by_chance = (
        script.needed(hidden, chosen, 0.2, way) for way in (script.by_review, script.by_chance)
    )
    assert by_review is not None
    assert by_review <= 120
    assert by_chance is None or by_chance <= 280
    _, silent = hidden.asked(0.2, script.by_chance, lambda one: True)
    assert script.needed(hidden, silent, 0.2, script.by_chance) is None


def test_the_page_names_every_set(script: ModuleType, hidden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.Hidden, "drawn", classmethod(lambda cls, photos, seed: hidden))
    record = script.division(None, 0)
    page = script.page({"command": "few_labels.py", "sets": {"cub": [record, record]}})
    assert "| CUB, 100 test species | 2 |" in page
    assert page.count("## After 200 answers") == 2
