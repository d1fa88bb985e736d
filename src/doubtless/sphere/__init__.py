"""Distributions on the unit sphere: von Mises-Fisher, its non-isotropic form, their normaliser and kernels."""

from doubtless.sphere.bessel import (
    inverse_concentration,
    inverse_mean_resultant_length,
    log_normalizer,
    log_normalizer_of_square,
    mean_resultant_length,
    resultant_over_concentration,
)
from doubtless.sphere.distributions import NonIsotropicVonMisesFisher, VonMisesFisher
from doubtless.sphere.kernels import bhattacharyya, expected_likelihood, kl_similarity, log_likelihood
from doubtless.sphere.projected_gaussian import (
    MeanDirection,
    debiased_resultant,
    mean_direction,
    projected_gaussian_mean,
)
from doubtless.sphere.uniform import HypersphericalUniform

__all__ = [
    "log_normalizer",
    "log_normalizer_of_square",
    "mean_resultant_length",
    "resultant_over_concentration",
    "inverse_mean_resultant_length",
    "inverse_concentration",
    "VonMisesFisher",
    "NonIsotropicVonMisesFisher",
    "HypersphericalUniform",
    "expected_likelihood",
    "bhattacharyya",
    "kl_similarity",
    "log_likelihood",
    "projected_gaussian_mean",
    "mean_direction",
    "MeanDirection",
    "debiased_resultant",
]
