"""What a trained method makes of images, as a graph without questions: the parameters of its family.

A method says how they come about in `Method.distribution`. `Method.embed` looks at values on the way (is this
finite? has training finished?) where a graph cannot; whether both give the same is checked by `doubtless.export`
for each file.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from doubtless.export.answers import family_answers
from doubtless.methods import Method
from doubtless.methods.ensemble import Ensemble

Parameters = dict[str, Tensor]


class Distribution(nn.Module):
    """Images (n, C, H, W) to the parameters of a method's family, by name."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method, self.family, self.variance_ratio = method, method.family, method.variance_ratio

    def forward(self, images: Tensor) -> Parameters:
        """The parameters of n images."""
        return self.method.distribution(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the method's `distribution` takes, (n, F)."""
        return self.method.encode(images).float()


class OfMembers(Distribution):
    """An ensemble's members are no part of its state, and say their directions by graphs of their own."""

    def __init__(self, method: Ensemble) -> None:
        super().__init__(method)
        members = [distribution_of(member) for member in method.members()]
        self.members = nn.ModuleList(members)
        dim = method.config.model.dim
        self.answers = nn.ModuleList(
            family_answers(member.family, dim, spread=member.variance_ratio) for member in members
        )

    def features(self, images: Tensor) -> Tensor:
        """The members' directions side by side, (n, members · D)."""
        pairs = zip(self.members, self.answers, strict=True)
        return torch.cat([answer(member(images))["direction"] for member, answer in pairs], dim=1)


def distribution_of(method: Method) -> Distribution:
    """The graph of a trained method's parameters."""
    return OfMembers(method) if isinstance(method, Ensemble) else Distribution(method)
