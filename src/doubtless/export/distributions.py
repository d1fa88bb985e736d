"""What a trained method makes of images, as a graph without questions: the parameters of its family.

`Method.embed` looks at values (is this finite? has training finished?) where a graph cannot, so every method
says here how its parameters come about. Whether that is what `embed` gives is checked by `doubtless.export`
for each file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from doubtless.errors import InputError
from doubtless.export.answers import family_answers
from doubtless.methods import Method
from doubtless.methods.bayes_triplet import BayesTriplet, BayesTripletVmf
from doubtless.methods.deterministic import Deterministic
from doubtless.methods.dvml import Dvml
from doubtless.methods.ensemble import Ensemble
from doubtless.methods.hib import Hib
from doubtless.methods.lam_online import LamOnline
from doubtless.methods.lam_posthoc import LamPosthoc
from doubtless.methods.loss_prediction import LossPrediction, positive
from doubtless.methods.mc_dropout import McDropout
from doubtless.methods.pfe import Pfe
from doubtless.methods.pretrained import Pretrained
from doubtless.methods.proxy import Proxy
from doubtless.methods.triplet import Triplet
from doubtless.methods.triplet_regression import TripletRegression
from doubtless.models.dropout import ConvBlocks, masked_linear

Parameters = dict[str, Tensor]


class Distribution(nn.Module):
    """Images (n, C, H, W) to the parameters of a family, by name."""

    family: str
    spread: float = 1.0
    """Of a projected Gaussian: at most so many times one dimension's variance is another's, whatever the
    image."""

    def forward(self, images: Tensor) -> Parameters:
        raise NotImplementedError


class FromFeatures(Distribution):
    """A method's own layers behind its encoder."""

    def __init__(self, method: Method, family: str, compute: Callable[[Tensor], Parameters]) -> None:
        super().__init__()
        self.method, self.family, self.compute = method, family, compute

    def forward(self, images: Tensor) -> Parameters:
        return self.compute(self.method.encode(images).float())


class LaplacePredictive(Distribution):
    """A head with a diagonal Gaussian posterior: a matrix product for the mean, another for the variance."""

    family = "projected-gaussian"
    weight: Tensor
    bias: Tensor | None
    weight_variance: Tensor
    bias_variance: Tensor | None

    def __init__(self, method: LamOnline | LamPosthoc) -> None:
        super().__init__()
        posterior = method.laplace.posterior(method.head)
        self.method = method
        for name in ("weight", "bias", "weight_variance", "bias_variance"):
            value = getattr(posterior, name)
            self.register_buffer(name, None if value is None else value.detach())
        self.spread = _spread(self.weight_variance, self.bias_variance)

    def forward(self, images: Tensor) -> Parameters:
        features = self.method.encode(images).float()
        return {
            "location": linear(features, self.weight, self.bias),
            "variance": linear(features.square(), self.weight_variance, self.bias_variance),
        }


class Members(Distribution):
    """An ensemble: the members' directions, turned onto each other."""

    family = "empirical"
    alignment: Tensor

    def __init__(self, method: Ensemble) -> None:
        super().__init__()
        members = [distribution_of(member) for member in method.members()]
        self.members = nn.ModuleList(members)
        dim = method.config.model.dim
        self.answers = nn.ModuleList(
            family_answers(member.family, dim, spread=member.spread) for member in members
        )
        self.register_buffer("alignment", method.alignment)

    def forward(self, images: Tensor) -> Parameters:
        pairs = zip(self.members, self.answers, strict=True)
        directions = [answer(member(images))["direction"] for member, answer in pairs]
        return {"samples": torch.bmm(torch.stack(directions), self.alignment)}  # (members, n, D)


@singledispatch
def distribution_of(method: Method) -> Distribution:
    """The graph of a trained method's parameters."""
    raise InputError(
        f"{method.name} cannot be exported: doubtless.export.distributions does not say how its parameters "
        "come about."
    )


@distribution_of.register(Deterministic)
@distribution_of.register(Triplet)
def _points(method: Deterministic | Triplet) -> Distribution:
    return FromFeatures(method, "point", lambda features: {"location": method.head(features)})


@distribution_of.register
def _pretrained(method: Pretrained) -> Distribution:
    raw = method.options.head == "raw"
    return FromFeatures(
        method, "point", lambda features: {"location": features if raw else method.head(features)}
    )


@distribution_of.register
def _lam_online(method: LamOnline) -> Distribution:
    return LaplacePredictive(method)


@distribution_of.register
def _lam_posthoc(method: LamPosthoc) -> Distribution:
    return LaplacePredictive(method)


@distribution_of.register
def _bayes_triplet(method: BayesTriplet) -> Distribution:
    return FromFeatures(method, "gaussian", lambda features: _gaussian(*method.distributions(features)))


@distribution_of.register
def _bayes_triplet_vmf(method: BayesTripletVmf) -> Distribution:
    def compute(features: Tensor) -> Parameters:
        direction, concentration = method.distributions(features)
        return {"location": direction, "concentration": concentration}

    return FromFeatures(method, "vmf", compute)


@distribution_of.register
def _triplet_regression(method: TripletRegression) -> Distribution:
    def compute(features: Tensor) -> Parameters:
        direction, log_variance = method.direction_and_variance(features)
        return _gaussian(direction, log_variance.exp())

    return FromFeatures(method, "gaussian", compute)


@distribution_of.register
def _hib(method: Hib) -> Distribution:
    def compute(features: Tensor) -> Parameters:
        mean, log_variance = method._gaussian(features)
        return _gaussian(mean, log_variance.exp())

    return FromFeatures(method, "gaussian", compute)


@distribution_of.register
def _pfe(method: Pfe) -> Distribution:
    return FromFeatures(method, "gaussian", lambda features: _gaussian(*method._gaussian(features)))


@distribution_of.register
def _dvml(method: Dvml) -> Distribution:
    def compute(features: Tensor) -> Parameters:
        parts = method.parts(features)
        return _gaussian(parts.center, parts.log_variance.exp())

    return FromFeatures(method, "gaussian", compute)


@distribution_of.register
def _loss_prediction(method: LossPrediction) -> Distribution:
    def compute(features: Tensor) -> Parameters:
        return _gaussian(normalize(method.head(features), dim=-1), positive(method.second(features)))

    return FromFeatures(method, "gaussian", compute)


@distribution_of.register
def _proxy(method: Proxy) -> Distribution:
    def compute(features: Tensor) -> Parameters:
        location = method.head(features)
        length = torch.linalg.vector_norm(location, dim=1)
        return {"location": location, "concentration": method.proxy_loss.norm_factor * length}

    return FromFeatures(method, "vmf", compute)


@distribution_of.register
def _mc_dropout(method: McDropout) -> Distribution:
    """The masks are fixed by the seed: they are part of the file."""
    blocks = method.encoder.backbone

    def compute(features: Tensor) -> Parameters:
        if isinstance(blocks, ConvBlocks):
            return {"samples": _masked_blocks(blocks, method.head, features, method.masks)}
        return {"samples": masked_linear(features, method.head, method.masks)}

    return FromFeatures(method, "empirical", compute)


@distribution_of.register
def _ensemble(method: Ensemble) -> Distribution:
    return Members(method)


def _masked_blocks(blocks: ConvBlocks, head: nn.Module, first: Tensor, masks: Tensor) -> Tensor:
    """The first block's output (n, F) through the rest once for every draw: (s, n, D), all at once.

    `doubtless.models.dropout.sampled_blocks` cuts n into chunks, which fixes it; here n stays open.
    """
    of_block = masks.split(blocks.widths, dim=1)  # (s, width) each
    draws = masks.shape[0]

    def drop(number: int, values: Tensor) -> Tensor:
        return (values.unflatten(0, (draws, -1)) * of_block[number].unsqueeze(1)).flatten(0, 1)

    repeated = first.unsqueeze(0).expand(draws, -1, -1).flatten(0, 1)  # (s · n, F)
    found: Tensor = head(blocks.rest(repeated, drop=drop))
    return found.unflatten(0, (draws, -1))


def _gaussian(location: Tensor, variance: Tensor) -> Parameters:
    return {"location": location, "variance": variance}


def _spread(weight_variance: Tensor, bias_variance: Tensor | None) -> float:
    """max over features f and dimensions k, l of v_kf/v_lf: a variance Σ_f h_f² v_kf has no larger ratios."""
    columns = weight_variance.double()  # (D, F)
    if bias_variance is not None:
        columns = torch.cat([columns, bias_variance.double().unsqueeze(1)], dim=1)
    return float((columns.amax(0) / columns.amin(0)).max())
