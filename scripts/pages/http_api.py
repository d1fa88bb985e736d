"""The reference of the HTTP API, from the application's own OpenAPI document."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

BODY = ("application/json", "multipart/form-data")


@cache
def document() -> dict[str, Any]:
    """The document that a server gives at /openapi.json."""
    from doubtless import Embedding, Gallery
    from doubtless.server.http.app import create_app
    from doubtless.server.service.service import Service

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "gallery"
        Gallery.create(place, embedding=Embedding.point(torch.eye(4)), labels=["a", "a", "b", "b"]).close()
        with Service.open(str(place), read_only=True) as service:
            made: dict[str, Any] = create_app(service, page=False).openapi()
    return made


def routes() -> list[tuple[str, str, Mapping[str, Any]]]:
    """Method, path and description of every route."""
    return [
        (method.upper(), path, operation)
        for path, operations in document()["paths"].items()
        for method, operation in operations.items()
    ]


def as_markdown() -> str:
    """Every route with what it takes and gives, then every form of body and reply."""
    schemas = document()["components"]["schemas"]
    sections = ["## Routes", *(_route(*route) for route in routes()), "## Bodies and replies"]
    return "\n\n".join([*sections, *(_schema(name, schema) for name, schema in sorted(schemas.items()))])


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    lines = [f"### `{method} {path}`", "", operation.get("description") or operation.get("summary", "")]
    parameters = operation.get("parameters", [])
    if parameters:
        lines += ["", "| parameter | in | kind | what it is |", "|---|---|---|---|"]
        lines += [
            f"| `{one['name']}` | {one['in']} | {_kind(one['schema'])} | {_said(one)} |" for one in parameters
        ]
    taken = operation.get("requestBody", {}).get("content", {})
    if taken:
        lines += ["", f"Takes {_contents(taken)}."]
    given = [
        f"{status} {_contents(reply['content']) if reply.get('content') else 'nothing'}"
        for status, reply in operation["responses"].items()
    ]
    return "\n".join([*lines, "", f"Replies: {'; '.join(given)}."])


def _contents(content: Mapping[str, Any]) -> str:
    return " or ".join(
        f"{_kind(one['schema'])} as `{kind}`" if one.get("schema") else f"`{kind}`"
        for kind, one in content.items()
    )


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    lines = [f"### `{name}`", ""]
    if schema.get("description"):
        lines += [schema["description"], ""]
    lines += ["| field | kind | what it is |", "|---|---|---|"]
    needed = schema.get("required", [])
    for field, one in schema.get("properties", {}).items():
        lines.append(f"| `{field}` | {_kind(one)}{', needed' if field in needed else ''} | {_said(one)} |")
    return "\n".join(lines)


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in words; another one that it names is a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_kind(one) for one in schema[several]))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{one}`" for one in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), Mapping) and kind == "object":
        return f"names: {_kind(schema['additionalProperties'])}"
    bounds = [
        f"{sign} {schema[name]:g}" for name, sign in (("minimum", "≥"), ("maximum", "≤")) if name in schema
    ]
    return " ".join([str(kind), *bounds])


def _said(part: Mapping[str, Any]) -> str:
    said = part.get("description") or part.get("schema", {}).get("description") or ""
    return " ".join(said.split()).replace("|", "\\|")
