"""docs/results.md: the papers' tables beside ours, from the JSON that `doubtless bench` wrote.

    python benchmarks/results_page.py

Only what stands between `<!-- NAME -->` and `<!-- end -->` is written, NAME being a suite; the text around it is
written by hand, in the page itself. The table of a suite that has not been run stays empty. Without a page one is
begun.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubtless.files import read_json, write_text
from doubtless.metrics.catalogue import better
from doubtless.report.comparison import WITH_DOUBT

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"
PRECISION = "OOD AUPRC"
REWEIGHTED = "ood_auprc_reweighted"
Result = dict[str, Any]
"""What `doubtless bench` writes of a suite."""
BEGUN = """# Results beside the papers' numbers

Mean ± standard deviation over seeds; in brackets the paper's number, with an asterisk where it measures something
else. In italics the best free uncertainty of a method that learns none. Rows `… + doubt` are the same runs with the
combined doubt ([what it is](doubt.md)) in place of the method's own uncertainty. Bold is the best of a column.

## FashionMNIST, MNIST out of distribution

<!-- fashion -->
<!-- end -->

## CIFAR10, SVHN out of distribution

<!-- cifar10 -->
<!-- end -->

## Omniglot, open set

<!-- open-omniglot -->
<!-- end -->

## Products: Grocery Store with EfficientNet-lite0

<!-- grocery-lite0 -->
<!-- end -->

## Birds: CUB-200-2011 with EfficientNet-lite0

<!-- cub-lite0 -->
<!-- end -->

## Faces: LFW with EfficientNet-lite0

<!-- lfw-lite0 -->
<!-- end -->
"""


@dataclass(frozen=True)
class Goal:
    """A row of a suite and what issue 11 asks of it; with its combined doubt where that has such a metric."""

    row: str
    bounds: Mapping[str, float]
    with_doubt: bool = False


@dataclass(frozen=True)
class Table:
    """A suite, its OOD set, and OOD images to one other in the paper, where there is one."""

    suite: str
    ood: str
    paper_ratio: float | None = None
    goals: tuple[Goal, ...] = ()
    others: tuple[str, ...] = ()
    """More OOD sets; with them the table has the columns of the papers on photographs."""

    def columns(self, result: Result) -> dict[str, str]:
        """Heading → metric."""
        if self.others:
            return PHOTOGRAPHS | {f"OOD {name}": f"ood_auroc/{name}" for name in (self.ood, *self.others)}
        precision = self.precision(result)
        ratio = self.paper_ratio if precision.startswith(REWEIGHTED) else 1
        return {
            "R@1": "recall@1",
            "mAP@5": "map@5",
            "mAP@10": "map@10",
            "OOD AUROC": f"ood_auroc/{self.ood}",
            f"{PRECISION} at {ratio:g} : 1": precision,
            "AUSC": "ausc",
            "ECE": "ece",
            "error AUROC": "error_auroc",
        }

    def precision(self, result: Result) -> str:
        """AUPRC at the paper's set sizes where it was measured, else at sets of one size."""
        at_papers = f"{REWEIGHTED}/{self.ood}"
        return at_papers if at_papers in result["table"]["metrics"] else f"ood_auprc_balanced/{self.ood}"

    def papers_name(self, metric: str) -> str:
        """The suite's name for the paper's number of this metric."""
        return f"ood_auprc/{self.ood}" if metric.startswith("ood_auprc") else metric

    def reason(self, result: Result, metric: str) -> str | None:
        """Why the paper's number is of something else, if it is."""
        if metric.startswith(REWEIGHTED) or (metric.startswith("ood_auprc") and self.paper_ratio == 1):
            return None  # at the paper's own ratio
        reasons = (result["published"] or {}).get("not_comparable", {})
        found: str | None = reasons.get(self.papers_name(metric))
        return found


PHOTOGRAPHS = {
    **{f"R@{k}": f"recall@{k}" for k in (1, 2, 4, 8)},
    "mAP@5": "map@5",
    "mAP@10": "map@10",
    "mAP@R": "map@r",
    "NMI": "nmi",
    "F1": "f1",
    "error AUROC": "error_auroc",
    "AUSC": "ausc",
    "ECE": "ece",
}
ON_CIFAR = {
    "R@1": 0.66,
    "mAP@5": 0.60,
    "mAP@10": 0.57,
    "OOD AUROC": 0.78,
    PRECISION: 0.85,
    "AUSC": 0.83,
    "ECE": 0.01,
}
ON_FASHION = {
    "R@1": 0.81,
    "mAP@5": 0.77,
    "mAP@10": 0.76,
    "OOD AUROC": 0.98,
    PRECISION: 0.98,
    "AUSC": 0.89,
    "ECE": 0.02,
}
BETTER_ON_FASHION = ON_FASHION | {"R@1": 0.88, "OOD AUROC": 0.99, "AUSC": 0.95, "ECE": 0.01}
TABLES = (
    Table(
        "fashion",
        "mnist",
        1.0,
        (Goal("lam-online", ON_FASHION), Goal("recommended", BETTER_ON_FASHION, with_doubt=True)),
    ),
    Table(
        "cifar10",
        "svhn_test_small",
        2.6032,  # 26,032 digits, 10,000 pictures
        (Goal("lam-online", ON_CIFAR), Goal("recommended", ON_CIFAR, with_doubt=True)),
    ),
    Table("open-omniglot", "fashion-sample"),
    Table("grocery-lite0", "fashion-sample", others=("lfw", "cub_200_2011")),
    Table("cub-lite0", "grocery", others=("lfw", "fashion-sample")),
    Table("lfw-lite0", "cub_200_2011", others=("grocery",)),
)


def main() -> None:
    page = PAGE.read_text() if PAGE.exists() else BEGUN
    write_text(PAGE, refreshed(page, RESULTS))
    print(f"wrote {PAGE.relative_to(ROOT)}")


def refreshed(page: str, results: Path) -> str:
    """The page with every table as the JSON files in `results` have it now."""
    for table in TABLES:
        path = results / f"{table.suite}.json"
        text = written(table, read_json(path)) if path.exists() else ""
        place = re.compile(rf"(<!-- {table.suite} -->\n).*?(<!-- end -->)", re.DOTALL)
        parts = place.split(page)
        if len(parts) != 4:  # before, the two markers, after
            raise SystemExit(f"The page must have one place `<!-- {table.suite} -->` … `<!-- end -->`.")
        page = parts[0] + parts[1] + text + parts[2] + parts[3]
    return page


def is_best(result: Result, name: str, metric: str) -> bool:
    """Whether no row of the table has a better mean."""
    rows = result["table"]["cells"]
    means = [cells[metric]["mean"] for cells in rows.values() if metric in cells]
    own = rows[name][metric]["mean"]
    return not any(mean is not None and better(metric, mean, own) for mean in means)


def seeds_of(result: Result, name: str) -> int:
    return sum(run["method"] == name.removesuffix(WITH_DOUBT) for run in result["runs"])


def written(table: Table, result: Result) -> str:
    """Table, what its asterisks mean, how it was made, and which goals were reached."""
    parts = [rows_of(table, result), notes_of(table, result), made_by(result), goals_of(table, result)]
    return "\n" + "\n\n".join(part for part in parts if part) + "\n\n"


def rows_of(table: Table, result: Result) -> str:
    cells = result["table"]["cells"]
    names = sorted(cells, key=lambda name: name.endswith(WITH_DOUBT))  # stable: as in the suite, doubts last
    columns = table.columns(result)
    lines = [["", "seeds", *columns], ["---"] * (2 + len(columns))]
    for name in names:
        shown = [cell_text(table, result, name, metric) for metric in columns.values()]
        own = name.removesuffix(WITH_DOUBT)
        title = f"`{own}`{name[len(own) :]}"
        lines.append([title, str(seeds_of(result, name)), *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell_text(table: Table, result: Result, name: str, metric: str) -> str:
    """`.812 ± .004 [.81*]`, or the free uncertainty's value in italics, or nothing."""
    cell = result["table"]["cells"][name].get(metric)
    text = ""
    if cell is not None and cell["mean"] is not None:
        text = number(cell["mean"]) + ("" if cell["std"] is None else f" ± {number(cell['std'])}")
        text = f"**{text}**" if is_best(result, name, metric) else text
    elif cell is not None and cell["free"] is not None:
        text = f"*{number(cell['free'])}*"
    published = (result["published"] or {"methods": {}})["methods"].get(name, {})
    paper = published.get(table.papers_name(metric))
    if paper is None:
        return text
    star = "\\*" if table.reason(result, metric) else ""
    return f"{text} [{number(paper, 2)}{star}]".strip()


def notes_of(table: Table, result: Result) -> str:
    """The paper, and every reason behind an asterisk once, with the columns it is of."""
    if not result["published"]:
        return ""
    columns: dict[str, list[str]] = {}
    for heading, metric in table.columns(result).items():
        if reason := table.reason(result, metric):
            columns.setdefault(reason, []).append(heading)
    lines = [f"In brackets: {result['published']['source']}."]
    lines += [f"\\* {', '.join(headings)}: {reason}." for reason, headings in columns.items()]
    return "  \n".join(lines)


def made_by(result: Result) -> str:
    """Command, versions, device and set sizes."""
    counts = result["runs"][0]["counts"]
    sizes = [f"{counts['queries']:,} queries of {counts['classes']} classes"]
    sizes += [f"{count:,} of {name[4:]}" for name, count in counts.items() if name.startswith("ood/")]
    versions = result["versions"]
    device = f" on {versions['device']}" if "device" in versions else ""
    return (
        f"Made by `{result['command']}`{device}, torch {versions['torch']}; "
        f"{', '.join(sizes)}. More: [JSON](../benchmarks/results/{result['suite']}.json), "
        f"[page](../benchmarks/results/{result['suite']}.html)."
    )


def goals_of(table: Table, result: Result) -> str:
    return "\n\n".join(
        "\n".join(goal_lines(table, result, goal))
        for goal in table.goals
        if goal.row in result["table"]["cells"]
    )


def goal_lines(table: Table, result: Result, goal: Goal) -> Iterator[str]:
    """What was asked of a row, what it has, and by how much it is missed."""
    cells, columns = result["table"]["cells"], table.columns(result)
    yield f"What was asked of `{goal.row}`{' with the combined doubt' if goal.with_doubt else ''}:\n"
    for heading, bound in goal.bounds.items():
        full = next(column for column in columns if column.startswith(heading))
        metric, lower = columns[full], heading == "ECE"
        cell = cells[goal.row].get(metric)
        if goal.with_doubt:
            cell = cells.get(goal.row + WITH_DOUBT, {}).get(metric) or cell
        asked = f"- {full} {'≤' if lower else '≥'} {number(bound, 2)}: "
        if cell is None or cell["mean"] is None:
            yield asked + "not measured"
            continue
        if heading == PRECISION and table.reason(result, metric):
            yield asked + f"{number(cell['mean'])}, not at the paper's {table.paper_ratio:g} : 1"
            continue
        missed = (cell["mean"] - bound) * (1 if lower else -1)
        if missed <= 0:
            yield asked + f"{number(cell['mean'])}, **reached**"
            continue
        digits = 3 if missed >= 0.001 else 4  # so little that it would be missed by .000
        yield asked + f"{number(cell['mean'], digits)}, missed by {number(missed, digits)}"


def number(value: float, digits: int = 3) -> str:
    """``.812``, ``1.000``, ``−.020``: as the other pages write numbers.

    >>> number(0.8124), number(-0.02)
    ('.812', '−.020')
    """
    return re.sub(r"^(−?)0\.", r"\1.", f"{value:.{digits}f}".replace("-", "−"))


if __name__ == "__main__":
    main()
