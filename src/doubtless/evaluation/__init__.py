"""`evaluate`: all that is measured of one embedding, under one protocol, with an interval behind each number."""

from doubtless.evaluation.options import EvaluationOptions, GivenScores, OpenSetOptions
from doubtless.evaluation.protocol import evaluate, evaluate_files
from doubtless.evaluation.result import Evaluation, QueryRecord

__all__ = [
    "evaluate",
    "evaluate_files",
    "EvaluationOptions",
    "GivenScores",
    "OpenSetOptions",
    "Evaluation",
    "QueryRecord",
]
