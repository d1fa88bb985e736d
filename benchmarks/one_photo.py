"""One photo per product, calibrated on a folder of labelled query photos: is the promise kept?

    python benchmarks/one_photo.py --cache features        # 200 divisions of Grocery Store's 81 products

In each division 50 products are in the gallery with one photo each, 10 other photos of each are the queries that
`calibrate --queries` is given, and up to 15 further photos of each are asked, as are 10 of each of the 31 products
that are not in the gallery. The share of wrong answers, where a share u of the queries shows what is not there, is

    R = ((1 − u) · wrong + u · strangers answered) / ((1 − u) · answered + u · strangers answered)

and a promise is broken where R exceeds it. R is counted on some ten to two hundred answers and scatters: *surely*
counts divisions in which a binomial test rejects, at 5 %, that it is at most what was promised; *truly* is the
share whose true R is above it, estimated from how R scatters where there are answers. Both are open_set.py's.
Labels are those of the gallery and stay, so every division is held to its own 50. Features are those of the network
that `doubtless create` takes, not trained further, as they are and half-whitened by the gallery's own 50 photos. A
division that is in the results is not made again.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from divisions import arguments
from open_set_measures import Asked
from open_set_page import truly_broken
from torch import Tensor

from doubtless import Embedding, Gallery
from doubtless.data import open_source
from doubtless.files import write_json, write_text
from doubtless.laplace import half_whitened
from doubtless.runs.names import DEFAULT_MODEL, open_model

RESULTS = Path(__file__).parent / "results" / "one-photo"
PRODUCTS, QUERIES, ASKED, STRANGERS = 50, 10, 15, 10
UNKNOWN = (0.0, 0.1)
TARGETS = (0.05, 0.1, 0.2, 0.3)
HEADS = ("raw", "half-whitened")
ENOUGH = 20
"""Divisions with answers that it takes to tell how far they scatter."""


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


def turned(features: Tensor, gallery: Tensor) -> Tensor:
    """Features in the space that the items span, (n, items), and how far they are from it: (n, items + 1).

    All that an answer looks at, similarities of queries to items and of items to each other, stays as it was; what
    it takes to compute falls by the factor that there are more features than items.
    """
    features = features.double()
    inside = features @ torch.linalg.qr(features[gallery].T).Q
    beyond = (features.square().sum(1) - inside.square().sum(1)).clamp_min(0).sqrt()
    beyond[gallery] = 0
    return torch.cat([inside, beyond.unsqueeze(1)], dim=1).float()


def came_to(asked: Asked, answered: Tensor, unknown: float, promised: float) -> dict[str, Any]:
    """What is answered (n,) of known queries and of strangers, how much of that is wrong, and whether that is more
    than was promised: as counted, and beyond the noise of counting."""
    found = asked.came_to(answered, unknown, promised)
    known = answered[: len(asked.known)]
    return {
        "answered": found["known_answered"],
        "answers": int(known.sum()),
        "wrong": float((known & ~asked.correct).double().mean()),
        "strangers_answered": found["unknown_answered"],
        "risk": found["risk"] or 0.0,
        "broken": found["broken"],
        "surely": found["surely"],
    }


def division(features: Tensor, labels: Tensor, seed: int, head: str) -> dict[str, Any]:
    """One division: what is promised at each target, or failing that the least that can be, and what came of it."""
    gallery, queries, known, strangers = divided(labels, seed)
    if head == "half-whitened":
        weight, bias = half_whitened(features[gallery], len(gallery) - 1)
        assert bias is not None
        features = features @ weight.T + bias
    else:
        features = turned(features, gallery)
    names = [f"product {label}" for label in labels.tolist()]
    found: dict[str, Any] = {"seed": seed, "head": head, "promises": {}}

    def of(rows: Tensor) -> tuple[Embedding, list[str]]:
        return Embedding.point(features[rows]), [names[row] for row in rows.tolist()]

    with tempfile.TemporaryDirectory() as folder:
        place, (items, item_labels) = f"{folder}/shop", of(gallery)
        with Gallery.create(place, embedding=items, labels=item_labels) as shop:
            outside, outside_labels = of(queries)
            record = shop.calibrate(queries=outside, labels=outside_labels)
        found |= {"top1": record["top1"], "none_auroc": record["none_auroc"]}
        photos, truth = of(torch.cat([known, strangers]))
        is_known = torch.arange(len(truth)) < len(known)
        for unknown in UNKNOWN:
            with Gallery.open(place, unknown=unknown) as shop:
                told = shop.ask(photos).distribution
                assert told is not None
                answers = [shop.index.label_names[code] for code in told.first[0].tolist()]
            right = torch.tensor([one == other for one, other in zip(answers, truth, strict=True)])
            doubt = 1 - told.sureness
            asked = Asked(doubt[is_known], right[is_known], doubt[~is_known], labels[strangers])
            for target in TARGETS:
                with Gallery.open(place, target_error=target, unknown=unknown) as shop:
                    promise = shop.judge.promise()
                assert promise is not None
                least = torch.inf if promise["threshold"] is None else 1 - promise["threshold"]
                promised = target if promise["met"] else promise["bound"]
                came = came_to(asked, told.sureness >= least, unknown, promised)
                found["promises"][name_of(target, unknown)] = {
                    "met": promise["met"],
                    "promised": promised,
                    **came,
                }
    return found


def name_of(target: float, unknown: float) -> str:
    return f"{target:.0%} with {unknown:.0%} unknown"


def summary(divisions: list[dict[str, Any]]) -> dict[str, Any]:
    """Per head and promise: in how many divisions it was met, broken, and what was answered."""
    table: dict[str, Any] = {}
    for head in HEADS:
        some = [one for one in divisions if one["head"] == head]
        for unknown, target in itertools.product(UNKNOWN, TARGETS):
            name = name_of(target, unknown)
            rows = [one["promises"][name] for one in some]
            made = [row for row in rows if row["answered"] + row["strangers_answered"] > 0]
            columns = ("promised", "answered", "strangers_answered", "risk")
            table[f"{head}, {name}"] = {
                "divisions": len(rows),
                "met": sum(row["met"] for row in rows),
                "answering": len(made),
                "broken": sum(row["broken"] for row in made),
                "surely": sum(row["surely"] for row in made),
                "truly": _truly(made, len(rows)) if unknown == 0 else None,
                **{column: sum(row[column] for row in rows) / len(rows) for column in columns},
            }
    return table


def _truly(made: list[dict[str, Any]], divisions: int) -> float | None:
    share = truly_broken([{**row, "bound": row["promised"]} for row in made]) if len(made) >= ENOUGH else None
    return None if share is None else share * len(made) / divisions


def page(table: dict[str, Any], divisions: list[dict[str, Any]]) -> str:
    lines = [
        "# One photo per product",
        "",
        "Made by `python benchmarks/one_photo.py`, which says how. *met*: divisions in which what was asked for",
        "could be promised; elsewhere the least that can be is promised instead, or nothing is answered. *broken*:",
        "divisions in which more answers were wrong than promised, as counted, and beyond the noise of counting",
        "(*surely*); 5 % of the divisions may. *truly*: the share of divisions whose true share of wrong",
        "answers is above what was promised, estimated from how the counted ones scatter. Shares are means over",
        "divisions.",
        "",
        "| features, asked for | divisions | met | answering | broken | surely | truly | promised | "
        "known answered | strangers answered | wrong |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        counts = [str(row[key]) for key in ("divisions", "met", "answering", "broken", "surely")]
        counts.append("–" if row["truly"] is None else f"{row['truly']:.1%}")
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
    options = arguments(__doc__, divisions=200, results=RESULTS).parse_args()
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
                print(seed, head, divisions[-1]["promises"], flush=True)
    write_text(options.out / "README.md", page(summary(divisions), divisions))


if __name__ == "__main__":
    main()
