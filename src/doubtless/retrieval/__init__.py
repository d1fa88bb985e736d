"""Answering from a gallery: an index that stores variances, calibrated probabilities, one doubt, abstention."""
