"""What many tests need: a tiny data set, and a run trained on it once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.reference.two_processes import TwoProcesses


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Features cached by tests do not go where the user's are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOUBTLESS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def two_processes() -> Iterator[TwoProcesses]:
    """A gloo group of two, for all tests that need one."""
    from tests.reference.two_processes import TwoProcesses

    pair = TwoProcesses()
    yield pair
    pair.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium without a window; not for the whole session: its loop must not run beside a test's own."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six classes of 12×12 blobs, 40 training and 20 test images each: learned in seconds, not trivially."""
    rng = np.random.default_rng(0)
    centers = rng.uniform(0, 1, (6, 12, 12))

    def images(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.repeat(np.arange(6), count)
        noisy = centers[labels] + rng.normal(0, 0.35, (len(labels), 12, 12))
        return (noisy.clip(0, 1) * 255).astype(np.uint8), labels

    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    (x_train, y_train), (x_test, y_test) = images(40), images(20)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


@pytest.fixture(scope="session")
def tiny_config(tiny_npz: Path) -> dict[str, Any]:
    return {
        "method": "deterministic",
        "data": {"source": f"npz:{tiny_npz}", "ood": [f"npz:{tiny_npz}"], "validation": 0.2},
        "model": {"backbone": "conv-fashion", "dim": 8},
        "training": {"epochs": 3, "batch_size": 24, "lr": 3e-3, "accelerator": "cpu"},
    }


@pytest.fixture(scope="session")
def tiny_run(tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests must not write into it."""
    from doubtless.methods.configuration import make_config
    from doubtless.training import train_run

    path = tmp_path_factory.mktemp("runs") / "tiny"
    train_run(make_config(tiny_config), path, quiet=True)
    return path
