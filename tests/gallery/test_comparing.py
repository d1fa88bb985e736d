"""Two pictures in a gallery: what is around them comes from the index, and they are not their own neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from doubtless.calibration.evidence.surroundings import search_among
from doubtless.calibration.fit import Targets
from doubtless.calibration.pairs.labelled import Recipe
from doubtless.calibration.pairs.pairs import PairCalibrator
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery
from doubtless.gallery.calibration.calibrated import Calibrated
from doubtless.gallery.pairs import fit_pairs, search_of, surroundings
from doubtless.index.folder import FolderIndex
from tests.gallery.galleries import gallery


def fill(path: Path, embedding: Embedding, labels: list[str | None]) -> FolderIndex:
    index = FolderIndex.create(path, family="point", dim=embedding.dim)
    index.add(embedding, [f"item {row}" for row in range(len(labels))], labels=labels)
    return index


def test_an_index_is_searched_as_items_in_memory_are(tmp_path: Path) -> None:
    embedding, labels = gallery(200, points=True)
    with fill(tmp_path / "index", embedding, [f"class {code:02d}" for code in labels.tolist()]) as index:
        one, other = embedding[[0]], embedding[[30]]
        found = surroundings(search_of(index), one, other)
        wanted = surroundings(search_among(index.embedding(), index.labels), one, other)
        for here, there in zip(found, wanted, strict=True):
            assert torch.equal(here.label, there.label)
            torch.testing.assert_close(here.score, there.score, rtol=0, atol=1e-5)
            rows = index.rows[[0, 30]]
            assert not bool(torch.isin(here.row, rows).any())
            assert here.row.shape == (1, 10)
        by_index = fit_pairs(index, index.embedding(), index.labels, index.rows, Targets(target_error=0.2))
        alone = PairCalibrator.fit(index.embedding(), index.labels)
        assert by_index is not None
        assert by_index.terms.target_error == 0.2
        assert by_index.outcomes is not None
        assert alone.outcomes is not None
        torch.testing.assert_close(by_index.outcomes.odds, alone.outcomes.odds, rtol=0, atol=1e-3)


def test_items_without_a_label_are_nobodys_other(tmp_path: Path) -> None:
    embedding, labels = gallery(120, points=True)
    names = [None if row % 3 == 0 else f"class {code}" for row, code in enumerate(labels.tolist())]
    with fill(tmp_path / "index", embedding, names) as index:
        known = index.labels >= 0
        pairs = fit_pairs(
            index, index.embedding(index.rows[known]), index.labels[known], index.rows[known], Targets()
        )
        assert pairs is not None
        assert pairs.record["near"] == 0.5
        assert (
            fit_pairs(index, index.embedding(index.rows[:1]), index.labels[:1], index.rows[:1], Targets())
            is None
        )


def test_a_gallery_compares_under_its_target_and_under_another(tmp_path: Path) -> None:
    embedding, labels = gallery(300, noise=0.3, points=True)
    with fill(tmp_path / "index", embedding, [f"class {code}" for code in labels.tolist()]) as index:
        opened = Gallery(index)
        assert (
            opened.compare(embedding[[0]], embedding[[0]]).decision == "cannot-tell"
        )  # nothing is calibrated
        opened.calibrate(targets=Targets(target_error=0.02))
        answer = opened.compare(embedding[[0]], embedding[[30]])
        assert "2.0% cannot be promised from" in answer.reason
        assert "At most" in answer.reason  # but more can
        loose = opened.compare(embedding[[0]], embedding[[30]], target_error=0.45)
        assert (loose.decision, loose.same) == ("same", True)
        assert loose.probability == answer.probability
        apart = opened.compare(embedding[[0]], Embedding.point(-embedding.location[[0]]), target_error=0.45)
        assert (apart.decision, apart.same) == ("different", False)
        for target in (0.0, 1.0):
            with pytest.raises(InputError, match="target_error"):
                opened.compare(embedding[[0]], embedding[[30]], target_error=target)


def test_calibrations_that_promise_nothing_still_open(tmp_path: Path) -> None:
    embedding, labels = gallery(200, points=True)
    with fill(tmp_path / "index", embedding, [f"class {code}" for code in labels.tolist()]) as index:
        Gallery(index).calibrate(
            pairs=[(f"item {row}", f"item {row + 30 - row % 2}", row % 2 == 0) for row in range(150)]
        )
        assert Calibrated.load(index).pairs is not None
        answer = Gallery(index).compare(embedding[[0]], embedding[[30]])
        assert answer.decision in ("same", "different")
        assert answer.same == (answer.decision == "same")
        assert "nothing is promised" in answer.reason


def test_a_recipe_without_near_pairs_says_so() -> None:
    embedding, labels = gallery(120, points=True)
    assert PairCalibrator.fit(embedding, labels, recipe=Recipe(pairs=100, near=0.0)).record["near"] == 0.0
