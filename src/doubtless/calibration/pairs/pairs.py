"""Are two items the same? `PairCalibrator` says how likely, under a stated prior, and when that is enough to tell.

The calibrator is fitted on as many pairs of one label as of two, so its odds are those of the evidence alone; the
prior odds of the question (one half for "these two, which I believe may be the same") are added when it is asked.
Of the pairs of two labels a stated share are nearest ones (`labelled_pairs`). What may be called the same, or
different, is decided under a promise of its own for each (`pair_promise`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.evidence.surroundings import SURROUNDINGS, Both, surrounding_features
from doubtless.calibration.features import PAIR, pair_features, stacked
from doubtless.calibration.pairs.labelled import Around, LabelledPairs, Recipe
from doubtless.calibration.pairs.promise import PairOutcomes, PairTerms, Side, figures
from doubtless.calibration.promise import Promise
from doubtless.calibration.regression import Logistic, ProbabilityModel, rising
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.logistic import cross_fit, fit_logistic, folds_of
from doubtless.metrics.calibration import match_brier, match_ece

ATTACHMENT = "pairs"
TERMS = PairTerms()
FALLING = ("distance", "expected_distance")
"""Features that speak against two pictures being the same."""
EITHER_WAY = ("query_uncertainty", "item_uncertainty")


@dataclass(frozen=True, eq=False)
class PairCalibrator:
    """P(same) of two items.

    >>> rows = torch.eye(4).repeat(5, 1) + 0.1 * torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    >>> points = Embedding.point(rows)
    >>> pairs = PairCalibrator.fit_pairs(points[:16], points[[*range(4, 16), *range(5, 9)]],
    ...                                  torch.tensor([True] * 12 + [False] * 4))
    >>> (pairs.probability(points[[0, 0]], points[[4, 1]]) > 0.5).tolist()
    [True, False]
    """

    model: ProbabilityModel
    share: float
    """Of the pairs it was fitted on, how many were the same: its own prior."""
    record: Mapping[str, Any] = field(default_factory=dict)
    outcomes: PairOutcomes | None = None
    """What the fitted pairs came to; None: nothing is known of their labels, and nothing promised."""
    terms: PairTerms = TERMS
    """What is promised unless asked otherwise."""
    _promises: dict[tuple[Side, PairTerms], Promise] = field(default_factory=dict, repr=False)

    @classmethod
    def fit(
        cls,
        embedding: Embedding,
        labels: Tensor,
        *,
        recipe: Recipe | None = None,
        rows: Tensor | None = None,
        gallery: Around | None = None,
        terms: PairTerms = TERMS,
        generator: torch.Generator | None = None,
    ) -> PairCalibrator:
        """From labelled items (n,), drawn by `generator` as the recipe says.

        gallery   what is searched around them, with the items at `rows` (n,) of it; None: the items themselves
        terms     of the promises; the share of unknown pairs is the recipe's, and if all are, all labels are new
        """
        recipe = Recipe() if recipe is None else recipe
        drawn = torch.Generator().manual_seed(0) if generator is None else generator
        pairs = LabelledPairs.drawn(embedding, labels, recipe, rows=rows, gallery=gallery, generator=drawn)
        names, inside, beyond = _tables(pairs)
        group = pairs.label[:, 0]
        mixed = torch.where(pairs.unknown.unsqueeze(1), beyond, inside)
        fitted = _fitted(mixed, names, pairs.same, group)

        def unseen(table: Tensor) -> Tensor:
            return cross_fit(
                table, folds_of(group), lambda seen: _regression(mixed[seen], pairs.same[seen], names)
            )

        record = dict(fitted.record) | {
            "near": float(pairs.near.sum()) / max(1, int((~pairs.same).sum())),
            "unknown": recipe.unknown,
            "labels": len(group.unique()),
        }
        outcomes = PairOutcomes.of(unseen(inside), unseen(beyond), pairs)
        terms = replace(terms, unknown=recipe.unknown, known="drawn" if recipe.unknown == 1 else terms.known)
        whole = cls(fitted.model, fitted.share, record, outcomes, terms)
        sides: tuple[Side, Side] = ("same", "different")
        record["promise"] = {side: figures(whole.promise(side)) for side in sides}
        record["promise_of_new_labels"] = {
            side: figures(whole.promise(side, known="drawn")) for side in sides
        }
        return whole

    @classmethod
    def fit_pairs(
        cls, first: Embedding, second: Embedding, same: Tensor, *, group: Tensor | None = None
    ) -> PairCalibrator:
        """From pairs known to be the same or not (n,), of which nothing else is known, so nothing is promised.

        group   (n,) adds class-disjoint figures to the record
        """
        features = pair_features(first, second)
        names = tuple(name for name in PAIR if name in features)
        return _fitted(stacked(features, names), names, same, group)

    @property
    def searches(self) -> bool:
        """Whether it has to be told what is around the two."""
        return any(name in SURROUNDINGS for name in self.model.names)

    def odds(self, first: Embedding, second: Embedding, around: Both | None = None) -> Tensor:
        """Log-odds (n,) of the regression alone, which promises go by; a higher one never has a lower P(same)."""
        features = pair_features(first, second)
        if self.searches:
            if around is None:
                raise InputError(
                    "These pairs were calibrated in a gallery, so they must be searched for in one."
                )
            features |= surrounding_features(features["similarity"], *around)
        assert self.model.logistic is not None
        return self.model.logistic(stacked(features, self.model.names))

    def probability(
        self, first: Embedding, second: Embedding, *, prior: float = 0.5, around: Both | None = None
    ) -> Tensor:
        """P(same) (n,) of item i of one embedding and item i of the other, where a share `prior` is the same.

        around   what the gallery holds around each, neither of the two themselves; needed if it `searches`
        """
        return self.chance(self.odds(first, second, around), prior=prior)

    def chance(self, odds: Tensor, *, prior: float = 0.5) -> Tensor:
        """P(same) (n,) of log-odds (n,)."""
        check_prior(prior)
        assert self.model.isotonic is not None
        evidence = torch.logit(self.model.isotonic(odds)) - _log_odds(self.share)
        return torch.sigmoid(evidence + _log_odds(prior))

    def promise(self, side: Side, **changes: Any) -> Promise:
        """What is promised of pairs called the same or different; other terms are named as in `PairTerms`."""
        if self.outcomes is None:
            raise InputError("Nothing is promised: these pairs were calibrated without their labels.")
        terms = replace(self.terms, **changes)
        if (side, terms) not in self._promises:
            self._promises[side, terms] = self.outcomes.promise(
                side, lambda odds: self.chance(odds, prior=terms.prior), terms
            )
        return self._promises[side, terms]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        tensors = self.model.tensors("model.")
        if self.outcomes is not None:
            tensors |= self.outcomes.tensors("outcomes.")
        return tensors, {
            "model": self.model.record(),
            "share": self.share,
            "fit": dict(self.record),
            "terms": asdict(self.terms),
        }

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> PairCalibrator:
        """The calibrator whose `state` this is; one saved before there were promises has none."""
        model = ProbabilityModel.from_state(tensors, record["model"], "model.")
        outcomes = PairOutcomes.from_tensors(tensors, "outcomes.")
        return cls(model, record["share"], record["fit"], outcomes, PairTerms(**record.get("terms", {})))


def _tables(pairs: LabelledPairs) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Names and values (m, F) of features in the gallery, and without both labels."""
    features = pair_features(pairs.first, pairs.second)
    cosine = features["similarity"]
    inside, beyond = (features | surrounding_features(cosine, *side) for side in (pairs.around, pairs.beyond))
    names = tuple(name for name in (*PAIR, *SURROUNDINGS) if name in inside)
    return names, stacked(inside, names), stacked(beyond, names)


def _fitted(table: Tensor, names: tuple[str, ...], same: Tensor, group: Tensor | None) -> PairCalibrator:
    if not bool(same.any()) or bool(same.all()):
        raise InputError("Telling pairs apart needs some that are the same and some that are not.")
    record: dict[str, Any] = {"pairs": len(same)}
    alone = torch.arange(len(same))
    groups = {"exchangeable": alone} | ({} if group is None else {"class_disjoint": group})
    for name, rows in groups.items():

        def fit(seen: Tensor, rows: Tensor = rows) -> ProbabilityModel:
            return _model(table[seen], names, same[seen], rows[seen])

        chance = cross_fit(table, folds_of(rows, generator=torch.Generator().manual_seed(1)), fit)
        record[name] = {"match_ece": match_ece(chance, same), "match_brier": match_brier(chance, same)}
    model = _model(table, names, same, alone if group is None else group)
    return PairCalibrator(model, float(same.double().mean()), record)


def _model(table: Tensor, names: tuple[str, ...], same: Tensor, group: Tensor) -> ProbabilityModel:
    """The regression, and the table that corrects what it gives to groups (m,) it has not seen."""
    unseen = cross_fit(table, folds_of(group), lambda seen: _regression(table[seen], same[seen], names))
    return ProbabilityModel(names, "stacked", _regression(table, same, names), rising(unseen, same))


def _regression(table: Tensor, same: Tensor, names: tuple[str, ...]) -> Logistic:
    """Log-odds from features (m, F) that never fall as two pictures become more alike.

    The nearest item of another label is chosen for being near, so without a bound great likeness would speak
    against two pictures being the same.
    """
    sign = torch.tensor([-1.0 if name in FALLING else 1.0 for name in names], dtype=torch.double)
    lower = torch.tensor([-torch.inf if name in EITHER_WAY else 0.0 for name in names], dtype=torch.double)
    mean, scale = table.mean(0), table.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    fitted = fit_logistic(sign * (table - mean) / scale, same, lower=lower)
    return Logistic(mean, scale, sign * fitted[:-1], fitted[-1])


def check_prior(prior: float) -> None:
    """Refuses what is no probability between 0 and 1."""
    if not 0 < prior < 1:
        raise InputError(f"The prior must be a probability between 0 and 1, got {prior}.")


def _log_odds(chance: float) -> float:
    return math.log(chance) - math.log1p(-chance)
