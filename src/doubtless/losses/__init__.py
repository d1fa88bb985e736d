"""Losses as pure functions: usable in any PyTorch loop without the rest of the library."""

from doubtless.losses.contrastive import contrastive_loss
from doubtless.losses.triplet import batch_triplet_loss, triplet_loss

__all__ = ["contrastive_loss", "triplet_loss", "batch_triplet_loss"]
