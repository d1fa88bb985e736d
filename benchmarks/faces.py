"""Faces of people who are not in the gallery: a face network of others beside ours, and its threshold of 0.6.

    python benchmarks/faces.py --cache features --divisions 20       # pip install 'doubtless[peers]'

The network is dlib's ResNet, 128 numbers per face, whose weights `face_recognition_models` gives away (CC0). It
was trained on three million faces, without LFW's people by its author's word; ours on ImageNet (*lite0*,
half-whitened by the training people) and, where the cache has `trained-lfw.pt`, on the 4,038 people of LFW's
training part. LFW lies here as crops of 90 × 90 around the face, so no face is looked for: dlib's five landmarks
are sought with the whole crop as the face's rectangle, and the face is turned and scaled by them to 150 × 150 (it
reaches beyond the crop; what is missing is black). On 240 pairs of training people that is as good as its detector
(AUROC .999). dlib says nothing of its distances but that two faces nearer than 0.6 are taken for one person's.

Divisions, queries and FNIR, OSCR are those of open_set.py; pairs are those of pairsDevTest.txt. *Nearest*: a query
is as sure as its nearest item is near. *Distribution*: as its most probable label is probable at π = .1.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from divisions import Photos, Record, arguments, divide, frozen_photos, kept, write_page
from frozen_features import frozen_features
from open_set import own_searches, same_classes, searched, trained_photos
from open_set_measures import Asked, of_open_sets
from open_set_page import averaged
from pairs import published
from pairs_page import table
from torch import Tensor

from doubtless.calibration.evidence.evidence import evidence
from doubtless.calibration.searches import fit_distribution
from doubtless.data import open_source
from doubtless.data.source import locate
from doubtless.errors import InputError
from doubtless.metrics.verification import CELLS, PairCounts, equal_error_rate, tar_at_far

FOLK = 0.6
"""Distance below which dlib's users take two faces for one person's."""
RATES = (0.1, 0.01)
RESULTS = Path(__file__).parent / "results" / "faces"
TITLES = {
    "lite0": "EfficientNet-lite0",
    "trained": "EfficientNet-lite0, trained",
    "dlib": "dlib's face network",
}


def dlib_faces(cache: Path) -> dict[str, Tensor]:
    """Descriptors (n, 128) of LFW's test people by dlib, from the cache or made now: about 80 ms per face."""
    path = cache / "dlib-lfw.pt"
    if not path.exists():
        source = open_source("lfw:lfw")
        assert source.given_split is not None
        rows = (source.given_split == 1).nonzero().squeeze(1)
        describe = _dlib()
        vectors = torch.stack([describe(source.image(int(row))) for row in rows])
        cache.mkdir(parents=True, exist_ok=True)
        torch.save({"vectors": vectors, "labels": source.labels[rows]}, path)
    return dict(torch.load(path))


def _dlib() -> Any:
    """Image (3, H, W) of a face → its descriptor (128,)."""
    try:
        import dlib  # type: ignore[import-not-found]
    except ImportError as error:
        raise InputError("dlib is not installed; pip install 'doubtless[peers]' brings it.") from error
    # Not imported: the package imports pkg_resources, which new setuptools no longer have.
    package = importlib.util.find_spec("face_recognition_models")
    if package is None or package.submodule_search_locations is None:
        raise InputError(
            "face_recognition_models is not installed; pip install 'doubtless[peers]' brings it."
        )
    models = Path(package.submodule_search_locations[0]) / "models"
    landmarks = dlib.shape_predictor(str(models / "shape_predictor_5_face_landmarks.dat"))
    network = dlib.face_recognition_model_v1(str(models / "dlib_face_recognition_resnet_model_v1.dat"))

    def describe(image: Tensor) -> Tensor:
        pixels = image.permute(1, 2, 0).contiguous().numpy()
        whole = dlib.rectangle(0, 0, pixels.shape[1] - 1, pixels.shape[0] - 1)
        return torch.tensor(list(network.compute_face_descriptor(pixels, landmarks(pixels, whole))))

    return describe


def identified(photos: Photos, seed: int, raw: Tensor | None = None) -> Record:
    """One division: by the nearest item, by the distribution, by the distance of descriptors (n, 128)."""
    division = divide(photos.labels, seed)
    known, queries = len(division.known), torch.cat([division.known, division.unknown])
    label = photos.labels[queries]
    hits = searched(photos, queries, division.gallery)
    right = hits.label[:, 0] == label

    def asked(doubt: Tensor, correct: Tensor) -> Asked:
        return Asked(doubt[:known], correct[:known], doubt[known:], label[known:])

    searches = own_searches(photos, division.gallery)
    fitted = fit_distribution(searches)
    given = evidence(hits, fitted.model.by, vectors=searches.vectors)
    first, chance = fitted.model.weights(given, unknown=0.1).first
    found: Record = {
        "nearest": of_open_sets(asked(1 - hits.score[:, 0].double(), right)) | {"top1": _mean(right[:known])},
        "distribution": of_open_sets(asked(1 - chance, first == label))
        | {"top1": _mean((first == label)[:known])},
    }
    if raw is not None:
        apart = torch.cdist(raw[queries].double(), raw[division.gallery].double())
        distance, place = apart.min(1)
        right = photos.labels[division.gallery][place] == label
        near = distance < FOLK
        weight = asked(distance, right).unknown_weight
        found["nearest"] = of_open_sets(asked(distance, right)) | {"top1": _mean(right[:known])}
        found["folk"] = {
            "unknown_accepted": float((near[known:].double() * weight).sum()),
            "right": _mean((near & right)[:known]),
            "wrong": _mean((near & ~right)[:known]),
        }
    return found


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def verified(likeness: Tensor, same: Tensor, accepted: Tensor | None = None) -> Record:
    """TAR at FAR and EER of likenesses (n,) in [−1, 1] of pairs, same or not (n,); and of `accepted` ones (n,)."""
    cell = ((likeness + 1) * (CELLS / 2)).long().clamp(0, CELLS - 1)
    counts = PairCounts(cell[same].bincount(minlength=CELLS), cell[~same].bincount(minlength=CELLS))
    found: Record = {f"tar@{rate:g}": tar_at_far(counts, rate) for rate in RATES}
    found["eer"] = equal_error_rate(counts)
    if accepted is not None:
        found |= {"folk_tar": _mean(accepted[same]), "folk_far": _mean(accepted[~same])}
    return found


def published_pairs(cache: Path) -> tuple[Tensor, Tensor]:
    """Pairs (n, 2) of pairsDevTest.txt as rows of the test people's photos, and whether they show one person."""
    lists = locate("lfw")
    folder = next((lists / name for name in ("lfw", "lfw-deepfunneled") if (lists / name).is_dir()), lists)
    people = sorted(child.name for child in folder.iterdir() if child.is_dir())
    names = [file.stem for person in people for file in sorted((folder / person).iterdir())]
    test = frozen_features("all-lfw", cache)["test"]
    own = [name for name, of_test in zip(names, test.tolist(), strict=True) if of_test]
    place = {name: row for row, name in enumerate(own)}
    found = list(published(lists / "pairsDevTest.txt"))
    pairs = torch.tensor([(place[f"{a}_{i:04d}"], place[f"{b}_{j:04d}"]) for a, i, b, j in found])
    return pairs, torch.tensor([one == other for one, _, other, _ in found])


def networks(cache: Path) -> dict[str, tuple[Photos, Tensor | None]]:
    """Name → photos of the same people, and dlib's own descriptors where it is dlib."""
    frozen = frozen_photos("lfw", cache)
    faces = dlib_faces(cache)
    ours = {"lite0": (frozen, None)}
    trained = trained_photos("lfw", cache, None)
    if trained is not None:
        ours["trained"] = (same_classes(trained, frozen), None)
    unit = torch.nn.functional.normalize(faces["vectors"], dim=1)
    return {**ours, "dlib": (Photos(unit, faces["labels"]), faces["vectors"])}


def measured(cache: Path, divisions: int) -> dict[str, Record]:
    """All of it, per network; divisions that were measured are taken from the cache."""
    pairs, same = published_pairs(cache)
    results: dict[str, Record] = {}
    for name, (photos, raw) in networks(cache).items():
        made = partial(_identified, photos, raw)
        records = kept(cache / "faces" / f"{name}.jsonl", divisions, made)
        one, other = (photos.vectors if raw is None else raw).double()[pairs.T]
        if raw is None:
            checked = verified((one * other).sum(1), same)
        else:
            distance = (one - other).norm(dim=1)
            checked = verified(1 - distance, same, distance < FOLK)
        results[name] = {"divisions": len(records), **averaged(records), "pairs": checked}
    return results


def _identified(photos: Photos, raw: Tensor | None, seeds: range) -> Iterator[Record]:
    return (identified(photos, seed, raw) for seed in seeds)


def page(results: dict[str, Record]) -> str:
    """Markdown."""
    cells = [["network", "by", "top-1", "FNIR@FPIR .01", "DIR", "FNIR@FPIR .1", "DIR", "OSCR"]]
    checked = [["network", *(f"TAR@FAR {rate:g}" for rate in RATES), "EER"]]
    for name, found in results.items():
        for by in ("nearest", "distribution"):
            one = found[by]
            strict, loose = one["fnir@fpir0.01"], one["fnir@fpir0.1"]
            values = (one["top1"], strict, 1 - strict, loose, 1 - loose, one["oscr"])
            cells.append([TITLES[name], by, *(f"{value:.3f}" for value in values)])
        pairs = found["pairs"]
        values = (*(pairs[f"tar@{rate:g}"] for rate in RATES), pairs["eer"])
        checked.append([TITLES[name], *(f"{value:.3f}" for value in values)])
    folk, pairs = results["dlib"]["folk"], results["dlib"]["pairs"]
    fewest = min(found["divisions"] for found in results.values())
    parts = [
        "# Faces of people who are not in the gallery",
        "Made by `benchmarks/faces.py`, whose docstring says what is compared and how the crops reach dlib's "
        f"network. 1,711 test people of LFW, half of them in the gallery; means over {fewest} random divisions. "
        "DIR: known queries that are answered, and rightly.",
        table(cells),
        "Pairs of pairsDevTest.txt:",
        table(checked),
        f"**The threshold of 0.6.** Of dlib's nearest faces {folk['right']:.1%} of the known queries are answered "
        f"rightly and {folk['wrong']:.1%} wrongly, and {folk['unknown_accepted']:.1%} of the photos of people who "
        f"are not in the gallery are taken for somebody who is. On single pairs it accepts {pairs['folk_tar']:.1%} "
        f"of one person and {pairs['folk_far']:.1%} of two: a threshold for pairs says little of a search, "
        "in which the nearest of many faces is what is compared.",
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    options = arguments(__doc__, divisions=20, results=RESULTS).parse_args()
    results = measured(options.cache, options.divisions)
    write_page(options.out, "faces", results, page(results))


if __name__ == "__main__":
    main()
