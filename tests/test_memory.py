import subprocess
import sys

import pytest

from doubtless.memory import ARENAS, MAPPED, SAID, SERVING, TRIM, WORKING, keep_freed, told

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


def test_an_earlier_malloc_is_told_what_it_takes_and_else_left_alone() -> None:
    """glibc 2.34 refuses blocks above 32 MB; told the rest alone, it would give back all above 128 kB."""
    said: dict[int, int] = {}

    def earlier(what: int, value: int, most: int = 2**25) -> int:
        if what == MAPPED and value > most:
            return 0
        said[what] = value
        return 1

    assert told(earlier, WORKING)
    assert said == {MAPPED: 2**25, TRIM: WORKING.unused, ARENAS: 1}
    said.clear()
    assert not told(lambda what, value: earlier(what, value, most=0), SERVING)
    assert said == {}


LARGE = """
import resource, sys
import torch
from doubtless.memory import SERVING, WORKING, keep_freed

assert keep_freed({})
if sys.argv[1] == "serving":
    assert keep_freed({}, kept=SERVING)
several = [torch.ones(25_000_000) for _ in range(4)]  # 100 MB each
small = torch.ones(100)  # lies behind them
del several
print(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_a_server_gives_large_blocks_back() -> None:
    if not keep_freed_here():
        pytest.skip("not glibc")
    working, serving = (
        int(subprocess.run([sys.executable, "-c", LARGE, how], capture_output=True, check=True).stdout)
        for how in ("working", "serving")
    )
    assert serving < working - 300
