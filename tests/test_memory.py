import subprocess
import sys

import pytest

from doubtless.memory import SAID, keep_freed

BATCHES = """
import resource, sys, threading
import torch
from doubtless.memory import keep_freed

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed({})

def batches(number):
    for _ in range(number):
        torch.relu(torch.ones(10_000_000))  # 40 MB twice

def work():
    global faults
    batches(10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batches(5)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

thread = threading.Thread(target=work)
work() if sys.argv[2] == "main" else (thread.start(), thread.join())
print(faults)
"""


def pages_asked_for(keep: str, where: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", BATCHES, keep, where], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_batch_finds_the_memory_of_the_last_one(where: str) -> None:
    if not keep_freed_here():
        pytest.skip("not glibc")
    assert pages_asked_for("keep", where) < pages_asked_for("leave", where) / 20


def keep_freed_here() -> bool:
    command = "from doubtless.memory import keep_freed; print(keep_freed({}))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    return done.stdout.strip() == "True"


@pytest.mark.parametrize("name", SAID)
def test_what_somebody_has_chosen_stays(name: str) -> None:
    assert not keep_freed({name: "1"})
