"""Every uncertainty of an evaluation by name: the learned one, the pair's, the free baselines, and those given."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation.setting import Setting
from doubtless.metrics.ranking import check_scores
from doubtless.metrics.uncertainty import DEPTH, NAMES, free_uncertainties
from doubtless.search.neighbors import Neighbors

LEARNED = "uncertainty"
MATCH = "match"  # query + its first neighbour
VALUES = "values"  # of measures that need no uncertainty
ORACLE = "oracle"

Doubts = dict[str, Tensor]
"""Name → (n,), higher is less sure."""


def query_doubts(
    setting: Setting,
    found: Neighbors,
    *,
    uncertainty: Tensor | None = None,
    gallery_uncertainty: Tensor | None = None,
) -> Doubts:
    """Of every query: the free baselines, the learned uncertainty where there is one, and the pair's."""
    doubts = free_uncertainties(setting.search.cosines(setting.embedding, found), setting.embedding.location)
    own = setting.embedding.uncertainty if uncertainty is None else uncertainty
    if own is None:
        return doubts
    doubts[LEARNED] = _checked(own, setting.embedding, "uncertainty")
    if setting.leave_one_out:
        others: Tensor | None = doubts[LEARNED]
    elif gallery_uncertainty is not None or uncertainty is not None:
        others = gallery_uncertainty
    else:
        others = setting.gallery.uncertainty
    if others is not None:
        others = _checked(others, setting.gallery, "gallery_uncertainty")
        doubts[MATCH] = doubts[LEARNED] + others[found.index[:, 0]]
    return doubts


def stranger_doubts(
    setting: Setting,
    strangers: Mapping[str, Embedding],
    *,
    from_outside: bool = False,
    uncertainty: Mapping[str, Tensor] | None = None,
) -> dict[str, Doubts]:
    """The same of every OOD set, which queries the whole gallery.

    Where the queries' uncertainty came from outside, only one from outside may stand beside it.
    """
    given = uncertainty or {}
    if unknown := set(given) - set(strangers):
        raise InputError(f"ood_uncertainty names {sorted(unknown)}, which are not among the OOD sets.")
    result = {}
    for name, stranger in strangers.items():
        if stranger.dim != setting.embedding.dim or not len(stranger):
            raise InputError(
                f"the OOD set {name!r} has {len(stranger)} items of {stranger.dim} dimensions; it needs items "
                f"of {setting.embedding.dim} dimensions, as the queries have."
            )
        stranger = stranger.detach().to(setting.embedding.device)
        depth = min(DEPTH, len(setting.gallery))
        found = setting.search.nearest(stranger, k=depth)
        doubts = free_uncertainties(setting.search.cosines(stranger, found), stranger.location)
        own = given.get(name) if from_outside or name in given else stranger.uncertainty
        if own is not None:
            doubts[LEARNED] = _checked(own, stranger, f"the uncertainty of {name}")
        result[name] = doubts
    return result


def given_doubts(
    setting: Setting,
    doubts: Mapping[str, Tensor] | None,
    strangers: Mapping[str, Embedding],
    stranger_doubts: Mapping[str, Mapping[str, Tensor]] | None,
) -> tuple[Doubts, dict[str, Doubts]]:
    """Further doubts that came from outside, by name: of the queries, and of the OOD sets."""
    given = doubts or {}
    foreign = stranger_doubts or {}
    if taken := set(given) & {LEARNED, MATCH, VALUES, ORACLE, *NAMES}:
        raise InputError(f"doubts named {sorted(taken)} are measured already; give them another name.")
    if unknown := set(foreign) - set(strangers):
        raise InputError(f"ood_doubts names {sorted(unknown)}, which are not among the OOD sets.")
    if unknown := {name for found in foreign.values() for name in found} - set(given):
        raise InputError(f"ood_doubts names {sorted(unknown)}, which the queries do not have.")
    return {
        name: _checked(values, setting.embedding, f"the doubt {name!r}") for name, values in given.items()
    }, {
        name: {
            source: _checked(
                values, strangers[name].to(setting.embedding.device), f"the doubt {source!r} of {name}"
            )
            for source, values in found.items()
        }
        for name, found in foreign.items()
    }


def _checked(values: Tensor, embedding: Embedding, name: str) -> Tensor:
    """One rankable number an item, in float64 on the embedding's device."""
    if tuple(values.shape) != (len(embedding),):
        raise InputError(f"{name} must have shape ({len(embedding)},), got {tuple(values.shape)}.")
    check_scores(values, name)
    return values.detach().to(device=embedding.device, dtype=torch.double)
