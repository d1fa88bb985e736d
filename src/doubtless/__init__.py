"""doubtless: image retrieval that knows when it does not know.

    model = doubtless.load("runs/my-run")
    embedding = model.embed(["shoe.jpg", "shirt.png"])     # distributions, not points
    embedding.direction, embedding.uncertainty

Names are imported when first used, so that `import doubtless` takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from doubtless.api import Model as Model
    from doubtless.api import evaluate_run as evaluate_run
    from doubtless.api import load as load
    from doubtless.api import train as train
    from doubtless.config import Config as Config
    from doubtless.config import load_config as load_config
    from doubtless.config import make_config as make_config
    from doubtless.embedding import Embedding as Embedding
    from doubtless.errors import DoubtlessError as DoubtlessError
    from doubtless.errors import InputError as InputError
    from doubtless.errors import RunError as RunError
    from doubtless.evaluation import Evaluation as Evaluation
    from doubtless.evaluation import evaluate as evaluate
    from doubtless.retrieval import Answer as Answer
    from doubtless.retrieval import Answerer as Answerer
    from doubtless.retrieval import Calibrator as Calibrator
    from doubtless.retrieval import Doubt as Doubt
    from doubtless.retrieval import Hits as Hits
    from doubtless.retrieval import Index as Index
    from doubtless.retrieval import RiskControl as RiskControl
    from doubtless.retrieval import calibrate_index as calibrate_index
    from doubtless.training import Run as Run

_HOMES = {
    "Embedding": "embedding",
    "Model": "api",
    "load": "api",
    "train": "api",
    "evaluate_run": "api",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "Config": "config",
    "load_config": "config",
    "make_config": "config",
    "Run": "training",
    "Index": "retrieval",
    "Hits": "retrieval",
    "Answerer": "retrieval",
    "Answer": "retrieval",
    "Calibrator": "retrieval",
    "RiskControl": "retrieval",
    "Doubt": "retrieval",
    "calibrate_index": "retrieval",
    "DoubtlessError": "errors",
    "InputError": "errors",
    "RunError": "errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'doubtless' has no attribute {name!r}")
    value = getattr(import_module(f"doubtless.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
