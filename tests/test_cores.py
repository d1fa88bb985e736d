import os
from pathlib import Path

import pytest

from doubtless.cores import BESIDE_A_GPU, limit_threads, usable_cores

ALLOWED = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.mark.parametrize(
    ("said", "cores"), [("max 100000", ALLOWED), ("100000 100000", 1), ("20000 100000", 1), ("", ALLOWED)]
)
def test_a_containers_share_counts(tmp_path: Path, said: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(said)
    assert usable_cores(tmp_path) == cores


def test_older_containers_say_it_elsewhere(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == ALLOWED
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("50000\n")
    assert usable_cores(tmp_path) == 1
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(tmp_path) == ALLOWED


def test_threads_are_few_beside_a_gpu_and_what_was_said_stays(tmp_path: Path) -> None:
    chosen: dict[str, str] = {}
    assert limit_threads(chosen, gpus=tmp_path / "none")
    assert chosen == {"OMP_NUM_THREADS": str(usable_cores()), "OMP_WAIT_POLICY": "PASSIVE"}
    beside: dict[str, str] = {}
    assert limit_threads(beside, gpus=tmp_path)
    assert beside == {
        "OMP_NUM_THREADS": str(min(BESIDE_A_GPU, usable_cores())),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    said = {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE"}
    assert not limit_threads(said, gpus=tmp_path)
    assert said == {"OMP_NUM_THREADS": "7", "OMP_WAIT_POLICY": "ACTIVE"}
