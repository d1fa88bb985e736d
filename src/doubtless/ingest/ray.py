"""Bulk embedding on a Ray cluster: Ray Data hands work units to a pool of workers, the driver writes the shards.

What a unit gives depends on nothing but the unit and the model (`doubtless.ingest.bulk`), so who does it,
in which order and how often does not matter: a worker that dies has its unit done again by another, and a
driver that is killed continues with the units whose shards are not there. Shards travel through Ray's object
store to the driver, which alone writes; run and images must be at the same paths on every machine.

Ray Data's own writers (`write_parquet`) name files as they come and begin anew when the driver dies, so the
shards are written here, one file per unit, each whole or not there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from doubtless.data import Source
from doubtless.data.streams.opening import SourceStream
from doubtless.data.streams.records import Columns, ImageStream
from doubtless.errors import DoubtlessError, InputError
from doubtless.ingest.bulk import (
    GPU_BATCH,
    SHARD_SIZE,
    Embedded,
    Meter,
    Plan,
    Sources,
    WorkUnit,
    embed_into,
    embed_unit,
    method_of,
    plan_work,
)
from doubtless.ingest.shards import EmbeddedShard, ShardFormat, ShardStore, decode_shard, encode_shard
from doubtless.methods import Method
from doubtless.runs.model import model_fingerprint

if TYPE_CHECKING:
    from doubtless.runs.model import Model


LOCAL = "local"


@dataclass(frozen=True)
class RayOptions:
    """Where the work is done, and by how many."""

    address: str = LOCAL
    """local: a Ray of its own on this machine; auto: the cluster this machine belongs to; or host:port."""
    workers: int | None = None
    """At most so many; None: as many as the cluster has room for."""
    cpus: int | None = None
    """Cores, and threads of torch, per worker; None: those of this process, so that every sum is taken as it
    takes it."""
    decoders: int | None = None
    """Threads that decode images, per worker; None: by cores."""


def embed_with_ray(
    model: Model | Method,
    sources: Sources,
    out: str | Path,
    *,
    options: RayOptions | None = None,
    format: ShardFormat = "safetensors",
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    batch_size: int | None = None,
    meter: Meter | None = None,
) -> Embedded:
    """Embeds all images of some sources into a folder of shards; called again, it continues.

    The model must be that of a run, which every worker opens by itself. On CPUs the shards are bit for bit
    those of `doubtless.ingest.bulk.embed_files`.

    >>> model = doubtless.load("runs/first")  # starts a cluster  # doctest: +SKIP
    >>> embed_with_ray(model, "photos", "photos-embedded").items  # starts a cluster  # doctest: +SKIP
    160
    """
    method, options = method_of(model), options or RayOptions()
    if method.folder is None:
        raise InputError("Ray's workers open the model by its run folder; this one belongs to no run.")
    store = ShardStore(Path(out), format)
    with RayCluster(options) as cluster:
        size = batch_size or (GPU_BATCH if cluster.gpus(method) else None)
        plan = plan_work(model, sources, columns=columns, shard_size=shard_size, batch_size=size)

        def produce(units: Sequence[WorkUnit]) -> Iterator[tuple[int, EmbeddedShard]]:
            images = {unit.number: len(unit.images) for unit in units}
            for number, shard in cluster.shards(method, plan, units):
                yield number, shard
                if meter is not None:
                    meter.advance(images[number], len(shard.bad))

        return embed_into(store, plan, produce, meter=meter)


class RayCluster:
    """A connection to Ray; one that was there before is used and left as it is."""

    def __init__(self, options: RayOptions) -> None:
        self.options = options
        self.ray = _ray()
        self._own = False

    def __enter__(self) -> RayCluster:
        if not self.ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported anywhere
            os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of the driver; it has log files as well
            quiet = {"log_to_driver": False, "configure_logging": False}
            try:
                if self.options.address == LOCAL:
                    self.ray.init(address=LOCAL, include_dashboard=False, **quiet)
                else:
                    self.ray.init(address=self.options.address, **quiet)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"There is no Ray at {self.options.address!r}: {_first_line(error)}"
                ) from error
            self._own = True
        return self

    def __exit__(self, *error: object) -> None:
        if self._own:
            self.ray.shutdown()

    def gpus(self, method: Method) -> int:
        """GPUs of the cluster that a method's configuration allows."""
        if method.config.training.accelerator == "cpu":
            return 0
        return int(self.ray.cluster_resources().get("GPU", 0))

    def shards(
        self, method: Method, plan: Plan, units: Sequence[WorkUnit]
    ) -> Iterator[tuple[int, EmbeddedShard]]:
        """The shards of some units, as they get done."""
        from ray.data import ActorPoolStrategy, DataContext, from_items

        for name in ("ray", "ray.data"):
            logging.getLogger(name).setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        sources: list[Source] = []
        sent = {unit.number: self.ray.put(_sent(unit, sources)) for unit in units}
        gpus = self.gpus(method)
        cpus, most = self._cores_each(), min(self.options.workers or len(units), len(units))
        about = {
            "run": str(_folder(method)),
            "model": plan.manifest["model"],
            "batch_size": plan.batch_size,
            "threads": cpus,
            "device": "cuda" if gpus else "cpu",
            "decoders": self.options.decoders,
            "units": sent,
            "sources": [self.ray.put(source) for source in sources],
        }
        rows = [{"number": number} for number in sent]
        done = from_items(rows, override_num_blocks=len(rows)).map(
            UnitEmbedder,  # type: ignore[arg-type]  # a class: each worker makes one
            fn_constructor_args=(about,),
            compute=ActorPoolStrategy(min_size=1, max_size=most),
            num_cpus=cpus,
            num_gpus=1 if gpus else None,
        )
        try:
            for row in done.iter_rows():
                if row["problem"]:
                    raise InputError(row["problem"])
                yield row["number"], decode_shard(row["shard"])
        except DoubtlessError:
            raise
        except Exception as error:  # Ray wraps what a worker raised in errors of its own
            raise _worker_error(error) from error

    def _cores_each(self) -> int:
        """As many as are asked for, or as the largest machine has: a worker does not span machines."""
        there = [node["Resources"].get("CPU", 0) for node in self.ray.nodes() if node["Alive"]]
        return max(1, min(self.options.cpus or torch.get_num_threads(), int(max(there, default=1))))


class UnitEmbedder:
    """A worker: opens the run with its first unit, then embeds unit after unit.

    What is wrong in words comes back as the row's `problem`: of an error raised here, Ray brings over a traceback.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about
        self.sources: dict[int, Source] = {}
        self._method: Method | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Embeds the unit that a row of Ray Data numbers; its shard comes back as bytes."""
        try:
            sent: SentUnit = _ray().get(self.about["units"][row["number"]])
            unit, size = sent.unit(self._source), self.about["batch_size"]
            shard = embed_unit(self.method, unit, batch_size=size, workers=self.about["decoders"])
        except DoubtlessError as error:
            return {"number": row["number"], "shard": b"", "problem": str(error)}
        return {"number": row["number"], "shard": encode_shard(shard), "problem": ""}

    @property
    def method(self) -> Method:
        """The run's model, checked to be the one that the work was begun with."""
        if self._method is None:
            from doubtless.runs.run import Run

            torch.set_num_threads(self.about["threads"])
            method = Run.open(self.about["run"]).load_method()
            if (fingerprint := model_fingerprint(method)) != self.about["model"]:
                raise InputError(
                    f"{self.about['run']} holds another model on a worker ({fingerprint[:12]}…) than where the "
                    f"work was begun ({self.about['model'][:12]}…); all machines must see the same folder."
                )
            self._method = method.to(self.about["device"])
        return self._method

    def _source(self, place: int) -> Source:
        """A source's arrays come over once, not with every unit."""
        if place not in self.sources:
            self.sources[place] = _ray().get(self.about["sources"][place])
        return self.sources[place]


@dataclass(frozen=True)
class SentUnit:
    """A unit as it travels: the arrays of a source in memory, which its units share, go once and not with each."""

    number: int
    images: ImageStream | None
    source: int = 0
    """Without images of its own: which of the sources, and its images first … stop − 1."""
    first: int = 0
    stop: int = 0

    def unit(self, source: Callable[[int], Source]) -> WorkUnit:
        """The unit again, from the sources by their places."""
        if self.images is not None:
            return WorkUnit(self.number, self.images)
        return WorkUnit(self.number, SourceStream(source(self.source), self.first, self.stop))


def _sent(unit: WorkUnit, sources: list[Source]) -> SentUnit:
    """A unit without its source's arrays; the source is added to `sources` where it is not there."""
    images = unit.images
    if not isinstance(images, SourceStream):
        return SentUnit(unit.number, images)
    places = [place for place, known in enumerate(sources) if known is images.source]
    if not places:
        sources.append(images.source)
    return SentUnit(unit.number, None, places[0] if places else len(sources) - 1, images.first, images.stop)


def _folder(method: Method) -> Path:
    assert method.folder is not None
    return method.folder.absolute()


def _worker_error(error: Exception) -> DoubtlessError:
    """Something else than images and models went wrong: memory, machines, Ray itself."""
    last = (str(error).strip().splitlines() or [""])[-1]
    return DoubtlessError(
        f"Ray's workers failed ({type(error).__name__}: {last.strip()}); what is done is kept, the same "
        "command continues."
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError("Embedding on Ray needs ray: pip install 'doubtless[ray]'.") from None
    return ray
