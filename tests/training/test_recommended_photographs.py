"""configs/photographs/recommended.yaml on a folder of pictures, with a network small enough for a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

from doubtless.methods.configuration import load_config
from doubtless.runs.evaluation import evaluate_run
from doubtless.training import train_run

CONFIG = Path(__file__).parents[2] / "configs" / "photographs" / "recommended.yaml"
CLASSES, EACH = 12, 5


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Folders of pictures: each class a colour, wider than high, with noise."""
    generator = np.random.default_rng(0)
    for number in range(CLASSES):
        colour = generator.integers(40, 215, 3)
        folder = tmp_path / "photos" / f"thing {number:02}"
        folder.mkdir(parents=True)
        for picture in range(EACH):
            noise = generator.normal(0, 20, (36, 48, 3))
            Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8)).save(folder / f"{picture}.png")
    return tmp_path / "photos"


def test_the_recommended_training_runs_on_a_folder_of_pictures(photographs: Path, tmp_path: Path) -> None:
    network = timm.create_model("test_efficientnet", num_classes=0)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    small = ["model.backbone=test_efficientnet", f"model.weights={tmp_path / 'weights.safetensors'}"]
    small += [
        "model.dim=8",
        "data.size=32",
        "evaluation.size=36",
        "training.epochs=2",
        "training.accelerator=cpu",
    ]
    small += ["training.batch_size=8", "training.per_class=4", f"data.source=folder:{photographs}", "seed=3"]
    config = load_config(CONFIG, overrides=[*small, "laplace.tune.grid=3"])
    assert (config.model.batch_norm, config.model.head_start) == ("frozen", "half-whitened")
    assert (config.training.warmup, config.training.schedule, config.training.optimizer) == (
        1,
        "cosine",
        "adamw",
    )
    run = train_run(config, tmp_path / "run", quiet=True)
    found = evaluate_run(run, bootstrap=0, report=False)
    assert len(run.split.validation) == EACH * 2, "a fifth of the classes, at least two"
    assert found["recall@1"] > 2 / (CLASSES / 2)
