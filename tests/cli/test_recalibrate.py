"""`doubtless recalibrate`, and `doubtless ask --together`: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery

LABELS = 12
CENTRE = torch.randn(LABELS, 6, generator=torch.Generator().manual_seed(0))


def photos(count: int, seed: int) -> torch.Tensor:
    noise = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return CENTRE[torch.arange(count) % LABELS] + 0.4 * noise


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    names = [f"thing {number % LABELS}" for number in range(120)]
    with Gallery.create(
        tmp_path / "shop", embedding=Embedding.point(photos(120, 1)), labels=names
    ) as gallery:
        gallery.calibrate(target_error=0.2)
        more = Embedding.point(photos(12, 2))
        gallery.add(embedding=more, ids=[f"new {number}" for number in range(12)], labels=names[:12])
    return tmp_path / "shop"


def test_it_says_what_had_changed(shop: Path, command: Any) -> None:
    code, said, _ = command("recalibrate", shop)
    assert code == 0
    assert "12 items are new and 0 went" in said
    again = json.loads(command("recalibrate", shop, "--json")[1])
    assert again["recalibrated"] == {"new": 0, "gone": 0, "queries_searched": 0}
    assert again["items"] == 132


def test_photos_together_are_one_answer(shop: Path, command: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "three.npy", photos(3 * LABELS, 5)[::LABELS].numpy())  # three photos of thing 0
    found = command("ask", shop, "--embedding", tmp_path / "three.npy", "--together", "--json")[1]
    told = json.loads(found)["queries"]
    assert len(told) == 1
    assert told[0]["labels"][0]["label"] == "thing 0"


def test_what_was_never_calibrated_is_refused(tmp_path: Path, command: Any) -> None:
    with Gallery.create(tmp_path / "new", embedding=Embedding.point(photos(12, 1))):
        pass
    code, _, said = command("recalibrate", tmp_path / "new")
    assert code == 2
    assert "no queries were kept; use doubtless calibrate instead." in said
