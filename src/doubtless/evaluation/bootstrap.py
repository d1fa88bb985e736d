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
from doubtless.evaluation.result import Measure

CHUNK = {"cpu": 2**18, "cuda": 2**25}  # counts at a time: on a CPU what its cache holds, three times faster


def mean_form(values: Mapping[str, Tensor]) -> Callable[[Tensor], dict[str, Tensor]]:
    """Weighted means of several values a query: names → (n,) becomes weights (b, n) → names → (b,)."""
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
    # Filled in place: small results kept between large ones would hold the heap open, gigabytes at 60,000.
    drawn = {name: torch.empty(replicates, dtype=torch.double) for name in values}
    step = max(1, CHUNK.get(torch.device(device).type, 2**18) // sum(sizes))
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        weights = [resample(size, count, generator=generator).to(device) for size in sizes]
        for name, value in form(*weights).items():
            drawn[name][start : start + count] = value
    bounds = {name: interval(found) for name, found in drawn.items()}
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
class Comparison:
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
) -> Comparison:
    """Compares two methods on the same queries, over queries and seeds.

    Each method is either its per-query values (seeds, n) (or (n,)), whose mean is the metric, or a list of
    functions, one a seed, from weights (b, n) to the metric (b,): rank metrics, with `queries` = n given. A
    replicate draws the queries once for both methods and the seeds of each by themselves.

    >>> better, worse = torch.ones(2, 50), torch.zeros(3, 50)
    >>> paired_bootstrap(better, worse, generator=torch.Generator()).difference
    1.0
    """
    forms = [_seed_forms(method) for method in (first, second)]
    sizes = {method.shape[-1] for method in (first, second) if isinstance(method, Tensor)}
    if queries is not None:
        sizes.add(queries)
    if len(sizes) != 1:
        raise InputError(
            f"two methods are paired over the same queries; got {sorted(map(str, sizes))} queries. Give "
            "values of equal length, or `queries` with functions."
        )
    size = sizes.pop()
    point = _difference(forms, torch.ones(1, size, dtype=torch.double), None)
    step = max(1, CHUNK["cpu"] // size)
    drawn = torch.empty(replicates, dtype=torch.double)
    for start in range(0, replicates, step):
        weights = resample(size, min(step, replicates - start), generator=generator)
        drawn[start : start + step] = _difference(forms, weights, generator)
    low, high = interval(drawn)
    known = drawn[~drawn.isnan()]
    tail = min(int((known <= 0).sum()), int((known >= 0).sum()))
    nan = float("nan")
    p = min(1.0, 2 * (tail + 1) / (len(known) + 1))
    return Comparison(float(point), nan if low is None else low, nan if high is None else high, p)


def _seed_forms(method: Tensor | Sequence[Callable[[Tensor], Tensor]]) -> list[Callable[[Tensor], Tensor]]:
    """One function a seed, from weights (b, n) to the metric (b,)."""
    if not isinstance(method, Tensor):
        return list(method)
    rows = method.double().cpu().reshape(-1, method.shape[-1])

    def mean_of(row: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda weights: weights @ row / weights.sum(1)

    return [mean_of(row) for row in rows]


def _difference(
    forms: list[list[Callable[[Tensor], Tensor]]], weights: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Metric of the first minus that of the second, (b,); seeds drawn anew a replicate, where asked."""
    means = []
    for seeds in forms:
        values = torch.stack([form(weights) for form in seeds], dim=1)  # (b, seeds)
        if generator is None:
            means.append(values.mean(1))
        else:
            drawn = resample(len(seeds), len(weights), generator=generator)
            means.append((values * drawn).sum(1) / len(seeds))
    return means[0] - means[1]
