"""Our losses and our choice of pairs in pytorch-metric-learning's trainers.

The other way needs nothing: `loss: {name: MultiSimilarityLoss, miner: …}` in a configuration names any loss and
miner of pytorch-metric-learning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from pytorch_metric_learning.miners import BaseMiner
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.errors import InputError
from doubtless.losses.contrastive import Pairs, chosen_pairs

Loss = Callable[..., Tensor]


class LossForTrainers(nn.Module):
    """A loss of embeddings (batch, D) and labels (batch,), ours or any, as their trainers call one.

    >>> from doubtless.losses import contrastive_loss
    >>> loss = LossForTrainers(contrastive_loss, margin=0.7)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    tensor(1.)
    """

    def __init__(self, loss: Loss, **options: Any) -> None:
        """loss: a function, or an `nn.Module` whose parameters train along; options are given to a function."""
        super().__init__()
        if isinstance(loss, nn.Module) and options:
            raise InputError(f"A module has its options already, got {', '.join(sorted(options))}.")
        self.loss = loss if isinstance(loss, nn.Module) else None
        self._function = None if isinstance(loss, nn.Module) else partial(loss, **options)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch, a number. Tuples of a miner are refused: our losses choose pairs themselves."""
        if indices_tuple is not None or ref_emb is not None or ref_labels is not None:
            raise InputError(
                "This loss takes no tuples of a miner and no memory of other batches; choose pairs by its own "
                "option, such as pairs='semi-hard'."
            )
        loss = self.loss if self.loss is not None else self._function
        assert loss is not None
        return loss(embeddings, labels)


class ChosenPairsMiner(BaseMiner):
    """Our choice of pairs as a miner for their losses: pairs that are part of a semi-hard or a hard triplet.

    >>> miner = ChosenPairsMiner("hard", margin=0.2)
    >>> a1, p, a2, n = miner(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    >>> len(a1), len(a2)
    (2, 4)
    """

    def __init__(self, pairs: Pairs = "semi-hard", *, margin: float = 0.2, **options: Any) -> None:
        """options: of `BaseMiner`."""
        super().__init__(**options)
        self.pairs, self.margin = pairs, margin

    def mine(self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor) -> Any:
        """Rows (anchors, positives, anchors, negatives), within the batch only."""
        if embeddings.shape != ref_emb.shape or not torch.equal(labels, ref_labels):
            raise InputError("Pairs are chosen within a batch; give no other reference embeddings.")
        unit = normalize(embeddings.detach().float(), dim=-1)
        chosen = chosen_pairs(unit @ unit.T, labels, pairs=self.pairs, margin=self.margin)
        same = labels[:, None] == labels[None, :]
        return (*(chosen & same).nonzero(as_tuple=True), *(chosen & ~same).nonzero(as_tuple=True))

    def output_assertion(self, output: Any) -> None:
        """Nothing to check: it is what `mine` made."""
