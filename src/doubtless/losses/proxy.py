"""Probabilistic proxies: images and classes as distributions on the sphere, compared class by class.

Kirchhof, Roth, Akata, Kasneci 2022, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning". An
embedding e is von Mises-Fisher with direction e/‖e‖ and concentration ‖e‖ (times a factor), a class is a point, a
von Mises-Fisher or a non-isotropic one; the loss is ProxyNCA++ (Teh, DeVries, Taylor 2020), ProxyAnchor (Kim et
al. 2020), or both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, softplus

from doubtless.errors import InputError
from doubtless.sphere import (
    NonIsotropicVonMisesFisher,
    VonMisesFisher,
    bhattacharyya,
    expected_likelihood,
    kl_similarity,
    log_likelihood,
)
from doubtless.sphere.sampled_likelihood import debye_table, sampled_expected_likelihood

Similarity = Literal["elk", "bhattacharyya", "kl", "log-likelihood", "cosine", "l2"]
Family = Literal["vmf", "nivmf", "point"]
ProxyObjective = Literal["nca++", "anchor"]

OF_POINTS = ("cosine", "l2")
ANCHOR_SHARPNESS, ANCHOR_MARGIN = 32.0, 0.1  # α and δ
NEVER = -1e30  # in the place of −inf, whose gradient is no number

BETWEEN_DISTRIBUTIONS: dict[str, Callable[..., Tensor]] = {
    "elk": expected_likelihood,
    "bhattacharyya": bhattacharyya,
    "kl": kl_similarity,
}


def proxy_nca_loss(similarities: Tensor, labels: Tensor, *, temperature: float | Tensor = 1.0) -> Tensor:
    """ProxyNCA++: cross-entropy over the similarities (batch, classes) / temperature, the own class included.

    >>> proxy_nca_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), temperature=2.0)  # log(1 + 1/e)
    tensor(0.3133)
    """
    return cross_entropy(similarities / temperature, labels)


def proxy_anchor_loss(
    cosines: Tensor, labels: Tensor, *, alpha: float = ANCHOR_SHARPNESS, delta: float = ANCHOR_MARGIN
) -> Tensor:
    """ProxyAnchor from the cosines (batch, classes) of embeddings and proxies.

    The mean over the classes of the batch of ``log(1 + Σ exp(−α(cos − δ)))`` over their images, plus the mean over
    all classes of ``log(1 + Σ exp(α(cos + δ)))`` over the others' images.
    """
    classes = cosines.shape[1]
    own = labels[:, None] == torch.arange(classes, device=labels.device)  # (batch, classes)
    present = own.any(0)
    pull = torch.where(own, -alpha * (cosines - delta), NEVER).logsumexp(0)  # (classes,)
    push = torch.where(own, NEVER, alpha * (cosines + delta)).logsumexp(0)
    return (softplus(pull) * present).sum() / present.sum().clamp_min(1) + softplus(push).mean()


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuses labels that no proxy stands for. Looks at the values: not for the inside of a training step."""
    if labels.dim() != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"Labels must be whole numbers of shape (batch,), got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise InputError(f"There are {classes} proxies, for the labels 0 … {classes - 1}; got label {wrong}.")


def check_combination(similarity: str, family: str, objective: str) -> None:
    """Refuses what has no meaning, in a sentence."""
    if similarity in OF_POINTS and family != "point":
        raise InputError(
            f"The similarity {similarity} compares points, and proxies of family {family} are distributions; "
            f"take family point, or one of the similarities elk, bhattacharyya, kl, log-likelihood."
        )
    if similarity not in OF_POINTS and family == "point":
        raise InputError(
            f"The similarity {similarity} needs proxies with a density, and a point has none; "
            "take family vmf or nivmf, or one of the similarities cosine, l2."
        )
    if objective == "anchor" and similarity != "cosine":
        raise InputError(
            f"ProxyAnchor alone compares directions, got similarity {similarity}; take similarity cosine with "
            "family point, or the loss nca++ with an anchor_weight, which adds ProxyAnchor to it."
        )


class ProxyTerms(NamedTuple):
    """A loss, what it is made of, and the logits behind it."""

    total: Tensor
    logits: Tensor  # (batch, classes): their softmax is the loss's own classification
    terms: dict[str, Tensor]


class ProxyLoss(nn.Module):
    """One proxy a class, the temperature, and the loss over them: a thin module for any PyTorch loop.

    `concentration` is where the classes' concentrations start, or the length of point proxies for l2; `norm_factor`
    times ‖e‖ is the concentration of an image. Positive parameters are kept as logarithms.

    >>> loss = ProxyLoss(10, 32, similarity="elk", family="nivmf")
    >>> loss(torch.randn(8, 32), torch.arange(8)).shape
    torch.Size([])
    """

    table: Tensor
    measured_factor: Tensor

    def __init__(
        self,
        classes: int,
        dim: int,
        *,
        similarity: Similarity = "elk",
        family: Family = "nivmf",
        objective: ProxyObjective = "nca++",
        samples: int = 5,
        concentration: float = 10.0,
        norm_factor: float = 1.0,
        temperature: float = 1.0,
        anchor_weight: float = 0.0,
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("similarity", similarity, get_args(Similarity)),
            ("family", family, get_args(Family)),
            ("objective", objective, get_args(ProxyObjective)),
        ):
            if value not in known:
                raise InputError(f"There is no {name} {value!r} of proxies; there are {', '.join(known)}.")
        check_combination(similarity, family, objective)
        if dim < 2:
            raise InputError(f"Proxies need at least 2 dimensions, got {dim}.")
        self.similarity, self.family, self.objective = similarity, family, objective
        self.samples, self.norm_factor, self.anchor_weight = samples, norm_factor, anchor_weight
        self.length = concentration if similarity == "l2" else 1.0
        self.location = nn.Parameter(self.length * normalize(torch.randn(classes, dim), dim=1))
        if family != "point":
            shape = (classes,) if family == "vmf" else (classes, dim)
            self.log_concentration = nn.Parameter(torch.full(shape, math.log(concentration)))
        if objective == "nca++":
            self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.register_buffer("table", debye_table(dim), persistent=False)
        # What the images' concentrations are depends on it, and it may be measured: it is saved with the weights.
        self.register_buffer("measured_factor", torch.tensor(norm_factor, dtype=torch.float64))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Embeddings (batch, dim), not normalised, and labels (batch,) to a number; each label needs a proxy."""
        check_labels(labels, len(self.location))
        return self.terms(embeddings, labels).total

    def terms(self, embeddings: Tensor, labels: Tensor) -> ProxyTerms:
        """The loss and its terms. Nothing is read back to the host, so labels are taken as they are."""
        with torch.autocast(
            embeddings.device.type, enabled=False
        ):  # κ and densities: never in half precision
            embeddings = embeddings.float() if embeddings.dtype != torch.float64 else embeddings
            if self.objective == "anchor":
                cosines = self._cosines(embeddings)
                total = proxy_anchor_loss(cosines, labels)
                return ProxyTerms(total, ANCHOR_SHARPNESS * cosines, {})
            logits = self.similarities(embeddings, relative=True) / self.log_temperature.exp()
            total = proxy_nca_loss(logits, labels)
            if self.anchor_weight == 0:
                return ProxyTerms(total, logits, {})
            anchor = proxy_anchor_loss(self._cosines(embeddings), labels)
            terms = {"nca_loss": total, "anchor_loss": anchor}
            return ProxyTerms(total + self.anchor_weight * anchor, logits, terms)

    def similarities(
        self, embeddings: Tensor, *, relative: bool = False, generator: torch.Generator | None = None
    ) -> Tensor:
        """Every image with every proxy, (batch, classes), higher is more alike.

        `relative` may leave out what an image adds to all classes alike. Draws come from the generator, or from the
        device's own, which training seeds alike on all ranks.
        """
        if self.similarity == "cosine":
            return self._cosines(embeddings)
        if self.similarity == "l2":
            scaled = self.norm_factor * embeddings
            squares = scaled.square().sum(1, keepdim=True) + self.location.square().sum(1)
            return 2 * scaled @ self.location.T - squares
        if self.similarity == "elk" and self.family == "nivmf":
            return sampled_expected_likelihood(
                embeddings,
                self.location,
                self.log_concentration,
                norm_factor=self.norm_factor,
                samples=self.samples,
                table=self.table,
                relative=relative,
                generator=generator,
            )
        image = self.images(embeddings)
        if self.similarity == "log-likelihood":
            return log_likelihood(image, self.proxies())
        compare = BETWEEN_DISTRIBUTIONS[self.similarity]
        return compare(image, self.proxies(), samples=self.samples, generator=generator)

    def images(self, embeddings: Tensor) -> VonMisesFisher:
        """The images' distributions."""
        length = torch.linalg.vector_norm(embeddings, dim=1)
        somewhere = torch.zeros_like(embeddings[:1])
        somewhere[:, 0] = 1  # an embedding of length 0 is uniform: any direction is right
        direction = normalize(embeddings, dim=1) + (length == 0).unsqueeze(1) * somewhere
        return VonMisesFisher(direction, self.norm_factor * length, validate_args=False)

    def proxies(self) -> VonMisesFisher | NonIsotropicVonMisesFisher:
        """The classes' distributions; points have none."""
        direction, concentration = normalize(self.location, dim=1), self.log_concentration.exp()
        kind = VonMisesFisher if self.family == "vmf" else NonIsotropicVonMisesFisher
        return kind(direction, concentration, validate_args=False)

    @torch.no_grad()
    def start_at(self, directions: Tensor, labels: Tensor) -> None:
        """Puts proxies at the means of their classes' directions (n, dim); one without images stays where it is."""
        check_labels(labels, len(self.location))
        sums = torch.zeros_like(self.location).index_add_(
            0, labels, normalize(directions, dim=1).to(self.location)
        )
        found = sums.any(1, keepdim=True)
        self.location.copy_(torch.where(found, self.length * normalize(sums, dim=1), self.location))

    @torch.no_grad()
    def start_lengths(self, embeddings: Tensor, *, concentration: float) -> None:
        """Sets `norm_factor` so that embeddings (n, dim) as long as these have this concentration on average."""
        length = float(torch.linalg.vector_norm(embeddings.double(), dim=1).mean())
        if length > 0:
            self.norm_factor = concentration / length
            self.measured_factor.fill_(self.norm_factor)

    @torch.no_grad()
    def start_temperature(self, embeddings: Tensor, labels: Tensor, *, gap: float) -> None:
        """Sets the temperature so that an image's own class is this much above the mean of the others, on average.

        In units of logits; embeddings (n, dim), labels (n,). It stays where it is if own classes are not above.
        """
        check_labels(labels, len(self.location))
        generator = torch.Generator(embeddings.device).manual_seed(0)
        found = self.similarities(embeddings, relative=True, generator=generator)  # (n, classes)
        own = found.gather(1, labels.unsqueeze(1)).squeeze(1)
        others = (found.sum(1) - own) / max(found.shape[1] - 1, 1)
        above = float((own - others).mean())
        if above > 0:
            self.log_temperature.fill_(math.log(above / gap))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        # Runs from before it was measured have no such key: theirs is that of the configuration.
        state_dict.setdefault(prefix + "measured_factor", self.measured_factor)
        super()._load_from_state_dict(state_dict, prefix, *others)
        self.norm_factor = float(self.measured_factor)

    def _cosines(self, embeddings: Tensor) -> Tensor:
        return normalize(embeddings, dim=1) @ normalize(self.location, dim=1).T
