"""Where a server may listen: on this machine, or elsewhere with a token. Asked before anything heavy loads."""

from __future__ import annotations

import ipaddress

from doubtless.errors import InputError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine that only it can use."""
SHORTEST = 16


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_binding(host: str, token: str | None) -> None:
    """Refuses to serve other machines without a token, and tokens that can be guessed."""
    if token is None and not is_loopback(host):
        raise InputError(
            f"Serving on {host} lets other machines ask; set the environment variable DOUBTLESS_TOKEN to a secret, "
            "or stay on 127.0.0.1."
        )
    if token is not None and (len(token) < SHORTEST or not token.isascii() or not token.isprintable()):
        raise InputError(
            f"DOUBTLESS_TOKEN must be at least {SHORTEST} printable ASCII characters; make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe())'`."
        )
