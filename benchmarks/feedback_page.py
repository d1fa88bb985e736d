"""Tables, and the page, of what benchmarks/feedback.py measured.

python benchmarks/feedback_page.py features/feedback --out benchmarks/results/feedback
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from divisions import Record, read, write_page
from open_set_page import TITLES, averaged

BEFORE = 300
"""Answers before a stream changes."""
JUDGES = ("all", "review", "complaints", "naive")
SHIFTS = ("none", "blur", "camera", "new labels")
NOTES = """## Read with care

- Streams of a division share its photos, and queries are drawn with replacement; divisions share labels.
- A shift that makes queries refused, and not answers wrong, breaks no promise: where the true share of wrong
  answers before and after it is at most the bound, streams are *kept* and every alarm is a false one.
- Delays are counted in answers from the change on, over streams whose true share is then above the bound; an alarm
  that is not raised within the stream is left out of the median and counted in the share.
- Copies are the same photo saved once more. Copies that are cut or resized are not found: at these sizes (112 to
  192 px) frozen features take them for other photos.
- Which labels are listed, and in which order, was chosen on divisions of the training classes of Grocery, Omniglot
  and LFW. Test classes were looked at twice: faces, most people with two photos, had not been among those that it
  was chosen on at first, and were ordered worse than by the first hit; what *none of these* says was taken in then.
- A copy of a drawing of 28 pixels, saved as JPEG, is no near copy: none of Omniglot's is found.
- Omniglot's photos by the other camera are all refused: nothing is answered, so nothing is wrong. Of faces by it
  hardly any is answered.
- `kill -9` while feedback is written is a test (`tests/gallery/test_feedback.py`, slow): two writers at
  a time, killed 24 times, 6,837 entries acknowledged, none lost; 25 more were on the disk and not yet acknowledged.
"""


def read_sets(folder: Path) -> dict[str, list[Record]]:
    """Set → its divisions."""
    found = {name: read(folder / f"{name}.jsonl") for name in TITLES}
    return {name: divisions for name, divisions in found.items() if divisions}


def of_streams(streams: Sequence[Record], judge: str, begins: int) -> Record:
    """Share of streams with an alarm, with one before the change, and delays after it."""
    raised = [one[judge] for one in streams]
    late = [one for one in raised if one is not None and one[0] > begins]
    return {
        "streams": len(streams),
        "raised": sum(one is not None for one in raised) / max(1, len(raised)),
        "early": sum(one is not None and one[0] <= begins for one in raised) / max(1, len(raised)),
        "delay": None if not late else float(np.median([one[0] - begins for one in late])),
        "late_delay": None if not late else float(np.quantile([one[0] - begins for one in late], 0.9)),
    }


def summed(divisions: Sequence[Record]) -> Record:
    """Everything of a set."""
    found: Record = {"divisions": len(divisions), "rates": [one["rate"] for one in divisions], "shifts": {}}
    told = [one for one in divisions if one["shifts"]]
    found["answering"] = len(told)
    for shift in SHIFTS:
        broken, kept, true = [], [], []
        for one in told:
            here = one["shifts"][shift]
            true.append(here["true"])
            if (here["true"] or 0.0) > one["rate"]:
                broken.extend(here["streams"])
            elif (one["shifts"]["none"]["true"] or 0.0) <= one["rate"]:
                kept.extend(here["streams"])
        found["shifts"][shift] = {
            "true": true,
            "broken": {judge: of_streams(broken, judge, BEFORE) for judge in JUDGES},
            "kept": {judge: of_streams(kept, judge, BEFORE) for judge in JUDGES},
        }
    level = [stream for one in told for stream in one["at_level"]]
    found["at_level"] = {judge: of_streams(level, judge, 0) for judge in JUDGES}
    found["labels"] = _labels([one["labels"] for one in told if one["labels"] is not None])
    found["review"] = averaged([one["review"] for one in divisions])
    return found


def _labels(divisions: Sequence[Record]) -> Record | None:
    """Medians over streams; what was never shown counts as infinite."""
    if not divisions:
        return None
    found: Record = {"divisions": len(divisions), "true": [one["true"] for one in divisions]}
    for way in ("review", "answers", "queries"):
        counts = [np.inf if one is None else one for each in divisions for one in each["needed"][way]]
        middle = float(np.median(counts))
        found[way] = middle if np.isfinite(middle) else None
    return found


def _number(value: float | None, form: str = ".3f") -> str:
    return "–" if value is None else format(value, form)


def page(sets: dict[str, Record]) -> str:
    """The tables in Markdown."""
    lines = [
        "# A promise in use",
        "",
        "`python benchmarks/feedback.py`, whose docstring says what is counted.",
        "",
    ]
    lines += ["## Streams that change after 300 answers", ""]
    lines += [
        "| set | shift | true share of wrong answers | bound | streams broken | alarms, all judged "
        "| delay: median, 90 % | by review | delay | by complaints | delay | streams kept "
        "| false alarms: all, review, complaints | naive |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in sets.items():
        for shift in SHIFTS:
            lines.append(_shift_line(name, shift, one))
    lines += ["", "## At the level: answers wrong with a chance of exactly the bound", ""]
    lines += ["| set | streams | all | review | complaints | naive |", "|---|---|---|---|---|---|"]
    for name, one in sets.items():
        level = one["at_level"]
        raised = " | ".join(_number(level[judge]["raised"]) for judge in JUDGES)
        lines.append(f"| {TITLES[name]} | {level['all']['streams']} | {raised} |")
    lines += ["", "## Labels until a promise that is kept is shown to hold (medians)", ""]
    lines += [
        "| set | true share | review | answers drawn at random | queries drawn at random |",
        "|---|---|---|---|---|",
    ]
    for name, one in sets.items():
        told = one["labels"]
        cells = ["–"] * 4
        if told is not None:
            cells = [", ".join(_number(value) for value in told["true"])]
            cells += [_number(told[way], ".0f") for way in ("review", "answers", "queries")]
        lines.append(f"| {TITLES[name]} | {' | '.join(cells)} |")
    lines += ["", "## What a review finds: 5 % wrong labels, 3 % copies", "", *_review_lines(sets), "", NOTES]
    older = [TITLES[name] for name, one in sets.items() if one.get("older")]
    if older:
        lines[-1] += f"- Measured by an earlier version, and not anew with the others: {'; '.join(older)}.\n"
    return "\n".join(lines)


def _shift_line(name: str, shift: str, one: Record) -> str:
    here = one["shifts"][shift]
    broken, kept = here["broken"], here["kept"]
    cells = [TITLES[name], shift, ", ".join(_number(value) for value in here["true"])]
    cells += [", ".join(_number(rate) for rate in one["rates"]), str(broken["all"]["streams"])]
    for judge in ("all", "review", "complaints"):
        of = broken[judge]
        delay = f"{_number(of['delay'], '.0f')}, {_number(of['late_delay'], '.0f')}"
        cells += [_number(of["raised"]) if of["streams"] else "–", delay if of["streams"] else "–"]
    cells.append(str(kept["all"]["streams"]))
    some = kept["all"]["streams"]
    false = ", ".join(_number(kept[judge]["raised"]) for judge in ("all", "review", "complaints"))
    cells += [false if some else "–", _number(kept["naive"]["raised"]) if some else "–"]
    return f"| {' | '.join(cells)} |"


def _review_lines(sets: dict[str, Record]) -> list[str]:
    lines = [
        "| set | items | wrong labels | listed | precision | recall | of the first, as many as are wrong "
        "| first hit: precision | recall | of the first | copies: precision | recall "
        "| under two labels: precision | recall | wrong labels found either way |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in sets.items():
        found = one["review"]
        cells = [TITLES[name], f"{found['items']:.0f}", f"{found['labels']['wrong']:.0f}"]
        cells.append(f"{found['labels']['listed']:.0f}")
        for way in ("labels", "first_hit"):
            cells += [_number(found[way][what]) for what in ("precision", "recall", "at")]
        for way in ("duplicates", "across"):
            cells += [_number(found[way][what]) for what in ("precision", "recall")]
        lines.append(f"| {' | '.join([*cells, _number(found['either'])])} |")
    return lines


def write_results(folder: Path, out: Path) -> None:
    """feedback.json and README.md of divisions in a folder; sets that it lacks stay as they were, and are named."""
    made = {name: summed(divisions) for name, divisions in read_sets(folder).items()}
    before = out / "feedback.json"
    there = json.loads(before.read_text())["sets"] if before.exists() else {}
    older = {name: one | {"older": True} for name, one in there.items()}
    sets = {name: (older | made)[name] for name in TITLES if name in older | made}
    about = {"torch": torch.__version__, "python": platform.python_version()}
    write_page(out, "feedback", {"about": about, "sets": sets}, page(sets))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "feedback")
    options = parser.parse_args()
    write_results(options.folder, options.out)


if __name__ == "__main__":
    main()
