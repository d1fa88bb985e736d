"""What uncertainty costs at prediction: in closed form, and by drawing weights.

    python benchmarks/speed/predictive.py                                 # ResNet50, 224 px, batch 64
    python benchmarks/speed/predictive.py --batch 4 --repeats 3           # briefly, on a CPU

Three tables, each measured in one process, turn by turn, the best of several. *Whole*: images to unit vectors
(deterministic), to unit vectors with uncertainty (closed form), ratio at most 1.05. *Stream*: the same for many
batches, where uncertainty is asked for once, of all images together. *Head*: features to unit vectors with
uncertainty in closed form and by weight draws, which have to be at least 50 times as dear. On a GPU the closed form
is recorded when a shape comes the second time: the best of several is a replay, as in a stream of equal batches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from doubtless.embedding import Embedding
from doubtless.laplace import DiagonalPosterior
from doubtless.sphere import debiased_resultant, inverse_mean_resultant_length, mean_direction

WHOLE_LIMIT = 1.05
HEAD_LIMIT = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--stream", type=int, default=64, help="batches of the stream; 0 leaves it out")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--dims", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--head-batches", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    with torch.inference_mode():
        whole(arguments, device)
        head(arguments, device)


def whole(arguments: argparse.Namespace, device: torch.device) -> None:
    """One batch, then a stream of them: the same images every time, which costs the same."""
    backbone = timm.create_model(arguments.backbone, pretrained=False, num_classes=0).to(device).eval()
    images = torch.randn(arguments.batch, 3, arguments.pixels, arguments.pixels, device=device)
    width = backbone(images[:1]).shape[1]
    print(f"\n{arguments.backbone}, {arguments.batch} images of {arguments.pixels} px a batch")
    header = f"{'D':>5} {'deterministic ms':>17} {'with uncertainty ms':>20} {'ratio':>7}"
    print(f"Whole: one batch\n{header}")
    for dim in arguments.dims:
        posterior = a_posterior(dim, width, device)
        report_whole(dim, time_whole(backbone, images, posterior, arguments.repeats))
    if arguments.stream:
        print(f"Stream: {arguments.stream} batches, uncertainty asked for once\n{header}")
    for dim in arguments.dims if arguments.stream else ():
        posterior, repeats = a_posterior(dim, width, device), max(1, arguments.repeats // 5)
        report_whole(dim, time_stream(backbone, [images] * arguments.stream, posterior, repeats))


def report_whole(dim: int, best: dict[str, float]) -> None:
    ratio = best["uncertain"] / best["deterministic"]
    print(
        f"{dim:>5} {1e3 * best['deterministic']:>17.2f} {1e3 * best['uncertain']:>20.2f} {ratio:>7.3f}"
        f"  {'within' if ratio <= WHOLE_LIMIT else 'BEYOND'} {WHOLE_LIMIT}",
        flush=True,
    )


def time_whole(
    backbone: nn.Module, images: Tensor, posterior: DiagonalPosterior, repeats: int
) -> dict[str, float]:
    calls = {
        "deterministic": lambda: plain(posterior, backbone(images)),
        "uncertain": lambda: closed_form(posterior, backbone(images)),
    }
    return best_times(calls, images.device, repeats)


def time_stream(
    backbone: nn.Module, batches: list[Tensor], posterior: DiagonalPosterior, repeats: int
) -> dict[str, float]:
    calls = {
        "deterministic": lambda: torch.cat([plain(posterior, backbone(images)) for images in batches]),
        "uncertain": lambda: answers(
            Embedding.cat([posterior.predict(backbone(images)) for images in batches])
        ),
    }
    return best_times(calls, batches[0].device, repeats)


def head(arguments: argparse.Namespace, device: torch.device, width: int = 2048) -> None:
    print(
        f"\nHead: {width} features; times in ms; /moments and /closed form: {arguments.draws} draws over it"
    )
    columns = ("D", "images", "plain", "moments", "closed form", "series", f"{arguments.draws} draws")
    print(" ".join(f"{column:>11}" for column in (*columns, "/moments", "/closed form")))
    for dim in arguments.dims:
        posterior = a_posterior(dim, width, device)
        for count in arguments.head_batches:
            features = torch.randn(count, width, device=device).relu_()
            best = time_head(posterior, features, arguments.draws, max(2, arguments.repeats // 3))
            ratios = [best["draws"] / best[name] for name in ("moments", "closed form")]
            times = " ".join(f"{1e3 * seconds:>11.2f}" for seconds in best.values())
            verdicts = " ".join("within" if ratio >= HEAD_LIMIT else "BEYOND" for ratio in ratios)
            print(
                f"{dim:>11} {count:>11} {times} {ratios[0]:>11.1f} {ratios[1]:>12.1f}  {verdicts} {HEAD_LIMIT:.0f}",
                flush=True,
            )


def time_head(posterior: DiagonalPosterior, features: Tensor, draws: int, repeats: int) -> dict[str, float]:
    """`moments` is the head's part, `closed form` adds direction and uncertainty, as `draws` does."""
    calls = {
        "plain": lambda: plain(posterior, features),
        "moments": lambda: posterior.predict(features),
        "closed form": lambda: closed_form(posterior, features),
        "series": lambda: series(posterior, features),
        "draws": lambda: by_draws(posterior, features, draws),
    }
    return best_times(calls, features.device, repeats)


def a_posterior(dim: int, width: int, device: torch.device) -> DiagonalPosterior:
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.randn(dim, width, generator=generator, device=device) / width**0.5
    curvature = torch.rand(dim, width, generator=generator, device=device)
    zeros = torch.zeros(dim, device=device)
    posterior = DiagonalPosterior(weight, zeros, curvature, zeros, scale=1e5, prior_precision=1e3)
    posterior.predict(torch.zeros(1, width, device=device))  # variances are computed once, on first use
    return posterior


def plain(posterior: DiagonalPosterior, features: Tensor) -> Tensor:
    return normalize(linear(features, posterior.weight, posterior.bias))


def closed_form(posterior: DiagonalPosterior, features: Tensor) -> tuple[Tensor, Tensor]:
    return answers(posterior.predict(features))


def answers(embedding: Embedding) -> tuple[Tensor, Tensor]:
    assert embedding.uncertainty is not None
    return embedding.direction, embedding.uncertainty


def series(posterior: DiagonalPosterior, features: Tensor) -> tuple[Tensor, Tensor]:
    parameters = posterior.predict(features).parameters
    found = mean_direction(parameters["location"], parameters["variance"], method="series")
    concentration = inverse_mean_resultant_length(found.mean.shape[1], found.resultant)
    return normalize(found.mean), concentration.reciprocal()


def by_draws(posterior: DiagonalPosterior, features: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    total = torch.zeros(len(features), posterior.weight.shape[0], device=features.device)
    for _ in range(draws):
        weights, biases = posterior.sample_weights(1)
        assert biases is not None
        total += normalize(linear(features, weights[0], biases[0]))
    length = debiased_resultant(total.norm(dim=1) / draws, draws)
    return normalize(total), inverse_mean_resultant_length(total.shape[1], length).reciprocal()


def best_times(
    calls: dict[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Seconds, the best of several; turn by turn, so that a slow moment of the machine hits all."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats + 1):  # the first one warms up
        for name, call in calls.items():
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
