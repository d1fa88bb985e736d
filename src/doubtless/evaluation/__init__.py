"""Metrics as pure functions, the protocol that applies them, and intervals behind every number."""

from doubtless.evaluation.baselines import free_uncertainties
from doubtless.evaluation.bootstrap import Comparison, paired_bootstrap
from doubtless.evaluation.calibration import (
    ConsensusCalibration,
    consensus_ece,
    match_brier,
    match_ece,
    rank_ece,
    reliability_curve,
)
from doubtless.evaluation.clustering import kmeans, nmi, pair_f1
from doubtless.evaluation.neighbors import Neighbors, nearest, ranked
from doubtless.evaluation.ood import auprc, auroc, fpr95, histograms, roc_curve
from doubtless.evaluation.outside import evaluate_files
from doubtless.evaluation.protocol import evaluate
from doubtless.evaluation.relevance import Positions
from doubtless.evaluation.result import Curve, Evaluation, Measure, QueryRecord
from doubtless.evaluation.retrieval import (
    RetrievalMetrics,
    average_precision_at,
    count_positives,
    map_at_r,
    r_precision,
    recall_at,
)
from doubtless.evaluation.uncertainty import (
    ausc,
    ausc_oracle,
    coverage_at_risk,
    error_auroc,
    risk_coverage_curve,
    sparsification_curve,
)

__all__ = [
    "evaluate",
    "evaluate_files",
    "Evaluation",
    "Measure",
    "Curve",
    "QueryRecord",
    "Positions",
    "nearest",
    "ranked",
    "Neighbors",
    "recall_at",
    "average_precision_at",
    "map_at_r",
    "r_precision",
    "count_positives",
    "RetrievalMetrics",
    "error_auroc",
    "ausc",
    "ausc_oracle",
    "coverage_at_risk",
    "sparsification_curve",
    "risk_coverage_curve",
    "auroc",
    "auprc",
    "fpr95",
    "roc_curve",
    "histograms",
    "consensus_ece",
    "rank_ece",
    "match_ece",
    "match_brier",
    "reliability_curve",
    "ConsensusCalibration",
    "nmi",
    "pair_f1",
    "kmeans",
    "free_uncertainties",
    "paired_bootstrap",
    "Comparison",
]
