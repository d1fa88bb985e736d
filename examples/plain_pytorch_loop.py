"""The losses alone, in a PyTorch loop of your own: no configuration, no trainer.

python examples/plain_pytorch_loop.py
"""

import torch
from torch import nn

from doubtless import Embedding, evaluate
from doubtless.data import BalancedBatches, open_source
from doubtless.evaluation import EvaluationOptions
from doubtless.losses import contrastive_loss

torch.manual_seed(0)
digits = open_source("digits")
pixels, labels = digits.pixels.flatten(1) / 255, digits.labels  # (1797, 784), (1797,)
train, test = torch.arange(1200), torch.arange(1200, 1797)

network = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 16))
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
batches = BalancedBatches(labels[train], batch_size=100)
for epoch in range(10):
    for rows in batches.epoch(epoch):
        loss = contrastive_loss(network(pixels[train][rows]), labels[train][rows], margin=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

with torch.no_grad():
    embedding = Embedding.point(network(pixels[test]))
print(
    f"recall@1 {evaluate(embedding, labels[test], options=EvaluationOptions(clusters=False))['recall@1']:.3f}"
)
