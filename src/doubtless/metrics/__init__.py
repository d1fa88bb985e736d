"""Metrics as pure functions over tensors, each with its name, direction and meaning, and intervals behind them.

Importing this room registers its metrics; another package adds its own by `register` and the entry point group
`doubtless.metrics`.
"""

from doubtless.metrics.bootstrap import PairedComparison, paired_bootstrap
from doubtless.metrics.calibration import (
    ConsensusCalibration,
    consensus_ece,
    match_brier,
    match_ece,
    rank_ece,
    reliability_curve,
)
from doubtless.metrics.clustering import kmeans, nmi, pair_f1
from doubtless.metrics.measure import Curve, Measure
from doubtless.metrics.metric import METRICS, Metric, register
from doubtless.metrics.ood import auprc, auroc, fpr95, histograms, roc_curve
from doubtless.metrics.retrieval import (
    RetrievalMetrics,
    average_precision_at,
    map_at_r,
    r_precision,
    recall_at,
)
from doubtless.metrics.uncertainty import (
    ausc,
    ausc_oracle,
    coverage_at_risk,
    error_auroc,
    free_uncertainties,
    risk_coverage_curve,
    sparsification_curve,
)
from doubtless.metrics.verification import count_pairs, equal_error_rate, tar_at_far, threshold_at_far

__all__ = [
    "Metric",
    "METRICS",
    "register",
    "Measure",
    "Curve",
    "recall_at",
    "average_precision_at",
    "map_at_r",
    "r_precision",
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
    "count_pairs",
    "equal_error_rate",
    "tar_at_far",
    "threshold_at_far",
    "free_uncertainties",
    "paired_bootstrap",
    "PairedComparison",
]
