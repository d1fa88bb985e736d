"""MC dropout: dropout stays on at test time, and an image's embedding is what the thinned networks give.

Gal and Ghahramani, *Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning*
(2016). Only what comes after the first dropout is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import dropout

from doubtless.config import Config, Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.methods.base import BatchKind, DataSpec, Losses, Subset
from doubtless.methods.deterministic import Deterministic
from doubtless.models.dropout import (
    BlockDropout,
    ConvBlocks,
    Drop,
    draw_masks,
    masked_linear,
    sampled_blocks,
)
from doubtless.models.networks import SMALL

POINT_CHUNK = 1024  # images that go through the rest of the blocks at once, without dropout


class DropoutOptions(Section):
    """The section `dropout` of a configuration."""

    rate: float = Field(default=0.2, gt=0, lt=1)
    """The share of values set to zero."""
    where: Literal["head", "blocks"] = "head"
    """head: before the last linear layer. blocks: also after each earlier block of the backbone."""
    samples: int = Field(default=50, ge=2)
    """Networks drawn at test time."""


class McDropout(Deterministic):
    """Trains as `deterministic` does with dropout; embeds to `samples` unit vectors an image.

    The masks are drawn once, from the seed: draw j has the same masks for every image, so an image gets the
    same samples alone, in any batch and every time. While training is under way it validates as a point,
    without dropout (the mean network): an epoch then costs what one of `deterministic` does.

    With `where: blocks` the small nets drop single values after each conv block, all other backbones whole channels
    after each block (`doubtless.models.blocks` says what is one). Where the last block's output is what the last
    linear layer takes, it is dropped once, not twice.

    What features are, then, and what is computed once for every image:

        head                 the encoder's; all of it
        blocks, small nets   the first block's output; this block
        blocks, others       the encoder's without dropout and, once finished, the draws' embeddings behind them;
                             what comes before the first dropout
    """

    name: ClassVar[str] = "mc-dropout"
    summary: ClassVar[str] = (
        "dropout left on at test time: samples of thinned networks, masks shared by all images"
    )
    sections: ClassVar[Mapping[str, type[Section]]] = {"dropout": DropoutOptions}
    family: ClassVar[str] = "empirical"
    masks: Tensor
    finished: Tensor

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.options = config.section("dropout", DropoutOptions)
        self.dropped: BlockDropout | None = None
        width = self.encoder.feature_dim
        if self.options.where == "blocks":
            width = self._prepare_blocks()
        # On the CPU, whatever the device: a GPU's generator would draw other masks.
        generator = torch.Generator().manual_seed(config.seed)
        masks = draw_masks(width, rate=self.options.rate, samples=self.options.samples, generator=generator)
        self.register_buffer("masks", masks, persistent=False)
        self.register_buffer("finished", torch.tensor(False))

    def _prepare_blocks(self) -> int:
        """Finds or cuts the backbone's blocks; how many masks a draw has."""
        spec, model, backbone = self.spec, self.config.model, self.encoder.backbone
        if model.backbone in SMALL and spec.backbone is None and isinstance(backbone, nn.Sequential):
            if model.feature_norm != "none" or model.dropout > 0:
                raise InputError(
                    f"dropout.where: blocks of {model.backbone} goes without model.feature_norm and model.dropout; "
                    f"got {model.feature_norm} and {model.dropout:g}."
                )
            self.encoder.backbone = blocks = ConvBlocks(backbone, channels=spec.channels, size=spec.size)
            return sum(blocks.widths)
        self.dropped = BlockDropout(self.encoder, size=spec.size)
        return sum(self.dropped.widths) + self.encoder.feature_dim

    @property
    def batch_kind(self) -> BatchKind:
        """Blocks want images: they drop anew in training, and at test time their draws are many to keep."""
        return "images" if self.options.where == "blocks" else super().batch_kind

    def loss(self, batch: Batch) -> Losses:
        """The metric loss of the global batch, with dropout drawn for every image."""
        rate = self.options.rate

        def drop(number: int, values: Tensor) -> Tensor:
            return dropout(values, rate, training=self.training)

        with nullcontext() if self.dropped is None or not self.training else self.dropped.per_image(rate):
            features = self.features(batch.inputs)
        embeddings = gather(self.head(self._after(features, drop)))  # (global batch, D)
        return Losses(self.metric_loss(embeddings, gather(batch.labels)), {})

    def encode(self, images: Tensor) -> Tensor:
        """The encoder's features and, of a finished one with blocks to draw, the draws' embeddings behind them."""
        features = self.encoder(images)
        if self.dropped is None or not self._embeds_draws:
            return features
        draws = self.dropped.draw(self.encoder, self.head, images, masks=self.masks)
        return torch.cat([features, draws.transpose(0, 1).flatten(1)], dim=1)

    @property
    def _embeds_draws(self) -> bool:
        """Not in a training step, which must not wait for the device; in a graph that is exported always."""
        return torch.compiler.is_exporting() or (not self.training and bool(self.finished))

    def embed_features(self, features: Tensor) -> Embedding:
        """Points of the mean network while it trains; then one sample per mask."""
        if not bool(self.finished):  # still training: points of the mean network
            return Embedding.point(self.head(self.head_inputs(features)))
        return super().embed_features(features)

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """The masks are fixed by the seed: an exported file has them."""
        if self.dropped is not None:
            draws = features[:, self.encoder.feature_dim :].unflatten(1, (len(self.masks), -1))
            return {"samples": draws.transpose(0, 1)}
        blocks = self.encoder.backbone
        if isinstance(blocks, ConvBlocks):
            return {"samples": sampled_blocks(blocks, self.head, features, masks=self.masks)}
        return {"samples": masked_linear(features, self.head, self.masks)}

    def head_inputs(self, features: Tensor) -> Tensor:
        """What the head takes when nothing is dropped."""
        if self.dropped is not None:
            return features[:, : self.encoder.feature_dim]
        return torch.cat([self._after(rows, _keep_all) for rows in features.split(POINT_CHUNK)])

    def novelty_features(self, features: Tensor) -> Tensor:
        """Features without the draws' embeddings behind them."""
        return features if self.dropped is None else features[:, : self.encoder.feature_dim]

    def _after(self, features: Tensor, drop: Drop) -> Tensor:
        """What the last linear layer takes, from what comes before the first dropout."""
        blocks = self.encoder.backbone
        return blocks.rest(features, drop=drop) if isinstance(blocks, ConvBlocks) else drop(0, features)

    def start(self, train: Subset) -> None:
        """An unfinished one: it validates by the mean network."""
        self.finished.fill_(False)  # a `base` of this method was
        super().start(train)

    def finish(self, train: Subset, validation: Subset) -> None:
        """From here on it embeds as samples."""
        if self.config.training.epochs == 0 and self.config.base is None:
            self.start(train)  # which training would have done
        self.finished.fill_(True)


def _keep_all(number: int, values: Tensor) -> Tensor:
    """No dropout."""
    return values
