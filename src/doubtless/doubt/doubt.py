"""`Doubt`: one number for "do not trust this answer", from several sources, with its parts.

An answer is doubtful for two reasons, and they are learned apart:

*It may be wrong.* Every signal of a query becomes its tail probability p among known queries; 1 − p goes into a
logistic regression with weights that are never negative, fitted on known queries' mistakes: odds z.

*It may be unlike anything known.* The oddity of what the query says of itself (image, model, novelty of its
features or its direction) has a tail probability p among known queries, counted; no out-of-distribution image
takes part.

    doubt = 1 − (1 − σ(z)) · 1/(1 + (level/p)³)

The second factor is a step: a query counts as unknown once fewer than `level` of the known ones are as odd. The
level is the largest that costs the ordering of known queries' mistakes at most `BUDGET` of error AUROC.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from doubtless.doubt.leverage import Leverage
from doubtless.doubt.novelty import Novelty
from doubtless.doubt.odds import error_weights, mean_shift, unseen_odds
from doubtless.doubt.parts import DoubtParts
from doubtless.doubt.queries import known_queries
from doubtless.doubt.signals import DEPTH, PART_OF, PARTS, Signals, contradictions, hit_signals, query_signals
from doubtless.doubt.tails import SIGNALS as ODD
from doubtless.doubt.tails import Oddity, Tail
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index.moments import Moments
from doubtless.metrics.uncertainty import error_auroc
from doubtless.search.hits import Hits
from doubtless.search.relevance import Truth
from doubtless.search.scores import ScoreName

ATTACHMENT = "doubt"  # its name in an index
LEVELS = (0.01, 0.02, 0.03)
BUDGET = 0.02  # of error AUROC among known queries, cross-fitted
STEEPNESS = 3.0
PLAIN = {"disagreement": 2.0, "contested": 2.0, "ratio": 1.0, "distance": 1.0}  # before any mistake was seen
PLAIN_INTERCEPT = -4.0
SHARES = frozenset({"disagreement", "contested"})  # mean the same in every gallery, as no distance does


@dataclass(frozen=True, eq=False)
class Doubt:
    """Fitted on known queries; answers for any.

    >>> generator = torch.Generator().manual_seed(0)
    >>> rows, labels = torch.randn(200, 8, generator=generator), torch.arange(200) % 2
    >>> rows[:, 0] += 4 * labels                                                     # two classes
    >>> doubt = Doubt.fit(Embedding.point(rows), labels)
    >>> queries = Embedding.point(torch.cat([rows[:3], -9 * torch.ones(1, 8)]))
    >>> from doubtless.search.hits import hits_among
    >>> hits = hits_among(queries, Embedding.point(rows), k=10, gallery_labels=labels)
    >>> parts = doubt.of(hits, queries=queries)
    >>> parts.total.shape, parts.largest(3)
    (torch.Size([4]), 'novelty')
    """

    tails: Mapping[str, Tail]
    """Signal → its tail among known queries; signals that never vary are not there."""
    weights: Mapping[str, float]
    """Signal → weight in the odds of an error, 0 or more."""
    intercept: float
    oddity: Oddity | None
    level: float
    novelty: Novelty | None
    """Known features; None: the doubt was fitted without novelty."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """How it was fitted: queries, mistakes, error AUROC before and after novelty."""
    leverage: Leverage | None = None
    """The space of the gallery's directions; None: the doubt was fitted without it."""

    @classmethod
    def fit(
        cls,
        embedding: Embedding,
        labels: Truth | None,
        *,
        gallery: Embedding | None = None,
        gallery_labels: Truth | None = None,
        features: Tensor | None = None,
        known: Novelty | None = None,
        leverage: bool = False,
        score: ScoreName = "direction",
        generator: torch.Generator | None = None,
    ) -> Doubt:
        """From n known queries that search a gallery, or each other with themselves left out.

        labels    (n,) integers, or `Positions`; None: nobody knows which answers are right, and fixed weights serve
        features  (n, F) of the queries before the head; None: their directions
        known     what is not new, with its own features: the training part of a closed set. None: the queries'
                  own features, themselves left out
        leverage  looks at the space that the queries' directions fill as well, themselves left out
        """
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        if labels is not None and (gallery is None) != (gallery_labels is None):
            raise InputError(
                "A gallery needs gallery_labels, and gallery_labels a gallery; got one of the two."
            )
        queries = known_queries(
            embedding,
            labels,
            gallery=gallery,
            gallery_truth=gallery_labels,
            features=features,
            known=known,
            score=score,
            generator=generator,
            with_leverage=leverage,
        )
        groups = labels.to(queries.rows.device)[queries.rows] if isinstance(labels, Tensor) else None
        return cls.fit_signals(
            queries.signals,
            queries.wrong,
            groups=groups,
            novelty=queries.novelty,
            leverage=queries.leverage,
            generator=generator,
        )

    @classmethod
    def fit_signals(
        cls,
        signals: Signals,
        wrong: Tensor | None,
        *,
        generator: torch.Generator,
        groups: Tensor | None = None,
        novelty: Novelty | None = None,
        leverage: Leverage | None = None,
    ) -> Doubt:
        """From signals of known queries, (n,) each, and whether their first hits were wrong, (n,).

        groups    (n,) what is kept together when weights are tested on queries they were not fitted on: classes
        """
        signals = {name: value.detach().double().cpu() for name, value in signals.items() if _varies(value)}
        if not signals:
            raise InputError("No signal differs between the known queries; there is nothing to doubt by.")
        tails = {name: Tail(value) for name, value in signals.items()}
        oddity = _oddity(signals)
        plain = cls(tails, _plain(tails), PLAIN_INTERCEPT, oddity, LEVELS[0], novelty, leverage=leverage)
        count = len(next(iter(signals.values())))
        if wrong is None:
            return replace(plain, record={"queries": count, "mistakes": None})
        wrong = wrong.cpu()
        record: dict[str, Any] = {"queries": count, "mistakes": int(wrong.sum())}
        if bool(wrong.all()) or not bool(wrong.any()):
            return replace(plain, record=record)
        rank = plain._ranks(signals)
        prior = torch.tensor([plain.weights[name] for name in tails], dtype=torch.double)
        *weights, intercept = error_weights(rank, wrong, prior=prior).tolist()
        groups = torch.arange(count) if groups is None else groups.cpu()
        odds = unseen_odds(rank, wrong, prior=prior, groups=_enough(groups, count), generator=generator)
        level, costs = plain._choose_level(odds, signals, wrong)
        fitted = dict(zip(tails, weights, strict=True))
        return replace(plain, weights=fitted, intercept=intercept, level=level, record=record | costs)

    def of(
        self,
        hits: Hits,
        features: Tensor | None = None,
        *,
        queries: Embedding | None = None,
        positions: Tensor | None = None,
        itself: Tensor | None = None,
    ) -> DoubtParts:
        """The doubt of n queries and its parts.

        hits       of the queries, as deep as can be had up to ten
        features   (n, F) before the head, where it was fitted with features; else directions of `queries` serve
        queries    the embedded queries: needed where it was fitted with image, model or novelty
        positions  (n, k, 2) of the hits in metres, for galleries of places
        itself     (n,) where the queries are of what is known: the row of each among the known features
        """
        signals = self.signals(hits, features, queries=queries, positions=positions, itself=itself)
        return self.of_signals(signals, hits, positions=positions)

    def of_signals(self, signals: Signals, hits: Hits, *, positions: Tensor | None = None) -> DoubtParts:
        """The same for queries whose `signals` are known already."""
        novel = self._novel(signals)
        rank = self._ranks(signals)
        pull = rank * torch.tensor([self.weights[name] for name in self.tails], device=rank.device)  # (n, s)
        odds = pull.sum(1) + self.intercept
        share = pull / pull.sum(1, keepdim=True).clamp_min(torch.finfo(pull.dtype).tiny)
        wrong = softplus(odds)  # −log(1 − σ(z))
        hazards = {part: torch.zeros_like(odds) for part in PARTS}
        for column, name in enumerate(self.tails):
            hazards[PART_OF[name]] += wrong * share[:, column]
        hazards["novelty"] += novel
        rest = wrong * (pull.sum(1) == 0)  # the intercept's, where no signal has weight
        nothing = ~hits.found[:, 0]
        hazards["gallery"] = torch.where(nothing, torch.inf, hazards["gallery"])  # no hit: nothing to trust
        total = -torch.expm1(-(sum(hazards.values()) + rest))
        chances = {name: tail.probability(signals[name]) for name, tail in self.tails.items()}
        if self.oddity is not None:
            chances["novelty"] = self.oddity.surprise(signals).neg().exp()
        parts = {part: -torch.expm1(-hazard) for part, hazard in hazards.items()}
        return DoubtParts(total, parts, chances, _disagreeing(hits, positions))

    def signals(
        self,
        hits: Hits,
        features: Tensor | None = None,
        *,
        queries: Embedding | None = None,
        positions: Tensor | None = None,
        itself: Tensor | None = None,
    ) -> Signals:
        """Every signal this doubt was fitted with; one that cannot be had is a sentence."""
        signals = hit_signals(hits, positions=positions)
        signals |= self.own_signals(len(hits), features, queries=queries, itself=itself)
        if missing := [name for name in self.tails if name not in signals]:
            raise InputError(
                f"The doubt was fitted with {', '.join(missing)}; give the embedded queries (and their features, "
                "where it was fitted with features)."
            )
        return {name: signals[name].to(hits.score.device) for name in self.tails}

    def own_signals(
        self,
        count: int,
        features: Tensor | None = None,
        *,
        queries: Embedding | None = None,
        itself: Tensor | None = None,
    ) -> Signals:
        """What that many queries say of themselves, whatever they found; arguments as of `of`."""
        signals = {} if queries is None else query_signals(queries)
        described = queries.direction if features is None and queries is not None else features
        if self.wants_features and features is None and "novelty" in self.tails:
            usual = self.tails["novelty"].sample.median()  # nobody looked: neither new nor known
            signals["novelty"] = usual.double().expand(count)
        elif self.novelty is not None and described is not None:
            signals["novelty"] = self.novelty.distance(described, exclude=itself).double()
        if self.leverage is not None and queries is not None:
            signals["leverage"] = self.leverage.of(queries.direction, own=itself is not None)
        return signals

    @property
    def wants_features(self) -> bool:
        """Whether novelty is of features before the head, which only an image has; a vector gets the usual one."""
        return self.record.get("novelty_of") == "features"

    def among(self, moments: Moments) -> Doubt:
        """The same in a gallery that has changed since, by the moments of what it holds now."""
        if self.leverage is None or self.leverage.moments is moments:
            return self
        return replace(self, leverage=Leverage(moments, ridge=self.leverage.ridge))

    def for_gallery(
        self,
        gallery: Embedding,
        *,
        labels: Truth | None = None,
        features: Tensor | None = None,
        known: Novelty | None = None,
        score: ScoreName = "direction",
        generator: torch.Generator | None = None,
    ) -> Doubt:
        """The same weights and level, at home in another gallery: tails of its own items, each among the others.

        For galleries the network was not trained on. Nobody looks which answers are right: labels only say which
        hits disagree. The intercept moves so that the mean odds stay what they were by the shares of disagreeing
        hits, which mean the same everywhere. `known` stays what is not new where it is given; else it is the
        gallery's features.
        """
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        items = known_queries(
            gallery,
            labels,
            gallery=None,
            gallery_truth=None,
            features=features,
            known=known,
            score=score,
            generator=generator,
            with_leverage=self.leverage is not None,
        )
        signals = {name: value.cpu() for name, value in items.signals.items()}
        if missing := [name for name in self.tails if name not in signals]:
            raise InputError(
                f"The doubt was fitted with {', '.join(missing)}; this gallery gives no such signal."
            )
        tails = {
            name: Tail(signals[name]) if _varies(signals[name]) else tail for name, tail in self.tails.items()
        }
        here = replace(
            self, tails=tails, oddity=_oddity(signals), novelty=items.novelty, leverage=items.leverage
        )
        if not self.record.get("mistakes"):
            return here  # weights that no mistake has confirmed say nothing of the mean
        mixed = replace(here, tails={name: (self if name in SHARES else here).tails[name] for name in tails})
        expected = float(torch.sigmoid(mixed._odds(signals)).mean())
        return replace(here, intercept=here.intercept + mean_shift(here._odds(signals), expected))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        tensors = {f"tail.{name}": tail.sample.cpu() for name, tail in self.tails.items()}
        for prefix, part in (
            ("oddity", self.oddity),
            ("novelty", self.novelty),
            ("leverage", self.leverage),
        ):
            if part is not None:
                tensors |= {f"{prefix}.{name}": value.contiguous() for name, value in part.tensors().items()}
        plain = {"schema": 1, "intercept": self.intercept, "level": self.level, "weights": dict(self.weights)}
        return tensors, plain | {"signals": list(self.tails), "fit": dict(self.record)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Doubt:
        """The doubt whose `state` this is."""
        if record.get("schema", 0) > 1:
            raise InputError("This doubt was written by a newer doubtless; update to read it.")
        oddity, novelty, leverage = (_below(tensors, prefix) for prefix in ("oddity", "novelty", "leverage"))
        return cls(
            {name: Tail(tensors[f"tail.{name}"]) for name in record["signals"]},
            dict(record["weights"]),
            float(record["intercept"]),
            Oddity.from_tensors(oddity) if oddity else None,
            float(record["level"]),
            Novelty.from_tensors(novelty) if novelty else None,
            dict(record["fit"]),
            Leverage.from_tensors(leverage) if leverage else None,
        )

    def _odds(self, signals: Mapping[str, Tensor]) -> Tensor:
        """Log-odds of an error, (n,)."""
        weights = torch.tensor([self.weights[name] for name in self.tails], dtype=torch.double)
        ranks = self._ranks(signals)
        return ranks @ weights.to(ranks.device) + self.intercept

    def _ranks(self, signals: Mapping[str, Tensor]) -> Tensor:
        """1 − p of every signal, (n, s), in the order of `tails`."""
        return torch.stack([1 - tail.probability(signals[name]) for name, tail in self.tails.items()], dim=1)

    def _novel(self, signals: Mapping[str, Tensor], level: float | None = None) -> Tensor:
        """−log of known-ness, log(1 + (level/p)³), (n,)."""
        if self.oddity is None:
            return torch.zeros_like(next(iter(signals.values())))
        surprise = self.oddity.surprise(signals)
        return softplus(STEEPNESS * (surprise + math.log(self.level if level is None else level)))

    def _choose_level(self, odds: Tensor, signals: Signals, wrong: Tensor) -> tuple[float, dict[str, float]]:
        """The largest level within the budget, and what it costs; odds are of queries not fitted on."""
        hazard, right = softplus(odds), ~wrong
        alone = error_auroc(hazard, right)
        within = [(LEVELS[0], error_auroc(hazard + self._novel(signals, LEVELS[0]), right))]
        for level in LEVELS[1:]:
            combined = error_auroc(hazard + self._novel(signals, level), right)
            if alone - combined <= BUDGET:
                within.append((level, combined))
        level, combined = within[-1]
        return level, {"error_auroc": alone, "error_auroc_with_novelty": combined}


def _plain(names: Sequence[str] | Mapping[str, Tail]) -> dict[str, float]:
    return {name: PLAIN.get(name, 0.0) for name in names}


def _varies(values: Tensor) -> bool:
    """More than rounding: the length of unit vectors is no signal."""
    spread = float(values.max() - values.min()) if len(values) else 0.0
    return spread > max(1e-6, 1e-5 * float(values.abs().max()))


def _oddity(signals: Mapping[str, Tensor]) -> Oddity | None:
    varying = {name: signals[name] for name in ODD if name in signals and _varies(signals[name])}
    return Oddity(varying) if varying else None


def _enough(groups: Tensor, count: int) -> Tensor:
    """Whole classes are held out where there are enough of them; single queries where not."""
    return groups if len(groups.unique()) >= 20 else torch.arange(count)


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    start = prefix + "."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _disagreeing(hits: Hits, positions: Tensor | None) -> tuple[Tensor, Tensor] | None:
    if hits.label is None and positions is None:
        return None
    count, _ = contradictions(hits, positions=positions)
    return count, hits.first(DEPTH).found.sum(1)
