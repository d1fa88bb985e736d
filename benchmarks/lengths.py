"""What makes foreign images certain to LAM: the posterior of the weights, or the length of the embedding?

    doubtless train configs/omniglot/deterministic.yaml --out runs/omniglot
    python benchmarks/lengths.py runs/omniglot

Around the head W of a trained run, x the features and a 1: AUROC of the run's test images against its first source
of out-of-distribution images, over λ/(τ · mean A), A the mean of xxᵀ over training images, by four scores:

s²           = xᵀ(A + λ)⁻¹x, the whole posterior of the weights seen from x
s²/‖Wx‖²     the angle it leaves the embedding: what LAM calls uncertainty
diagonal     the same with the diagonal of A
s²/‖x‖²      per length of the features instead
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from doubtless.data import ImageSet
from doubtless.metrics.ood import auroc
from doubtless.runs.data import features_of
from doubtless.runs.evaluation import RunEvaluation
from doubtless.runs.names import open_model
from doubtless.runs.run import Run

RATIOS = [10.0**power for power in range(-6, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--most", type=int, default=12_000, help="training images; an eighth of them to test")
    options = parser.parse_args()
    work, method = RunEvaluation(Run.open(options.run)), open_model(options.run).method.eval()
    head = [module for module in method.modules() if isinstance(module, nn.Linear)][-1]

    def features(images: ImageSet, most: int) -> Tensor:
        found = features_of(method, images)
        drawn = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:most]
        return torch.cat([found[drawn], torch.ones(len(drawn), 1)], dim=1).double()

    name, foreign = next(iter(work.ood.items()))
    assert work.own is not None
    train = features(work.own.train, options.most)
    known, strange = (features(images, options.most // 8) for images in (work.queries, foreign))
    curvature = train.T @ train / len(train)
    weight = torch.cat([head.weight, head.bias.unsqueeze(1)], dim=1).detach().double()
    print(f"{name}: s²  s²/‖Wx‖²  diagonal  s²/‖x‖²")
    for ratio in RATIOS:
        prior = ratio * float(curvature.diagonal().mean())
        both = [scores(images, curvature, prior, weight) for images in (known, strange)]
        areas = [auroc(one, other) for one, other in zip(*both, strict=True)]
        print(f"{ratio:g}", *(f"{area:.3f}" for area in areas), flush=True)


def scores(images: Tensor, curvature: Tensor, prior: float, weight: Tensor) -> list[Tensor]:
    """The four scores (n,) of images (n, F + 1)."""
    root = torch.linalg.cholesky(curvature + prior * torch.eye(len(curvature), dtype=torch.double))
    whole = torch.linalg.solve_triangular(root, images.T, upper=False).square().sum(0)
    length = (images @ weight.T).square().sum(1)
    diagonal = (images.square() / (curvature.diagonal() + prior)).sum(1)
    return [whole, whole / length, diagonal / length, whole / images.square().sum(1)]


if __name__ == "__main__":
    main()
