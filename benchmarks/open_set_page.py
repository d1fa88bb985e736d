"""Means over divisions, and the page, of what benchmarks/open_set.py measured.

python benchmarks/open_set_page.py features/divisions --out benchmarks/results/open-set
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from divisions import Record, read, write_page

TITLES = {
    "cub": "CUB, 100 test species",
    "lfw": "LFW, 1,711 test people",
    "grocery": "Grocery, 41 test products",
    "omniglot": "Omniglot, 200 test characters",
}
ASKED = 200
"""Divisions that the issue asks for."""
ALLOWED = 0.05
"""Share of divisions in which a promise may be broken."""
EVIDENCE = "hits, metric within labels, all items' cosines"
"""What distributions were made from; figures of a set that were made from something else are said to be."""
NOTES = """## Read with care

- Divisions share photos and labels, so a share over 200 of them is not that of 200 independent trials.
- Where *met* is 0 nothing was promised at the target: that no promise was broken there says only that the least
  bound held. With few labels little can be promised (20 products, 50 species).
- *surely* sees large breaches only: with a few hundred answers per division a small one passes as noise.
- *truly* was thought of after the counted shares had been seen; it changes nothing but how they are read.
- Unknown species, people, products and characters are like those of the gallery: near ones. Things of another
  kind are not measured here.
- The evidence that the distribution looks at was chosen on other classes of the same data sets, except in
  Grocery, where 19 of the 41 products were among those that it was chosen on; one constant (`WORTH`) was added
  after test classes had been looked at, its value chosen without them.
- Omniglot: 150 characters to half-whiten with and 200 to test, drawn from the published parts; *trained* is the
  small network of `configs/omniglot/triplet.yaml`. Photographs: EfficientNet-lite0 at 192 px (CUB), 128 (LFW)
  and 112 (Grocery).
- How the perfect ECE is drawn was corrected once, after ten divisions had been looked at and before those of
  this page were measured: weighted queries had made it too large, and so the difference too small.
- What was tried for near unknowns, and what came of it on training classes, is in `docs/answers.md`. A free face
  network (dlib's) is [beside ours](../faces/README.md), two pictures are compared [there](../pairs/README.md).
"""


def averaged(values: Sequence[Any]) -> Any:
    """The mean of numbers and of truth values, leaf by leaf of dictionaries and lists; what is None is left out."""
    first = values[0]
    if isinstance(first, dict):
        return {name: averaged([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [averaged(list(column)) for column in zip(*values, strict=True)]
    there = [float(value) for value in values if value is not None]
    return sum(there) / len(there) if there else None


def summary(records: Sequence[Record]) -> Record:
    """Means over the divisions of one set, with what is answered under the target itself."""
    for record in records:
        for promise in record["promise"].values():
            promise["answers"] = promise["known_answered"] * record["known"]
            promise["under_target"] = promise["coverage"] if promise["met"] else 0.0
            promise["nothing"] = promise["bound"] >= 1
    found = averaged(
        [{name: value for name, value in record.items() if name != "seed"} for record in records]
    )
    gains = torch.tensor([record["top1"]["label"] - record["top1"]["first_hit"] for record in records])
    areas = torch.tensor([record["auroc"]["0.5"]["now"] for record in records])
    spread = {"top1_gain": gains, "auroc_0.5": areas}
    found["deviation"] = {
        name: float(value.std()) if len(value) > 1 else None for name, value in spread.items()
    }
    for terms, promise in found["promise"].items():
        if terms.startswith("0/"):
            promise["truly"] = truly_broken([record["promise"][terms] for record in records])
    return {"divisions": len(records), "evidence": EVIDENCE, **found}


def truly_broken(promises: Sequence[Record]) -> float | None:
    """In which share of divisions the true R is above what was promised, where no query is unknown.

    R as counted scatters over divisions because it is counted on some hundred answers, and because thresholds and
    labels differ. The variance of counting is R (1 − R)/answers; what is left is the true R's, taken as normal.
    """
    there = [one for one in promises if one["risk"] is not None]
    if len(there) < 2:
        return None
    risk, answers, bound = (
        torch.tensor([float(one[name]) for one in there], dtype=torch.double)
        for name in ("risk", "answers", "bound")
    )
    mean = risk.mean()
    counting = (mean * (1 - mean) / answers.clamp_min(1)).mean()
    true = (risk.var() - counting).clamp_min(1e-12).sqrt()
    return float(torch.special.ndtr((mean - bound) / true).mean())


def write_results(divisions: Path, out: Path) -> None:
    """open-set.json and README.md from the files of divisions; sets without such keep what was measured earlier."""
    before = out / "open-set.json"
    sets = json.loads(before.read_text())["sets"] if before.exists() else {}
    for path in sorted(divisions.glob("*.jsonl")):
        records = read(path)
        if records:
            sets[path.stem] = _rounded(summary(records))
    result = {
        "command": "python benchmarks/open_set.py --cache features --run NAME=FOLDER",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "sets": dict(sorted(sets.items())),
    }
    write_page(out, "open-set", result, page(result["sets"]))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, 5) if isinstance(value, float) else value


def page(sets: dict[str, Record]) -> str:
    """The whole page, Markdown."""
    parts = [
        "# Open sets: answers where some queries show what is not in the gallery",
        "Made by `benchmarks/open_set.py`, whose docstring is the protocol; the numbers are in `open-set.json`. "
        "Features of EfficientNet-lite0 as it is, half-whitened (*frozen*), and of a trained network (*trained*). "
        "Means over random divisions of labels into gallery and unknown ones, which share their photos, so they "
        "are not independent. " + _progress(sets),
        _against_the_bars(sets),
        "## What is looked at\n\n" + _sizes(sets),
        "## The promise\n\nπ: share of unknown queries. *met*: divisions in which the target can be promised; "
        "*least*: the mean of what is promised, the target or the least bound in its place. *broken*: R above "
        "what was promised as counted, in brackets significantly so; of all divisions. *truly*, at π = 0: the "
        "share whose true R is above, estimated from how R scatters less what counting makes it scatter. "
        "*answered*: coverage "
        "under the target, 0 where it is not met, beside the oracle's. The old rule always holds to the target.\n\n"
        + _promises(sets),
        "## Top-1 of known queries\n\n" + _top1(sets),
        "## Calibration of the distribution, none of these included\n\nECE as measured − ECE of a perfect "
        "distribution with as many queries; after the semicolon the ECE of all divisions' queries together.\n\n"
        + _calibration(sets),
        "## Right answers against wrong ones and unknown queries\n\nAUROC of each rule's probability for its own "
        "answers, and of what the distribution gives the first hit's label, for the old rule's answers. FNIR and "
        "OSCR: now, in brackets by the old rule's probability.\n\n" + _separation(sets),
        NOTES,
    ]
    return "\n\n".join(parts) + "\n"


def _progress(sets: dict[str, Record]) -> str:
    """How many divisions there are, where they are fewer than were asked for."""
    fewest = min((found["divisions"] for found in sets.values()), default=0)
    told = f"**{ASKED} divisions were asked for; there are {fewest} so far** (of some sets more)."
    if fewest >= ASKED:
        told = f"{fewest} divisions."
    earlier = [key for key, found in sets.items() if found.get("evidence") != EVIDENCE]
    if not earlier:
        return told
    return (
        f"{told} Of {', '.join(earlier)} there is what an earlier version's evidence came to: their networks were "
        "not at hand when it changed."
    )


def _name(key: str) -> str:
    data, kind = key.rsplit("-", 1)
    return f"{TITLES.get(data, data)}, {kind}"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _sizes(sets: dict[str, Record]) -> str:
    head = ["set", "divisions", "gallery labels", "gallery photos", "known queries", "unknown queries"]
    names = ("labels", "gallery", "known", "unknown")
    rows = [
        [_name(key), str(found["divisions"]), *(f"{found[name]:.0f}" for name in names)]
        for key, found in sets.items()
    ]
    return _table(head, rows)


def _promises(sets: dict[str, Record]) -> str:
    head = ["set", "π", "target", "met", "least", "R", "broken (surely)", "truly", "answered", "oracle"]
    head += ["old: R", "old: broken (surely)", "old: answered"]
    rows = []
    for key, found in sets.items():
        for terms, now in found["promise"].items():
            old = now["old"]
            rows.append(
                [
                    _name(key),
                    *terms.split("/"),
                    _number(now["met"], 2),
                    _number(now["bound"]),
                    _number(now["risk"]),
                    f"{_number(now['broken'])} ({_number(now['surely'])})",
                    _number(now.get("truly")),
                    _number(now["under_target"]),
                    _number(now["oracle"]),
                    _number(old["risk"]),
                    f"{_number(old['broken'])} ({_number(old['surely'])})",
                    _number(old["coverage"]),
                ]
            )
    return _table(head, rows)


def _top1(sets: dict[str, Record]) -> str:
    head = ["set", "by label", "first hit", "gain", "vote, exp", "vote, cosine", "less the better vote"]
    rows = []
    for key, found in sets.items():
        top1 = found["top1"]
        vote = max(top1["vote"], top1["vote_cosine"])
        values = (
            top1["label"],
            top1["first_hit"],
            top1["label"] - top1["first_hit"],
            top1["vote"],
            top1["vote_cosine"],
            top1["label"] - vote,
        )
        rows.append([_name(key), *(_number(value) for value in values)])
    return _table(head, rows)


def _calibration(sets: dict[str, Record]) -> str:
    names = ("top", "first", "second", "none")
    rows = []
    for key, found in sets.items():
        for share, errors in found["ece"].items():
            cells = []
            for name in names:
                one = errors[name]
                excess = f"**{_number(one['error'] - one['perfect'])}**"
                cells.append(
                    f"{_number(one['error'])} − {_number(one['perfect'])} = {excess}; {_number(_pooled(one))}"
                )
            rows.append([_name(key), share, *cells])
    return _table(["set", "π", "top of all", "first label", "second label", "none"], rows)


def _pooled(errors: Record) -> float:
    """The ECE of all divisions' queries together, from the mean of what each adds to the bins."""
    return sum(abs(value) for value in errors["bins"])


def _separation(sets: dict[str, Record]) -> str:
    head = ["set"]
    for share in ("0.5", "0.1"):
        head += [f"AUROC, π = {share}", "old", "now, of first hits"]
    head += ["FNIR@FPIR .01", "FNIR@FPIR .1", "OSCR"]
    rows = []
    for key, found in sets.items():
        cells = [_name(key)]
        for share in ("0.5", "0.1"):
            areas = found["auroc"][share]
            cells += [_number(areas[name]) for name in ("now", "old", "now_of_first_hit")]
        now, old = found["open"]["now"], found["open"]["old"]
        cells += [
            f"{_number(now[name])} ({_number(old[name])})"
            for name in ("fnir@fpir0.01", "fnir@fpir0.1", "oscr")
        ]
        rows.append(cells)
    return _table(head, rows)


def _against_the_bars(sets: dict[str, Record]) -> str:
    """What issue 26 asks, set by set that misses it."""
    birds = {key: found for key, found in sets.items() if key.startswith("cub")}
    lines = ["## Against what was asked\n"]
    for sentence, looked_at, missed in (
        ("Promises broken in at most 5 % of divisions, as counted", sets, _broken(sets, "broken")),
        ("The same beyond the noise of counting", sets, _broken(sets, "surely")),
        ("The same of the true R, estimated, at π = 0", sets, _broken(sets, "truly")),
        ("Top-1 by label at least 5 points above the first hit on CUB", birds, _misses(birds, _gain)),
        ("Top-1 by label at most half a point below the better vote", sets, _misses(sets, _below_vote)),
        ("ECE at most .02 above a perfect distribution's", sets, _misses(sets, _above_perfect)),
        ("AUROC on CUB at least .88 frozen, .90 trained (π = .5)", birds, _misses(birds, _area)),
    ):
        verdict = "met" if looked_at else "not measured"
        lines.append(f"- {sentence}: {'**not met**: ' + '; '.join(missed) if missed else verdict}.")
    return "\n".join(lines)


def _broken(sets: dict[str, Record], how: str) -> list[str]:
    missed = []
    for key, found in sets.items():
        count = found["divisions"]
        for terms, promise in found["promise"].items():
            if (promise.get(how) or 0.0) > ALLOWED + 1e-9:
                share, target = terms.split("/")
                missed.append(f"{key} π {share} target {target}: {round(promise[how] * count)} of {count}")
    return missed


def _misses(sets: dict[str, Record], by: Callable[[str, Record], str | None]) -> list[str]:
    return [f"{key} {text}" for key, found in sets.items() if (text := by(key, found)) is not None]


def _gain(_key: str, found: Record) -> str | None:
    gain = found["top1"]["label"] - found["top1"]["first_hit"]
    return _number(gain) if gain < 0.05 else None


def _below_vote(_key: str, found: Record) -> str | None:
    top1 = found["top1"]
    gain = top1["label"] - max(top1["vote"], top1["vote_cosine"])
    return _number(gain) if gain < -0.005 else None


def _above_perfect(_key: str, found: Record) -> str | None:
    worst = [
        f"π {share} {name} {_number(one['error'] - one['perfect'])}"
        for share, errors in found["ece"].items()
        for name, one in errors.items()
        if one["error"] - one["perfect"] > 0.02
    ]
    return ", ".join(worst) or None


def _area(key: str, found: Record) -> str | None:
    wanted = {"cub-frozen": 0.88, "cub-trained": 0.9}.get(key)
    area = found["auroc"]["0.5"]["now"]
    return _number(area) if wanted is not None and area < wanted else None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("divisions", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "open-set")
    options = parser.parse_args()
    write_results(options.divisions, options.out)


if __name__ == "__main__":
    main()
