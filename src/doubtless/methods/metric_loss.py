"""A metric loss by its configuration: ours, or any loss and miner of pytorch-metric-learning."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from doubtless.config import LossConfig, NamedConfig, sentence_of
from doubtless.errors import InputError, nearest
from doubtless.losses import batch_triplet_loss, contrastive_loss

OURS = ("contrastive", "triplet")
DEFAULT_MARGIN = {"contrastive": 0.7, "triplet": 0.2}


class MetricLoss(nn.Module):
    """Embeddings (batch, D) and labels (batch,) to a number.

    >>> loss = MetricLoss(LossConfig(name="contrastive", margin=0.7), dim=8, classes=10)
    >>> loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).shape
    torch.Size([])
    """

    def __init__(self, config: LossConfig, *, dim: int, classes: int) -> None:
        super().__init__()
        self.config = config
        self.margin = config.margin or DEFAULT_MARGIN.get(config.name, 0.0)
        self.miner: nn.Module | None = None
        self.peer: nn.Module | None = None
        if config.pairs != "all" and config.name != "contrastive":
            raise InputError(f"loss.pairs belongs to the contrastive loss, got loss {config.name!r}.")
        if config.name in OURS:
            if config.miner or config.arguments:
                raise InputError(
                    f"loss.miner and loss.arguments belong to the losses of pytorch-metric-learning; "
                    f"{config.name} is ours and takes margin, negative_weight, mining and pairs."
                )
        else:
            from pytorch_metric_learning import losses

            supplied: dict[str, Any] = {"num_classes": classes, "embedding_size": dim}
            if config.margin is not None:
                supplied["margin"] = config.margin
            chosen = NamedConfig(name=config.name, arguments=config.arguments)
            self.peer = build_peer(losses, chosen, supplied, ours=OURS)
            self.miner = build_miner(config)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        # Distances of near neighbours are differences of near-equal numbers: never in half precision.
        with torch.autocast(embeddings.device.type, enabled=False):
            embeddings = embeddings.float()
            if self.peer is not None:
                mined = self.miner(embeddings, labels) if self.miner is not None else None
                return self.peer(embeddings, labels, mined)
            return self._ours(embeddings, labels)

    def over_samples(self, samples: Tensor, labels: Tensor, *, mine_once: bool = False) -> Tensor:
        """Mean over T draws of the batch of each draw's loss: samples (T, batch, D), labels (batch,).

        Our own losses take all draws at once. Those of pytorch-metric-learning are functions of one batch, and many
        (N-pairs, proxies, any that mines) of more than its pairs, so that no larger batch would do: they are
        called draw by draw. With `mine_once` and a miner they are called once, with the tuples that it finds in
        the first draw repeated within every other; an average over violating tuples is then over all draws'.
        """
        with torch.autocast(samples.device.type, enabled=False):
            samples = samples.float()
            if self.peer is None:
                return torch.vmap(self._ours, in_dims=(0, None))(samples, labels).mean()
            if self.miner is None or not mine_once:
                return torch.stack([self(draw, labels) for draw in samples]).mean()
            draws, batch, _ = samples.shape
            first_rows = batch * torch.arange(draws, device=labels.device)[:, None]  # of each draw
            mined = tuple((rows + first_rows).flatten() for rows in self.miner(samples[0], labels))
            return self.peer(samples.flatten(0, 1), labels.repeat(draws), mined)

    def _ours(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if self.config.name == "triplet":
            return batch_triplet_loss(embeddings, labels, margin=self.margin, mining=self.config.mining)
        return contrastive_loss(
            embeddings,
            labels,
            margin=self.margin,
            negative_weight=self.config.negative_weight,
            pairs=self.config.pairs,
        )


def build_miner(config: LossConfig) -> nn.Module | None:
    """The miner of pytorch-metric-learning that `loss.miner` names, if any."""
    if config.miner is None:
        return None
    from pytorch_metric_learning import miners

    return build_peer(miners, config.miner, {})


def build_peer(
    module: Any, chosen: NamedConfig, supplied: dict[str, Any], *, ours: tuple[str, ...] = ()
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


def _arguments(kind: type) -> set[str]:
    """Names of all constructor arguments, those passed on to base classes included."""
    return {
        name
        for base in kind.__mro__
        if "__init__" in vars(base)
        for name in inspect.signature(base).parameters
    }
