"""Anyone's embeddings from files: the whole evaluation for a method that is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from doubtless.embedding import StoredEmbedding, read_embedding
from doubtless.errors import InputError
from doubtless.evaluation.protocol import evaluate
from doubtless.evaluation.result import Evaluation
from doubtless.evaluation.scores import ScoreName


def evaluate_files(
    embeddings: str | Path,
    *,
    gallery: str | Path | None = None,
    ood: Sequence[str | Path] = (),
    ood_ratio: float | None = None,
    score: ScoreName = "direction",
    bootstrap: int = 1000,
) -> tuple[Evaluation, StoredEmbedding]:
    """Measures a safetensors or .npz file (location, labels; variance, samples or uncertainty where there are).

    Without a gallery file it is leave-one-out. An `uncertainty` in the file stands in place of the family's.
    Returns what was found, and the queries.
    """
    queries = _labelled(embeddings)
    searched = None if gallery is None else _labelled(gallery)
    strangers = {Path(path).stem: read_embedding(path) for path in ood}
    if len(strangers) != len(ood):
        raise InputError("two OOD files have the same name; their numbers could not be told apart.")
    given = {name: found.uncertainty for name, found in strangers.items() if found.uncertainty is not None}
    found = evaluate(
        queries.embedding,
        _labels(queries),
        gallery=None if searched is None else searched.embedding,
        gallery_labels=None if searched is None else _labels(searched),
        ood={name: part.embedding for name, part in strangers.items()},
        uncertainty=queries.uncertainty,
        gallery_uncertainty=None if searched is None else searched.uncertainty,
        ood_uncertainty=given or None,
        ood_ratio=ood_ratio,
        score=score,
        bootstrap=bootstrap,
    )
    return found, queries


def _labelled(path: str | Path) -> StoredEmbedding:
    stored = read_embedding(path)
    if stored.labels is None:
        raise InputError(f"{path} has no labels; they say what a right answer is.")
    if len(stored.labels) != len(stored.embedding):
        raise InputError(f"{path} has {len(stored.embedding)} embeddings but {len(stored.labels)} labels.")
    return stored


def _labels(stored: StoredEmbedding) -> Tensor:
    assert stored.labels is not None
    return stored.labels
