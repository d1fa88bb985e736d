"""schemathesis against the OpenAPI document: what it may ask is answered as the document says, never with a 5xx."""

from __future__ import annotations

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from doubtless.server.http.app import create_app
from doubtless.server.service.service import Service

NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


def explored(service: Service, examples: int) -> int:
    """How many requests were made; fails where one is not answered as described."""
    schema = schemathesis.openapi.from_asgi(
        "/openapi.json", create_app(service, page=False, hosts=["testserver"])
    )
    checks, made = CHECKS.get_by_names(list(NAMES)), 0
    for result in schema.get_all_operations():
        operation = result.ok()
        takes = bool(operation.body) or bool(list(operation.iter_parameters()))
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 1 + takes]:

            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.explicit, Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case: schemathesis.Case) -> None:
                nonlocal made
                case.call_and_validate(checks=checks)
                made += 1

            check()
    return made


def test_the_document_is_kept(service: Service) -> None:
    assert explored(service, 12) > 100


@pytest.mark.slow
def test_the_document_is_kept_for_long(service: Service) -> None:
    assert explored(service, int(os.environ.get("DOUBTLESS_SCHEMA_EXAMPLES", "300"))) > 2000
