"""Queries by another encoder than the items': labelled or paired ones calibrate it, items do not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Answers, Gallery

DIM, THINGS, STRANGERS = 24, 40, 25
SHARED = torch.Generator().manual_seed(5)
CENTRE = torch.randn(THINGS + STRANGERS, DIM, generator=SHARED)
TURN = torch.linalg.qr(torch.eye(DIM) + 0.08 * torch.randn(DIM, DIM, generator=SHARED)).Q
TURN = TURN * TURN.diagonal().sign()
AWAY = 0.6 * DIM**0.5 * torch.nn.functional.normalize(torch.randn(DIM, generator=SHARED), dim=0)
"""The gap between two modalities: all texts lie to one side of all pictures."""


def pictures(count: int, seed: int) -> tuple[Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    shown = torch.arange(count) % THINGS
    return CENTRE[shown] + 0.8 * torch.randn(count, DIM, generator=generator), shown.tolist()


def texts(of: Sequence[int] | Tensor, seed: int) -> Tensor:
    """What another encoder makes of words about these things: turned, moved and noisier."""
    noise = torch.randn(len(of), DIM, generator=torch.Generator().manual_seed(seed))
    return 0.7 * CENTRE[torch.as_tensor(of)] @ TURN + 0.6 * noise + AWAY


def asked(seed: int, count: int = 2000) -> tuple[Tensor, list[str]]:
    """Texts, a tenth of them of what no picture shows, and what they mean."""
    generator = torch.Generator().manual_seed(seed)
    meant = torch.randint(THINGS, (count,), generator=generator)
    meant[: count // 10] = THINGS + torch.randint(STRANGERS, (count // 10,), generator=generator)
    return texts(meant, seed), names(meant.tolist())


def names(shown: Sequence[int]) -> list[str]:
    return [f"thing {one}" for one in shown]


def share_wrong(answers: Answers, meant: Sequence[str]) -> tuple[float, float]:
    """Share of the queries that are answered, and of these the share that are answered wrongly."""
    told = [(one.decision == "answer", one.label == name) for one, name in zip(answers, meant, strict=True)]
    answered = [right for is_answer, right in told if is_answer]
    return len(answered) / len(told), 1 - sum(answered) / max(1, len(answered))


@pytest.fixture
def gallery(tmp_path: Path) -> Any:
    vectors, shown = pictures(800, 0)
    with Gallery.create(tmp_path / "shop", embedding=vectors, labels=names(shown)) as shop:
        yield shop


def test_labelled_queries_keep_the_promise_that_items_break(gallery: Gallery) -> None:
    meant = [row % THINGS for row in range(1200)]
    queries, truth = asked(8)
    gallery.calibrate(target_error=0.1)
    by_items = share_wrong(gallery.ask(queries), truth)
    record = gallery.calibrate(
        target_error=0.1, queries=texts(meant, 1), labels=names(meant), query_model="texts"
    )
    assert record["query_model"] == {"name": "texts", "place": "texts"}
    by_queries = share_wrong(gallery.ask(queries), truth)
    assert by_items[1] > 0.12
    assert by_queries[0] > 0.3
    assert by_queries[1] <= 0.1


def test_two_pictures_are_compared_by_what_pictures_showed(gallery: Gallery) -> None:
    """Texts are nearer to each other than to any picture, so that pairs of texts and pictures would mislead."""
    meant = [row % THINGS for row in range(400)]
    of_items = gallery.calibrate(target_error=0.2)["pairs"]
    of_texts = gallery.calibrate(
        target_error=0.2, queries=texts(meant, 1), labels=names(meant), query_model="texts"
    )["pairs"]
    assert of_texts == of_items


def test_items_are_no_examples_of_such_queries(tmp_path: Path, gallery: Gallery) -> None:
    with pytest.raises(InputError, match="its items say nothing of what such queries find"):
        gallery.calibrate(query_model="texts")


def test_another_encoder_than_the_calibrated_one_is_told_nothing(gallery: Gallery) -> None:
    place = gallery.index.path
    gallery.calibrate(target_error=0.1)
    gallery.close()
    with Gallery.open(place, query_model="texts") as other:
        answer = other.ask(texts([3], 2))[0]
    assert (answer.decision, answer.probability) == ("abstain", None)
    assert [one["code"] for one in answer.to_json()["warning_codes"]] == ["other-encoder"]
    assert "texts" in answer.reason


def test_paired_queries_show_what_their_items_show(tmp_path: Path, gallery: Gallery) -> None:
    meant = [row % THINGS for row in range(400)]
    paired = gallery.calibrate(target_error=0.2, queries=texts(meant, 1), items=[str(one) for one in meant])
    labelled = gallery.calibrate(target_error=0.2, queries=texts(meant, 1), labels=names(meant))
    assert paired == labelled


def test_paired_queries_calibrate_a_gallery_without_labels(tmp_path: Path) -> None:
    """Each item is a thing of its own: right is the very item, and the promise is of first hits."""
    pictured = CENTRE + 0.3 * torch.randn(CENTRE.shape, generator=torch.Generator().manual_seed(1))
    known = [row % len(CENTRE) for row in range(1300)]
    with Gallery.create(tmp_path / "bare", embedding=pictured) as bare:
        record = bare.calibrate(target_error=0.1, queries=texts(known, 2), items=[str(row) for row in known])
        assert record["abstention"]["met"]
        answers = bare.ask(texts(known, 3))
        first = [(one.decision == "answer", int(one.hits[0].id)) for one in answers]
    answered = [(found, meant) for (is_answer, found), meant in zip(first, known, strict=True) if is_answer]
    assert len(answered) > 0.2 * len(known)
    assert np.mean([found != meant for found, meant in answered]) <= 0.1


@pytest.mark.parametrize(
    ("items", "told"),
    [(["0"], "got 2 queries and 1 items"), (["0", "nowhere"], "no item 'nowhere'")],
)
def test_pairs_that_are_none_are_refused(gallery: Gallery, items: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        gallery.calibrate(queries=texts([0, 1], 1), items=items)


def test_a_function_embeds_what_is_asked(gallery: Gallery) -> None:
    """Words go to the encoder of words; whoever opens the gallery later has to bring it again."""

    def encode(words: Sequence[str]) -> np.ndarray[Any, Any]:
        return texts([int(word.split()[-1]) for word in words], 4).numpy()

    meant = [row % THINGS for row in range(400)]
    gallery.calibrate(target_error=0.2, queries=names(meant), labels=names(meant), query_model=encode)
    told = gallery.ask(texts([7], 4))[0]
    assert gallery.ask("thing 7").id == told.id
    place = gallery.index.path
    gallery.close()
    with Gallery.open(place) as later:
        with pytest.raises(InputError, match="Queries of this gallery are embedded by"):
            later.ask("thing 7")
        assert later.ask(texts([7], 4))[0].id == told.id
    with Gallery.open(place, query_model=encode) as later:
        assert later.ask(["thing 7"])[0].id == told.id


def test_from_the_command_line(tmp_path: Path, gallery: Gallery) -> None:
    meant = [row % THINGS for row in range(400)]
    np.save(tmp_path / "texts.npy", texts(meant, 1).numpy())
    pairs = "".join(f"{row},{item}\n" for row, item in enumerate(meant))
    (tmp_path / "pairs.csv").write_text(f"id,item\n{pairs}")
    gallery.close()
    call = ["calibrate", str(gallery.index.path), "--queries", str(tmp_path / "texts.npy")]
    call += ["--items", str(tmp_path / "pairs.csv"), "--query-model", "words", "--target-error", "0.2"]
    said = CliRunner().invoke(app, call)
    assert said.exit_code == 0, said.output
    with Gallery.open(gallery.index.path) as later:
        assert str(later.query_model) == "words"
        answer = later.ask(Embedding.point(texts([7], 4)))[0]
    assert answer.probability is not None
    assert not answer.warnings
