"""Which versions of others' libraries may be installed: none with holes that are known."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
MENDED = {
    "pillow": ("11.3.0", "CVE-2025-48379"),
    "torch": ("2.6.0", "CVE-2025-32434"),
    "pyarrow": ("14.0.1", "CVE-2023-47248"),
    "fastapi": ("0.109.1", "CVE-2024-24762"),
    "starlette": ("0.49.1", "CVE-2025-62727"),
    "h11": ("0.16.0", "CVE-2025-43859"),
    "python-multipart": ("0.0.18", "CVE-2024-53981"),
    "onnx": ("1.16.2", "CVE-2024-5187"),
}
"""The first version without a hole, which whoever installs an older one would have."""


def wanted() -> dict[str, list[Requirement]]:
    """Everything that is asked for, with or without extras, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [*project["dependencies"], *(one for extra in extras for one in extra)]
    found: dict[str, list[Requirement]] = {}
    for line in lines:
        one = Requirement(line)
        found.setdefault(one.name, []).append(one)
    return found


@pytest.mark.parametrize("name", list(MENDED))
def test_versions_with_known_holes_are_not_installed(name: str) -> None:
    mended, hole = MENDED[name]
    for one in wanted()[name]:
        lowest = [Version(bound.version) for bound in one.specifier if bound.operator in (">=", "==")]
        assert lowest, f"{one} may be any version, also one with {hole}"
        assert max(lowest) >= Version(mended), f"{one} may be one with {hole}"


def test_gradio_is_gone() -> None:
    assert "gradio" not in wanted()
    sources = [file.read_text() for file in (ROOT / "src").rglob("*.py")]
    assert not [text for text in sources if re.search(r"^\s*(import|from) gradio", text, re.MULTILINE)]


def test_the_check_that_is_written_down_looks_at_what_is_installed() -> None:
    """`uvx pip-audit` alone looks at the environment that uvx has made for it."""
    told = (ROOT / "SECURITY.md").read_text()
    (command,) = [line for line in told.splitlines() if line.startswith("uvx pip-audit")]
    listed = command.rpartition(" -r ")[2]
    assert f"uv pip freeze --exclude-editable > {listed}" in told
