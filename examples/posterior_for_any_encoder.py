"""Uncertainty for an encoder you already have: features in, distributions out, nothing trained.

python examples/posterior_for_any_encoder.py
"""

import torch

from doubtless import evaluate
from doubtless.data import open_source
from doubtless.evaluation import EvaluationOptions
from doubtless.laplace import fit, tune

torch.manual_seed(0)
images = open_source("fashion-sample")
features, labels = images.pixels.flatten(1).float() / 255, images.labels  # stands for your encoder's features
train, validation, test = torch.arange(0, 2000), torch.arange(2000, 3000), torch.arange(3000, 4000)

posterior = fit(features[train], labels[train], dim=32)  # a half-whitened head, and the curvature around it
tuned = tune(
    posterior,
    features[validation],
    labels[validation],
    criterion="error-auroc",
    generator=torch.Generator().manual_seed(0),
)
embedding = tuned.posterior.predict(features[test])  # closed form: one matrix product more than the head

found = evaluate(embedding, labels[test], options=EvaluationOptions(clusters=False))
print(f"scale {tuned.posterior.scale:.3g}, prior precision {tuned.posterior.prior_precision:.3g}")
for name in ("recall@1", "error_auroc", "ece"):
    print(f"{name} {found[name]:.3f}")
for name, free in found.baselines.items():
    print(f"error_auroc of the free {name}: {free['error_auroc'].value:.3f}")
