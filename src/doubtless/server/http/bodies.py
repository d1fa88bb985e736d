"""Reading bodies: JSON, or a form with images. File names in forms are never looked at."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from doubtless.errors import InputError
from doubtless.server.http.problems import BodyError, Fault

JSON = "application/json"
FORM = "multipart/form-data"
FIELDS = 8
FIELD_BYTES = 256 << 10
"""Of a field that is no file."""

MOST_VALUES = 200_000
"""Of a JSON body. Nothing else of the server runs while it is read: 17 MB of a filter took 1.5 s and 1 GB."""

Body = TypeVar("Body", bound=BaseModel)


async def read_json(request: Request, kind: type[Body]) -> Body:
    """The body of a request as JSON; NaN, infinities and broken text are refused."""
    data = await request.body()
    if sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise InputError(f"The body has more than the {MOST_VALUES:,} values that are accepted.")
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise BodyError.of(error) from None


async def read_form(request: Request, kind: type[Body], *images: str) -> tuple[Body, list[bytes]]:
    """The fields of a form, and the bytes of its images by name."""
    async with request.form(max_files=len(images), max_fields=FIELDS, max_part_size=FIELD_BYTES) as form:
        _refuse_repeated(form)
        files = []
        for name in images:
            file = form.get(name)
            if not isinstance(file, UploadFile):
                raise BodyError([Fault(at=name, detail="an image file is needed here")])
            files.append(await file.read())
        fields = {name: value for name, value in form.multi_items() if name not in images}
        return _checked(kind, fields), files


async def read_images(
    request: Request, kind: type[Body], name: str, *, most: int
) -> tuple[Body, list[bytes]]:
    """The fields of a form, and the bytes of its images, which all have one name."""
    async with request.form(max_files=most, max_fields=FIELDS, max_part_size=FIELD_BYTES) as form:
        files = form.getlist(name)
        if not files or not all(isinstance(file, UploadFile) for file in files):
            raise BodyError([Fault(at=name, detail="image files are needed here")])
        others = FormData([(key, value) for key, value in form.multi_items() if key != name])
        _refuse_repeated(others)
        images = [await file.read() for file in files if isinstance(file, UploadFile)]
        return _checked(kind, dict(others.multi_items())), images


def content_type(request: Request, *accepted: str) -> str:
    """Which of the accepted types a body has; 415 for others."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in accepted:
        raise HTTPException(415, f"A body of type {' or '.join(accepted)} is needed.")
    return given


def _refuse_repeated(form: FormData) -> None:
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if names.count(name) > 1:
            raise BodyError([Fault(at=name, detail="given more than once")])


def _checked(kind: type[Body], fields: dict[str, Any]) -> Body:
    for name, value in fields.items():
        if isinstance(value, UploadFile):
            raise BodyError([Fault(at=name, detail="no file is accepted here")])
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise BodyError.of(error) from None


def described(
    json_body: type[BaseModel] | None,
    form: type[BaseModel],
    *images: str,
    example: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """For the OpenAPI document: what a request's body may be."""
    own = form.model_json_schema(ref_template="#/components/schemas/{model}")
    properties = {name: {"type": "string", "format": "binary"} for name in images}
    schema = {
        "type": "object",
        "properties": properties | {name: _field(field) for name, field in own.get("properties", {}).items()},
        "required": list(images),
        "additionalProperties": False,
    }
    content: dict[str, Any] = {FORM: {"schema": schema}}
    if json_body is not None:
        reference = {"$ref": f"#/components/schemas/{json_body.__name__}"}
        content[JSON] = {"schema": reference} | ({} if example is None else {"example": example})
    return {"requestBody": {"required": True, "content": content}}


def json_body(body: type[BaseModel], *, example: dict[str, Any]) -> dict[str, Any]:
    """For the OpenAPI document: a request's body is JSON and nothing else."""
    content = {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}, "example": example}
    return {"requestBody": {"required": True, "content": {JSON: content}}}


def _field(schema: dict[str, Any]) -> dict[str, Any]:
    """A form's field: JSON inside a field is text, and what is missing is left out rather than null."""
    if schema.get("contentMediaType") == JSON or any(
        one.get("contentMediaType") == JSON for one in schema.get("anyOf", ())
    ):
        return {"type": "string", "contentMediaType": JSON, "description": "JSON"}
    others = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return {**others[0]} if others else {key: value for key, value in schema.items() if key != "default"}
