"""What a GPU would be asked to launch, counted on a CPU."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """Names of the operations that start a kernel: all but those that only allocate or look at memory."""

    VIEWS = (
        "alias",
        "detach",
        "empty",
        "expand",
        "permute",
        "select",
        "slice",
        "split",
        "squeeze",
        "t",
        "transpose",
        "unsqueeze",
        "view",
    )

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        if name not in self.VIEWS:
            self.names.append(name)
        return operation(*args, **(kwargs or {}))
