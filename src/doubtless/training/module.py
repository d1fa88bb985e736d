"""What Lightning's Trainer runs: a method's loss, its optimiser, and the validation that picks the best epoch.

What picks it is retrieval within the validation part, quick and without intervals.
"""

from __future__ import annotations

import csv
import io
import math
import time
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from doubtless.config import TrainingConfig
from doubtless.data import Batch, ImageSet, Places
from doubtless.distributed import gather_objects, rank, world_size
from doubtless.embedding import FAMILIES, Embedding
from doubtless.errors import InputError, RunError
from doubtless.files import write_text
from doubtless.methods import Losses, Method
from doubtless.metrics.retrieval import map_at_r, recall_at
from doubtless.metrics.uncertainty import error_auroc
from doubtless.runs.data import embed_images
from doubtless.runs.run import SCHEMA, Run
from doubtless.search.neighbors import ranked
from doubtless.search.relevance import Positions, Truth, count_right, is_right
from doubtless.training.accelerate import GraphedStep, precision_of
from doubtless.training.mining import TupleBatches

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


class TrainingModule(LightningModule):
    """Wraps a method for Lightning.

    Everything an epoch draws comes from (seed, epoch), and the learning rate is a function of the epoch, so a
    run that was killed and resumed at an epoch's start repeats the unbroken run exactly.
    """

    def __init__(
        self,
        method: Method,
        validation: ImageSet,
        run: Run,
        *,
        mining: TupleBatches | None = None,
        graphed: bool = False,
    ) -> None:
        super().__init__()
        self.mining = mining
        self._graphed = GraphedStep(self._take_step) if graphed else None
        self.automatic_optimization = not graphed  # a recorded step updates the weights itself
        self.method = method
        self.validation = validation
        self.run_folder = run
        self.rows: list[dict[str, float]] = []
        self.best_score = -1.0
        self.best_state: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._steps = 0
        self._began = 0.0

    @property
    def options(self) -> TrainingConfig:
        """The section `training` of the configuration."""
        return self.method.config.training

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser, with a learning rate for every group of parameters."""
        options = self.options
        groups = [
            {**group, "lr": options.lr * group["lr_factor"]} for group in self.method.parameter_groups()
        ]
        arguments: dict[str, Any] = {"lr": options.lr, "weight_decay": options.weight_decay}
        if options.optimizer in {"rmsprop", "sgd"}:
            arguments["momentum"] = options.momentum
        if self.method.device.type == "cuda" and options.optimizer != "rmsprop":  # which has no fused version
            arguments["fused"] = True
        if self._graphed is not None and options.optimizer != "sgd":  # which counts no steps
            arguments["capturable"] = True
        return OPTIMIZERS[options.optimizer](groups, **arguments)

    def on_train_start(self) -> None:
        """A run begun on another device may come back with moments in another layout than its weights have here."""
        for parameter, kept in self._optimizer.state.items():
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    kept[name] = torch.empty_like(parameter).copy_(value)

    def on_train_epoch_start(self) -> None:
        """Seeds the epoch's draws and sets its learning rates."""
        epoch = self.current_epoch
        torch.manual_seed(hash((self.method.config.seed, epoch)) & 0x7FFFFFFF)
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.lr * group["lr_factor"] * self.options.lr_decay**epoch
        self._steps, self._began = 0, time.perf_counter()
        for total in self._sums.values():
            total.zero_()
        self.method.begin_epoch(epoch)
        if self._graphed is not None:
            self._graphed.new_epoch()

    def training_step(self, batch: Batch, number: int) -> Tensor | None:
        """The loss of a batch; None where a recorded step has updated the weights already."""
        self._steps += 1
        if self._graphed is None:
            return self._loss(batch)
        self._graphed(batch)
        return None

    def _loss(self, batch: Batch) -> Tensor:
        losses: Losses = self.method.loss(batch)
        for name, value in {"loss": losses.total, **losses.terms}.items():  # sums stay on the device
            if name not in self._sums:
                self._sums[name] = torch.zeros((), device=value.device)
            self._sums[name] += value.detach()
        return losses.total

    def _take_step(self, batch: Batch) -> None:
        """A whole step: what Lightning would do, in a form that can be recorded."""
        optimizer, half = self._optimizer, precision_of(self.method.config, self.method.device) == "bf16"
        optimizer.zero_grad(set_to_none=True)
        # Without autocast's cache: half-precision copies of the weights kept from one step would serve them all.
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
            loss = self._loss(batch)
        with torch.autocast("cuda", enabled=False):
            loss.backward()
            optimizer.step()

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        return self.trainer.optimizers[0]

    def on_train_epoch_end(self) -> None:
        """Validates, writes the log, and keeps the weights if they are the best so far."""
        row = {"epoch": float(self.current_epoch)}
        row |= {f"train_{name}": float(total) / self._steps for name, total in self._sums.items()}
        if not torch.isfinite(torch.tensor(list(row.values()))).all():
            raise RunError(
                f"The loss became NaN or infinite in epoch {self.current_epoch}; "
                f"lower training.lr (it is {self.options.lr:g}) and train again."
            )
        row |= {f"validation_{name}": value for name, value in self._validate().items()}
        row["lr"] = self.options.lr * self.options.lr_decay**self.current_epoch
        row["seconds"] = round(time.perf_counter() - self._began, 3)
        self.rows.append(row)
        self._keep_if_best(row[f"validation_{self.options.monitor}"])
        if rank() == 0:
            write_text(self.run_folder.path / "log.csv", as_csv(self.rows))

    def _validate(self) -> dict[str, float]:
        """recall@1 and map@r of the validation part; every rank embeds its share."""
        count = len(self.validation)
        share = torch.arange(rank() * count // world_size(), (rank() + 1) * count // world_size())
        images = ImageSet(self.validation.source, self.validation.index[share], self.validation.preparation)
        embedding = embed_images(self.method, images).to("cpu" if world_size() > 1 else self.device)
        shares: Any = gather_objects((embedding.family, embedding.parameters)) if world_size() > 1 else None
        if shares is not None:
            embedding = Embedding.cat([FAMILIES[family](parameters) for family, parameters in shares])
        labels = self.validation.labels.to(embedding.device)
        if self.options.monitor != "error_auroc":
            return validation_scores(embedding.direction, labels, places=self.validation.places)
        if embedding.uncertainty is None:
            raise InputError(
                f"training.monitor error_auroc needs an uncertainty, and {self.method.name} has none while it "
                "trains; accepted: map@r, recall@1."
            )
        return validation_scores(
            embedding.direction, labels, uncertainty=embedding.uncertainty, places=self.validation.places
        )

    def _keep_if_best(self, score: float) -> None:
        if score > self.best_score:
            self.best_score = score
            self.best_state = {
                name: value.detach().cpu().clone() for name, value in self.method.state_dict().items()
            }

    def restore_best(self) -> None:
        """Puts the weights of the best epoch back."""
        if self.best_state:
            self.method.load_state_dict(self.best_state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the log, the best weights and the mined tuples to Lightning's state."""
        checkpoint["doubtless"] = {
            "schema": SCHEMA,
            "rows": self.rows,
            "best_score": self.best_score,
            "best_state": self.best_state,
            "mining": None if self.mining is None else self.mining.state(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Goes on with what a checkpoint kept."""
        kept = checkpoint["doubtless"]
        self.rows = list(kept["rows"])
        self.best_score = kept["best_score"]
        self.best_state = kept["best_state"]
        if self.mining is not None:
            self.mining.restore(kept["mining"])


def as_csv(rows: list[dict[str, float]]) -> str:
    """One line per epoch, one column for everything any row has."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: f"{value:.8g}" for name, value in row.items()} for row in rows)
    return text.getvalue()


def validation_scores(
    direction: Tensor, labels: Tensor, *, uncertainty: Tensor | None = None, places: Places | None = None
) -> dict[str, float]:
    """recall@1 and map@r, leave-one-out; items without a second of their class count only as distractors.

    direction (n, D) unit rows, labels (n,). With places the queries among them search the database among them,
    and what lies within the radius is right. With an uncertainty (n,) also error_auroc, which is what methods that
    learn nothing but an uncertainty are chosen by; where all hits are right or all wrong it is chance, .5.
    """
    truth: Truth = labels
    asking = answering = torch.arange(len(labels), device=labels.device)
    if places is not None:
        truth = Positions(places.position.to(labels.device), places.radius)
        is_query = places.query.to(labels.device)
        asking, answering = asking[is_query], asking[~is_query]
    asked_truth, gallery_truth = (_rows_of(truth, rows) for rows in (asking, answering))
    positives = count_right(asked_truth, gallery_truth, leave_one_out=places is None)  # (queries,)
    counted = torch.nonzero(positives)[:, 0]
    queries = asking[counted]
    precision = torch.zeros(len(labels), dtype=torch.double, device=labels.device)
    right = torch.zeros_like(precision)
    for rows, nearest in ranked(
        direction[queries],
        direction[answering],
        depth=positives[counted],
        exclude=queries if places is None else None,
    ):
        relevant = is_right(
            asked_truth, gallery_truth, rows=counted[rows], found=nearest.index
        )  # (chunk, depth)
        precision[queries[rows]] = map_at_r(relevant, positives[counted[rows]])
        right[queries[rows]] = recall_at(relevant, 1).double()
    count = max(len(queries), 1)
    scores = {"map@r": float(precision.sum()) / count, "recall@1": float(right.sum()) / count}
    if uncertainty is not None and len(queries):
        separated = error_auroc(uncertainty[queries].double(), right[queries] > 0)
        scores["error_auroc"] = 0.5 if math.isnan(separated) else separated
    return scores


def _rows_of(truth: Truth, rows: Tensor) -> Truth:
    return Positions(truth.metres[rows], truth.radius) if isinstance(truth, Positions) else truth[rows]
