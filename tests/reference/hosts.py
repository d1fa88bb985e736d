"""Several hosts on this machine: each with addresses, names, processes and shared memory of its own.

A host is a set of Linux namespaces; a cable goes from each to a switch, which is another one, so nothing of
this machine's own network is touched. Hosts share the disk, as machines of a cluster share a file system. A cable
that is pulled says nothing to either side: what is sent is lost, as between two machines.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest

SPACES = ("--net", "--mount", "--pid", "--ipc", "--uts")
PREFIX = "10.77.0."


@contextlib.contextmanager
def several_hosts(names: Sequence[str], place: Path, private: Sequence[str] = ()) -> Iterator[list[Host]]:
    """Hosts that reach each other by name and address; skips the test where namespaces may not be made.

    `private`: folders that each host has for itself, empty; of what lies there on this machine it sees nothing.
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("Only Linux has network namespaces.")
    place.mkdir(parents=True, exist_ok=True)
    known = place / "hosts"
    lines = [f"{PREFIX}{number} {name}" for number, name in enumerate(names, start=1)]
    known.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
    with contextlib.ExitStack() as stack:
        switch = stack.enter_context(_machine("switch", known, private))
        _inside(switch, "ip link add cables type bridge && ip link set cables up")
        hosts = []
        for number, name in enumerate(names, start=1):
            init = stack.enter_context(_machine(name, known, private))
            cable = f"cable{number}"
            _inside(
                switch,
                f"ip link add {cable} type veth peer name eth0 netns {init} && "
                f"ip link set {cable} master cables up",
            )
            _inside(
                init,
                f"ip addr add {PREFIX}{number}/24 dev eth0 && ip link set eth0 up && "
                "ip route add default dev eth0",
            )
            hosts.append(Host(name, f"{PREFIX}{number}", init, switch, cable))
        yield hosts


class Host:
    """One of them."""

    def __init__(self, name: str, address: str, init: int, switch: int, cable: str) -> None:
        self.name = name
        self.address = address
        self._init = init
        self._switch = switch
        self._cable = cable

    def start(
        self, command: Sequence[str], *, said: IO[str], errors: IO[str] | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        """Starts a program on this host; what it says goes to `said`, its errors too unless they have a file."""
        return subprocess.Popen(
            ["nsenter", f"--target={self._init}", *SPACES, f"--wd={os.getcwd()}", *command],
            stdout=said,
            stderr=errors or subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )

    def processes(self, of: str) -> list[int]:
        """Processes on this host whose command line has some words in it, by the numbers that they have here."""
        space, found = os.readlink(f"/proc/{self._init}/ns/pid"), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns" / "pid") == space and of in _command_line(entry):
                    found.append(int(entry.name))
        return found

    def cut_off(self) -> None:
        """Pulls its cable."""
        _inside(self._switch, f"ip link set {self._cable} down")

    def bring_back(self) -> None:
        """Puts the cable in again."""
        _inside(self._switch, f"ip link set {self._cable} up")


@contextlib.contextmanager
def _machine(name: str, known: Path, private: Sequence[str]) -> Iterator[int]:
    """Namespaces without a cable, for as long as their first process lives; its number."""
    own = [
        f"mkdir -p {shlex.quote(folder)} && mount -t tmpfs tmpfs {shlex.quote(folder)}" for folder in private
    ]
    steps = [
        f"hostname {shlex.quote(name)}",
        "mount -t tmpfs tmpfs /dev/shm",
        f"mount --bind {shlex.quote(str(known))} /etc/hosts",
        "ip link set lo up",
        *own,
        "echo made",
    ]
    # The shell that waits is the host's first process, which is given what has lost its parent, and clears it away.
    script = " && ".join(steps) + " && while sleep 3600; do :; done"
    command = ["unshare", *SPACES, "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]
    holder = subprocess.Popen(
        [*command, "bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "made\n":
            said = holder.communicate(timeout=10)[1].strip()
            pytest.skip(f"A host of its own cannot be made here: {said}")
        yield int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text())
    finally:
        holder.kill()
        holder.communicate()


def _inside(init: int, script: str) -> None:
    subprocess.run(["nsenter", f"--target={init}", "--net", "sh", "-c", script], check=True)


def _command_line(entry: Path) -> str:
    return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
