"""One photo per product, calibrated on a folder of labelled query photos: is the promise kept?

    python benchmarks/one_photo.py --cache features        # 50 divisions of Grocery Store's 81 products

In each division 50 products are in the gallery with one photo each, 10 other photos of each are the queries that
`calibrate --queries` is given, and up to 15 further photos of each are asked, as are 10 of each of the 31 products
that are not in the gallery. The share of wrong answers, where a tenth of the queries shows what is not there, is

    R = (.9 · wrong + .1 · strangers answered) / (.9 · answered + .1 · strangers answered)

and a promise is broken where R exceeds it. Features are those of the network that `doubtless create` takes, not
trained further, as they are and half-whitened by the gallery's own 50 photos. A division that is in the results is
not made again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless import Embedding, Gallery
from doubtless.data import open_source
from doubtless.files import write_json, write_text
from doubtless.laplace import half_whitened
from doubtless.runs.names import DEFAULT_MODEL, open_model

RESULTS = Path(__file__).parent / "results" / "one-photo"
PRODUCTS, QUERIES, ASKED, STRANGERS, UNKNOWN = 50, 10, 15, 10, 0.1
TARGETS = (0.05, 0.1, 0.2, 0.3)
HEADS = ("raw", "half-whitened")


def features_of_grocery(cache: Path) -> dict[str, Tensor]:
    """Features (n, F) and labels (n,) of all photos, by the network that `doubtless create` takes."""
    path = cache / "grocery-default.pt"
    if not path.exists():
        source, model = open_source("folder:grocery"), open_model(DEFAULT_MODEL)
        parts = [
            model.describe([source.image(row) for row in rows.tolist()]).features
            for rows in torch.arange(len(source)).split(64)
        ]
        cache.mkdir(parents=True, exist_ok=True)
        torch.save({"features": torch.cat(parts), "labels": source.labels}, path)
    return dict(torch.load(path))


def divided(labels: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of the gallery, of the queries to calibrate on, of known ones to ask and of strangers."""
    generator = torch.Generator().manual_seed(seed)
    products = labels.unique()
    inside = products[torch.randperm(len(products), generator=generator)[:PRODUCTS]]
    gallery, queries, known = list[Tensor](), list[Tensor](), list[Tensor]()
    for product in inside:
        rows = (labels == product).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=generator)]
        gallery.append(rows[:1])
        queries.append(rows[1 : 1 + QUERIES])
        known.append(rows[1 + QUERIES :][:ASKED])
    outside = products[~torch.isin(products, inside)]
    strangers = [(labels == product).nonzero().squeeze(1)[:STRANGERS] for product in outside]
    return torch.cat(gallery), torch.cat(queries), torch.cat(known), torch.cat(strangers)


def came_to(least: float, sure: Tensor, right: Tensor, known: Tensor) -> dict[str, float]:
    """What is answered from a sureness on, of known queries and of strangers, and how much of that is wrong."""
    answered = sure >= least
    share, absent = float(answered[known].float().mean()), float(answered[~known].float().mean())
    wrong = float((answered & ~right)[known].float().mean())
    total = (1 - UNKNOWN) * share + UNKNOWN * absent
    risk = 0.0 if total == 0 else ((1 - UNKNOWN) * wrong + UNKNOWN * absent) / total
    return {"answered": share, "wrong": wrong, "strangers_answered": absent, "risk": risk}


def division(features: Tensor, labels: Tensor, seed: int, head: str) -> dict[str, Any]:
    """One division: what is promised at each target, or failing that the least that can be, and what came of it."""
    gallery, queries, known, strangers = divided(labels, seed)
    if head == "half-whitened":
        weight, bias = half_whitened(features[gallery], len(gallery) - 1)
        assert bias is not None
        features = features @ weight.T + bias
    names = [f"product {label}" for label in labels.tolist()]
    found: dict[str, Any] = {"seed": seed, "head": head, "targets": {}}

    def of(rows: Tensor) -> tuple[Embedding, list[str]]:
        return Embedding.point(features[rows]), [names[row] for row in rows.tolist()]

    with tempfile.TemporaryDirectory() as place:
        items, item_labels = of(gallery)
        with Gallery.create(f"{place}/shop", embedding=items, labels=item_labels) as shop:
            outside, outside_labels = of(queries)
            record = shop.calibrate(queries=outside, labels=outside_labels)
            asked, truth = of(torch.cat([known, strangers]))
            told = shop.ask(asked).distribution
            assert told is not None
            answers = [shop.index.label_names[code] for code in told.first[0].tolist()]
        right = torch.tensor([one == other for one, other in zip(answers, truth, strict=True)])
        is_known = torch.arange(len(truth)) < len(known)
        found |= {"top1": record["top1"], "none_auroc": record["none_auroc"]}
        for target in TARGETS:
            with Gallery.open(f"{place}/shop", target_error=target) as shop:
                promise = shop.judge.promise()
            assert promise is not None
            threshold = promise["threshold"]
            least = torch.inf if threshold is None else 1 - threshold
            promised = target if promise["met"] else promise["bound"]
            came = came_to(least, told.sureness, right, is_known)
            found["targets"][str(target)] = {"met": promise["met"], "promised": promised, **came}
    return found


def summary(divisions: list[dict[str, Any]]) -> dict[str, Any]:
    """Per head and target: promises made, broken, and what was answered."""
    table: dict[str, Any] = {}
    for head in HEADS:
        some = [one for one in divisions if one["head"] == head]
        for target in TARGETS:
            rows = [one["targets"][str(target)] for one in some]
            made = [row for row in rows if row["answered"] + row["strangers_answered"] > 0]
            mean = {
                name: sum(row[name] for row in rows) / len(rows)
                for name in ("promised", "answered", "strangers_answered", "risk")
            }
            broken = sum(row["risk"] > row["promised"] for row in made)
            table[f"{head}, {target:.0%}"] = {
                "divisions": len(rows),
                "met": sum(row["met"] for row in rows),
                "answering": len(made),
                "broken": broken,
                **mean,
            }
    return table


def page(table: dict[str, Any], divisions: list[dict[str, Any]]) -> str:
    lines = [
        "# One photo per product",
        "",
        "Made by `python benchmarks/one_photo.py`, which says how. *met*: divisions in which what was asked for could",
        "be promised; elsewhere the least that can be is promised instead, or nothing is answered. *broken*: divisions",
        "in which more answers were wrong than promised. Shares are means over divisions.",
        "",
        "| features, asked for | divisions | met | answering | broken | promised | known answered | strangers "
        "answered | wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        counts = [str(row[key]) for key in ("divisions", "met", "answering", "broken")]
        shares = [f"{row[key]:.1%}" for key in ("promised", "answered", "strangers_answered", "risk")]
        lines.append(f"| {name} | {' | '.join(counts + shares)} |")
    for head in HEADS:
        right = [one["top1"] for one in divisions if one["head"] == head]
        lines += [
            "",
            f"Most probable label right, {head}: {sum(right) / len(right):.1%} of the known queries.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--divisions", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = features_of_grocery(options.cache)
    file = options.out / "results.json"
    divisions = json.loads(file.read_text())["divisions"] if file.is_file() else []
    done = {(one["seed"], one["head"]) for one in divisions}
    for seed in range(options.divisions):
        for head in HEADS:
            if (seed, head) not in done:
                divisions.append(division(data["features"].float(), data["labels"], seed, head))
                table = summary(divisions) if {one["head"] for one in divisions} == set(HEADS) else {}
                write_json(file, {"summary": table, "divisions": divisions})
                print(seed, head, divisions[-1]["targets"], flush=True)
    write_text(options.out / "README.md", page(summary(divisions), divisions))


if __name__ == "__main__":
    main()
