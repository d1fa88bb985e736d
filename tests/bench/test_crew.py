"""Processes that make several runs: none of them sees anything of the one before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from doubtless.bench.crew import Crew, Worker
from doubtless.files import write_text
from doubtless.methods.configuration import make_config
from tests.reference.tensor_files import contents
from tests.reference.waiting import wait_until

OF_THE_CLOCK = {"timing.json", "log.csv", "last.ckpt"}  # seconds stand in them


def configuration(values: dict[str, Any], method: str, folder: Path, **changes: Any) -> Path:
    """A method's configuration in a file."""
    path = folder / f"{method}.yaml"
    write_text(path, make_config({**values, "method": method, **changes}).to_yaml())
    return path


def make(worker: Worker, config: Path, folder: Path) -> bool:
    """Whether the worker made the run."""
    worker.begin([str(config), str(folder)], log=folder.with_suffix(".log"))
    ended: list[bool] = []
    wait_until(
        lambda: ended or [ended.append(said) for said in [worker.went_well()] if said is not None],
        seconds=120,
    )
    return ended[0]


def test_a_run_is_the_same_after_another_one_in_its_process(
    tiny_config: dict[str, Any], tmp_path: Path
) -> None:
    first = configuration(tiny_config, "deterministic", tmp_path)
    second = configuration(tiny_config, "mc-dropout", tmp_path, dropout={"rate": 0.2, "samples": 4})
    with Crew(threads=1) as crew:
        worker = crew.free_worker()
        assert make(worker, first, tmp_path / "first")
        crew.take_back(worker)
        assert crew.free_worker() is worker
        assert make(worker, second, tmp_path / "after")
        other = crew.free_worker()
        assert other is not worker
        assert make(other, second, tmp_path / "alone")
    after, alone = contents(tmp_path / "after"), contents(tmp_path / "alone")
    assert after.keys() == alone.keys() > {"queries.safetensors", "model.safetensors"}
    same = after.keys() - OF_THE_CLOCK
    assert {name: after[name] for name in same} == {name: alone[name] for name in same}


def test_what_fails_ends_the_process_and_says_why(tiny_config: dict[str, Any], tmp_path: Path) -> None:
    loss = {"name": "ProxyAnchorLoss", "arguments": {"nonsense": 1}}
    broken = configuration(tiny_config, "deterministic", tmp_path, loss=loss)
    with Crew(threads=1) as crew:
        worker = crew.free_worker()
        assert not make(worker, broken, tmp_path / "broken")
        assert "does not take {'nonsense': 1}" in (tmp_path / "broken.log").read_text()
        with pytest.raises(BrokenPipeError):
            make(worker, broken, tmp_path / "again")
