"""A probability from features: logistic regression, then isotonic regression of its log-odds, cross-fitted.

The isotonic table is fitted on log-odds that a logistic regression gave to rows it had not seen, so that it
corrects what happens to new rows. Folds keep groups together (all hits of a query, or all queries of a class).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.errors import nearest as nearest_word
from doubtless.retrieval.isotonic import Isotonic
from doubtless.retrieval.logistic import Logistic

Method = Literal["auto", "logistic", "isotonic", "stacked"]
FOLDS = 5


@dataclass(frozen=True, eq=False)
class ProbabilityModel:
    """P(right) of rows of features.

    method   "logistic": over all features; "stacked": that, then isotonic; "isotonic": of the first feature alone
    """

    names: tuple[str, ...]
    method: str
    logistic: Logistic | None
    isotonic: Isotonic | None

    @classmethod
    def fit(
        cls,
        features: Tensor,
        right: Tensor,
        *,
        names: Sequence[str],
        group: Tensor | None = None,
        method: Method = "auto",
    ) -> ProbabilityModel:
        """Fits to features (m, F) and outcomes (m,); `group` (m,) are rows that no fold may split.

        "auto" is stacked, unless logistic alone has a clearly lower Brier score on folds it was not fitted on.
        """
        if method not in get_args(Method):
            raise InputError(f"There is no calibration {method!r}{nearest_word(method, get_args(Method))}")
        group = torch.arange(len(right)) if group is None else group
        if method == "auto":
            method = better_method(features, right, group=group)
        if method == "isotonic":
            return cls(tuple(names), method, None, rising(features[:, 0], right))
        logistic = Logistic.fit(features, right)
        if method == "logistic":
            return cls(tuple(names), method, logistic, None)
        unseen = cross_fitted_odds(features, right, group=group)
        return cls(tuple(names), method, logistic, rising(unseen, right))

    def __call__(self, features: Tensor) -> Tensor:
        """P (…) of features (…, F), float64."""
        if self.logistic is None:
            assert self.isotonic is not None
            return self.isotonic(features[..., 0])
        odds = self.logistic(features)
        return torch.sigmoid(odds) if self.isotonic is None else self.isotonic(odds)

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """What `from_state` needs, beside `record`."""
        tensors = {} if self.logistic is None else self.logistic.tensors(f"{prefix}logistic.")
        return tensors | ({} if self.isotonic is None else self.isotonic.tensors(f"{prefix}isotonic."))

    def record(self) -> dict[str, Any]:
        return {"names": list(self.names), "method": self.method}

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any], prefix: str
    ) -> ProbabilityModel:
        method = record["method"]
        logistic = None if method == "isotonic" else Logistic.from_tensors(tensors, f"{prefix}logistic.")
        isotonic = None if method == "logistic" else Isotonic.from_tensors(tensors, f"{prefix}isotonic.")
        return cls(tuple(record["names"]), method, logistic, isotonic)


def rising(score: Tensor, right: Tensor) -> Isotonic:
    """The table from a score to a probability that every model here uses: never 0 or 1, and no wide steps."""
    return Isotonic.fit(score, right, centred=True, never_certain=True)


def folds_of(group: Tensor, *, folds: int = FOLDS, seed: int = 0) -> Tensor:
    """A fold (m,) for every row, equal groups in one fold, groups dealt at random in equal numbers."""
    members, place = torch.unique(group, return_inverse=True)
    generator = torch.Generator().manual_seed(seed)
    dealt = torch.arange(len(members)) % folds
    return dealt[torch.randperm(len(members), generator=generator)][place]


def cross_fitted_odds(features: Tensor, right: Tensor, *, group: Tensor) -> Tensor:
    """Log-odds (m,) of every row from a logistic regression over the other folds."""
    fold = folds_of(group)
    if len(fold.unique()) < 2:  # one group: there is nothing else to fit on
        return Logistic.fit(features, right)(features)
    odds = torch.empty(len(right), dtype=torch.double)
    for number in fold.unique().tolist():
        held = fold == number
        odds[held] = Logistic.fit(features[~held], right[~held])(features[held])
    return odds


def cross_fitted(
    features: Tensor, right: Tensor, *, names: Sequence[str], group: Tensor, method: Method = "auto"
) -> Tensor:
    """P (m,) of every row from a model that saw nothing of its fold, in choosing, fitting or correcting."""
    fold = folds_of(group, seed=1)
    if len(fold.unique()) < 2:
        return ProbabilityModel.fit(features, right, names=names, group=group, method=method)(features)
    chance = torch.empty(len(right), dtype=torch.double)
    for number in fold.unique().tolist():
        held = fold == number
        model = ProbabilityModel.fit(
            features[~held], right[~held], names=names, group=group[~held], method=method
        )
        chance[held] = model(features[held])
    return chance


def better_method(features: Tensor, right: Tensor, *, group: Tensor) -> Method:
    """Stacked, unless logistic alone is better by more than the standard error of the difference, in Brier score.

    The table costs little where it is not needed, and where log-odds are not logistic it is what calibrates.
    Compared on folds that neither log-odds nor table have seen.
    """
    odds = cross_fitted_odds(features, right, group=group)
    fold = folds_of(group, seed=2)
    corrected = torch.sigmoid(odds)
    if len(fold.unique()) > 1:
        for number in fold.unique().tolist():
            held = fold == number
            corrected[held] = rising(odds[~held], right[~held])(odds[held])
    worse = (corrected - right.double()).square() - (torch.sigmoid(odds) - right.double()).square()
    spread = float(worse.std()) / len(worse) ** 0.5 if len(worse) > 1 else 0.0
    return "logistic" if float(worse.mean()) > spread else "stacked"
