"""What methods share that add a second head to a network that is finished: PFE, loss prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from doubtless.config import Config, Section
from doubtless.errors import RunError
from doubtless.methods.base import BatchKind, DataSpec, Method, Subset
from doubtless.methods.configuration import make_config
from doubtless.methods.stages import take_over

BASE = "base"


class HeadOptions(Section):
    """The section `head` of a configuration: how the second head is trained; `training` is the network's."""

    epochs: int = Field(default=20, ge=1)
    """Of the second head, after the network's."""
    lr: float = Field(default=1e-3, gt=0)
    """The learning rate in the first epoch."""
    lr_decay: float = Field(default=0.9, gt=0, le=1)
    """The learning rate is multiplied by this after each epoch."""
    hidden: int = Field(default=128, ge=1)
    """Width of the second head's hidden layer."""


class TwoStage(Method):
    """A deterministic network, frozen, and a second head fitted on its features.

    The network is that of a finished run (`base: RUN`), or of a run trained for it below its own folder by the same
    configuration: `deterministic` bit for bit. Its features are computed once; the second head sees nothing
    else, and nothing of it reaches the network. It is fitted in `finish`, by the main process alone, in seconds and
    always from the start, so there is nothing to resume: no epoch can be picked by retrieval, which the second
    head does not change.
    """

    second: nn.Module

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.encoder.requires_grad_(False)
        self.head.requires_grad_(False)
        self.curve: list[float] = []

    @property
    def batch_kind(self) -> BatchKind:
        """Features of the frozen network, computed once."""
        return "features"

    @property
    def trains(self) -> bool:
        """The network is finished; the second head is fitted in `finish`."""
        return False

    @property
    def options(self) -> HeadOptions:
        """How the second head is trained."""
        return self.config.section("head", HeadOptions)

    def train(self, mode: bool = True) -> TwoStage:
        """The network stays in evaluation mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def stages(self) -> dict[str, Config]:
        """The network alone, where no finished run is named."""
        return {} if self.config.base is not None else {BASE: deterministic_stage(self.config)}

    def finish(self, train: Subset, validation: Subset) -> None:
        """Takes over the network's weights and fits the second head."""
        if self.config.base is None and self.folder is not None and self.load_run is not None:
            network = self.load_run(self.folder / BASE)
            if network is None:
                raise RunError(f"{self.folder / BASE} holds no finished run; train it with --resume.")
            take_over(self, network, name=str(self.folder / BASE))
        self.fit_second(train, validation)

    def fit_second(self, train: Subset, validation: Subset) -> None:
        """Trains `second`; encoder and head are those of the finished network."""
        raise NotImplementedError

    def second_groups(self) -> list[dict[str, Any]]:
        """Parameters of the second head with a factor on `head.lr` each."""
        return [{"params": list(self.second.parameters()), "lr_factor": 1.0}]

    def minimize(
        self, epoch_rows: Callable[[int], Iterable[Tensor]], loss: Callable[[Tensor], Tensor]
    ) -> None:
        """Adam on the second head: `epoch_rows(epoch)` gives the rows of each batch, `loss(rows)` a number."""
        options = self.options
        optimizer = torch.optim.Adam(self.second_groups(), lr=options.lr)
        self.second.train()
        self.curve = []
        for epoch in range(options.epochs):
            for group in optimizer.param_groups:
                group["lr"] = options.lr * group["lr_factor"] * options.lr_decay**epoch
            values = []
            for rows in epoch_rows(epoch):
                value = loss(rows)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                values.append(value.detach())
            self.curve.append(float(torch.stack(values).mean()))
            if not torch.isfinite(torch.tensor(self.curve[-1])):
                raise RunError(
                    f"The loss of the second head became NaN or infinite in epoch {epoch}; "
                    f"lower head.lr (it is {options.lr:g}) and train again."
                )
        self.second.eval()

    def record(self) -> dict[str, Any]:
        """The second head's loss, epoch by epoch."""
        return {"head_loss": [round(value, 6) for value in self.curve]}


def deterministic_stage(config: Config) -> Config:
    """The configuration of the network alone: the same data, model, loss, training and seed."""
    shared = {
        key: value
        for key, value in config.to_dict().items()
        if key in {"seed", "data", "model", "loss", "training"}
    }
    return make_config({**shared, "method": "deterministic"})
