"""Training a method from its configuration to a finished run."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from doubtless.config import Config, with_overrides
from doubtless.data import BalancedBatches, Batch, Progress, Source, named_source, training_batches
from doubtless.data.loading import TensorBatches, WorkerBatches
from doubtless.distributed import is_main, world_size
from doubtless.errors import DoubtlessError, InputError
from doubtless.files import write_text
from doubtless.methods import Method, method_class
from doubtless.methods.configuration import load_config, make_config
from doubtless.methods.stages import take_over
from doubtless.progress import phase
from doubtless.runs.data import RunData, features_of, must_take, open_run_data, subset_of
from doubtless.runs.model import best_device
from doubtless.runs.networks import built_network
from doubtless.runs.run import Run, TrainedRun, read_checkpoint, same_config
from doubtless.runs.timing import recorded as timed
from doubtless.training.accelerate import precision_of
from doubtless.training.callbacks import AtomicCheckpoints, EpochDisplay
from doubtless.training.estimate import announcement
from doubtless.training.loggers import loggers_of, must_be_installed
from doubtless.training.mining import TupleBatches
from doubtless.training.module import TrainingModule

PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed"}
GLOO_SAYS = (
    "gloo",
    "pair closure",
    "closed by peer",
    "timed out",
    "timeout",
    "socket closed",
    "connection reset",
    "broken pipe",
)
"""In errors of a process group over TCP, whose others have ended or are out of reach."""


def train(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    encoder: nn.Module | Callable[[], nn.Module] | str | None = None,
    data: Any = None,
    resume: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
) -> TrainedRun:
    """Trains what a configuration (a file, a dict or a `Config`) says and returns the finished run.

    encoder   a network of your own in place of `model.backbone`: an `nn.Module`, of which a copy is trained, or
              what makes one without arguments; the run names its import path where that leads to such a network
    data      data of your own in place of `data.source`: a source's name, a torch `Dataset` of (image, label), a
              list of such pairs, or a function that returns one

    >>> config = {"method": "deterministic", "data": {"source": "digits"}, "training": {"epochs": 1}}
    >>> train(config, "runs/digits", quiet=True).path.name
    'digits'
    """
    given, overrides = _given(encoder, data)
    if isinstance(config, str | Path):
        config = load_config(config, overrides=overrides)
    elif overrides or not isinstance(config, Config):
        values = config.to_dict() if isinstance(config, Config) else config
        config = make_config(with_overrides(values, overrides))
    with timed(Path(out), trained=True):
        return train_run(config, out, given=given, resume=resume, quiet=quiet, progress=progress)


@dataclass(frozen=True)
class Given:
    """What a run is made of that its configuration cannot hold: objects."""

    encoder: nn.Module | None = None
    source: Source | None = None


def _given(encoder: Any, data: Any) -> tuple[Given, list[str]]:
    """The objects, and what the configuration says of them."""
    network, source, overrides = None, None, []
    if encoder is not None:
        network, path = built_network(encoder)
        overrides.append(f"model.backbone={json.dumps(path)}")
    if data is not None:
        source, name = (None, data) if isinstance(data, str) else named_source(data)
        overrides.append(f"data.source={json.dumps(name)}")  # a JSON string is YAML, whatever is in it
    return Given(network, source), overrides


def train_run(
    config: Config,
    path: str | Path,
    *,
    given: Given | None = None,
    resume: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
) -> TrainedRun:
    """Trains and leaves a finished run folder: model, log, split, checkpoint. Evaluation is another step.

    `resume` continues a run that was stopped, from its last whole epoch. What is returned holds the method as the
    folder has it, for whoever goes on with it; in other processes than the main one it is as training left it.
    """
    with _tidied(Path(path), resume=resume):
        return _train_run(config, path, given=given or Given(), resume=resume, quiet=quiet, progress=progress)


@contextlib.contextmanager
def _tidied(path: Path, *, resume: bool) -> Iterator[None]:
    """A training that fails before its first whole epoch leaves nothing behind that would block the next.

    One that is stopped stays: it is resumed.
    """
    is_new = not resume and is_main() and not (path.exists() and (not path.is_dir() or any(path.iterdir())))
    try:
        yield
    except Exception:
        if is_new and not any(any(path.rglob(name)) for name in ("last.ckpt", "model.json")):
            shutil.rmtree(path, ignore_errors=True)
        raise


def _train_run(
    config: Config,
    path: str | Path,
    *,
    given: Given,
    resume: bool,
    quiet: bool,
    progress: Progress | None,
) -> TrainedRun:
    _must_run_here(config)
    run = _open_or_create(config, path, resume)
    recorded = run.split if resume and (run.path / "split.json").exists() else None
    with phase("data"):
        data = open_run_data(config, split=recorded, source=given.source, progress=progress)
    if is_main():
        data.split.save(run.path / "split.json")
        if data.source.skipped:
            write_text(run.path / "skipped.txt", "\n".join(data.source.skipped) + "\n")
    torch.manual_seed(config.seed)
    method = method_class(config.method)(config, replace(data.spec, backbone=given.encoder))
    run.adopt(method)
    stages = {run.path / name: stage for name, stage in method.stages().items()}
    if not stages:  # before hours of training, not after; what it is made of is asked itself
        must_take(method, config.evaluation.size)
    if run.is_finished and all(Run(folder).is_finished for folder in stages):
        raise InputError(
            f"{path} is finished already; there is nothing to resume. More epochs: --set training.epochs="
            f"{2 * config.training.epochs} --resume."
        )
    for folder, stage in stages.items():
        _train_stage(stage, folder, given, quiet=quiet, progress=progress)
    if config.base is not None:
        take_over(method, Run.open(config.base).load_method(encoder=given.encoder), name=config.base)
    choice = None
    if method.trains and config.training.epochs > 0:
        choice = _fit(method, data, run, resume=resume, quiet=quiet, progress=progress)
    else:
        method.to(_trainer(config, run).strategy.root_device)
    if is_main():
        finished_on = data.train.without_augmentation(size=config.evaluation.size)
        finished_on.labels = data.train.labels
        train, validation = (
            subset_of(method, part, progress=progress) for part in (finished_on, data.validation)
        )
        method.eval()
        with phase("finishing"):
            method.finish(train, validation)
        run.save_model(method, choice=choice)
    return TrainedRun(run.path, method=_at_rest(method), data=data)


def _at_rest(method: Method) -> Method:
    """The method as one that is loaded would be: no gradients kept, and nothing compiled."""
    method.zero_grad(set_to_none=True)
    if method.config.training.compile and method.trains:
        method.encoder.backbone = copy.deepcopy(method.encoder.backbone)  # a copy is never compiled
    return method.eval()


def _must_run_here(config: Config) -> None:
    """Refuses an accelerator that this machine does not have, before a folder is made."""
    options = config.training
    must_be_installed(options.loggers)
    if options.accelerator == "gpu" and not torch.cuda.is_available():
        raise InputError(
            "training.accelerator is gpu, and torch finds none here; accepted here: cpu or auto."
        )
    there = torch.cuda.device_count() if best_device(options.accelerator).type == "cuda" else None
    if there is not None and options.devices > there:
        raise InputError(f"training.devices is {options.devices}, and torch finds {there} here.")


def _train_stage(config: Config, path: Path, given: Given, *, quiet: bool, progress: Progress | None) -> None:
    """Trains a run that another is made of, or goes on with it; a finished one is taken as it is."""
    stage = Run(path)
    if not stage.is_finished or stage.config.training.epochs < config.training.epochs:
        begun = (path / "config.yaml").is_file()
        train_run(config, path, given=given, resume=begun, quiet=quiet, progress=progress)


def _open_or_create(config: Config, path: str | Path, resume: bool) -> Run:
    if not is_main():
        return Run(Path(path))  # the main process makes it
    if not resume:
        return Run.create(path, config)
    run = Run.open(path)
    if same_config(run, config):  # but for more epochs: it is no longer finished
        write_text(run.path / "config.yaml", config.to_yaml())
        (run.path / "model.json").unlink(missing_ok=True)
    return run


def _fit(
    method: Method, data: RunData, run: Run, *, resume: bool, quiet: bool, progress: Progress | None
) -> dict[str, Any]:
    """Trains, leaves the weights of the best epoch in the method, and says which one that is."""
    checkpoint = run.checkpoint if resume and run.checkpoint.exists() else None
    if checkpoint is not None:
        read_checkpoint(checkpoint)  # a damaged one is a sentence before anything starts
    display = None if quiet else EpochDisplay(method.config.training.epochs)
    trainer = _trainer(method.config, run, display)
    method.to(trainer.strategy.root_device)
    if checkpoint is None:
        with phase("head start"):
            method.start(subset_of(method, data.train, progress=progress))
    mining = None
    if method.batch_kind == "tuples":
        mining = TupleBatches(method, data.train, progress=display.bar if display else None)
    with phase("images"):
        batches = mining or _loader(method, data, progress)
    if display is not None and method.device.type == "cpu":
        with phase("estimate"):
            display.announce(announcement(method, data, done=0 if checkpoint is None else len(run.log)))
    if method.config.training.compile:
        method.encoder.backbone.compile()  # in place: names of weights stay as they are
    module = TrainingModule(method, data.validation, run, mining=mining, graphed=_replays(method))
    loader = EpochLoader(batches, trainer)
    device = method.device
    with phase("training"):
        _fitted(trainer, module, loader, checkpoint)
    method.to(device)  # Lightning leaves it on the CPU, where what follows would take minutes
    method.encoder_rests = False
    module.restore_best()
    return module.choice()


def _fitted(trainer: Trainer, module: TrainingModule, loader: EpochLoader, checkpoint: Path | None) -> None:
    """Fits; Ctrl-C stays what it is, which Lightning would make an exit without a word, a lost process is told."""
    try:
        trainer.fit(module, train_dataloaders=loader, ckpt_path=checkpoint, weights_only=True)
    except SystemExit:
        if not trainer.interrupted:
            raise
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which Lightning has switched off
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if trainer.world_size == 1 or not _is_out_of_reach(error):
            raise
        timeout = module.method.config.training.timeout
        raise DoubtlessError(
            f"Another process of this run has ended or is out of reach (each waits {timeout:g} s for the others: "
            "training.timeout). What is kept goes to the last whole epoch: start all of them again, with --resume."
        ) from error


def _is_out_of_reach(error: RuntimeError) -> bool:
    """Whether it is of a process group: NCCL's and the store's errors have a class, gloo's have only words."""
    of_group = isinstance(error, torch.distributed.DistError)
    return of_group or any(words in str(error).lower() for words in GLOO_SAYS)


def _replays(method: Method) -> bool:
    """Whether steps are recorded and replayed: on one CUDA device, where a method's steps allow it."""
    return method.device.type == "cuda" and world_size() == 1 and method.repeats_its_step


class EpochLoader:
    """A training loader that is told the Trainer's epoch each time it is walked through."""

    def __init__(self, loader: TensorBatches | WorkerBatches | TupleBatches, trainer: Trainer) -> None:
        self.loader = loader
        self.trainer = trainer

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        # A generator: the epoch is asked for with the first batch, when a resumed Trainer knows it.
        self.loader.epoch = self.trainer.current_epoch
        yield from self.loader


def _loader(method: Method, data: RunData, progress: Progress | None) -> TensorBatches | WorkerBatches:
    """Images, or, where the encoder is frozen, its features computed once."""
    config = method.config
    options = config.training
    if method.batch_kind == "features":
        batches = BalancedBatches(
            data.train.labels, batch_size=options.batch_size, per_class=options.per_class, seed=config.seed
        )
        return TensorBatches(features_of(method, data.train, progress=progress), data.train.labels, batches)
    return training_batches(
        data.train,
        batch_size=options.batch_size,
        per_class=options.per_class,
        seed=config.seed,
        workers=config.data.workers,
        device=method.device,
        progress=progress,
    )


CHECKPOINT_SECONDS = 5.0  # short epochs would spend their time on writing what is soon written again


class _SavedEpochs(Checkpoint):
    """Writes last.ckpt when an epoch is over; Lightning calls checkpoints last, after the module's own hook.

    Of epochs shorter than `CHECKPOINT_SECONDS` some are left out: a resumed run repeats them exactly.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved_at = -CHECKPOINT_SECONDS

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Saves, unless that was done a moment ago and more epochs follow."""
        is_last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        recent = time.perf_counter() - self._saved_at < CHECKPOINT_SECONDS
        if recent and not is_last and world_size() == 1:  # all processes save together: their clocks differ
            return
        trainer.save_checkpoint(self.path)
        self._saved_at = time.perf_counter()


def _trainer(config: Config, run: Run, display: EpochDisplay | None = None) -> Trainer:
    options = config.training
    _hush_lightning()
    callbacks: list[Callback] = [_SavedEpochs(run.checkpoint)]
    if display is not None:
        callbacks.append(display)
    strategy: Literal["auto"] | DDPStrategy = "auto"
    if options.devices * options.nodes > 1:
        strategy = DDPStrategy(
            # While the head trains alone, the encoder's parameters have no gradient.
            find_unused_parameters=options.warmup > 0,
            timeout=timedelta(seconds=options.timeout),
        )
    return Trainer(
        accelerator=options.accelerator,
        devices=options.devices,
        num_nodes=options.nodes,
        strategy=strategy,
        max_epochs=options.epochs,
        precision=PRECISIONS[precision_of(config, best_device(options.accelerator))],
        plugins=[AtomicCheckpoints()],
        callbacks=callbacks,
        logger=loggers_of(options.loggers, run.path) or False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        default_root_dir=run.path,
    )


def _hush_lightning() -> None:
    """Its hints on devices and loaders are not for our users; our own errors and bars say what matters."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning.*")
