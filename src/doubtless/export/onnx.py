"""A trained model as one ONNX file: images in, direction and uncertainty out, nothing of torch needed to run
it.

The file takes images (n, C, H, W) of the model's size, bytes or floats in [0, 1]; scaling and normalisation
are inside, resizing is not: `PREPARATION` says what to do before, the file's metadata says it too. After it
is written to memory and before it reaches the disk, it is run by onnxruntime on probe images and compared
with the model.
The closed forms compute in float64, which the CPU and CUDA providers of onnxruntime have; TensorRT has not.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from doubtless.embedding import Embedding
from doubtless.errors import DoubtlessError, InputError
from doubtless.export.answers import family_answers
from doubtless.files import write_bytes
from doubtless.methods import Method
from doubtless.methods.ensemble import Ensemble
from doubtless.runs.data import image_size
from doubtless.version import __version__

if TYPE_CHECKING:
    from doubtless.runs.model import Model


InputType = Literal["uint8", "float32"]
TOLERANCE = 1e-4
"""Directions differ by at most this; uncertainties by this much of themselves."""
OUTPUTS = ("direction", "uncertainty", "location", "variance", "concentration", "resultant")
PROBES = 5
PREPARATION = (
    "Make the image grey where channels is 1 (0.2989 R + 0.587 G + 0.114 B) or RGB where it is 3; resize its "
    "short side to size, bilinear with antialiasing; take the square in the middle; lay it out as channels, "
    "rows, columns."
)
UNCERTAINTY = {
    "point": "none",
    "gaussian": "trace of the covariance",
    "vmf": "1/concentration",
    "projected-gaussian": "1/concentration of the von Mises-Fisher distribution with the same mean",
    "empirical": "1/concentration of the von Mises-Fisher distribution behind the samples",
}


@dataclass(frozen=True)
class Exported:
    """What was written, and how far onnxruntime's answers were from the model's."""

    path: Path
    bytes: int
    family: str
    inputs: list[int]
    """C, H and W of an image."""
    outputs: list[str]
    opset: int
    direction_difference: float
    uncertainty_difference: float | None
    """Relative; None where the family has no uncertainty."""


class ImageToAnswers(nn.Module):
    """The whole graph."""

    def __init__(self, distribution: Distribution, dim: int) -> None:
        super().__init__()
        self.distribution = distribution
        self.answers = family_answers(distribution.family, dim, spread=distribution.variance_ratio)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images (n, C, H, W) to those of `OUTPUTS` that the family has, in their order."""
        found = self.answers(self.distribution(images))
        return tuple(found[name] for name in OUTPUTS if name in found)


def export_onnx(model: Model | Method, path: str | Path, *, input_type: InputType = "uint8") -> Exported:
    """Writes one ONNX file of a finished model, checked against it; raises rather than leave a wrong file.

    >>> export_onnx(doubtless.load("runs/first"), "model.onnx").outputs  # takes many seconds  # doctest: +SKIP
    ['direction', 'location']
    """
    method = model if isinstance(model, Method) else model.method
    if input_type not in ("uint8", "float32"):
        raise InputError(f"There is no input type {input_type!r}; accepted: uint8, float32.")
    _must_be_installed()
    device, training = method.device, method.training
    try:
        return _export(method.to("cpu").eval(), Path(path), input_type)
    finally:
        method.to(device).train(training)


def _export(method: Method, path: Path, input_type: InputType) -> Exported:
    """As `export_onnx`, of a method on the CPU in evaluation mode."""
    probes = _probes(method, input_type)
    expected = method.embed(probes)
    names = [name for name in OUTPUTS if name in _present(expected)]
    graph = ImageToAnswers(distribution_of(method), expected.dim).eval()
    if graph.distribution.family != expected.family:
        raise InputError(
            f"{method.name} cannot be exported yet: it gives {expected.family} embeddings, not the "
            f"{graph.distribution.family} ones of a finished run."
        )
    proto = _to_onnx(graph, probes, names)
    _describe(proto, method, expected, input_type)
    data = _bytes_of(proto, method)
    differences = _compare(data, probes, expected, names)
    write_bytes(path, data)
    return Exported(
        path,
        len(data),
        expected.family,
        list(probes.shape[1:]),
        names,
        int(proto.opset_import[0].version),
        *differences,
    )


def _must_be_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"Exporting needs {error.name}: pip install 'doubtless[onnx]'.") from None


def _probes(method: Method, input_type: InputType) -> Tensor:
    """Black, white and noise of three kinds, (5, C, H, W)."""
    channels, size = method.spec.channels, image_size(method)
    noise = torch.rand(PROBES, channels, size, size, generator=torch.Generator().manual_seed(0))
    noise[0], noise[1], noise[2], noise[3] = 0, 1, noise[2].mean(dim=-1, keepdim=True), noise[3].round()
    images = (noise * 255).round().to(torch.uint8)
    return images if input_type == "uint8" else images.float() / 255


def _present(embedding: Embedding) -> set[str]:
    """Outputs that a family has."""
    inner = {"direction", "location", *embedding.parameters} - {"samples"}
    if embedding.uncertainty is not None:
        inner.add("uncertainty")
    return inner | ({"resultant"} if embedding.family not in ("point", "gaussian") else set())


@torch.no_grad()
def _to_onnx(graph: ImageToAnswers, probes: Tensor, names: list[str]) -> Any:
    """The graph as onnx's ModelProto, any number of images at a time, without traces of this machine."""
    batch = {"images": {0: torch.export.Dim("batch")}}
    try:
        with _quietly():
            program = torch.onnx.export(
                graph,
                (probes[:2],),
                dynamo=True,
                input_names=["images"],
                output_names=names,
                dynamic_shapes=batch,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # every operator and every backbone fails in its own way
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"torch cannot write this network as ONNX: {type(error).__name__}: {reason}"
        ) from error
    assert program is not None
    proto = program.model_proto
    if not proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param:
        raise InputError(
            "torch cannot write this network for any number of images: something in it fixes their number."
        )
    for node in [*proto.graph.node, *(inner for function in proto.functions for inner in function.node)]:
        del node.metadata_props[:]  # where in which file of this machine it came from
        node.doc_string = ""
    return proto


def _describe(proto: Any, method: Method, embedding: Embedding, input_type: InputType) -> None:
    """Who this is and how to ask it, as metadata of the file."""
    from onnx.helper import set_model_props

    from doubtless.runs.model import model_fingerprint

    about = {
        "doubtless": __version__,
        "method": method.name,
        "method_version": method.version,
        "model": model_fingerprint(method),
        "family": embedding.family,
        "dim": embedding.dim,
        "channels": method.spec.channels,
        "size": image_size(method),
        "input": "bytes 0 to 255" if input_type == "uint8" else "floats in [0, 1]",
        "preparation": PREPARATION,
        "uncertainty": UNCERTAINTY[embedding.family],
        "label_names": json.dumps(method.spec.label_names, ensure_ascii=False),
    }
    proto.producer_name, proto.producer_version = "doubtless", __version__
    set_model_props(proto, {key: str(value) for key, value in about.items()})


def _bytes_of(proto: Any, method: Method) -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except Exception as error:  # protobuf's own error, or a ValueError, by version
        raise InputError(
            f"{method.config.model.backbone} is too large for one ONNX file, which holds at most 2 GB: {error}."
        ) from error


def _compare(
    data: bytes, probes: Tensor, expected: Embedding, names: list[str]
) -> tuple[float, float | None]:
    """Largest differences of direction and, relative, uncertainty, one image at a time and all together."""
    from onnxruntime import InferenceSession

    session = InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> list[Tensor]:
        return [torch.from_numpy(value) for value in session.run(names, {"images": images.numpy()})]

    alone = [torch.cat(parts) for parts in zip(*map(run, probes.split(1)), strict=True)]
    of_direction, of_uncertainty = 0.0, None
    for answers in (run(probes), alone):
        found = dict(zip(names, answers, strict=True))
        of_direction = max(of_direction, _largest(found["direction"] - expected.direction))
        if expected.uncertainty is not None:
            ratio = found["uncertainty"] / expected.uncertainty - 1
            both = torch.isinf(found["uncertainty"]) & torch.isinf(expected.uncertainty)
            of_uncertainty = max(of_uncertainty or 0.0, _largest(torch.where(both, 0.0, ratio)))
    worst = max(of_direction, of_uncertainty or 0.0)
    if not worst <= TOLERANCE:
        raise DoubtlessError(
            f"The ONNX graph and the model disagree: directions by {of_direction:.2g}, uncertainties by "
            f"{of_uncertainty or 0.0:.2g} of themselves, more than {TOLERANCE:g}; nothing was written."
        )
    return of_direction, of_uncertainty


def _largest(difference: Tensor) -> float:
    return float(difference.abs().nan_to_num(nan=torch.inf).max())


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The exporter speaks to its developers."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


Parameters = dict[str, Tensor]


class Distribution(nn.Module):
    """Images (n, C, H, W) to the parameters of a method's family, by name."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method, self.family, self.variance_ratio = method, method.family, method.variance_ratio

    def forward(self, images: Tensor) -> Parameters:
        """The parameters of n images."""
        return self.method.distribution(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the method's `distribution` takes, (n, F)."""
        return self.method.encode(images).float()


class OfMembers(Distribution):
    """An ensemble's members are no part of its state, and say their directions by graphs of their own."""

    def __init__(self, method: Ensemble) -> None:
        super().__init__(method)
        members = [distribution_of(member) for member in method.members()]
        self.members = nn.ModuleList(members)
        dim = method.config.model.dim
        self.answers = nn.ModuleList(
            family_answers(member.family, dim, spread=member.variance_ratio) for member in members
        )

    def features(self, images: Tensor) -> Tensor:
        """The members' directions side by side, (n, members · D)."""
        pairs = zip(self.members, self.answers, strict=True)
        return torch.cat([answer(member(images))["direction"] for member, answer in pairs], dim=1)


def distribution_of(method: Method) -> Distribution:
    """The graph of a trained method's parameters."""
    return OfMembers(method) if isinstance(method, Ensemble) else Distribution(method)
