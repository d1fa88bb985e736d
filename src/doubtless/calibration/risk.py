"""`RiskControl`: how sure a query must be to be answered, so that few answers are wrong, with a guarantee.

Learn-then-test (Angelopoulos et al. 2021) with exact binomial p-values (Clopper and Pearson 1934). Thresholds on
the doubt are tested towards larger coverage, each by P(Bin(m, target) ≤ errors), m the queries below it; the first
that fails ends the sequence. To go past the point where the true error reaches the target, the test at that very
point must fail to notice, which happens with probability 1 − confidence at most, whatever the doubt is worth. All
distinct doubts are tested, so that point is always among them.

One early mistake must not end everything, so there are a few starts. Each brings its share of 1 − confidence, and a
sequence that arrives at the next start adds that one's share to its own (Bretz et al. 2009): what gets through all
of them is tested at the full level. Starts are chosen on a pilot, queries that take no part in the tests: half way
to where the pilot promises the smallest p-value, there, and at answering everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.open_risk import largest_rate
from doubtless.errors import InputError
from doubtless.metrics.ranking import Ranking, check_scores

ATTACHMENT = "risk"
STARTS = ((0.5, 0.45), (1.0, 0.45))
"""Where sequences of tests begin, as a part of the pilot's best prefix, and their share of 1 − confidence."""
EVERYTHING = 0.1
"""Share of the last start, to answer all queries: for a doubt that says little where few answers are wrong."""
PILOT_SHARE = 10  # one query in ten chooses the start, where no pilot is given


@dataclass(frozen=True, eq=False)
class RiskControl:
    """Answer queries whose doubt is at most `threshold`; never one of infinite doubt.

    >>> doubt = torch.linspace(0, 1, 2000)
    >>> control = RiskControl.fit(doubt, doubt < 0.6, target_error=0.05, confidence=0.95)
    >>> control.met, 0.55 < control.coverage < 0.65
    (True, True)
    """

    target_error: float
    confidence: float
    threshold: float
    """−inf: nothing can be answered under this guarantee."""
    coverage: float
    """Share of the calibration queries that are answered."""
    error: float | None
    """Share of wrong ones among these; None if none is answered."""
    bound: float | None
    """Clopper-Pearson upper bound of the error at this threshold and confidence."""
    reachable_error: float
    """The smallest target that could be promised at this confidence (and `reachable_coverage` with it)."""
    reachable_coverage: float
    queries: int
    evidence: tuple[Tensor, Tensor, Tensor]
    """doubt (n,), correct (n,), pilot (n,) bool: from which `at` works out another target."""

    @property
    def met(self) -> bool:
        """Whether anything can be answered under this guarantee."""
        return self.coverage > 0

    @property
    def promised(self) -> float:
        """The share of wrong answers that is promised up to `threshold`."""
        return self.target_error

    @property
    def tested(self) -> Tensor:
        """Doubts (m,) of the queries that the promise was tested on."""
        doubt, _, pilot = self.evidence
        return doubt[~pilot]

    @classmethod
    def fit(
        cls,
        doubt: Tensor,
        correct: Tensor,
        *,
        target_error: float = 0.05,
        confidence: float = 0.95,
        pilot: tuple[Tensor, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> RiskControl:
        """From queries' doubt (n,) and whether their first hit was right (n,).

        The doubt must not have been fitted on these queries. `pilot`, doubt and correctness of other queries
        (those it was fitted on, cross-fitted, may serve), chooses where to start; without it a tenth of these
        does, drawn by `generator` (seed 0 if none is given), and the rest is tested.
        """
        _check(doubt, correct)
        if pilot is None:
            generator = torch.Generator().manual_seed(0) if generator is None else generator
            drawn = torch.randperm(len(doubt), generator=generator)[: len(doubt) // PILOT_SHARE]
            is_pilot = torch.zeros(len(doubt), dtype=torch.bool)
            is_pilot[drawn] = True
        else:
            _check(*pilot)
            is_pilot = torch.cat([torch.zeros(len(doubt)), torch.ones(len(pilot[0]))]).bool()
            doubt, correct = torch.cat([doubt, pilot[0].to(doubt)]), torch.cat([correct, pilot[1]])
        evidence = (doubt.double().cpu(), correct.bool().cpu(), is_pilot)
        return _controlled(evidence, target_error, confidence)

    def at(self, *, target_error: float | None = None, confidence: float | None = None) -> RiskControl:
        """The same evidence under another promise."""
        return _controlled(
            self.evidence,
            self.target_error if target_error is None else target_error,
            self.confidence if confidence is None else confidence,
        )

    def answers(self, doubt: Tensor) -> Tensor:
        """Whether queries of this doubt (n,) are answered, (n,) bool."""
        return (doubt <= self.threshold) & (doubt < torch.inf)

    def sentence(self) -> str:
        """What is promised, or why nothing is and what could be."""
        sure = f"{self.confidence:.0%} confidence"
        if self.met:
            return (
                f"At most {self.target_error:.1%} of answers are wrong with {sure}; {self.coverage:.1%} of "
                f"{self.queries} calibration queries are answered, with an error bound of {self.bound:.2%}."
            )
        if self.reachable_error >= 1:
            return f"No error below 100% can be promised with {sure} from {self.queries} calibration queries."
        return (
            f"An error of at most {self.target_error:.1%} cannot be promised with {sure} from {self.queries} "
            f"calibration queries; {self.reachable_error:.1%} can, answering {self.reachable_coverage:.1%} of them."
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        doubt, correct, pilot = self.evidence
        tensors = {"doubt": doubt, "correct": correct, "pilot": pilot}
        return tensors, {"target_error": self.target_error, "confidence": self.confidence}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> RiskControl:
        """The control whose `state` this is, worked out again from its evidence."""
        evidence = (tensors["doubt"], tensors["correct"], tensors["pilot"])
        return _controlled(evidence, record["target_error"], record["confidence"])


def upper_bound(errors: Tensor, count: Tensor, *, confidence: float) -> Tensor:
    """Clopper-Pearson: the largest error rate under which so few errors are not rarer than 1 − confidence.

    >>> upper_bound(torch.tensor([0]), torch.tensor([59]), confidence=0.95).item() < 0.05
    True
    """
    return torch.from_numpy(largest_rate(errors.numpy(), count.numpy(), 1 - confidence))


def error_p_value(errors: Tensor, count: Tensor, *, target: float) -> Tensor:
    """P(Bin(count, target) ≤ errors), by the beta function also for numbers that are not whole."""
    from scipy.special import betainc

    errors, count = errors.double(), count.double()
    tail = betainc((count - errors).clamp_min(1e-9).numpy(), (errors + 1).numpy(), 1 - target)
    return torch.where(errors >= count, 1.0, torch.from_numpy(tail))


def _controlled(evidence: tuple[Tensor, Tensor, Tensor], target: float, confidence: float) -> RiskControl:
    """The fixed sequence over the tested queries, from where the pilot says."""
    for name, value in (("target_error", target), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InputError(f"The {name} must lie between 0 and 1, got {value}.")
    doubt, correct, pilot = evidence
    steps = _Steps.of(doubt[~pilot], correct[~pilot])
    ahead = _Steps.of(doubt[pilot], correct[pilot])
    control = RiskControl(
        target, confidence, -torch.inf, 0.0, None, None, 1.0, 0.0, int((~pilot).sum()), evidence
    )
    if not len(steps.threshold):
        return control
    total = control.queries
    place = steps.nearest_to(_best(ahead, steps, confidence=confidence))
    bound = upper_bound(steps.errors, steps.count, confidence=confidence)
    control = replace(
        control,
        reachable_error=float(bound[place]),
        reachable_coverage=float(steps.count[place]) / total,
    )
    p_value = error_p_value(steps.errors, steps.count, target=target)
    last = last_passed(p_value, _starts(ahead, steps, target), level=1 - confidence)
    if last is None:
        return control
    return replace(
        control,
        threshold=float(steps.threshold[last]),
        coverage=float(steps.count[last]) / total,
        error=float(steps.errors[last] / steps.count[last]),
        bound=float(bound[last]),
        reachable_error=min(control.reachable_error, target),
    )


def last_passed(p_value: Tensor, starts: list[tuple[int, float]], *, level: float) -> int | None:
    """The largest place (g,) that a sequence of tests reaches from starts (place, share); None: all fail.

    >>> last_passed(torch.tensor([0.01, 0.03, 0.01, 0.04, 0.2]), [(0, 0.5), (2, 0.5)], level=0.05)
    2
    """
    last, held = None, 0.0
    stops = [place for place, _ in starts[1:]] + [len(p_value)]
    for (start, share), stop in zip(starts, stops, strict=True):
        held += share
        failures = (p_value[start:stop] > level * held).nonzero()
        reached = start + int(failures[0]) if len(failures) else stop
        if reached > start:
            last = reached - 1
        if reached < stop:
            held = 0.0
    return last


@dataclass(frozen=True)
class _Steps:
    """Every distinct finite doubt as a threshold: how many queries lie at or below it, how many of them wrong."""

    threshold: Tensor  # (g,) rising
    count: Tensor  # (g,)
    errors: Tensor  # (g,)

    @classmethod
    def of(cls, doubt: Tensor, correct: Tensor) -> _Steps:
        correct, doubt = correct[doubt < torch.inf], doubt[doubt < torch.inf]
        if not len(doubt):
            return cls(doubt, doubt, doubt)
        ranking = Ranking.of(doubt)
        ends = ranking.order[ranking.ends]
        return cls(doubt[ends], ranking.totals(torch.ones_like(doubt)), ranking.totals((~correct).double()))

    def nearest_to(self, threshold: float) -> int:
        """The last step at or below a threshold, or the first."""
        return max(0, int(torch.searchsorted(self.threshold, threshold, right=True)) - 1)


def _starts(ahead: _Steps, tested: _Steps, target: float) -> list[tuple[int, float]]:
    """Places among the tested steps, rising, and their shares."""
    if not len(ahead.threshold):
        return [(len(tested.threshold) - 1, 1.0)]
    most = _best(ahead, tested, target=target)
    size = float(ahead.count[ahead.threshold <= most][-1])
    parts = torch.tensor([size * part for part, _ in STARTS], dtype=torch.double)
    places = ahead.threshold[torch.searchsorted(ahead.count, parts)].tolist()
    starts = [(tested.nearest_to(place), share) for place, (_, share) in zip(places, STARTS, strict=True)]
    return [*starts, (len(tested.threshold) - 1, EVERYTHING)]


def _best(
    ahead: _Steps, tested: _Steps, *, target: float | None = None, confidence: float | None = None
) -> float:
    """The pilot's threshold with the smallest p-value, or the smallest bound, at the size of the tested set.

    Half an error is added: a pilot without one has not shown that there is none.
    """
    if not len(ahead.threshold):
        return float(tested.threshold[-1])  # nothing to choose by: answer all, or none
    growth = float(tested.count[-1] / ahead.count[-1])
    errors, count = (ahead.errors + 0.5) * growth, (ahead.count + 1) * growth
    if target is not None:
        worth = error_p_value(errors, count, target=target)
    else:
        assert confidence is not None
        worth = upper_bound(errors, count, confidence=confidence)
    return float(ahead.threshold[len(worth) - 1 - int(worth.flip(0).argmin())])


def _check(doubt: Tensor, correct: Tensor) -> None:
    if doubt.shape != correct.shape:
        raise InputError(
            f"Risk control needs one doubt and one outcome per query, got shapes {tuple(doubt.shape)} and "
            f"{tuple(correct.shape)}."
        )
    if len(doubt):
        check_scores(doubt, "doubt")
