"""`evaluate`: all that is measured of one embedding, under one protocol, with an interval behind each number."""

from doubtless.evaluation.from_files import evaluate_files
from doubtless.evaluation.options import EvaluationOptions, GivenScores, OpenSetOptions
from doubtless.evaluation.protocol import evaluate
from doubtless.evaluation.result import Evaluation, QueryRecord
from doubtless.evaluation.scale import ChosenScale, choose_scale

__all__ = [
    "evaluate",
    "evaluate_files",
    "EvaluationOptions",
    "GivenScores",
    "OpenSetOptions",
    "Evaluation",
    "QueryRecord",
    "choose_scale",
    "ChosenScale",
]
