"""A network as a list of operations and its weights: what runs without the code that it was written in.

`traced` follows a network once, with `torch.export`, and gives its operations as plain values that fit into JSON.
`GraphNetwork` runs these one after the other: the same operations of torch on the same numbers in the same order,
so the same features to the last digit, without timm, a hub or a package of somebody's own. Its weights have the
names that they had, and lie in a safetensors file as those of any other network.

A graph may come from elsewhere. It can name operations of torch on tensors, and a handful of Python's on numbers,
and nothing else: no code is read from it.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from doubtless.errors import InputError

SCHEMA = 1
CONSTANT = "constant_"
"""What names of tensors begin with that are no part of a network's state, but of its operations."""
ON_NUMBERS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("getitem", "add", "sub", "mul", "floordiv", "mod", "neg")
}
"""Python's operations on sizes, which a graph may hold beside those of torch."""
KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "memory_format": torch.memory_format,
    "layout": torch.layout,
}
Description = dict[str, Any]


class GraphNetwork(nn.Module):
    """A traced network. Its weights are zero until a state is loaded.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    >>> description, constants = traced(network, torch.zeros(2, 3, 8, 8))
    >>> again = GraphNetwork(description, constants)
    >>> _ = again.load_state_dict(network.state_dict())
    >>> images = torch.rand(5, 3, 8, 8)
    >>> torch.equal(again(images), network(images))
    True
    """

    def __init__(self, description: Description, constants: dict[str, Tensor] | None = None) -> None:
        super().__init__()
        if description.get("schema", 0) > SCHEMA:
            raise InputError(
                f"The network's graph has schema {description['schema']}, this doubtless reads up to {SCHEMA}; "
                "update doubtless."
            )
        self.description = description
        try:
            for tensor in description["tensors"]:
                self._register(tensor, constants or {})
            self.places = {tensor["name"]: tensor["place"] for tensor in description["tensors"]}
            self._steps = [
                (node["name"], _operation(node["op"]), node["args"], node["kwargs"], node["last"])
                for node in description["nodes"]
            ]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"The network's graph is damaged: {error!r}.") from error

    def forward(self, images: Tensor) -> Tensor:
        """What the traced network gave: features (n, F), or maps (n, F, h, w)."""
        values: dict[str, Any] = {name: _tensor_at(self, place) for name, place in self.places.items()}
        values[self.description["input"]] = images
        for name, operation, args, kwargs, last in self._steps:
            values[name] = operation(
                *(_read(value, values, images.device) for value in args),
                **{key: _read(value, values, images.device) for key, value in kwargs.items()},
            )
            for used in last:  # nobody looks at them again
                del values[used]
        found: Tensor = values[self.description["output"]]
        return found

    def _register(self, tensor: dict[str, Any], constants: dict[str, Tensor]) -> None:
        *above, name = tensor["place"].split(".")
        home: nn.Module = self
        for part in above:
            if part not in home._modules:
                home.add_module(part, nn.Module())
            home = home.get_submodule(part)
        kind = tensor["kind"]
        if kind == "constant":
            home.register_buffer(name, constants[tensor["place"]], persistent=False)
            return
        empty = torch.zeros(tensor["shape"], dtype=getattr(torch, tensor["dtype"]))
        if kind == "parameter":
            home.register_parameter(name, nn.Parameter(empty, requires_grad=empty.is_floating_point()))
        else:
            home.register_buffer(name, empty)


def traced(network: nn.Module, images: Tensor) -> tuple[Description, dict[str, Tensor]]:
    """The operations of a network in evaluation mode on images like these (n, C, H, W), n ≥ 2, for any n.

    With it tensors that are no part of the network's state. What cannot be followed is a sentence.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter speaks to its developers
        try:
            with torch.no_grad():
                program = torch.export.export(
                    network, (images,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False
                )
        except Exception as error:  # every network fails in its own way
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"torch cannot follow this network: {reason}.") from error
    return _described(program)


def _described(program: Any) -> tuple[Description, dict[str, Tensor]]:
    """A program of `torch.export` as plain values."""
    specs = program.graph_signature.input_specs
    tensors, constants = list[dict[str, Any]](), dict[str, Tensor]()
    given = [spec.arg.name for spec in specs if spec.kind.name == "USER_INPUT"]
    for spec in specs:
        if spec.kind.name == "USER_INPUT":
            continue
        about = {"name": spec.arg.name, "place": spec.target, "kind": spec.kind.name.lower()}
        if spec.kind.name == "CONSTANT_TENSOR" or (spec.kind.name == "BUFFER" and spec.persistent is False):
            about |= {"place": f"{CONSTANT}{len(constants)}", "kind": "constant"}
            constants[about["place"]] = program.constants[spec.target].detach().cpu().contiguous()
        elif spec.kind.name in ("PARAMETER", "BUFFER"):
            value = program.state_dict[spec.target]
            about |= {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        else:
            raise InputError(f"A network that takes {spec.kind.name.lower()} cannot be written as a graph.")
        tensors.append(about)
    called = [node for node in program.graph.nodes if node.op == "call_function"]
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    if len(given) != 1 or len(output.args[0]) != 1:
        raise InputError("A network takes one batch of images and gives one tensor.")
    result = output.args[0][0].name
    last_use = {used.name: node.name for node in called for used in node.all_input_nodes}
    for kept in [result, *(tensor["name"] for tensor in tensors)]:
        last_use.pop(kept, None)
    nodes = [
        _written(node, [name for name, user in last_use.items() if user == node.name]) for node in called
    ]
    description = {"schema": SCHEMA, "input": given[0], "output": result, "tensors": tensors, "nodes": nodes}
    return description, constants


def _written(node: Any, last: list[str]) -> Description:
    """One operation; after it nobody looks at `last` again."""
    target = node.target
    name = str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", "")
    _operation(name)  # refused now rather than when it is read
    return {
        "name": node.name,
        "op": name,
        "args": [_plain(value) for value in node.args],
        "kwargs": {key: _plain(value) for key, value in node.kwargs.items()},
        "last": last,
    }


def _plain(value: Any) -> Any:
    """An argument as JSON has it: numbers and lists as they are, everything else by its name."""
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return {"device": "of the images"}
    for kind, type_ in KINDS.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    raise InputError(f"A graph cannot hold {value!r}.")


def _read(value: Any, values: dict[str, Any], device: torch.device) -> Any:
    """What `_plain` has written."""
    if isinstance(value, list):
        return [_read(one, values, device) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "node":
        return values[name]
    if kind == "device":
        return device
    if kind == "float":
        return float(name)
    found = getattr(torch, name)
    if not isinstance(found, KINDS[kind]):
        raise InputError(f"The network's graph is damaged: {name} is no {kind}.")
    return found


def _operation(name: str) -> Callable[..., Any]:
    """An operation by its name: of `torch.ops.aten`, ``aten.conv2d.default``, or one on numbers."""
    if name in ON_NUMBERS:
        return ON_NUMBERS[name]
    words = name.split(".")
    if len(words) == 3 and words[0] == "aten" and all(word.isidentifier() for word in words[1:]):
        found = getattr(getattr(torch.ops.aten, words[1], None), words[2], None)
        # `aten.from_file` and the like would read and write files.
        if isinstance(found, torch._ops.OpOverload) and not any(
            "file" in argument.name for argument in found._schema.arguments
        ):
            return found
    raise InputError(f"A network's graph cannot hold the operation {name!r}.")


def _tensor_at(module: nn.Module, place: str) -> Tensor:
    *above, name = place.split(".")
    for part in above:
        module = module._modules[part]  # type: ignore[assignment]
    found: Tensor = getattr(module, name)
    return found
