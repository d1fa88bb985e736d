"""Every uncertainty of an evaluation by name: the learned one, the pair's, the free baselines, and those given."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation.options import GivenScores
from doubtless.evaluation.setting import Setting
from doubtless.metrics.ranking import check_scores
from doubtless.metrics.uncertainty import DEPTH, NAMES, free_uncertainties
from doubtless.search.neighbors import Neighbors

LEARNED = "uncertainty"
MATCH = "match"  # query + its first neighbour
VALUES = "values"  # of measures that need no uncertainty
ORACLE = "oracle"

Uncertainties = dict[str, Tensor]
"""Name → (n,), higher is less sure."""


def query_uncertainties(setting: Setting, neighbors: Neighbors, given: GivenScores) -> Uncertainties:
    """Of every query: the free baselines, the learned uncertainty where there is one, and the pair's."""
    cosines = setting.search.cosines(setting.embedding, neighbors)
    uncertainties = free_uncertainties(cosines, setting.embedding.location)
    learned = setting.embedding.uncertainty if given.uncertainty is None else given.uncertainty
    if learned is None:
        return uncertainties
    uncertainties[LEARNED] = _checked(learned, setting.embedding, "uncertainty")
    if setting.leave_one_out:
        of_gallery: Tensor | None = uncertainties[LEARNED]
    elif given.gallery_uncertainty is not None or given.uncertainty is not None:
        of_gallery = given.gallery_uncertainty
    else:
        of_gallery = setting.gallery.uncertainty
    if of_gallery is not None:
        of_gallery = _checked(of_gallery, setting.gallery, "gallery_uncertainty")
        uncertainties[MATCH] = uncertainties[LEARNED] + of_gallery[neighbors.index[:, 0]]
    return uncertainties


def ood_uncertainties(
    setting: Setting, ood: Mapping[str, Embedding], given: GivenScores
) -> dict[str, Uncertainties]:
    """The same of every out-of-distribution set, which queries the whole gallery.

    Where the queries' uncertainty came from outside, only one from outside may stand beside it.
    """
    if unknown := set(given.ood_uncertainty) - set(ood):
        raise InputError(f"The ood_uncertainty names {sorted(unknown)}, which are not among the OOD sets.")
    result = {}
    for name, embedding in ood.items():
        if embedding.dim != setting.embedding.dim or not len(embedding):
            raise InputError(
                f"The OOD set {name!r} has {len(embedding)} items of {embedding.dim} dimensions; it needs items "
                f"of {setting.embedding.dim} dimensions, as the queries have."
            )
        embedding = embedding.detach().to(setting.embedding.device)
        neighbors = setting.search.nearest(embedding, k=min(DEPTH, len(setting.gallery)))
        uncertainties = free_uncertainties(setting.search.cosines(embedding, neighbors), embedding.location)
        from_outside = given.uncertainty is not None or name in given.ood_uncertainty
        learned = given.ood_uncertainty.get(name) if from_outside else embedding.uncertainty
        if learned is not None:
            uncertainties[LEARNED] = _checked(learned, embedding, f"uncertainty of {name}")
        result[name] = uncertainties
    return result


def given_uncertainties(
    setting: Setting, ood: Mapping[str, Embedding], given: GivenScores
) -> tuple[Uncertainties, dict[str, Uncertainties]]:
    """The doubts that came from outside, by name: of the queries, and of the out-of-distribution sets."""
    if taken := set(given.doubts) & {LEARNED, MATCH, VALUES, ORACLE, *NAMES}:
        raise InputError(f"The doubts {sorted(taken)} are measured already; give them other names.")
    if unknown := set(given.ood_doubts) - set(ood):
        raise InputError(f"The ood_doubts name {sorted(unknown)}, which are not among the OOD sets.")
    if unknown := {name for doubts in given.ood_doubts.values() for name in doubts} - set(given.doubts):
        raise InputError(f"The ood_doubts name {sorted(unknown)}, which the queries do not have.")
    of_queries = {
        name: _checked(values, setting.embedding, f"doubt {name!r}") for name, values in given.doubts.items()
    }
    of_ood = {
        dataset: {
            name: _checked(values, ood[dataset].to(setting.embedding.device), f"doubt {name!r} of {dataset}")
            for name, values in doubts.items()
        }
        for dataset, doubts in given.ood_doubts.items()
    }
    return of_queries, of_ood


def _checked(values: Tensor, embedding: Embedding, name: str) -> Tensor:
    """One rankable number per item, in float64 on the embedding's device."""
    if tuple(values.shape) != (len(embedding),):
        raise InputError(f"The {name} must have shape ({len(embedding)},), got {tuple(values.shape)}.")
    check_scores(values, name)
    return values.detach().to(device=embedding.device, dtype=torch.double)
