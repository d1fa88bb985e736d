"""A probability from features: logistic regression, then isotonic regression of its log-odds.

The logistic regression stands on standardised features. Isotonic regression is the best rising function from a
score to a probability, kept as a table: pool-adjacent-violators (Barlow et al. 1972), fitted once, applied as a
search in the table and one line between two entries, so that nothing of the fitting is needed to answer. Centred
(Oron and Flournoy 2017), every flat step becomes one entry at its centre of mass: the function then rises between
the centres of its first and last step, and scores that differ keep different probabilities, as thresholds need.

The table is fitted on log-odds that a logistic regression gave to rows it had not seen, so that it corrects what
happens to new rows. Folds keep groups together: all hits of a query, or all queries of a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.errors import nearest as nearest_word
from doubtless.logistic import cross_fit, fit_logistic, folds_of


@dataclass(frozen=True, eq=False)
class Logistic:
    """Log-odds weight · (x − mean)/scale + bias.

    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> fitted = Logistic.fit(rows, torch.tensor([False, True, False, True]))
    >>> bool(fitted(rows).diff().gt(0).all())
    True
    """

    mean: Tensor  # (F,)
    scale: Tensor  # (F,)
    weight: Tensor  # (F,)
    bias: Tensor  # ()

    @classmethod
    def fit(cls, features: Tensor, right: Tensor, *, weight: Tensor | None = None) -> Logistic:
        """The penalised maximum-likelihood fit to features (n, F) and outcomes (n,), rows weighted."""
        features = features.double()
        mean, scale = features.mean(0), features.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        coefficients = fit_logistic((features - mean) / scale, right, weight=weight)
        return cls(mean, scale, coefficients[:-1], coefficients[-1])

    def __call__(self, features: Tensor) -> Tensor:
        """Log-odds (…) of features (…, F), float64."""
        slope = self.weight / self.scale
        return features.double() @ slope + (self.bias - self.mean @ slope)

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}{name}": getattr(self, name) for name in ("mean", "scale", "weight", "bias")}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> Logistic:
        """The regression whose `tensors` these are."""
        return cls(*(tensors[f"{prefix}{name}"] for name in ("mean", "scale", "weight", "bias")))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """A rising table; between two entries a straight line, beyond the ends the end's value.

    >>> rising = Isotonic.fit(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    >>> rising(torch.tensor([-5.0, 1.0, 1.5, 9.0])).tolist()
    [0.0, 0.5, 0.5, 1.0]
    """

    score: Tensor  # (m,) float64, rising
    value: Tensor  # (m,) float64, not falling

    @classmethod
    def fit(
        cls,
        score: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        centred: bool = False,
        never_certain: bool = False,
    ) -> Isotonic:
        """The rising function nearest to `target` (n,) in weighted squares at `score` (n,); ties share a value.

        centred         one entry per step, at its centre of mass, instead of its two ends
        never_certain   one item that is wrong is added at the highest score and one that is right at the
                        lowest: a run of m right answers at the top is then worth m/(m+1), never 1
        """
        _check(score, target)
        score, target = score.double(), target.double()
        weight = torch.ones_like(score) if weight is None else weight.double()
        if never_certain:
            score = torch.cat([score, score.max().view(1), score.min().view(1)])
            target = torch.cat([target, target.new_tensor([0.0, 1.0])])
            weight = torch.cat([weight, weight.new_ones(2)])
        places, group = torch.unique(score, return_inverse=True)  # rising
        mass = torch.zeros_like(places).scatter_add_(0, group, weight)
        mean = torch.zeros_like(places).scatter_add_(0, group, weight * target) / mass
        value = _pooled(mean, mass)
        if centred:
            return cls(*_centres(places, value, mass))
        kept = _ends_of_steps(value)
        return cls(places[kept], value[kept])

    def __call__(self, score: Tensor) -> Tensor:
        """Values of any scores, in their shape, float64."""
        where = score.double().contiguous()
        right = torch.searchsorted(self.score, where).clamp(1, max(1, len(self.score) - 1))
        right = right.clamp_max(len(self.score) - 1)
        left = (right - 1).clamp_min(0)
        span = self.score[right] - self.score[left]
        step = torch.where(span > 0, (where - self.score[left]) / span, 1.0).clamp(0, 1)
        return torch.lerp(self.value[left], self.value[right], step)

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}score": self.score, f"{prefix}value": self.value}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> Isotonic:
        """The table whose `tensors` these are."""
        return cls(tensors[f"{prefix}score"], tensors[f"{prefix}value"])


def _pooled(mean: Tensor, mass: Tensor) -> Tensor:
    from scipy.optimize import isotonic_regression

    return torch.from_numpy(isotonic_regression(mean.numpy(), weights=mass.numpy()).x).double()


def _centres(places: Tensor, value: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Mean score and value of each run of equal values."""
    levels, step = torch.unique_consecutive(value, return_inverse=True)
    total = torch.zeros_like(levels).scatter_add_(0, step, mass)
    return torch.zeros_like(levels).scatter_add_(0, step, mass * places) / total, levels


def _ends_of_steps(value: Tensor) -> Tensor:
    """Where a run of equal values begins or ends; what lies inside the run adds nothing to the table."""
    changes = value[1:] != value[:-1]
    edge = torch.ones(1, dtype=torch.bool)
    return torch.cat([edge, changes]) | torch.cat([changes, edge])


def _check(score: Tensor, target: Tensor) -> None:
    if score.dim() != 1 or score.shape != target.shape or not len(score):
        raise InputError(
            "Isotonic regression needs one target per score, at least one of each, got shapes "
            f"{tuple(score.shape)} and {tuple(target.shape)}."
        )
    if not bool(torch.isfinite(score.double()).all()) or not bool(torch.isfinite(target.double()).all()):
        raise InputError("Isotonic regression needs finite scores and targets, got NaN or infinite entries.")


Method = Literal["auto", "logistic", "isotonic", "stacked"]


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
        """JSON for `from_state`, beside `tensors`."""
        return {"names": list(self.names), "method": self.method}

    @classmethod
    def from_state(
        cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any], prefix: str
    ) -> ProbabilityModel:
        """The model whose `tensors` and `record` these are."""
        method = record["method"]
        logistic = None if method == "isotonic" else Logistic.from_tensors(tensors, f"{prefix}logistic.")
        isotonic = None if method == "logistic" else Isotonic.from_tensors(tensors, f"{prefix}isotonic.")
        return cls(tuple(record["names"]), method, logistic, isotonic)


def rising(score: Tensor, right: Tensor) -> Isotonic:
    """The table from a score to a probability that every model here uses: never 0 or 1, and no wide steps."""
    return Isotonic.fit(score, right, centred=True, never_certain=True)


def cross_fitted_odds(features: Tensor, right: Tensor, *, group: Tensor) -> Tensor:
    """Log-odds (m,) of every row from a logistic regression over the other folds."""
    return cross_fit(features, folds_of(group), lambda seen: Logistic.fit(features[seen], right[seen]))


def cross_fitted(
    features: Tensor, right: Tensor, *, names: Sequence[str], group: Tensor, method: Method = "auto"
) -> Tensor:
    """P (m,) of every row from a model that saw nothing of its fold, in choosing, fitting or correcting."""

    def fit(seen: Tensor) -> ProbabilityModel:
        return ProbabilityModel.fit(
            features[seen], right[seen], names=names, group=group[seen], method=method
        )

    return cross_fit(features, folds_of(group, generator=torch.Generator().manual_seed(1)), fit)


def better_method(features: Tensor, right: Tensor, *, group: Tensor) -> Method:
    """Stacked, unless logistic alone is better by more than the standard error of the difference, in Brier score.

    The table costs little where it is not needed, and where log-odds are not logistic it is what calibrates.
    Compared on folds that neither log-odds nor table have seen; one group alone cannot be compared on.
    """
    if len(group.unique()) < 2:
        return "stacked"
    odds = cross_fitted_odds(features, right, group=group)
    fold = folds_of(group, generator=torch.Generator().manual_seed(2))
    corrected = cross_fit(odds, fold, lambda seen: rising(odds[seen], right[seen]))
    worse = (corrected - right.double()).square() - (torch.sigmoid(odds) - right.double()).square()
    standard_error = float(worse.std()) / len(worse) ** 0.5
    return "logistic" if float(worse.mean()) > standard_error else "stacked"
