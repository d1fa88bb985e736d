"""`GalleryClassifier`: a gallery of vectors as a classifier of scikit-learn, for pipelines and grid searches.

`predict` and `predict_proba` are scikit-learn's: one of the known classes, whatever is asked. What else a gallery
knows is beside them: `decision_function` says whether the query is any of them at all, `answer` whether one should
answer. Vectors are compared by direction: put a `StandardScaler` before it where features are not embeddings.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from doubtless.calibration.distribution import Distribution
from doubtless.errors import InputError
from doubtless.gallery import Answers, Gallery

SUREST = 1e-9
"""The least probability of absence and of presence: distributions are rounded to nine digits."""


class GalleryClassifier(ClassifierMixin, BaseEstimator):
    """The labels of near items, as calibrated probabilities.

    target_error   share of the answers of `answer` that may be wrong

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_iris(return_X_y=True)
    >>> model = make_pipeline(StandardScaler(), GalleryClassifier(target_error=0.1)).fit(X[::2], y[::2])
    >>> model.predict_proba(X[1::2]).shape, bool(model.score(X[1::2], y[1::2]) > 0.85)
    ((75, 3), True)
    """

    def __init__(self, target_error: float = 0.05) -> None:
        self.target_error = target_error

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """A gallery of X (n, D) under labels y (n,), calibrated on itself, each item among all others."""
        vectors, labels = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(labels)
        labels = column_or_1d(labels, warn=True)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise InputError(f"A classifier needs two classes at least, got one class: {self.classes_[0]!r}.")
        self._keep(tempfile.TemporaryDirectory(prefix="doubtless-"))
        place = Path(self._folder.name) / "gallery"
        with Gallery.create(place, embedding=vectors, labels=[str(one) for one in labels.tolist()]) as made:
            made.calibrate(target_error=self.target_error)
        self.gallery_ = Gallery.open(place)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class of each (n,), also where `answer` would abstain."""
        chances = self.predict_proba(X)  # says where nothing was fitted
        return self.classes_[chances.argmax(1)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities (n, classes) given that it is one of the classes; rows sum to 1."""
        found = self._distribution(X)
        columns = self._columns()
        chance = np.zeros((len(found), len(self.classes_)))
        for row, place in zip(*np.nonzero(found.label.numpy() >= 0), strict=True):
            chance[row, columns[int(found.label[row, place])]] = float(found.probability[row, place])
        total = chance.sum(1, keepdims=True)
        even = np.full_like(chance, 1 / len(self.classes_))  # nothing of the gallery speaks for any
        return np.where(total > 0, chance / np.where(total > 0, total, 1), even)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Log-odds (n,) that it is one of the classes at all: below 0, more likely it is none of these."""
        none = self._distribution(X).none.numpy().clip(SUREST, 1 - SUREST)
        return np.log1p(-none) - np.log(none)

    def answer(self, X: ArrayLike, k: int = 10) -> Answers:
        """What the gallery says of each: decision, reason, doubt and the rest of an answer; labels are words."""
        check_is_fitted(self)
        vectors = validate_data(self, X, dtype=np.float32, reset=False)
        return self.gallery_.ask(vectors, k)

    def _distribution(self, X: ArrayLike) -> Distribution:
        found = self.answer(X, 1).distribution
        assert found is not None  # `fit` has calibrated on labels
        return found

    def _columns(self) -> dict[int, int]:
        """Codes of the gallery's labels → columns."""
        columns = {str(name): column for column, name in enumerate(self.classes_.tolist())}
        return {code: columns[name] for code, name in enumerate(self.gallery_.index.label_names)}

    def _keep(self, folder: tempfile.TemporaryDirectory[str]) -> None:
        self._folder = folder  # removed with the estimator

    def __getstate__(self) -> dict[str, Any]:
        """For copies and joblib: the gallery's folder travels along as an archive."""
        state = dict(super().__getstate__())
        if "gallery_" in state:
            del state["gallery_"], state["_folder"]
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w") as file:
                file.add(Path(self._folder.name) / "gallery", arcname="gallery")
            state["_archive"] = archive.getvalue()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpacks the gallery into a folder of its own."""
        archive = state.pop("_archive", None)
        super().__setstate__(state)
        if archive is not None:
            self._keep(tempfile.TemporaryDirectory(prefix="doubtless-"))
            with tarfile.open(fileobj=io.BytesIO(archive)) as file:
                file.extractall(self._folder.name, filter="data")
            self.gallery_ = Gallery.open(Path(self._folder.name) / "gallery")
