"""Deep ensemble: networks from different seeds, their spaces turned onto each other, pooled to samples.

Lakshminarayanan, Pritzel and Blundell, *Simple and Scalable Predictive Uncertainty Estimation using Deep
Ensembles* (2017). Classifiers share their outputs' meaning, embeddings do not: two trainings end in spaces
that differ by a rotation, and a mean over unaligned ones is a mean over nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.config import Config, Section
from doubtless.errors import InputError, RunError
from doubtless.methods.base import BatchKind, DataSpec, Method, Subset
from doubtless.methods.configuration import make_config

MOST_MEMBERS = 1000


class EnsembleOptions(Section):
    """The section `ensemble` of a configuration."""

    members: int = Field(default=5, ge=2, le=MOST_MEMBERS)
    """Networks, each trained from a seed of its own."""
    align: bool = True
    """Turn the members' spaces onto each other before pooling; false to see what that is worth."""
    method: str = "deterministic"
    """What each member is; of its embedding the direction counts."""


class Ensemble(Method):
    """Members are runs of their own in `members/0`, `members/1`, … below the ensemble's run.

    They are loaded when first needed, always in evaluation mode, and are no part of the ensemble's state: that
    holds one orthogonal map per member, found on training images, and a fingerprint of the weights it belongs
    to. Its features are the members' unit embeddings side by side and what the first member had before its
    head, (n, members · D + F).

    A member that failed or was deleted is trained alone by resuming the ensemble. With `base`, another ensemble's
    run, nothing is trained: its members are pooled in another way.
    """

    name: ClassVar[str] = "ensemble"
    summary: ClassVar[str] = "networks of several seeds, aligned by orthogonal Procrustes, pooled to samples"
    sections: ClassVar[Mapping[str, type[Section]]] = {"ensemble": EnsembleOptions}
    family: ClassVar[str] = "empirical"
    alignment: Tensor
    fingerprints: Tensor

    def __init__(self, config: Config, spec: DataSpec) -> None:
        options = config.section("ensemble", EnsembleOptions)
        if options.method == self.name:
            raise InputError("ensemble.method cannot be ensemble; name the method of its members.")
        super().__init__(config, spec)
        del self.encoder, self.head  # the members have them
        self.options = options
        members, dim = options.members, config.model.dim
        self.register_buffer("alignment", torch.eye(dim).repeat(members, 1, 1))
        self.register_buffer("fingerprints", torch.zeros(members, dtype=torch.int64))
        self._members: list[Method] = []  # a plain list: not part of the state, not put in training mode
        self._one_encoder = False  # as frozen ones with weights from a file are: it runs once for all members
        self._agreement: dict[str, float] = {}

    @property
    def trains(self) -> bool:
        """Its members do."""
        return False

    @property
    def batch_kind(self) -> BatchKind:
        """Images: every member has an encoder of its own."""
        return "images"

    @property
    def device(self) -> torch.device:
        """Where its alignment is; members follow."""
        return self.alignment.device

    def train(self, mode: bool = True) -> Ensemble:
        """There is nothing here that training mode would change; members stay in evaluation mode."""
        self.training = mode
        return self

    def stages(self) -> dict[str, Config]:
        """The members: this configuration, with their method and a seed that no other ensemble's member has."""
        if self.config.base is not None:
            return {}
        values = {key: value for key, value in self.config.to_dict().items() if key not in self.sections}
        values["method"] = self.options.method
        first = (self.config.seed + 1) * MOST_MEMBERS
        return {
            f"members/{number}": make_config({**values, "seed": first + number})
            for number in range(self.options.members)
        }

    def encode(self, images: Tensor) -> Tensor:
        """Images (n, C, H, W) to the members' unit embeddings, not yet aligned, and the first member's features."""
        first, *others = self.members()
        with torch.no_grad():
            features = first.observe(images)
            embeddings = [first.embed_features(features)] + [
                one.embed_features(features) if self._one_encoder else one.embed(images) for one in others
            ]
        return torch.cat([*(embedding.direction for embedding in embeddings), features], dim=1)

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """The members' unit embeddings, turned onto each other."""
        return {"samples": torch.bmm(self._by_member(features), self.alignment)}  # (members, n, D)

    def novelty_features(self, features: Tensor) -> Tensor:
        """Embeddings and the first member's features, of one length each.

        Embeddings alone have forgotten most of what tells an out-of-distribution image, features alone say less of
        errors; docs/doubt.md has the numbers.
        """
        width = self._embedded_width
        return torch.cat([normalize(features[:, :width]), normalize(features[:, width:])], dim=1)

    def members(self) -> list[Method]:
        """The trained members, in evaluation mode, on the device the ensemble is on now."""
        if not self._members:
            self._members = [self._load(number) for number in range(self.options.members)]
            first, *others = (member.encoder for member in self._members)
            self._one_encoder = all(have_same_weights(first, other) for other in others)
        return [member.to(self.device) for member in self._members]

    def finish(self, train: Subset, validation: Subset) -> None:
        """Aligns the members on training images, and measures on validation images how far they agree."""
        embeddings = self._embeddings_of(train)
        same = torch.eye(embeddings.shape[-1]).expand_as(self.alignment)
        self.alignment.copy_(align(embeddings) if self.options.align else same)
        for number in range(self.options.members):
            self.fingerprints[number] = fingerprint(self._folder(number))
        self._agreement = self._measure_agreement(self._embeddings_of(validation))

    def record(self) -> dict[str, Any]:
        """How far the members agree."""
        return self._agreement

    def _embeddings_of(self, part: Subset) -> Tensor:
        """(members, n, D). A copy of each batch's: a view would keep the wide features of all images."""
        return self._by_member(part.each(lambda features: features[:, : self._embedded_width].clone()))

    def _by_member(self, features: Tensor) -> Tensor:
        """The members' embeddings in features (n, members · D + F): (members, n, D)."""
        embedded = features[:, : self._embedded_width]
        return embedded.unflatten(1, (self.options.members, -1)).transpose(0, 1)

    @property
    def _embedded_width(self) -> int:
        return self.options.members * self.config.model.dim

    def _measure_agreement(self, embeddings: Tensor) -> dict[str, float]:
        """Mean cosine between two members' embeddings of an image it did not align on: before and after."""
        members, count, dim = embeddings.shape
        products, pairs = cross_products(embeddings), count * members * (members - 1)
        same = torch.eye(dim, dtype=torch.float64).expand(members, -1, -1)
        return {
            "cosine_between_members": inner_products(products, self.alignment.double().cpu()) / pairs,
            "cosine_unaligned": inner_products(products, same) / pairs,
        }

    def _folder(self, number: int) -> Path:
        owner = self.folder if self.config.base is None else Path(self.config.base)
        if owner is None:
            raise InputError("This ensemble has no run, and so no members; train or load one.")
        return owner / "members" / str(number)

    def _load(self, number: int) -> Method:
        folder = self._folder(number)
        assert self.load_run is not None  # it comes with the folder
        member = self.load_run(folder)
        if member is None:
            raise RunError(
                f"{self.folder} lacks its member {number}: {folder} holds no finished run; train that one "
                "again with `doubtless train … --resume`."
            )
        expected = int(self.fingerprints[number])
        if expected not in (0, fingerprint(folder)):  # 0: not aligned yet
            raise RunError(
                f"{folder} is not the member that {self.folder} was aligned with; delete "
                f"{self.folder}/model.json and align anew with `doubtless train … --resume`."
            )
        return member.requires_grad_(False)


def have_same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules of one kind have all values in common."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def fingerprint(run: Path) -> int:
    """A number that tells one member's weights from another's."""
    digest = hashlib.sha256((run / "model.safetensors").read_bytes()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


SWEEPS = 200
TOLERANCE = 1e-12  # relative gain of a sweep, in float64
ROWS = 65536  # embeddings in float64 at once


def procrustes(cross: Tensor) -> Tensor:
    """The orthogonal Q that maximises tr(Qᵀ C), C = XᵀY: X Q is then as near Y as it can be turned.

    Reflections are allowed: cosine and distance know no handedness, so neither do networks trained by them.

    >>> X, turn = torch.randn(100, 3), torch.linalg.qr(torch.randn(3, 3)).Q
    >>> torch.allclose(procrustes(X.T @ (X @ turn)), turn, atol=1e-5)
    True
    """
    left, _, right = torch.linalg.svd(cross)
    return left @ right


def align(embeddings: Tensor) -> Tensor:
    """Orthogonal maps Q (m, D, D) that bring m spaces together: all X_i Q_i as near to their mean as can be.

    Takes the embeddings (m, n, D) of the same n items in each. The maps maximise Σ_{i≠j} tr(Q_iᵀ X_iᵀ X_j Q_j),
    the sum of all inner products between spaces; one at a time, given the others, each is an ordinary
    Procrustes problem, so the sum only grows. The first map is the identity: the common space has the axes of
    the first. In float64, the result in the embeddings' precision.

    >>> align(torch.randn(5, 1000, 8)).shape
    torch.Size([5, 8, 8])
    """
    members, _, dim = embeddings.shape
    products = cross_products(embeddings)  # (m, m, D, D): all that is needed of the n items
    maps = torch.stack([procrustes(products[number, 0]) for number in range(members)])
    maps[0] = torch.eye(dim, dtype=maps.dtype)
    gained = inner_products(products, maps)
    for _ in range(SWEEPS):
        for number in range(members):
            others = (products[number] @ maps).sum(0) - products[number, number] @ maps[number]
            maps[number] = procrustes(others)
        before, gained = gained, inner_products(products, maps)
        if gained - before <= TOLERANCE * abs(gained):
            break
    return (maps @ maps[0].T).to(embeddings)


def cross_products(embeddings: Tensor) -> Tensor:
    """X_iᵀ X_j of all pairs of (m, n, D), as (m, m, D, D): float64, on the CPU, where its SVDs are quick."""
    members, _, dim = embeddings.shape
    total = torch.zeros(members * dim, members * dim, dtype=torch.float64, device=embeddings.device)
    for some in embeddings.split(ROWS, dim=1):
        flat = some.transpose(0, 1).reshape(-1, members * dim).double()  # (rows, m · D)
        total += flat.T @ flat
    return total.view(members, dim, members, dim).transpose(1, 2).cpu()


def inner_products(products: Tensor, maps: Tensor) -> float:
    """Σ_{i≠j} tr(Q_iᵀ X_iᵀ X_j Q_j): over n · m · (m − 1), the mean cosine between two unit embeddings."""
    turned = maps.mT.unsqueeze(1) @ products @ maps.unsqueeze(0)  # (m, m, D, D)
    traces = turned.diagonal(dim1=-2, dim2=-1).sum(-1)
    return float(traces.sum() - traces.diagonal().sum())
