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
from doubtless.metrics.labels import (
    baks,
    balanced_accuracy,
    baus,
    label_top1,
    most_evident_label,
    vote_weights,
)
from doubtless.metrics.measure import Curve, Measure
from doubtless.metrics.metric import METRICS, Metric, register
from doubtless.metrics.ood import auprc, auroc, fpr95, histograms, roc_curve
from doubtless.metrics.open_set import (
    OpenSetRates,
    dir_at_far,
    fnir_at_fpir,
    open_augrc,
    open_aurc,
    open_coverage_at_risk,
    open_risk_curve,
    open_set_rates,
    oscr,
    oscr_curve,
)
from doubtless.metrics.retrieval import (
    RetrievalMetrics,
    average_precision_at,
    map_at_r,
    r_precision,
    recall_at,
)
from doubtless.metrics.tracks import track_of
from doubtless.metrics.tuned import consensus_ece_floor
from doubtless.metrics.uncertainty import (
    augrc,
    aurc,
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
    "aurc",
    "augrc",
    "coverage_at_risk",
    "sparsification_curve",
    "risk_coverage_curve",
    "auroc",
    "auprc",
    "fpr95",
    "roc_curve",
    "histograms",
    "fnir_at_fpir",
    "dir_at_far",
    "oscr",
    "oscr_curve",
    "open_set_rates",
    "OpenSetRates",
    "open_risk_curve",
    "open_aurc",
    "open_augrc",
    "open_coverage_at_risk",
    "most_evident_label",
    "vote_weights",
    "label_top1",
    "balanced_accuracy",
    "baks",
    "baus",
    "consensus_ece",
    "consensus_ece_floor",
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
    "track_of",
    "paired_bootstrap",
    "PairedComparison",
]
