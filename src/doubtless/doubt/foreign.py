"""How likely a picture shows nothing of the kind, by how odd it is: a garment shown to a gallery of birds.

Known queries are as odd as themselves: the share p of them that is odder is uniform. Of foreign ones it is small;
how small nobody can know beforehand, so its density is taken as a · p^(a − 1), which rises without bound towards 0.
With a share `FOREIGN` of such pictures Bayes' rule gives the probability that this is one. No foreign picture takes
part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FOREIGN = 0.01
"""Share of pictures that show nothing of the kind, whatever share of the others has no label in the gallery."""
SHAPE = 0.1
"""a of the density: half of all foreign pictures are odder than 999 of 1,000 known ones."""


def foreign_share(surprise: Tensor) -> Tensor:
    """The probability (n,) that a query is foreign, from −log of the share of known queries that are as odd (n,).

    >>> foreign_share(torch.tensor([0.01, 0.001, 1e-6]).log().neg()).round(decimals=2)
    tensor([0.0600, 0.3400, 1.0000])
    """
    prior = math.log(FOREIGN) - math.log1p(-FOREIGN) + math.log(SHAPE)
    return torch.sigmoid(prior + (1 - SHAPE) * surprise)
