"""Networks and data of the user's own: trained from Python, saved, loaded again by their import path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import doubtless
from doubtless.data import open_source
from doubtless.errors import InputError
from doubtless.runs.run import Run

SIZE = 10


class Tiny(nn.Module):
    """A network that can be made without arguments."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, width, 3, stride=2)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images).relu()  # maps: the encoder pools them


class Bars(Dataset[tuple[Tensor, str]]):
    """Bright bars: three classes, in the place of the bar."""

    def __init__(self, count: int = 60, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = 0.4 * torch.rand(count, 1, SIZE, SIZE, generator=generator)
        for number in range(count):
            self.images[number, :, :, 3 * (number % 3)] = 1

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        return self.images[index], ["left", "middle", "right"][index % 3]


def bars() -> Bars:
    return Bars()


CONFIG: dict[str, Any] = {
    "method": "deterministic",
    "data": {"validation": 0.25, "test": 0.25},
    "model": {"dim": 4},
    "training": {"epochs": 1, "batch_size": 12, "accelerator": "cpu"},
}
IMAGES = torch.randint(256, (3, 1, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


def embedded(path: Path, **options: Any) -> Tensor:
    return doubtless.load(path, **options).embed(IMAGES).location


def test_import_paths_are_saved_and_found_again(tmp_path: Path) -> None:
    mine = Tiny()
    before = mine.layer.weight.detach().clone()
    run = doubtless.train(CONFIG, tmp_path / "run", encoder=mine, data=bars, quiet=True)
    config = Run.open(run.path).config
    assert config.model.backbone == f"module:{__name__}.Tiny"
    assert config.data.source == f"module:{__name__}.bars"
    assert torch.equal(mine.layer.weight, before)  # a copy was trained
    trained = run.method.encoder.backbone.layer.weight  # type: ignore[union-attr]
    assert not torch.equal(trained, before)  # type: ignore[arg-type]
    assert torch.equal(embedded(run.path), run.method.embed(IMAGES).location)
    evaluation = doubtless.evaluate_run(run.path, bootstrap=0, report=False)
    assert evaluation["recall@1"] > 0.5


def test_training_starts_from_the_weights_of_the_object(tmp_path: Path) -> None:
    mine = Tiny()
    nn.init.constant_(mine.layer.bias, 0.25)  # type: ignore[arg-type]
    config = {**CONFIG, "training": {**CONFIG["training"], "epochs": 0}}
    run = doubtless.train(config, tmp_path / "run", encoder=mine, data=bars, quiet=True)
    assert run.method.encoder.backbone.layer.bias.tolist() == [0.25] * 6  # type: ignore[union-attr, operator]


def test_objects_without_a_name_are_given_again(tmp_path: Path) -> None:
    mine, data = Tiny(width=7), Bars()
    run = doubtless.train(CONFIG, tmp_path / "run", encoder=mine, data=data, quiet=True)
    first = doubtless.evaluate_run(run, bootstrap=0, report=False)
    config = Run.open(run.path).config
    assert (config.model.backbone, config.data.source) == ("python", "python")
    with pytest.raises(
        InputError, match=r"no name leads to; give it again: doubtless.load\(run, encoder=...\)"
    ):
        doubtless.load(run.path)
    assert torch.equal(embedded(run.path, encoder=Tiny(width=7)), run.method.embed(IMAGES).location)
    with pytest.raises(InputError, match="data was given as a Python object"):
        doubtless.evaluate_run(run.path, encoder=mine, bootstrap=0, report=False)
    again = doubtless.evaluate_run(run.path, encoder=mine, data=Bars(), bootstrap=0, report=False)
    assert again["map@r"] == first["map@r"]
    assert not list(run.path.glob("on-*"))  # it is the run's own data
    doubtless.evaluate_run(run.path, encoder=mine, data=Bars(seed=1), bootstrap=0, report=False)
    assert (run.path / "on-python" / "metrics.json").is_file()


def test_a_network_that_does_not_fit_the_run_is_a_sentence(tmp_path: Path, tiny_run: Path) -> None:
    config = {**CONFIG, "training": {**CONFIG["training"], "epochs": 0}}
    run = doubtless.train(config, tmp_path / "run", encoder=Tiny(width=7), data=bars, quiet=True)
    with pytest.raises(doubtless.RunError, match="of another model"):
        doubtless.load(run.path, encoder=Tiny(width=5))
    with pytest.raises(InputError, match="names its network itself"):
        doubtless.load(tiny_run, encoder=Tiny())


def test_resuming_needs_the_same_objects(tmp_path: Path) -> None:
    run = doubtless.train(CONFIG, tmp_path / "run", encoder=Tiny(width=7), data=Bars(), quiet=True)
    (run.path / "model.json").unlink()
    again = doubtless.train(CONFIG, run.path, encoder=Tiny(width=7), data=Bars(), resume=True, quiet=True)
    assert torch.equal(embedded(again.path, encoder=Tiny(width=7)), run.method.embed(IMAGES).location)
    (run.path / "model.json").unlink()
    with pytest.raises(InputError, match="has changed since this run was split"):
        doubtless.train(CONFIG, run.path, encoder=Tiny(width=7), data=Bars(seed=2), resume=True, quiet=True)


@pytest.mark.parametrize("method", ["pfe", "ensemble"])
def test_methods_made_of_several_runs(method: str, tmp_path: Path) -> None:
    """Every network starts as a copy of the object, and every run of the run finds it again."""
    config = {**CONFIG, "method": method}
    config |= {"ensemble": {"members": 2}} if method == "ensemble" else {"head": {"epochs": 1}}
    run = doubtless.train(config, tmp_path / "run", encoder=Tiny(width=7), data=Bars(), quiet=True)
    torch.testing.assert_close(embedded(run.path, encoder=Tiny(width=7)), run.method.embed(IMAGES).location)


def test_a_source_keeps_its_name(tmp_path: Path) -> None:
    config = {**CONFIG, "data": {"size": 12}, "training": {**CONFIG["training"], "epochs": 0}}
    run = doubtless.train(config, tmp_path / "run", data=open_source("digits"), quiet=True)
    assert Run.open(run.path).config.data.source == "digits"


def test_what_is_no_encoder_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"An encoder is an nn.Module"):
        doubtless.train(CONFIG, tmp_path / "run", encoder=5, data=bars)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"must make an nn.Module, got a Bars"):
        doubtless.train(CONFIG, tmp_path / "run", encoder=bars, data=bars)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()
