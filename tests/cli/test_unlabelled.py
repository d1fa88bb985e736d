"""A gallery without labels on the command line: calibrated, asked about, answered for."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from tests.cli.conftest import Command


def test_from_no_label_to_answers_that_count(tmp_path: Path, command: Command) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(30, 24, generator=generator)[torch.arange(120) % 30]
    vectors = vectors + 0.5 * torch.randn(120, 24, generator=generator)
    place = tmp_path / "heap"
    Gallery.create(place, embedding=Embedding.point(vectors)).close()

    code, out, _ = command("calibrate", place, "--unlabelled", "--target-error", "0.2")
    words = " ".join(out.split())
    assert code == 0
    assert "Calibrated without labels: a hit is taken for the same thing" in words
    assert "Nothing is promised of hits: people answered for 0 pairs" in words
    code, out, _ = command("review", place, "--kind", "pair", "--most", "3", "--json")
    questions = json.loads(out)["questions"]
    assert [one["kind"] for one in questions] == ["pair"] * 3
    said = [
        f"--answer={one['id']}={word}" for one, word in zip(questions, ("same", "cannot-tell"), strict=False)
    ]
    code, out, _ = command("review", place, *said)
    assert code == 0
    assert out.splitlines()[1].endswith(": cannot-tell.")
    _, out, _ = command("status", place)
    assert "people answered for" in " ".join(out.split())
    _, out, _ = command("feedback", place, "--json")
    assert [one["verdict"] for one in json.loads(out)] == ["right", None]

    code, _, errors = command("calibrate", place, "--unlabelled", "--queries", tmp_path)
    assert (code, "on its own items" in " ".join(errors.split())) == (2, True)
