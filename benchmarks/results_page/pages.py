"""Which data sets there are, and what their tables show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SUITES = ROOT / "benchmarks" / "suites"
FRONT = ROOT / "docs" / "results.md"

RETRIEVAL = {"R@1": "recall@1", "mAP@5": "map@5", "mAP@10": "map@10", "mAP@R": "map@r"}
PHOTOGRAPHS = {
    **{f"R@{k}": f"recall@{k}" for k in (1, 2, 4, 8)},
    **{f"mAP@{k}": f"map@{k}" for k in (5, 10)},
    "mAP@R": "map@r",
    "NMI": "nmi",
    "F1": "f1",
}
CALIBRATION = {
    "ECE as is": "ece",
    "its floor": "ece_floor",
    "ECE tuned": "ece_tuned",
    "the tuned one's floor": "ece_tuned_floor",
}
"""Consensus ECE of variances as they are or with one scale from validation images; floors: of a perfect voter."""
FLOORS = {"ece_floor", "ece_tuned_floor"}
ABLATIONS = "ablations-"
"""How the names of suites begin whose rows differ in one thing each: they get one table."""


@dataclass(frozen=True)
class Page:
    """A data set: its page, the suites that are its tables, how it is called."""

    name: str
    suites: tuple[str, ...]
    title: str
    columns: Mapping[str, str]
    paper_ood: str | None = None
    """The out-of-distribution set of a paper, whose AUPRC is shown too."""
    paper_ratio: float = 1.0
    """Its images to one other, in the paper."""

    @property
    def path(self) -> Path:
        """The page."""
        return ROOT / "docs" / "results" / f"{self.name}.md"


PAGES = (
    Page(
        "fashion",
        ("fashion-equal", "ablations-fashion", "fashion-searched", "fashion"),
        "FashionMNIST",
        RETRIEVAL,
        "mnist",
    ),
    Page(
        "cifar10",
        ("cifar10", "ablations-cifar10", "cifar10-searched"),
        "CIFAR10",
        RETRIEVAL,
        "svhn_test_small",
        2.6032,
    ),
    Page("omniglot", ("omniglot-equal",), "Omniglot", RETRIEVAL),
    Page("grocery", ("grocery-lite0",), "Grocery Store", PHOTOGRAPHS),
    Page("cub", ("cub-lite0",), "CUB-200-2011", PHOTOGRAPHS),
    Page("lfw", ("lfw-lite0",), "LFW", PHOTOGRAPHS),
)
"""CIFAR10's ratio: 26,032 house numbers to 10,000 pictures. The first suite of a page is its main table."""
