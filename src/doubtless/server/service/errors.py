"""What can be wrong with a request, each with the HTTP status that says so."""

from __future__ import annotations

from typing import ClassVar

from doubtless.errors import DoubtlessError, InputError


class ServiceError(DoubtlessError):
    """A request that is not answered; its message is for whoever asked and names nothing inside."""

    status: ClassVar[int] = 400


class NotFoundError(ServiceError):
    """There is no such item, or it has no image."""

    status = 404


class ConflictError(ServiceError):
    """An item of this id is there already."""

    status = 409


class ReadOnlyError(ServiceError):
    """The service changes nothing."""

    status = 403


class OverloadedError(ServiceError):
    """More waits than can be answered in good time, or the service is closing."""

    status = 503


class ImageError(ServiceError, InputError):
    """An upload that cannot be decoded."""

    status = 422


class UnsupportedImageError(ImageError):
    """Not of an accepted type."""

    status = 415


class LargeImageError(ImageError):
    """More bytes or pixels than are accepted."""

    status = 413
