"""Losses as pure functions: usable in any PyTorch loop without the rest of the library."""

from doubtless.losses.bayesian_triplet import batch_bayesian_triplet_loss, bayesian_triplet_loss
from doubtless.losses.contrastive import chosen_pairs, contrastive_loss
from doubtless.losses.hib import kl_to_standard_normal, soft_contrastive_loss
from doubtless.losses.loss_prediction import neighbor_loss_per_image, ranking_loss
from doubtless.losses.mutual_likelihood import mutual_likelihood_score, pairwise_mutual_likelihood_score
from doubtless.losses.proxy import ProxyLoss, proxy_anchor_loss, proxy_nca_loss
from doubtless.losses.triplet import batch_triplet_loss, triplet_loss
from doubtless.losses.triplet_moments import Gaussians, VonMisesFishers, distance_moments, triplet_moments
from doubtless.losses.triplet_regression import batch_triplet_regression_loss, triplet_regression_loss
from doubtless.losses.variational import bounded_log_variance, draw_samples, reconstruction_loss

__all__ = [
    "contrastive_loss",
    "chosen_pairs",
    "ProxyLoss",
    "proxy_nca_loss",
    "proxy_anchor_loss",
    "triplet_loss",
    "batch_triplet_loss",
    "triplet_moments",
    "distance_moments",
    "Gaussians",
    "VonMisesFishers",
    "bayesian_triplet_loss",
    "batch_bayesian_triplet_loss",
    "triplet_regression_loss",
    "batch_triplet_regression_loss",
    "mutual_likelihood_score",
    "pairwise_mutual_likelihood_score",
    "soft_contrastive_loss",
    "kl_to_standard_normal",
    "ranking_loss",
    "neighbor_loss_per_image",
    "bounded_log_variance",
    "draw_samples",
    "reconstruction_loss",
]
