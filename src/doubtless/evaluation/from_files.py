"""`evaluate_files`: anyone's embeddings from files, the whole evaluation for a method that is not ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from doubtless.data.streams.tables import read_labels
from doubtless.embedding import StoredEmbedding, coded, read_embedding
from doubtless.errors import InputError, listed
from doubtless.evaluation.options import DEFAULT_OPTIONS, EvaluationOptions, GivenScores
from doubtless.evaluation.protocol import evaluate
from doubtless.evaluation.result import Evaluation


def evaluate_files(
    embeddings: str | Path,
    *,
    labels: str | Path | None = None,
    gallery: str | Path | None = None,
    gallery_labels: str | Path | None = None,
    ood: Sequence[str | Path] = (),
    options: EvaluationOptions = DEFAULT_OPTIONS,
) -> tuple[Evaluation, StoredEmbedding]:
    """Measures a safetensors, .npz, .npy or parquet file, as `read_embedding` reads it.

    labels   what they show, where the file does not say it: a table (CSV or parquet) with a column label, or .npy

    Without a gallery file it is leave-one-out. An `uncertainty` in the file stands in place of the family's.
    Returns what was measured, and the queries.
    """
    queries = _labelled(embeddings, labels)
    searched = None if gallery is None else _labelled(gallery, gallery_labels)
    if gallery is None and gallery_labels is not None:
        raise InputError("Labels of a gallery go with a gallery; name its file too.")
    others = {Path(path).stem: read_embedding(path) for path in ood}
    if len(others) != len(ood):
        raise InputError(
            "Two out-of-distribution files have the same name; their numbers could not be told apart."
        )
    given = GivenScores(
        uncertainty=queries.uncertainty,
        gallery_uncertainty=None if searched is None else searched.uncertainty,
        ood_uncertainty={
            name: stored.uncertainty for name, stored in others.items() if stored.uncertainty is not None
        },
    )
    codes, gallery_codes = _common_codes(queries, searched)
    evaluation = evaluate(
        queries.embedding,
        codes,
        gallery=None if searched is None else searched.embedding,
        gallery_labels=gallery_codes,
        ood={name: stored.embedding for name, stored in others.items()},
        given=given,
        options=options,
    )
    return evaluation, replace(queries, labels=codes)


def _labelled(path: str | Path, labels: str | Path | None) -> StoredEmbedding:
    stored = read_embedding(path)
    if labels is not None:
        codes, names = coded(_read_labels(Path(labels), Path(path), stored))
        return replace(stored, labels=codes, label_names=names)
    if stored.labels is None:
        raise InputError(
            f"{path} has no labels; they say what a right answer is. Give them beside it: --labels labels.csv."
        )
    return stored


def _read_labels(path: Path, vectors: Path, stored: StoredEmbedding) -> Sequence[object]:
    """One label per vector: row by row, or by id where the vectors have ids and the table has them."""
    count = len(stored.embedding)
    if path.suffix.lower() == ".npy":
        try:
            values: Sequence[object] = np.load(path, allow_pickle=False).tolist()
        except Exception as error:  # numpy raises many kinds for damaged files
            raise InputError(f"{path} is no readable .npy file: {error}.") from error
    else:
        table = read_labels(path)
        ids = stored.ids
        if ids is not None and all(name in table.row_of for name in ids):
            values = [table.labels[table.row_of[name]] for name in ids]
        else:
            values = table.labels
        if without := [table.ids[row] for row, label in enumerate(table.labels) if label is None]:
            raise InputError(f"{path} has no label for {listed(without)}.")
    if not isinstance(values, list) or len(values) != count:
        got = len(values) if isinstance(values, list) else "no list of"
        raise InputError(
            f"{path} has {got} labels for the {count} vectors of {vectors}; there must be one each."
        )
    return values


def _common_codes(queries: StoredEmbedding, searched: StoredEmbedding | None) -> tuple[Tensor, Tensor | None]:
    """Numbers that stand for the same label on both sides."""
    assert queries.labels is not None
    if searched is None or searched.labels is None:
        return queries.labels, None
    if queries.label_names is None and searched.label_names is None:
        return queries.labels, searched.labels
    first, second = queries.label_words() or [], searched.label_words() or []
    codes, _ = coded([*first, *second])
    return codes[: len(first)], codes[len(first) :]
