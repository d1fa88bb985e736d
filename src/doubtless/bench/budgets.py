"""What each row of a suite was given: settings that were compared for it, epochs, batch, augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from doubtless.bench.suite import Suite
from doubtless.errors import InputError


@dataclass(frozen=True)
class Budget:
    """A row's share of effort."""

    trials: int
    """Settings that were compared on validation data before this row was measured."""
    epochs: int
    batch: int
    augmentation: list[str] = field(default_factory=list)


def budgets_of(suite: Suite) -> dict[str, Budget]:
    """Every row's budget, by its name.

    >>> from doubtless.bench import load_suite
    >>> budgets_of(load_suite("demo"))["triplet"].epochs
    20
    """
    return {name: _budget(suite, name) for name in suite.methods}


def check_budgets(suite: Suite, budgets: Mapping[str, Budget]) -> None:
    """Refuses a row with more trials than the suite allows; a suite that says nothing allows all."""
    if suite.trials is None:
        return
    for name, budget in budgets.items():
        if budget.trials > suite.trials:
            raise InputError(
                f"{name} was tried with {budget.trials} settings; the suite {suite.name} allows "
                f"{suite.trials} trials per row."
            )


def trials_of(suite: Suite, name: str) -> int:
    """Settings compared for this row, or for the row whose values or run it takes."""
    row = suite.methods[name]
    own = row.trials + suite.tried.get(name, 0)
    other = row.tuned_as or row.of or row.base
    return own if own or other is None else trials_of(suite, other)


def _budget(suite: Suite, name: str) -> Budget:
    row = suite.methods[name]
    config = suite.config(row.base or row.of or name, suite.seeds[0])  # the row that trained the network
    epochs = 0 if config.method == "pretrained" else config.training.epochs
    return Budget(trials_of(suite, name), epochs, config.training.batch_size, _steps(config.data.augment))


def _steps(augment: str | list[str | dict[str, dict[str, Any]]]) -> list[str]:
    """Names of the transforms, or of their preset."""
    if isinstance(augment, str):
        return [augment]
    return [step if isinstance(step, str) else ", ".join(step) for step in augment]
