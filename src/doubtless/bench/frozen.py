"""Which commit the settings of a bench were in, and whether they were as it has them.

Settings are frozen in a commit before test figures are seen; a result that names the commit can be held to that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

COMMIT = "DOUBTLESS_COMMIT"
"""Names the commit where there is no git, as on a machine with a copy of the tree; `-dirty` at its end: changed."""
DIRTY = "-dirty"


def frozen_settings(files: Sequence[Path]) -> dict[str, Any] | None:
    """``{"commit": …, "clean": …}`` of these files as they are now; None where no git can tell and nobody says.

    Clean is what git would not show as changed or new; a file outside of the repository is not clean.
    """
    named = os.environ.get(COMMIT, "").strip()
    if named:
        return {"commit": named.removesuffix(DIRTY), "clean": not named.endswith(DIRTY)}
    there = [path.resolve() for path in files if path.exists()]
    if not there:
        return None
    commit = _git(there[0].parent, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = [_git(path.parent, "status", "--porcelain", "--ignored", "--", path.name) for path in there]
    return {"commit": commit, "clean": all(text == "" for text in changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None where it fails or is not there."""
    try:
        said = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()
