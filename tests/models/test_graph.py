"""Networks as lists of operations: the same features, from plain values, and nothing else can be in them."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.models.graph import GraphNetwork, traced


class Odd(nn.Module):
    """Sizes, lists, types, a constant and a branch: what networks do beside multiplying."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 6)
        self.register_buffer("fixed", torch.linspace(0, 1, 6), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        count, rows = images.shape[0], images.shape[2]
        flat = images.reshape(count, -1)[:, : rows * 3]
        one, other = self.layer(flat).chunk(2, dim=1)
        grid = torch.arange(3, dtype=torch.float32, device=images.device)
        mask = torch.full((3, 3), -torch.inf).triu(1)
        weighted = (one[:, None] * other[..., None] + mask).softmax(-1).sum(1) + grid
        return torch.cat([weighted, one], dim=1) * self.fixed


def networks() -> dict[str, nn.Module]:
    import timm

    return {
        "odd": Odd(),
        "convolutions": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        "timm": timm.create_model("test_efficientnet", num_classes=0, global_pool=""),
        "transformer": timm.create_model("test_vit", num_classes=0, img_size=32),
    }


@pytest.mark.parametrize("name", ["odd", "convolutions", "timm", "transformer"])
def test_features_are_the_same_for_any_number_of_images(name: str) -> None:
    side = 4 if name == "odd" else 32
    network = networks()[name].eval()
    description, constants = traced(network, torch.rand(2, 3, side, side))
    again = GraphNetwork(json.loads(json.dumps(description, allow_nan=False)), constants)
    assert list(again.state_dict()) == list(network.state_dict())
    again.load_state_dict(network.state_dict())
    with torch.no_grad():
        for count in (1, 2, 7):
            images = torch.rand(count, 3, side, side)
            assert torch.equal(again(images), network(images))
    images = torch.rand(2, 3, side, side)
    assert torch.equal(copy.deepcopy(again)(images), again(images))


def test_nothing_but_operations_on_tensors_is_read() -> None:
    description, _ = traced(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.rand(2, 3, 8, 8))
    for name in (
        "aten.from_file.default",
        "os.system",
        "aten.conv2d",
        "aten.__class__.mro",
        "prim.rpc_async.default",
        "eval",
    ):
        changed = copy.deepcopy(description)
        changed["nodes"][0]["op"] = name
        with pytest.raises(InputError, match="cannot hold the operation"):
            GraphNetwork(changed)


def test_damaged_and_newer_graphs_are_sentences() -> None:
    description, _ = traced(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.rand(2, 3, 8, 8))
    with pytest.raises(InputError, match="update doubtless"):
        GraphNetwork(description | {"schema": 2})
    with pytest.raises(InputError, match="is damaged"):
        GraphNetwork({name: value for name, value in description.items() if name != "nodes"})


def test_what_torch_cannot_follow_is_a_sentence() -> None:
    class Deciding(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.mean((2, 3)) if float(images.sum()) > 0 else images.amax((2, 3))

    with pytest.raises(InputError, match="torch cannot follow this network"):
        traced(Deciding(), torch.rand(2, 3, 8, 8))
