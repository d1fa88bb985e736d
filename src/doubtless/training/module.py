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
from doubtless.progress import phase
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
        self.best_epoch = -1
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
        arguments: dict[str, Any] = {"lr": options.lr}
        if options.optimizer in {"rmsprop", "sgd"}:
            arguments["momentum"] = options.momentum
        if self.method.device.type == "cuda" and options.optimizer != "rmsprop":  # which has no fused version
            arguments["fused"] = True
        if self._graphed is not None and options.optimizer != "sgd":  # which counts no steps
            arguments["capturable"] = True
        return OPTIMIZERS[options.optimizer](groups, **arguments)

    def on_train_start(self) -> None:
        """A run begun on another device may come back with moments in another layout than its weights have here."""
        for logger in self.loggers:
            logger.log_hyperparams(self.method.config.to_dict())
        for parameter, kept in self._optimizer.state.items():
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    kept[name] = torch.empty_like(parameter).copy_(value)

    def on_train_epoch_start(self) -> None:
        """Seeds the epoch's draws and sets its learning rates."""
        epoch = self.current_epoch
        torch.manual_seed(hash((self.method.config.seed, epoch)) & 0x7FFFFFFF)
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.lr * group["lr_factor"] * lr_share(self.options, epoch)
        self.method.encoder_rests = epoch < self.options.warmup
        self._steps, self._began = 0, time.perf_counter()
        for total in self._sums.values():
            total.zero_()
        self.method.begin_epoch(epoch)
        if self._graphed is not None:
            self._graphed.new_epoch(other_work=epoch == self.options.warmup)

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
            self._clip()
            optimizer.step()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Shortens gradients where Lightning takes the step."""
        self._clip()

    def _clip(self) -> None:
        if self.options.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.method.parameters(), self.options.clip)

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
        validated_at = time.perf_counter()
        with phase("validation"):
            row |= {f"validation_{name}": value for name, value in self._validate().items()}
        row["lr"] = self.options.lr * lr_share(self.options, self.current_epoch)
        row["seconds"] = round(time.perf_counter() - self._began, 3)
        row["seconds_validating"] = round(time.perf_counter() - validated_at, 3)
        self.rows.append(row)
        self._keep_if_best(self._score_of(-1))
        self._stop_if_no_better(self.current_epoch)
        if rank() == 0:
            write_text(self.run_folder.path / "log.csv", as_csv(self.rows))
        for logger in self.loggers:  # which write in the main process only
            logger.log_metrics({name: row[name] for name in row if name != "epoch"}, step=self.current_epoch)

    def _validate(self) -> dict[str, float]:
        """recall@1 and map@r of the validation part; every rank embeds its share."""
        count = len(self.validation)
        share = torch.arange(rank() * count // world_size(), (rank() + 1) * count // world_size())
        images = ImageSet(self.validation.source, self.validation.index[share], self.validation.preparation)
        embedding = embed_images(self.method, images, again=True).to(
            "cpu" if world_size() > 1 else self.device
        )
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

    def _score_of(self, row: int) -> float:
        return self.rows[row][f"validation_{self.options.monitor}"]

    def _keep_if_best(self, score: float) -> None:
        if score > self.best_score:
            self.best_score, self.best_epoch = score, self.current_epoch
            self.best_state = {
                name: value.detach().cpu().clone() for name, value in self.method.state_dict().items()
            }

    def _stop_if_no_better(self, epoch: int) -> None:
        """Ends the training where the epochs up to this one have used up `training.patience`."""
        patience = self.options.patience
        if patience is not None and epoch - self.best_epoch >= patience:
            self.trainer.should_stop = True

    def choice(self) -> dict[str, Any]:
        """Which epoch was chosen, by what, and how many there were to choose from."""
        return {
            "monitor": f"validation_{self.options.monitor}",
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "epochs": len(self.rows),
            "stopped_early": len(self.rows) < self.options.epochs,
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
        self.best_epoch = max(range(len(self.rows)), key=self._score_of)  # the first of equal ones
        self._stop_if_no_better(len(self.rows) - 1)
        self.best_state = kept["best_state"]
        if self.mining is not None:
            self.mining.restore(kept["mining"])


def lr_share(options: TrainingConfig, epoch: int) -> float:
    """What of the learning rate is left in an epoch, counted from 0.

    The cosine is that of the epoch's middle, from the end of the warm-up on: it falls from 1 to 0 over the training
    as one that changes with every step does, and a resumed run needs to know its epoch only.

    >>> [round(lr_share(TrainingConfig(epochs=5, schedule="cosine", warmup=1), epoch), 2) for epoch in range(5)]
    [1.0, 0.96, 0.69, 0.31, 0.04]
    >>> lr_share(TrainingConfig(schedule="step", lr_decay=0.5, lr_step=10), 25)
    0.25
    """
    if options.schedule == "decay":
        return float(options.lr_decay**epoch)
    if options.schedule == "step":
        return float(options.lr_decay ** (epoch // options.lr_step))
    if epoch < options.warmup:
        return 1.0
    done = (epoch - options.warmup + 0.5) / max(options.epochs - options.warmup, 1)
    return 0.5 + 0.5 * math.cos(math.pi * done)


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
