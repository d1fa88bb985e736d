"""Models in folders of their own and on the Hub: the same there as here, without the code they were made with."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from doubtless.cli import app
from doubtless.errors import FileError, InputError
from doubtless.methods import DataSpec, method_class
from doubtless.methods.configuration import load_config
from doubtless.runs.model import Model, load, model_fingerprint
from doubtless.runs.names import open_model
from doubtless.runs.pretrained import load_saved, save_method
from tests.reference.hub import Hub

CONFIGS = Path(__file__).parents[2] / "configs" / "fashion-sample"
TIMM = "test_efficientnet"


class Scaled(nn.Module):
    """A network with a constant that is no part of its state, and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
        self.register_buffer("scale", torch.arange(1.0, 6.0).view(5, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images) * self.scale


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network of timm with weights that nobody trained."""
    import timm
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = timm.create_model(TIMM, pretrained=False).state_dict()
    path = tmp_path_factory.mktemp("weights") / f"{TIMM}.safetensors"
    save_file(state, path)
    return path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    standing_in = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", standing_in.address)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        standing_in.address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield standing_in
    standing_in.close()


def same(one: Model, other: Model, images: torch.Tensor) -> bool:
    first, second = one.embed(images), other.embed(images)
    return model_fingerprint(one.method) == model_fingerprint(other.method) and all(
        torch.equal(value, second.parameters[name]) for name, value in first.parameters.items()
    )


def test_a_run_opens_from_a_folder_of_json_and_safetensors(tiny_run: Path, tmp_path: Path) -> None:
    model = load(tiny_run)
    saved = model.save_pretrained(tmp_path / "saved")
    assert {file.suffix for file in saved.iterdir()} == {".json", ".safetensors"}
    images = torch.rand(3, 1, 12, 12)
    for again in (Model.from_pretrained(saved), open_model(saved)):
        assert same(model, again, images)
    assert str(tiny_run) not in "".join(file.read_text() for file in saved.glob("*.json"))


def test_a_network_of_timm_opens_without_timm(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(f"timm:{TIMM}", weights=weights)
    assert model.method.spec.size == 160  # what timm says it was trained with
    saved = model.save_pretrained(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "timm", None)
    again = open_model(saved)
    assert same(model, again, torch.rand(3, 3, 160, 160))
    twice = again.save_pretrained(tmp_path / "twice")
    assert same(model, open_model(twice), torch.rand(1, 3, 160, 160))


def test_a_network_of_ones_own_opens_without_its_code(tmp_path: Path) -> None:
    network = Scaled()
    nn.init.normal_(network.layers[1].running_mean)
    model = Model.from_module(network, size=9, pooling="gem")
    again = open_model(model.save_pretrained(tmp_path / "saved"))
    assert type(again.method.encoder.backbone).__name__ == "GraphNetwork"
    assert same(model, again, torch.rand(4, 3, 9, 9))


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_method_is_saved_with_its_state(file: Path, tmp_path: Path) -> None:
    config = load_config(file)
    method = method_class(config.method)(config, DataSpec(1, 28, ["a", "b", "c"]))
    if config.method == "ensemble":
        with pytest.raises(InputError, match="An ensemble is made of runs"):
            save_method(method, tmp_path / "saved")
        return
    save_method(method, tmp_path / "saved")
    again = load_saved(tmp_path / "saved")
    assert model_fingerprint(again) == model_fingerprint(method)


def test_what_cannot_be_opened_is_a_sentence(tiny_run: Path, tmp_path: Path) -> None:
    saved = load(tiny_run).save_pretrained(tmp_path / "saved")
    about = json.loads((saved / "config.json").read_text())
    for change, sentence in [
        ({"schema": 99}, "reads up to 1; update doubtless"),
        ({"data": {}}, "is no readable model"),
        ({"config": {"method": "deterministc"}}, "did you mean 'deterministic'"),
    ]:
        (saved / "config.json").write_text(json.dumps(about | change))
        with pytest.raises(InputError, match=sentence):
            open_model(saved)
    (saved / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(InputError, match=r"another library's. A network of timm is named timm:NAME"):
        open_model(saved)
    (saved / "config.json").write_text(json.dumps(about))
    (saved / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(FileError, match="is damaged or missing"):
        open_model(saved)
    with pytest.raises(InputError, match="There is no model nowhere; accepted: timm:NAME, a run's folder"):
        open_model("nowhere")
    with pytest.raises(InputError, match="go with timm:NAME"):
        open_model(tiny_run, weights="some.safetensors")


def test_a_model_goes_to_the_hub_and_comes_back(hub: Hub, tiny_run: Path) -> None:
    model = load(tiny_run)
    assert model.push_to_hub("me/blobs", token="secret") == f"{hub.address}/me/blobs"
    assert set(hub.files["me/blobs"]) == {"config.json", "model.safetensors", "README.md"}
    assert "library_name: doubtless" in hub.files["me/blobs"]["README.md"].decode()
    again = open_model("hub:me/blobs")
    assert same(model, again, torch.rand(2, 1, 12, 12))
    assert again.place == "hub:me/blobs"


def test_a_hub_that_lacks_it_or_cannot_be_reached_says_so_soon(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    with pytest.raises(InputError, match=r"has no config.json of me/nothing"):
        open_model("hub:me/nothing")
    hub.files["me/other"] = {"config.json": b"{}", "pytorch_model.bin": b"pickled"}
    with pytest.raises(InputError, match="holds no model of doubtless: it has no"):
        open_model("hub:me/other")
    with pytest.raises(InputError, match="named hub:USER/NAME, got 'hub:nothing'"):
        open_model("hub:nothing")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    started = time.monotonic()
    with pytest.raises(
        InputError, match=r"cannot be reached for the weights of me/third. Copy the model's folder"
    ):
        open_model("hub:me/third")
    with pytest.raises(InputError, match="name it with --weights FILE"):
        open_model("timm:test_vit")
    assert time.monotonic() - started < 20


def test_an_onnx_file_is_a_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    helper, kinds = onnx.helper, onnx.TensorProto
    pooled = helper.make_node("GlobalAveragePool", ["images"], ["pooled"])
    flat = helper.make_node("Flatten", ["pooled"], ["features"])
    images = helper.make_tensor_value_info("images", kinds.FLOAT, ["n", 3, 16, 16])
    features = helper.make_tensor_value_info("features", kinds.FLOAT, ["n", 3])
    graph = helper.make_graph([pooled, flat], "means", [images], [features])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(proto, tmp_path / "means.onnx")
    model = open_model(f"{tmp_path}/means.onnx?normalization=none")
    assert model.method.spec.size == 16
    batch = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    torch.testing.assert_close(model.embed(batch).location, batch.float().mean((2, 3)) / 255)
    again = open_model(model.save_pretrained(tmp_path / "saved"))
    (tmp_path / "means.onnx").unlink()
    assert same(model, again, batch)
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(InputError, match="no ONNX file that can be run"):
        open_model(tmp_path / "broken.onnx")


def test_the_command_saves_into_a_folder_and_refuses_the_rest(tiny_run: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["push", str(tiny_run), str(tmp_path / "saved"), "--json"])
    assert json.loads(done.output)["place"] == str(tmp_path / "saved")
    assert model_fingerprint(open_model(tmp_path / "saved").method) == model_fingerprint(
        load(tiny_run).method
    )
    for arguments, sentence in [
        ([tiny_run, tmp_path / "saved"], "exists already"),
        ([tiny_run, tmp_path / "other", "--private"], "--private is for the Hub"),
        (["nowhere", tmp_path / "other"], "There is no model nowhere"),
        ([tiny_run, "hub:nothing"], "named USER/NAME"),
    ]:
        refused = runner.invoke(app, ["push", *map(str, arguments)])
        assert sentence in str(refused.exception)
