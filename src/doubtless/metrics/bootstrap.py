"""Bootstrap 95 % intervals over queries, and the paired comparison of two methods.

A replicate is a row of counts, how often each query was drawn. Means are products of these counts with the
queries' values; rank metrics are written for weighted queries (`ranking`), so a replicate costs a running
sum, not a sort. Replicates are made a few at a time: memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.measure import Measure

Form = Callable[[Tensor], dict[str, Tensor]]
"""Weights of the queries (b, n) → metric name → (b,)."""
VALUE = "value"  # the metric of a method that has only one
CHUNK = {"cpu": 2**18, "cuda": 2**25}  # counts at a time: on a CPU what its cache holds


def mean_form(values: Mapping[str, Tensor]) -> Form:
    """Weighted means of several values per query: names → (n,) becomes weights (b, n) → names → (b,)."""
    names = list(values)
    matrix = torch.stack([values[name].double() for name in names], dim=1)  # (n, metrics)

    def form(weights: Tensor) -> dict[str, Tensor]:
        means = weights @ matrix / weights.sum(1, keepdim=True)  # (b, metrics)
        return dict(zip(names, means.unbind(1), strict=True))

    return form


def measures(
    form: Callable[..., dict[str, Tensor]],
    sizes: Sequence[int],
    *,
    replicates: int,
    generator: torch.Generator,
    device: torch.device | str = "cpu",
) -> dict[str, Measure]:
    """The form's values with all weights one, each with its interval over replicates.

    `sizes` are the numbers of items of the sets that are drawn, each by itself: one for queries, two for
    in-distribution and OOD. Where a replicate has no value (no wrong answer drawn), it does not count.
    `replicates` 0 gives no intervals.

    >>> form = mean_form({"recall@1": torch.tensor([1.0, 0.0, 1.0, 1.0])})
    >>> measures(form, [4], replicates=0, generator=torch.Generator())["recall@1"].value
    0.75
    """
    ones = [torch.ones(1, size, dtype=torch.double, device=device) for size in sizes]
    values = {name: float(value) for name, value in form(*ones).items()}
    if not replicates:
        return {name: Measure(value) for name, value in values.items()}
    # Filled in place: small results kept between large ones would hold the heap open.
    drawn = {name: torch.empty(replicates, dtype=torch.double) for name in values}
    step = max(1, CHUNK.get(torch.device(device).type, 2**18) // sum(sizes))
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        weights = [resample(size, count, generator=generator).to(device) for size in sizes]
        for name, value in form(*weights).items():
            drawn[name][start : start + count] = value
    bounds = {name: interval(values) for name, values in drawn.items()}
    return {name: Measure(values[name], *bounds[name]) for name in values}


def resample(size: int, replicates: int, *, generator: torch.Generator) -> Tensor:
    """How often each of `size` items is drawn, with replacement, in each replicate: (replicates, size)."""
    drawn = torch.randint(size, (replicates, size), generator=generator)
    drawn += torch.arange(replicates).unsqueeze(1) * size
    return drawn.flatten().bincount(minlength=replicates * size).view(replicates, size).double()


def interval(values: Tensor) -> tuple[float | None, float | None]:
    """The 2.5 % and 97.5 % quantiles of the replicates that have a value."""
    known = values[~values.isnan()]
    if not len(known):
        return None, None
    low, high = known.quantile(torch.tensor([0.025, 0.975], dtype=known.dtype, device=known.device)).tolist()
    return low, high


@dataclass(frozen=True)
class PairedComparison:
    """First method minus second. `p` is the two-sided bootstrap p-value of "no difference"."""

    difference: float
    low: float
    high: float
    p: float

    @property
    def significant(self) -> bool:
        """The 95 % interval leaves zero out."""
        return self.low > 0 or self.high < 0


def paired_bootstrap(
    first: Tensor | Sequence[Callable[[Tensor], Tensor]],
    second: Tensor | Sequence[Callable[[Tensor], Tensor]],
    *,
    generator: torch.Generator,
    queries: int | None = None,
    replicates: int = 1000,
) -> PairedComparison:
    """Compares two methods on the same queries, over queries and seeds.

    Each method is either its per-query values (seeds, n) (or (n,)), whose mean is the metric, or a list of
    functions, one per seed, from weights (b, n) to the metric (b,): rank metrics, with `queries` = n given. A
    replicate draws the queries once for both methods and the seeds of each by themselves.

    >>> better, worse = torch.ones(2, 50), torch.zeros(3, 50)
    >>> paired_bootstrap(better, worse, generator=torch.Generator()).difference
    1.0
    """
    sizes = {method.shape[-1] for method in (first, second) if isinstance(method, Tensor)}
    if queries is not None:
        sizes.add(queries)
    if len(sizes) != 1:
        raise InputError(
            f"Two methods are paired over the same queries; got {sorted(map(str, sizes))} queries. Give "
            "values of equal length, or `queries` with functions."
        )
    methods = {"first": _seed_forms(first), "second": _seed_forms(second)}
    pair = ("first", "second", VALUE)
    return paired_bootstraps(
        methods, [pair], queries=sizes.pop(), generator=generator, replicates=replicates
    )[0]


def paired_bootstraps(
    methods: Mapping[str, Sequence[Form]],
    pairs: Sequence[tuple[str, str, str]],
    *,
    queries: int,
    generator: torch.Generator,
    replicates: int = 1000,
) -> list[PairedComparison]:
    """Many comparisons (method, method, metric) on the same draws, one `PairedComparison` each.

    methods   name → one form per seed, from weights (b, n) to all its metrics. A form is worked out once
              per draw, however many pairs and metrics ask for it.
    """
    points = _differences(methods, pairs, torch.ones(1, queries, dtype=torch.double), None)  # (pairs, 1)
    drawn = torch.empty(len(pairs), replicates, dtype=torch.double)
    step = max(1, CHUNK["cpu"] // queries)
    for start in range(0, replicates, step):
        weights = resample(queries, min(step, replicates - start), generator=generator)
        drawn[:, start : start + step] = _differences(methods, pairs, weights, generator)
    return [_comparison(float(point), row) for point, row in zip(points, drawn, strict=True)]


def _comparison(point: float, drawn: Tensor) -> PairedComparison:
    """A difference with the interval and the p-value of its replicates (replicates,)."""
    low, high = interval(drawn)
    known = drawn[~drawn.isnan()]
    tail = min(int((known <= 0).sum()), int((known >= 0).sum()))
    nan = float("nan")
    p = min(1.0, 2 * (tail + 1) / (len(known) + 1))
    return PairedComparison(point, nan if low is None else low, nan if high is None else high, p)


def _seed_forms(method: Tensor | Sequence[Callable[[Tensor], Tensor]]) -> list[Form]:
    """One form per seed that gives the one metric, `VALUE`."""
    if isinstance(method, Tensor):
        rows = method.double().cpu().reshape(-1, method.shape[-1])
        return [mean_form({VALUE: row}) for row in rows]

    def named(function: Callable[[Tensor], Tensor]) -> Form:
        return lambda weights: {VALUE: function(weights)}

    return [named(function) for function in method]


def _differences(
    methods: Mapping[str, Sequence[Form]],
    pairs: Sequence[tuple[str, str, str]],
    weights: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """Metric of the first minus that of the second, (pairs, b). A generator draws the seeds anew per replicate."""
    compared = dict.fromkeys(name for pair in pairs for name in pair[:2])
    of_seeds = {name: [form(weights) for form in methods[name]] for name in compared}
    seeds: dict[tuple[int, int], Tensor] = {}  # (place in the pair, number of seeds) → (b, seeds)

    def mean(place: int, name: str, metric: str) -> Tensor:
        values = torch.stack([seed[metric] for seed in of_seeds[name]], dim=1)  # (b, seeds)
        if generator is None:
            return values.mean(1)
        key = (place, values.shape[1])
        if key not in seeds:
            seeds[key] = resample(key[1], len(weights), generator=generator)
        return (values * seeds[key]).sum(1) / key[1]

    return torch.stack([mean(0, one, metric) - mean(1, other, metric) for one, other, metric in pairs])
