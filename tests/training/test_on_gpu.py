"""The whole way on a GPU: train, measure, report; the embeddings are those of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from doubtless.methods import Subset
from doubtless.methods.configuration import make_config
from doubtless.methods.lam_posthoc import LamPosthoc
from doubtless.runs import embed_images, open_run_data
from doubtless.runs.evaluation import RunEvaluation
from doubtless.training import train_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("method", ["deterministic", "lam-posthoc", "lam-online"])
def test_train_measure_and_report(tiny_config, tmp_path: Path, method: str) -> None:
    config = {**tiny_config, "method": method, "training": {**tiny_config["training"], "accelerator": "gpu"}}
    run = train_run(make_config(config), tmp_path / "run", quiet=True)
    found = RunEvaluation(run).measure(bootstrap=50)
    assert found["recall@1"] > 0.5
    assert (tmp_path / "run" / "report.html").exists()
    data = open_run_data(run.config, split=run.split)
    on_cpu = embed_images(run.load_method(), data.test).direction
    on_gpu = embed_images(run.load_method().to("cuda"), data.test).direction
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=1e-3, rtol=0)
    assert run.method.device.type == "cuda"  # what was measured above, from memory
    in_memory = embed_images(run.method, run.data.test).direction
    torch.testing.assert_close(in_memory, on_gpu, atol=1e-5, rtol=0)


def test_what_follows_a_training_stays_on_the_gpu(
    tiny_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning leaves a network it has trained on the CPU; a posterior of 54,000 images took a minute there."""
    seen: list[str] = []
    plain = LamPosthoc.finish

    def finish(self: LamPosthoc, train: Subset, validation: Subset) -> None:
        seen.extend([self.device.type, train.features().device.type, validation.labels.device.type])
        plain(self, train, validation)

    monkeypatch.setattr(LamPosthoc, "finish", finish)
    config = {**tiny_config, "method": "lam-posthoc"}
    config["training"] = {**tiny_config["training"], "accelerator": "gpu"}
    train_run(make_config(config), tmp_path / "run", quiet=True)
    assert seen == ["cuda"] * 3
