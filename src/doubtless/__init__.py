"""doubtless: image retrieval that knows when it does not know.

    answer = doubtless.open("shop").ask("photo.jpg")       # a label with a probability, or a refusal, and why
    answer.decision, answer.label, answer.probability, answer.reason

    model = doubtless.load("runs/my-run")
    embedding = model.embed(["shoe.jpg", "shirt.png"])     # distributions, not points
    embedding.direction, embedding.uncertainty

Names are imported when first used, so that `import doubtless` takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from doubtless.version import __version__ as __version__

if TYPE_CHECKING:
    from doubtless.calibration.calibrator import Calibrator as Calibrator
    from doubtless.calibration.risk import RiskControl as RiskControl
    from doubtless.config import Config as Config
    from doubtless.doubt.doubt import Doubt as Doubt
    from doubtless.embedding import Embedding as Embedding
    from doubtless.errors import DoubtlessError as DoubtlessError
    from doubtless.errors import InputError as InputError
    from doubtless.errors import RunError as RunError
    from doubtless.evaluation import Evaluation as Evaluation
    from doubtless.evaluation import EvaluationOptions as EvaluationOptions
    from doubtless.evaluation import GivenScores as GivenScores
    from doubtless.evaluation import evaluate as evaluate
    from doubtless.gallery import Answer as Answer
    from doubtless.gallery import Gallery as Gallery
    from doubtless.gallery import open as open
    from doubtless.index.folder import FolderIndex as FolderIndex
    from doubtless.methods.configuration import load_config as load_config
    from doubtless.methods.configuration import make_config as make_config
    from doubtless.runs import Run as Run
    from doubtless.runs.evaluation import evaluate_run as evaluate_run
    from doubtless.runs.model import Model as Model
    from doubtless.runs.model import load as load
    from doubtless.search import Hits as Hits
    from doubtless.training import train as train

_HOMES = {
    "Embedding": "embedding",
    "Model": "runs.model",
    "load": "runs.model",
    "train": "training",
    "evaluate_run": "runs.evaluation",
    "evaluate": "evaluation",
    "Evaluation": "evaluation",
    "EvaluationOptions": "evaluation",
    "GivenScores": "evaluation",
    "Config": "config",
    "load_config": "methods.configuration",
    "make_config": "methods.configuration",
    "Run": "runs.run",
    "FolderIndex": "index.folder",
    "Hits": "search.hits",
    "Gallery": "gallery",
    "open": "gallery",
    "Answer": "gallery",
    "Calibrator": "calibration.calibrator",
    "RiskControl": "calibration.risk",
    "Doubt": "doubt.doubt",
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
