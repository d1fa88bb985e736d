"""A metric loss by its configuration: ours, a plugin's, or any loss and miner of pytorch-metric-learning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.config import LossConfig, NamedConfig, sentence_of
from doubtless.errors import InputError, nearest
from doubtless.losses import batch_triplet_loss, contrastive_loss, proxy_anchor_loss
from doubtless.losses.contrastive import Distance, Pairs, Reduction
from doubtless.registry import MODULE, Registry, import_object

Loss = Callable[..., Tensor]
"""Embeddings (batch, D) and labels (batch,) to a number, and options by keyword; or an `nn.Module` class of it."""


def _check_loss(name: str, loss: Any) -> None:
    if not callable(loss):
        raise InputError(f"The loss {name!r} must be a function or an nn.Module class, got {loss!r}.")


LOSSES: Registry[Loss] = Registry("loss", group="doubtless.losses", check=_check_loss)
"""Losses by name, beside the classes of pytorch-metric-learning.

Of `margin`, `negative_weight`, `mining`, `pairs`, `reduction`, `distance`, `dim` and `classes` a loss is given
those that it takes by name, and all of `loss.arguments`.
"""
OURS = ("contrastive", "triplet")
DEFAULT_MARGIN = {"contrastive": 0.7, "triplet": 0.2}


@LOSSES.register("contrastive")
def _contrastive(
    embeddings: Tensor,
    labels: Tensor,
    *,
    margin: float = DEFAULT_MARGIN["contrastive"],
    negative_weight: float = 0.5,
    pairs: Pairs = "all",
    reduction: Reduction = "active",
    distance: Distance = "squared",
) -> Tensor:
    return contrastive_loss(
        embeddings,
        labels,
        margin=margin,
        negative_weight=negative_weight,
        pairs=pairs,
        reduction=reduction,
        distance=distance,
    )


@LOSSES.register("triplet")
def _triplet(
    embeddings: Tensor,
    labels: Tensor,
    *,
    margin: float = DEFAULT_MARGIN["triplet"],
    mining: Literal["semi-hard", "hard"] = "semi-hard",
) -> Tensor:
    return batch_triplet_loss(embeddings, labels, margin=margin, mining=mining)


class MetricLoss(nn.Module):
    """Embeddings (batch, D) and labels (batch,) to a number.

    A loss is a registered one, one by its import path, or a class of pytorch-metric-learning.

    >>> loss = MetricLoss(LossConfig(name="contrastive", margin=0.7), dim=8, classes=10)
    >>> loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).shape
    torch.Size([])
    """

    def __init__(self, config: LossConfig, *, dim: int, classes: int) -> None:
        super().__init__()
        self.fixed_shapes = config.name in OURS
        """Whether nothing in it depends on values: draws go through at once, and steps can be recorded."""
        self.miner: nn.Module | None = None
        self.peer: nn.Module | None = None  # the loss, where it is a module
        self.function: Loss | None = None  # the loss, where it is a function
        loss = _registered(config.name)
        takes = set() if loss is None else _arguments(loss)
        if config.pairs != "all" and "pairs" not in takes:
            raise InputError(f"loss.pairs belongs to the contrastive loss, got loss {config.name!r}.")
        if loss is None:
            self.peer, self.miner = _peer_loss(config, dim=dim, classes=classes), build_miner(config)
            self.fixed_shapes = _is_plain_proxy_anchor(config)
            return
        built = _bound(config, loss, takes, {"dim": dim, "classes": classes})
        if isinstance(built, nn.Module):
            self.peer = built
        else:
            self.function = built

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The loss of embeddings (batch, D) with labels (batch,), a number, in 32 bits."""
        # Distances of near neighbours are differences of near-equal numbers: never in half precision.
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings = embeddings.float()
            if self.fixed_shapes:
                return self._of_fixed_shapes(embeddings, labels)
            if self.function is not None:
                return self.function(embeddings, labels)
            assert self.peer is not None
            if self.miner is not None:
                return self.peer(embeddings, labels, self.miner(embeddings, labels))
            return self.peer(embeddings, labels)

    def over_samples(self, samples: Tensor, labels: Tensor, *, mine_once: bool = False) -> Tensor:
        """Mean over T draws of the batch of each draw's loss: samples (T, batch, D), labels (batch,).

        Our own losses take all draws at once. Those of others are functions of one batch, and many (N-pairs,
        proxies, any that mines) of more than its pairs, so that no larger batch would do: they are called draw by
        draw. With `mine_once` and a miner they are called once, with the tuples that it finds in the first draw
        repeated within every other; an average over violating tuples is then over all draws'.
        """
        with torch.autocast(samples.device.type, enabled=False):
            samples = samples.float()
            if self.fixed_shapes:
                return torch.vmap(self._of_fixed_shapes, in_dims=(0, None))(samples, labels).mean()
            if self.peer is None or self.miner is None or not mine_once:
                return torch.stack([self(draw, labels) for draw in samples]).mean()
            draws, batch, _ = samples.shape
            first_rows = batch * torch.arange(draws, device=labels.device)[:, None]  # of each draw
            mined = tuple((rows + first_rows).flatten() for rows in self.miner(samples[0], labels))
            return self.peer(samples.flatten(0, 1), labels.repeat(draws), mined)

    def _of_fixed_shapes(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Our own losses, and ProxyAnchor, whose class looks up which labels a batch has: a wait for the device."""
        if self.function is not None:
            return self.function(embeddings, labels)
        proxies, alpha, delta = (getattr(self.peer, name) for name in ("proxies", "alpha", "margin"))
        cosines = normalize(embeddings, dim=1) @ normalize(proxies, dim=1).T  # (batch, classes)
        return proxy_anchor_loss(cosines, labels, alpha=alpha, delta=delta)


def _registered(name: str) -> Loss | None:
    """A loss by its name or import path; None for those of pytorch-metric-learning."""
    if name.startswith(MODULE):
        loss: Loss = import_object(name)
        _check_loss(name, loss)
        return loss
    return LOSSES.get(name) if name in LOSSES else None


def _bound(config: LossConfig, loss: Any, takes: set[str], sizes: dict[str, int]) -> nn.Module | Loss:
    """A registered loss with what it takes of the configuration filled in."""
    if config.miner is not None:
        raise InputError(
            f"loss.miner belongs to the losses of pytorch-metric-learning, got loss {config.name!r}."
        )
    if unknown := [name for name in config.arguments if name not in takes]:
        raise InputError(
            f"The loss {config.name!r} takes {', '.join(sorted(takes))}, got {', '.join(unknown)}."
        )
    passed = {"margin", "negative_weight", "mining", "pairs", "reduction", "distance"}
    values = {**sizes, **config.model_dump(include=passed, exclude_none=True)}
    options = {key: value for key, value in values.items() if key in takes} | config.arguments
    if not isinstance(loss, type):
        return functools.partial(loss, **options)
    try:
        built: nn.Module | Loss = loss(**options)
        return built
    except (TypeError, ValueError) as error:
        raise InputError(f"The loss {config.name!r} does not take {options}: {error}.") from error


def _peer_loss(config: LossConfig, *, dim: int, classes: int) -> nn.Module:
    from pytorch_metric_learning import losses

    supplied: dict[str, Any] = {"num_classes": classes, "embedding_size": dim}
    if config.margin is not None:
        supplied["margin"] = config.margin
    chosen = NamedConfig(name=config.name, arguments=config.arguments)
    return build_peer(losses, chosen, supplied, ours=LOSSES.names())


def _is_plain_proxy_anchor(config: LossConfig) -> bool:
    """ProxyAnchor as published: no miner, no distance or reducer of somebody's own."""
    plain = config.miner is None and set(config.arguments) <= {"alpha"}
    return plain and config.name == "ProxyAnchorLoss"


def build_miner(config: LossConfig) -> nn.Module | None:
    """The miner of pytorch-metric-learning that `loss.miner` names, if any."""
    if config.miner is None:
        return None
    from pytorch_metric_learning import miners

    return build_peer(miners, config.miner, {})


def build_peer(
    module: Any, chosen: NamedConfig, supplied: dict[str, Any], *, ours: Sequence[str] = ()
) -> nn.Module:
    """A class of a pytorch-metric-learning module by name; arguments it must have of us are filled in.

    Distances, reducers and regularisers among its arguments are given by name and arguments, too:
    ``embedding_regularizer: {name: LpRegularizer, arguments: {power: 2}}``.
    """
    known = [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, nn.Module)
    ]
    what = module.__name__.rsplit(".", 1)[-1]
    if chosen.name not in known:
        raise InputError(
            f"pytorch-metric-learning's {what} has no {chosen.name!r}{nearest(chosen.name, [*ours, *known])}"
        )
    kind = getattr(module, chosen.name)
    takes = _arguments(kind)
    arguments = {name: value for name, value in supplied.items() if name in takes}
    try:
        peer: nn.Module = kind(**{**arguments, **_built(chosen.arguments)})
    except (TypeError, ValueError, AssertionError) as error:
        raise InputError(f"{chosen.name} does not take {chosen.arguments}: {error}.") from error
    for name, value in list(vars(peer).items()):
        if isinstance(value, Tensor):  # as MarginLoss keeps its beta: it would stay behind on the CPU
            delattr(peer, name)
            peer.register_buffer(name, value, persistent=False)
    return peer


def _built(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with objects for those that name one."""
    from pytorch_metric_learning import distances, reducers, regularizers

    rooms = {"distance": distances, "reducer": reducers, "regularizer": regularizers}
    found = dict(arguments)
    for name, value in arguments.items():
        room = rooms.get(name.rsplit("_", 1)[-1])
        if room is not None and isinstance(value, dict):
            try:
                found[name] = build_peer(room, NamedConfig.model_validate(value), {})
            except ValidationError as error:
                raise InputError(f"In {name}: {sentence_of(error, NamedConfig)}") from None
    return found


def _arguments(made: Any) -> set[str]:
    """Names of what a function takes beside embeddings and labels, or a class with its base classes takes."""
    if not inspect.isclass(made):
        return set(list(inspect.signature(made).parameters)[2:])
    return {
        name
        for base in made.__mro__
        if "__init__" in vars(base)
        for name, parameter in inspect.signature(base).parameters.items()
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }
