"""Errors as problem documents (RFC 9457): a status, a title, a sentence; nothing of what is inside."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from doubtless.errors import DiskFullError, InputError
from doubtless.server.service.errors import ServiceError

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("doubtless.server")


class Fault(BaseModel):
    """One thing that is wrong with a request's fields."""

    at: str = Field(description="Which field, such as embedding.location.3.")
    detail: str


class Problem(BaseModel):
    """What went wrong, after RFC 9457."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "about:blank",
                    "title": "Unsupported Media Type",
                    "status": 415,
                    "detail": "This is no image of an accepted type: JPEG, PNG, WebP, BMP, GIF, AVIF.",
                }
            ]
        }
    )
    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = Field(None, description="Where several fields are wrong.")


class BodyError(Exception):
    """A body whose fields are not as they should be; becomes a problem with status 422."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("The request's body is not as it should be.")
        self.faults = list(faults)

    @classmethod
    def of(cls, error: ValidationError | RequestValidationError) -> BodyError:
        """The first faults that pydantic found."""
        return cls([Fault(at=_place(one["loc"]), detail=one["msg"]) for one in error.errors()[:20]])


def document(status: int, detail: str, faults: Sequence[Fault] = ()) -> bytes:
    """A problem document as JSON."""
    title = HTTPStatus(status).phrase
    problem = Problem(title=title, status=status, detail=detail, errors=list(faults) or None)
    return json.dumps(problem.model_dump(exclude_none=True)).encode()


def response(
    status: int, detail: str, faults: Sequence[Fault] = (), *, headers: Mapping[str, str] | None = None
) -> Response:
    """A problem document as a response."""
    body = document(status, detail, faults)
    return Response(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Errors that a request can cause become problems; `security.Guard` makes those of all others."""

    def http_error(_: Request, error: Any) -> Response:
        assert isinstance(error, HTTPException)
        detail = str(error.detail) if error.status_code != 404 else "There is nothing at this address."
        return response(error.status_code, detail, headers=error.headers)

    def unreadable(_: Request, error: Any) -> Response:
        found = error if isinstance(error, BodyError) else BodyError.of(error)
        return response(422, "The request is not as it should be.", found.faults)

    def refused(_: Request, error: Any) -> Response:
        status = error.status if isinstance(error, ServiceError) else 422
        return response(status, str(error), headers={"Retry-After": "1"} if status == 503 else None)

    def no_room(_: Request, error: Any) -> Response:
        log.error("The disk is full: %s", error)
        return response(507, "There is no room left on the disk; nothing of this was stored.")

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(DiskFullError, no_room)
    for kind in (RequestValidationError, BodyError):
        app.add_exception_handler(kind, unreadable)
    for error in (InputError, ServiceError):
        app.add_exception_handler(error, refused)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: problems that an operation may answer with."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content} for status in sorted(statuses)
    }


def _place(where: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in where)
