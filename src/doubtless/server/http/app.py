"""`create_app`: the HTTP API of a service, its documentation that needs no network, and the page."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool

from doubtless.server.http import insight, looking, measures, problems, routes, schemas, static
from doubtless.server.http.observed import Observed
from doubtless.server.http.security import LOOPBACK, OPEN, Guard
from doubtless.server.http.traces import Traces
from doubtless.server.service.service import Service
from doubtless.version import __version__

ABOUT = """Image retrieval that knows when it does not know.

Every answer carries a decision (`answer`, `abstain`, `not-in-gallery`), the probability of every hit, and what it
cannot promise. Errors are problem documents (RFC 9457)."""

EXTRA_MODELS = (
    problems.Problem,
    schemas.SearchBody,
    schemas.TogetherBody,
    schemas.CompareBody,
    schemas.ItemBody,
    schemas.FeedbackBody,
    schemas.LabelBody,
)


def create_app(
    service: Service,
    *,
    token: str | None = None,
    read_token: str | None = None,
    page: bool = True,
    hosts: Collection[str] | None = None,
    demo: Sequence[tuple[str, bytes]] | None = None,
) -> FastAPI:
    """The application over a service, which it closes when it is shut down.

    token        what callers must know who may do everything
    read_token   what callers must know who may ask and look; without either token whoever can reach it may do all
    page         whether the page is served at /
    hosts        names under which it may be asked; None: without a token those of this machine, with one any
    demo         it is the demo, with these pictures to ask about: names and PNG files
    """
    secured = token is not None or read_token is not None
    counted, traces = measures.Measures(service), Traces.from_environment()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)
        if traces is not None:
            await run_in_threadpool(traces.close)

    app = FastAPI(
        title="doubtless",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.include_router(routes.build(service, demo=demo is not None))
    app.include_router(looking.build(service, pictures=demo or ()))
    app.include_router(insight.build(service))
    app.include_router(measures.build(counted))
    problems.install(app)
    _describe(app, secured=secured)
    static.add(app, static.docs() | (static.page() if page else {}))
    if hosts is None and not secured:
        hosts = LOOPBACK
    app.add_middleware(Guard, token=token, read_token=read_token, hosts=hosts, upload=service.limits.upload)
    app.add_middleware(Observed, measures=counted, traces=traces)  # around the guard: refusals count
    return app


def _describe(app: FastAPI, *, secured: bool) -> None:
    """Completes the OpenAPI document: bodies that are read by hand, and the token."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            parts = made.setdefault("components", {}).setdefault("schemas", {})
            for model in EXTRA_MODELS:
                own = model.model_json_schema(ref_template="#/components/schemas/{model}")
                parts.update(own.pop("$defs", {}))
                parts[model.__name__] = own
            for name in ("HTTPValidationError", "ValidationError"):
                parts.pop(name, None)
            if secured:
                made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                made["security"] = [{"token": []}]
                for address in OPEN:
                    made["paths"][address]["get"]["security"] = []
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
