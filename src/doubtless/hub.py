"""Weights and data sets from a hub: asked only where it answers, so that without a network one is told so soon."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

from doubtless.errors import InputError

PATIENCE = 4.0
"""Seconds after which a hub that does not answer is taken to be out of reach."""


@contextmanager
def reachable_hub(repository: str, file: str, *, otherwise: str) -> Iterator[None]:
    """Within it huggingface_hub may be asked for a file: it is in its cache, or the hub answers.

    Else an `InputError` says so within seconds; `otherwise` is what can be done then. Without this one waits for a
    minute, as every request is tried several times.
    """
    from huggingface_hub import constants, errors, try_to_load_from_cache

    answers = hub_answers(constants.ENDPOINT)
    kept = isinstance(try_to_load_from_cache(repository, file), str)
    if not answers and not kept:
        raise InputError(
            f"{constants.ENDPOINT} cannot be reached for the weights of {repository}. {otherwise}"
        )
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE or not answers
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError, errors.RevisionNotFoundError) as error:
        raise InputError(f"{constants.ENDPOINT} has no {file} of {repository}. {otherwise}") from error
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"{constants.ENDPOINT} refuses {repository}: {reason}. {otherwise}") from error
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def cached_datasets() -> Iterator[None]:
    """Within it `datasets` looks into its cache alone where the hub does not answer, instead of asking on."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    if not hub_answers(constants.ENDPOINT):
        config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def hub_answers(endpoint: str) -> bool:
    """Whether a server, or the proxy that leads to it, takes a connection soon."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    scheme = urlsplit(endpoint).scheme
    address = urlsplit(getproxies().get(scheme, endpoint))
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    found: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=PATIENCE).close()
        except OSError:
            return
        found.append(True)

    # Looking a name up has no time limit of its own.
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(PATIENCE)
    return bool(found)
