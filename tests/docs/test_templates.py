"""Forms for issues ask in the shape that GitHub reads, and for what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from doubtless.cli import app

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
PULL_REQUEST = ROOT / ".github" / "pull_request_template.md"


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_are_read(form: Path) -> None:
    """GitHub shows a form only where each question has a type that it knows, a label, and an id of its own."""
    read = yaml.safe_load(form.read_text())
    assert {"name", "description", "labels", "body"} == set(read)
    assert all(question["type"] in {"input", "textarea"} for question in read["body"])
    assert all(question["attributes"]["label"] for question in read["body"])
    ids = [question["id"] for question in read["body"]]
    assert len(ids) == len(set(ids))
    assert any(question.get("validations", {}).get("required") for question in read["body"])


def test_what_they_name_is_there() -> None:
    text = "\n".join(file.read_text() for file in [*FORMS, PULL_REQUEST])
    commands = set(re.findall(r"`doubtless ([a-z]+)(?: [^`]*)?`", text))
    assert {"check", "stats", "demo"} <= commands
    for command in commands:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command
    files = re.findall(r"(?:docs/)?[\w-]+\.md|\.ci/run", text)
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []
