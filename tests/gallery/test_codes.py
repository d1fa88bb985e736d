"""What answers say in words they also say in codes and numbers, and the two agree."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.gallery import Answer, Gallery, Sentence
from doubtless.gallery.answer import PARTS, AnswerHit, LabelChance
from doubtless.gallery.reasons import in_question, of_absence, of_labels, of_nearest, of_refusal
from tests.gallery.galleries import gallery as made_gallery


def test_a_sentence_is_a_string_that_is_copied_with_its_code() -> None:
    told = Sentence("At most 5 %.", "target-not-met", bound=0.05)
    for same in (copy.deepcopy(told), pickle.loads(pickle.dumps(told))):
        assert (same, same.code, same.values) == ("At most 5 %.", "target-not-met", {"bound": 0.05})
    assert json.dumps(told) == '"At most 5 %."'
    assert told.and_then(" More.", largest="image").values == {"bound": 0.05, "largest": "image"}


GARLIC = [LabelChance("garlic", 0.6), LabelChance("ginger", 0.35)]


@pytest.mark.parametrize(
    ("told", "code", "values"),
    [
        (of_labels("answer", GARLIC, 0.05, 0.5, 0.05), "answer", {"label": "garlic", "none": 0.05}),
        (of_labels("abstain", GARLIC, 0.05, 0.8, 0.05), "between", {"least": 0.8, "promised": 0.05}),
        (of_labels("abstain", GARLIC, 0.05, 2.0, 0.5), "between", {"least": None, "promised": None}),
        (of_labels("abstain", GARLIC[:1], 0.01, 0.8, 0.05), "too-unsure", {"probability": 0.6}),
        (of_labels("not-in-gallery", GARLIC, 0.7, 0.8, 0.05), "absent", {"none": 0.7, "label": "garlic"}),
        (of_labels("not-in-gallery", [], 1.0, 0.8, 0.05), "no-label", {}),
        (of_absence(0.001, 0.01), "absent-by-test", {"p_value": 0.001, "false_alarm": 0.01}),
        (of_nearest(None), "nearest", {}),
        (of_nearest(0.7), "first-hit", {"probability": 0.7}),
    ],
)
def test_every_reason_has_a_code_and_the_numbers_that_it_names(
    told: Sentence, code: str, values: dict[str, object]
) -> None:
    assert told.code == code
    assert values.items() <= told.values.items()


def test_refusals_by_doubt_have_codes(tmp_path: Path) -> None:
    from doubtless.gallery.answers import Terms

    told = of_refusal(Terms(threshold=0.2, target_error=0.05), 0.4, 0.6)
    assert (told.code, told.values["threshold"], told.values["doubt"]) == ("doubtful", 0.2, 0.4)
    none = of_refusal(Terms(threshold=float("-inf"), target_error=0.05), 0.4, None)
    assert (none.code, none.values["probability"]) == ("nothing-promised", None)


def test_what_it_lies_between_names_none_by_nothing() -> None:
    named = in_question(GARLIC, 0.4)
    assert [(one.label, one.probability) for one in named] == [("garlic", 0.6), (None, 0.4), ("ginger", 0.35)]
    assert in_question([], 1.0) == []


def test_answers_of_a_gallery_carry_codes_that_fit_what_they_decide(tmp_path: Path) -> None:
    embedding, labels = made_gallery(600, noise=0.9)
    names = [f"label {int(label)}" for label in labels]
    with Gallery.create(tmp_path / "shop", embedding=embedding, labels=names) as shop:
        bare = shop.ask(embedding[:1])[0].to_json()
        assert (bare["reason_code"], bare["between"], bare["unmeasured"]) == ("nearest", [], [])
        assert [one["code"] for one in bare["warning_codes"]] == ["not-calibrated"]
        shop.calibrate(target_error=0.05)
        location = torch.randn(40, embedding.dim, generator=torch.Generator().manual_seed(1))
        strange = Embedding.gaussian(location, torch.full((40, 1), 0.1))
        asked = [*shop.ask(embedding[:200]), *shop.ask(strange)]
        codes = {
            "answer": {"answer"},
            "abstain": {"between", "too-unsure"},
            "not-in-gallery": {"absent", "no-label"},
        }
        for answer in asked:
            told = json.loads(json.dumps(answer.to_json()))
            assert told["reason_code"] in codes[told["decision"]]
            assert len(told["warning_codes"]) == len(told["warnings"])
            assert all(one["code"] for one in told["warning_codes"])
            assert set(told["unmeasured"]) | set(told["parts"]) == set(PARTS)
            check_largest(told)
            chances = [one["probability"] for one in told["between"]]
            assert chances == sorted(chances, reverse=True)
        assert {answer.decision for answer in asked} >= {"answer", "abstain"}


def check_largest(told: dict[str, object]) -> None:
    values, parts = told["reason_values"], told["parts"]
    assert isinstance(values, dict)
    assert isinstance(parts, dict)
    largest = values["largest"]
    assert (largest is None) == ("Most of the doubt" not in str(told["reason"]))
    if largest is not None:
        assert parts[largest] == max(parts.values())


def test_words_of_somebody_else_have_no_code() -> None:
    hit = AnswerHit("a", "leek", 0.9, 0.9, 0.2)
    told = Answer("answer", (hit,), None, 0.1, {"gallery": 0.1}, "Because.", ("Beware.",)).to_json()
    assert (told["reason_code"], told["reason_values"]) == ("", {})
    assert told["warning_codes"] == [{"code": "", "values": {}}]
    assert told["unmeasured"] == ["image", "model", "distance", "novelty"]


def test_comparisons_carry_codes(tmp_path: Path) -> None:
    embedding, labels = made_gallery(400, noise=0.4)
    names = [f"label {int(label)}" for label in labels]
    with Gallery.create(tmp_path / "shop", embedding=embedding, labels=names) as shop:
        bare = shop.compare(embedding[:1], embedding[1:2]).reason
        assert isinstance(bare, Sentence)
        assert bare.code == "not-calibrated"
        shop.calibrate(target_error=0.2)
        seen = set()
        for other in range(1, 60):
            told = shop.compare(embedding[:1], embedding[other : other + 1])
            assert isinstance(told.reason, Sentence)
            seen.add(told.reason.code)
            assert (told.reason.code == "promised") == (told.decision != "cannot-tell")
            assert told.reason.values["prior"] == 0.5
        assert "promised" in seen
