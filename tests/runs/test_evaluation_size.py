"""`evaluation.size`: a run is measured, and then used, at another side of images than it was trained at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import doubtless
from doubtless.cli import app
from doubtless.config import EvaluationConfig
from doubtless.data import Preparation
from doubtless.errors import InputError
from doubtless.methods import Method
from doubtless.methods.configuration import make_config
from doubtless.runs import Run
from doubtless.runs.data import must_take
from doubtless.runs.evaluation import RunEvaluation
from doubtless.runs.model import model_fingerprint
from doubtless.training import train_run

TRAINED, MEASURED = 32, 48


@pytest.fixture(scope="module")
def values(tiny_config: dict[str, Any]) -> dict[str, Any]:
    return {
        **tiny_config,
        "data": {**tiny_config["data"], "size": TRAINED},
        "model": {"backbone": "test_resnet", "dim": 8},
        "training": {**tiny_config["training"], "epochs": 1},
        "evaluation": {"size": MEASURED},
    }


@pytest.fixture(scope="module")
def run(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "larger"
    train_run(make_config(values), path, quiet=True)
    return path


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many images of which side a method was asked about, batch by batch."""
    seen: list[tuple[int, int]] = []
    observed = Method._observed

    def counted(self: Method, images: torch.Tensor) -> torch.Tensor:
        seen.append((len(images), images.shape[-1]))
        return observed(self, images)

    monkeypatch.setattr(Method, "_observed", counted)
    return seen


@pytest.mark.parametrize("gallery", [None, "train"])
def test_everything_that_is_measured_has_the_size(
    run: Path, tmp_path: Path, gallery: str | None, sides: list[tuple[int, int]]
) -> None:
    """Queries, OOD images, validation and, in a closed set, the training part: no batch of another side."""
    shutil.copytree(run, tmp_path / "run")
    work = RunEvaluation(Run.open(tmp_path / "run"), gallery=gallery)
    assert work.folder.name == ("run" if gallery is None else "on-test-in-train")
    sides.clear()  # of the check that the network takes it
    found = work.measure(bootstrap=0)
    assert {side for _, side in sides} == {MEASURED}
    parts = Run.open(run).split
    ood = 120  # its test part
    assert (
        sum(count for count, _ in sides) == sum(map(len, (parts.train, parts.validation, parts.test))) + ood
    )
    assert "doubt" in found.protocol


def test_it_trains_at_its_own_size_and_chooses_at_that_it_is_measured_at(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[bool, int]] = set()
    encode = Method.encode

    def counted(self: Method, images: torch.Tensor) -> torch.Tensor:
        seen.add((self.training, images.shape[-1]))
        return encode(self, images)

    monkeypatch.setattr("doubtless.training.loop.must_take", lambda *_: None)
    monkeypatch.setattr(Method, "encode", counted)
    train_run(make_config(values), tmp_path / "run", quiet=True)
    assert seen == {(True, TRAINED), (False, MEASURED)}


def test_a_model_takes_images_as_it_was_measured(run: Path) -> None:
    model = doubtless.load(run)
    picture = torch.randint(256, (3, 60, 50), dtype=torch.uint8)
    prepared = Preparation(channels=1, size=MEASURED)(picture)
    expected = model.method.embed(prepared.unsqueeze(0)).direction
    assert torch.equal(model.embed([picture]).direction, expected)
    trained = model.method.embed(Preparation(channels=1, size=TRAINED)(picture).unsqueeze(0)).direction
    assert not torch.allclose(trained, expected, atol=1e-4)


def test_another_size_is_another_model(run: Path) -> None:
    method = Run.open(run).load_method()
    at = {}
    for size in (None, TRAINED, MEASURED):
        method.config = method.config.model_copy(update={"evaluation": EvaluationConfig(size=size)})
        at[size] = model_fingerprint(method)
    assert at[None] == at[TRAINED] != at[MEASURED]


def test_other_sizes_have_folders_of_their_own(run: Path) -> None:
    opened = Run.open(run)
    for size, name in [(40, "on-test-40px"), (None, f"on-test-{TRAINED}px"), (MEASURED, opened.path.name)]:
        assert RunEvaluation(opened, options=EvaluationConfig(size=size)).folder.name == name
    both = EvaluationConfig(size=40, score="expected-distance")
    assert RunEvaluation(opened, options=both).folder.name == "on-test-by-expected-distance-40px"


def test_the_command_line_takes_a_size(run: Path, tmp_path: Path, sides: list[tuple[int, int]]) -> None:
    shutil.copytree(run, tmp_path / "run")
    arguments = ["evaluate", str(tmp_path / "run"), "--size", "40", "--bootstrap", "0", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert (sides[-1][1], "recall@1" in json.dumps(json.loads(result.stdout))) == (40, True)
    assert (tmp_path / "run" / "on-test-40px" / "report.html").is_file()
    assert not (tmp_path / "run" / "metrics.json").exists()


@pytest.mark.parametrize(
    ("backbone", "size", "sentence"),
    [
        (
            "conv-fashion",
            40,
            r"evaluation\.size 40 does not fit conv-fashion: how many features .* leave it out",
        ),
        (
            "test_vit3",
            192,
            r"evaluation\.size 192 does not fit test_vit3, which was built for images of side 160: ",
        ),
    ],
)
def test_a_network_of_one_size_is_refused_before_it_is_trained(
    values: dict[str, Any], tmp_path: Path, backbone: str, size: int, sentence: str
) -> None:
    side = 160 if backbone == "test_vit3" else TRAINED
    changed = {
        **values,
        "data": {**values["data"], "size": side},
        "model": {"backbone": backbone, "dim": 8},
        "evaluation": {"size": size},
    }
    with pytest.raises(InputError, match=sentence):
        train_run(make_config(changed), tmp_path / "run", quiet=True)


def test_the_own_size_and_none_need_no_network(run: Path, sides: list[tuple[int, int]]) -> None:
    method = Run.open(run).load_method()
    must_take(method, None)
    must_take(method, TRAINED)
    assert not sides
