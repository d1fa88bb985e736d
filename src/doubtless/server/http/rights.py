"""What a caller may do: ask and look, or change the gallery as well. `security.Guard` says which."""

from __future__ import annotations

from starlette.requests import Request

from doubtless.server.service.errors import ReadOnlyError

MAY_WRITE = "doubtless.may_write"
"""In a request's scope: whether its caller may change the gallery."""


def may_write(request: Request) -> bool:
    """Whether whoever asks may change the gallery, as far as tokens go."""
    return bool(request.scope.get(MAY_WRITE, True))


def refuse_reader(request: Request) -> None:
    """Refuses changes by callers that may only ask and look."""
    if not may_write(request):
        raise ReadOnlyError("This token may ask and look, and not change the gallery.")
