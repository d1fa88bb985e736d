"""The Laplace approximation of a metric loss, in closed form: curvature, posterior, predictive."""

from doubtless.laplace.criteria import (
    error_auroc,
    match_likelihood,
    negative_consensus_ece,
    negative_consensus_ece_of_scales,
)
from doubtless.laplace.curvature import CurvatureSums, contrastive_ggn, contrastive_ggn_sums
from doubtless.laplace.fit import (
    Covariance,
    CurvatureOptions,
    Head,
    class_balanced_batches,
    fit,
    half_whitened,
)
from doubtless.laplace.kronecker import KroneckerGGN, KroneckerSums, check_kronecker, kronecker_ggn
from doubtless.laplace.kronecker_online import KroneckerCurvature
from doubtless.laplace.kronecker_posterior import KroneckerPosterior, posterior_from_tensors
from doubtless.laplace.online import OnlineCurvature
from doubtless.laplace.pairs import pair_weight_matrix
from doubtless.laplace.posterior import DiagonalPosterior, Posterior
from doubtless.laplace.step import ContrastiveStep, contrastive_step
from doubtless.laplace.tuning import Trial, Tuned, default_scales, marginal_prior_precision, tune
from doubtless.laplace.unknowns import RatioByUnknowns, ratio_by_unknowns

__all__ = [
    "contrastive_ggn",
    "contrastive_ggn_sums",
    "CurvatureSums",
    "pair_weight_matrix",
    "fit",
    "CurvatureOptions",
    "Head",
    "half_whitened",
    "class_balanced_batches",
    "Covariance",
    "kronecker_ggn",
    "check_kronecker",
    "KroneckerGGN",
    "KroneckerSums",
    "Posterior",
    "DiagonalPosterior",
    "KroneckerPosterior",
    "posterior_from_tensors",
    "OnlineCurvature",
    "KroneckerCurvature",
    "contrastive_step",
    "ContrastiveStep",
    "tune",
    "Tuned",
    "Trial",
    "default_scales",
    "marginal_prior_precision",
    "ratio_by_unknowns",
    "RatioByUnknowns",
    "error_auroc",
    "match_likelihood",
    "negative_consensus_ece",
    "negative_consensus_ece_of_scales",
]
