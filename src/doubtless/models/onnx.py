"""A network in an ONNX file, run by onnxruntime on the CPU. Its bytes are its state, saved and copied with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from doubtless.errors import InputError

OURS = "location"
"""The output of a file of `doubtless export` that is taken: what directions are made of."""


class OnnxNetwork(nn.Module):
    """Images (n, C, H, W), floats, to the first output of an ONNX graph: features (n, F) or maps (n, F, h, w).

    The input may be floats, normalised before it as by any other network, or bytes.
    """

    file: Tensor

    def __init__(self, file: bytes) -> None:
        super().__init__()
        self.register_buffer("file", torch.from_numpy(np.frombuffer(file, dtype=np.uint8).copy()))
        self._session: Any = None

    @classmethod
    def read(cls, path: str | Path) -> OnnxNetwork:
        """The network of a file; one that is none is a sentence."""
        try:
            network = cls(Path(path).read_bytes())
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
        network.about()
        return network

    def about(self) -> dict[str, str]:
        """What the file says of itself: its metadata, empty for most."""
        return dict(self.session.get_modelmeta().custom_metadata_map)

    @property
    def session(self) -> Any:
        """onnxruntime's, made when first needed."""
        if self._session is None:
            try:
                from onnxruntime import InferenceSession
            except ImportError:
                raise InputError("An ONNX file needs onnxruntime: pip install 'doubtless[onnx]'.") from None
            try:
                self._session = InferenceSession(
                    self.file.cpu().numpy().tobytes(), providers=["CPUExecutionProvider"]
                )
            except Exception as error:  # onnxruntime has a class per kind of damage
                reason = (str(error).strip().splitlines() or [""])[0]
                raise InputError(f"This is no ONNX file that can be run: {reason}.") from error
            if len(self._session.get_inputs()) != 1:
                names = [one.name for one in self._session.get_inputs()]
                raise InputError(f"A network takes one batch of images, this ONNX file {', '.join(names)}.")
        return self._session

    @property
    def image_shape(self) -> tuple[int | None, int | None]:
        """Channels and side of the images that it takes, where the file fixes them."""
        shape = self.session.get_inputs()[0].shape
        channels, side = (shape[1], shape[2]) if len(shape) == 4 else (None, None)
        return channels if isinstance(channels, int) else None, side if isinstance(side, int) else None

    def forward(self, images: Tensor) -> Tensor:
        """What the file's output is, on the device of the images."""
        (taken,) = self.session.get_inputs()
        outputs = [output.name for output in self.session.get_outputs()]
        wanted = OURS if OURS in outputs else outputs[0]
        values = images.detach().cpu()
        values = (values * 255).round().to(torch.uint8) if taken.type == "tensor(uint8)" else values.float()
        try:
            (found,) = self.session.run([wanted], {taken.name: values.contiguous().numpy()})
        except Exception as error:  # a shape or a type that the file does not take
            raise RuntimeError((str(error).strip().splitlines() or [""])[0]) from error
        return torch.from_numpy(np.ascontiguousarray(found)).float().to(images.device)

    def __deepcopy__(self, memo: Any) -> OnnxNetwork:
        """A session cannot be copied; a new one is made of the same file."""
        return OnnxNetwork(self.file.cpu().numpy().tobytes())
