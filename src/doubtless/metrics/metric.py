"""A metric: its name, what it means, which direction is better, and how an evaluation works it out.

Each is registered beside its function. Another package adds its own by an entry point of the group
`doubtless.metrics`, either the `Metric` under its name or a module that registers several; it is then measured,
explained in reports and compared in benchmarks like those that are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.views import View
from doubtless.registry import Registry

RETRIEVAL = "Retrieval"
ERRORS = "Error detection"
OOD = "Out-of-distribution detection"
OPEN_SET = "Labels that are not in the gallery"
CALIBRATION = "Calibration"
CLUSTERING = "Clustering"
VERIFICATION = "Two images: the same or not"
OTHER = "Further measures"

Weighted = Callable[..., "Mapping[str, Tensor] | Tensor"]
"""Weights of the items of each set that is drawn, (b, n) → metric → (b,), one per replicate; or (b,) alone."""
Outcome = float | Tensor | Weighted | Mapping[str, Any]
"""What a metric gives: a number, values of the items (n,) whose mean is meant, a form; or several by their name."""
V = TypeVar("V", bound=View)


@dataclass(frozen=True)
class Meaning:
    """A measure in words. `higher` is None where neither direction is better (a bound, a reference)."""

    title: str
    group: str
    sentence: str
    higher: bool | None = True

    @property
    def direction(self) -> str:
        """Which direction is better, as it stands in tables."""
        return {True: "↑ higher", False: "↓ lower", None: "reference"}[self.higher]


@dataclass(frozen=True)
class Metric(Generic[V]):
    """One metric, or a family that differs in what stands behind the @.

    name       "nmi"; "recall@" for recall@1, recall@5, … A name in full comes before its family: "recall@1"
    title      as tables show it; {k} is what stands behind the @
    sentence   what it means, in one sentence
    of         the view it looks at
    measure    that view → what it gives; several metrics may share one function, which then names them
    group      the table it stands in
    higher     whether higher is better; None: neither
    percent    what stands behind the @ is a share, shown in per cent
    noted      a note says where an uncertainty that costs nothing does as well as the learned one
    paired     benchmarks test differences between methods, where it can be worked out from weighted queries
    brief      stands in a terminal's short table of all uncertainties
    undefined  why it may have no value
    note       a sentence for the foot of every table that has it

    >>> from doubtless.metrics.views import Ranked
    >>> first_two = Metric("first_two", "First two", "Share of queries whose first two hits are right.",
    ...     of=Ranked, measure=lambda ranked: ranked.relevant[:, :2].all(1).double())
    >>> first_two.meaning("first_two").direction
    '↑ higher'
    """

    name: str
    title: str
    sentence: str
    of: type[V]
    measure: Callable[[V], Outcome]
    group: str = OTHER
    higher: bool | None = True
    percent: bool = False
    noted: bool = True
    paired: bool = True
    brief: bool = True
    undefined: str = "it is not defined for these data"
    note: str = ""

    def meaning(self, name: str) -> Meaning:
        """In words, for one measure of the family: ``recall@5`` or ``ood_auroc/digits``."""
        base, _, dataset = name.partition("/")
        k = base.partition("@")[2]
        k = _percent(k) if self.percent else k
        title = self.title.replace("{k}", k) + (f" · {dataset}" if dataset else "")
        return Meaning(title, self.group, self.sentence.replace("{k}", k), self.higher)


def _check(name: str, item: Any) -> None:
    if not isinstance(item, Metric):
        raise InputError(f"A metric must be a Metric, got a {type(item).__name__} as {name!r}.")
    if name != item.name or "/" in name or "\n" in name:
        raise InputError(
            f"A metric is registered under its own name, without / or line breaks; got {item.name!r} as {name!r}."
        )
    if not (isinstance(item.of, type) and issubclass(item.of, View)):
        raise InputError(f"The metric {name!r} must be of a class of doubtless.metrics.views, got {item.of}.")


METRICS: Registry[Metric[Any]] = Registry("metric", group="doubtless.metrics", check=_check)


def register(metric: Metric[V]) -> Metric[V]:
    """Adds a metric to all that are measured, and returns it."""
    METRICS.register(metric.name, metric)
    return metric


class WorkedOut(NamedTuple):
    """What all metrics of a view gave."""

    values: dict[str, Tensor]  # metric → (n,), a value for each item
    forms: list[Callable[..., dict[str, Tensor]]]
    plain: dict[str, float]  # without an interval


def work_out(view: View, *, paired_only: bool = False) -> WorkedOut:
    """Every registered metric of this kind of view, in the order of their registration.

    >>> from doubtless.metrics.views import Ranked
    >>> import torch
    >>> right = torch.tensor([[True, False], [False, True]])
    >>> work_out(Ranked(right, positives=torch.tensor([1, 1]), ks=(1,))).values["recall@1"]
    tensor([1., 0.], dtype=torch.float64)
    """
    result = WorkedOut({}, [], {})
    for metric in metrics_of(type(view), paired_only=paired_only):
        outcome = metric.measure(view)
        for name, part in (outcome if isinstance(outcome, Mapping) else {metric.name: outcome}).items():
            if isinstance(part, Tensor) and part.dim():
                result.values[name] = _checked(part, view, name)
            elif isinstance(part, (int, float, Tensor)):
                result.plain[name] = float(part)
            elif callable(part) and view.sizes:
                result.forms.append(_named(part, name))
            else:
                raise _unusable(part, view, name)
    return result


def metrics_of(kind: type[View], *, paired_only: bool = False) -> list[Metric[Any]]:
    """Those that look at a kind of view; of several that share a function, the first."""
    chosen = [metric for _, metric in METRICS.items() if metric.of is kind]
    functions = {
        metric.measure: metric for metric in reversed(chosen) if metric.paired or not paired_only
    }  # reversed: the first of each function is written last
    return [metric for metric in chosen if functions.get(metric.measure) is metric]


def values_of(view: View) -> dict[str, Tensor]:
    """The metrics of a view all of whose metrics are values of its items: name → (n,)."""
    values, forms, plain = work_out(view)
    if forms or plain:
        names = ", ".join(plain) or "one of them"
        raise InputError(
            f"A metric of {type(view).__name__} must give one value per query; {names} gives something else."
        )
    return values


def _checked(values: Tensor, view: View, name: str) -> Tensor:
    if len(view.sizes) != 1 or tuple(values.shape) != view.sizes:
        raise _unusable(values, view, name)
    return values


def _unusable(part: object, view: View, name: str) -> InputError:
    accepted = ["a number"]
    if view.sizes:
        accepted.append("a function of weights")
    if len(view.sizes) == 1:
        accepted.append(f"a tensor of shape {view.sizes}")
    shown = f"a tensor of shape {tuple(part.shape)}" if isinstance(part, Tensor) else repr(part)
    return InputError(
        f"The metric {name!r} of {type(view).__name__} gives {shown}; accepted: {', '.join(accepted)}."
    )


def _named(form: Weighted, name: str) -> Callable[..., dict[str, Tensor]]:
    def named(*weights: Tensor) -> dict[str, Tensor]:
        values = form(*weights)
        return {name: values} if isinstance(values, Tensor) else dict(values)

    return named


def _percent(share: str) -> str:
    """``risk0.05``, ``far0.05`` and ``fpir0.05`` → ``5 %``; anything else as it is."""
    try:
        return f"{100 * float(share.lstrip(ascii_lowercase)):g} %"
    except ValueError:
        return share
