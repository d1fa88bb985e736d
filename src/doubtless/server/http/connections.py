"""Connections before it is known who asks: how many there may be, and how long each may take.

uvicorn waits for ever for the rest of a header, for the rest of a body that nobody reads any more, and for a client
that does not read its reply. `BoundedProtocol` does not. Where there are too many connections, the one goes that
has waited longest for its client to ask; half-sent requests therefore never keep others out, nor bodies that do not
come.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from doubtless.errors import InputError
from doubtless.server.http import problems
from doubtless.server.http.security import HEADERS

Phase = Literal["header", "idle", "answer", "rest"]
SLOWEST = 1000
"""Bytes a second that a client has to take of its reply, and to send of its body where others want its place."""
BEGINNING = 1.0
"""Seconds that a body has to come into its stride."""
PIECES, SMALLEST = 10_000, 64
"""A body may come in so many pieces; in more where each has so many bytes on average."""


@dataclass(frozen=True)
class ConnectionLimits:
    """What a client may cost before and beside its questions.

    connections   open at a time
    per_client    of them from one address, or from one network of IPv6 (/64)
    header        seconds for the header of a request
    rest          seconds for the rest of a body that was refused; it is read, so that the refusal is too
    idle          seconds until the next request
    unread        seconds after which it is looked whether a reply is being read
    """

    connections: int = 512
    per_client: int = 128
    header: float = 10.0
    rest: float = 10.0
    idle: float = 5.0
    unread: float = 30.0

    def __post_init__(self) -> None:
        if min(self.connections, self.per_client) < 1:
            raise InputError(f"A server needs at least one connection, and one of each client, got {self}.")


class CountedBodies(h11.Connection):
    """Reads requests; counts what comes of a body, and refuses one cut into crumbs."""

    pieces = bytes = 0

    def next_event(self) -> Any:
        """What has come, as h11 says it."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.pieces = self.bytes = 0
        elif isinstance(event, h11.Data):
            self.pieces, self.bytes = self.pieces + 1, self.bytes + len(event.data)
            if self.pieces > PIECES and self.bytes < SMALLEST * self.pieces:
                raise h11.RemoteProtocolError("a body in crumbs")
        return event


class Crowd(ServerState):
    """Who is connected."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits, self.count = limits, 0
        self.clients: dict[str, set[BoundedProtocol]] = {}

    def enter(self, newcomer: BoundedProtocol) -> bool:
        """Counts a connection; False where there is no room for it and none can be made."""
        own = self.clients.get(newcomer.address, set())
        if len(own) >= self.limits.per_client and not self._dismiss(own):
            return False
        if self.count >= self.limits.connections and not self.make_room():
            return False
        self.clients.setdefault(newcomer.address, set()).add(newcomer)
        self.count += 1
        return True

    def leave(self, one: BoundedProtocol) -> None:
        """No longer counts a connection; twice is allowed."""
        own = self.clients.get(one.address, set())
        if one in own:
            own.discard(one)
            self.count -= 1
            if not own:
                del self.clients[one.address]

    def make_room(self) -> bool:
        """Ends a connection of the client that keeps most of them waiting; False where none does."""
        if not self.clients:
            return False
        return self._dismiss(max(self.clients.values(), key=lambda own: sum(one.waits for one in own)))

    def _dismiss(self, own: Collection[BoundedProtocol]) -> bool:
        waiting = [one for one in own if one.waits]
        if not waiting:
            return False
        min(waiting, key=lambda one: one.since).drop()
        return True


class BoundedProtocol(H11Protocol):
    """A connection that is given up when its client takes too long, and one of not too many."""

    server_state: Crowd
    conn: CountedBodies
    address = ""
    phase: Phase = "header"
    since = 0.0
    refused = False
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def __init__(self, config: Config, *state: Any) -> None:
        super().__init__(config, *state)
        self.conn = CountedBodies(h11.SERVER, config.h11_max_incomplete_event_size or LONGEST_HEADER)

    @property
    def waits(self) -> bool:
        """Whether its client has nothing to get: it has not asked, has had its reply, or does not send its body."""
        if self.phase == "answer":
            return self.cycle.more_body and self._lags()
        return not self.transport.get_write_buffer_size()

    def _lags(self) -> bool:
        """Whether a body comes too slowly; one that is not read meanwhile cannot come faster."""
        seconds = time.monotonic() - self.since
        return not self.flow.read_paused and seconds > BEGINNING and self.conn.bytes < SLOWEST * seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Lets a connection in, or says that there is no room."""
        super().connection_made(transport)
        self.address = _network(self.client)
        if self.server_state.enter(self):
            self._enter_phase("header")
            return
        self._refuse(503, "Too many connections are open; try again later.", {"Retry-After": "1"})

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; looked at only where they are still wanted."""
        if self.refused or self.transport.is_closing():
            return
        super().data_received(data)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.server_state.leave(self)
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def on_response_complete(self) -> None:
        """The next request may come, or what is left of this one's body is to be thrown away."""
        super().on_response_complete()
        self._follow()

    def send_400_response(self, msg: str) -> None:
        """What cannot be read is refused with a problem, as everything else is."""
        self._refuse(400, "The request is not as HTTP wants it, or its header is too long.")

    def shutdown(self) -> None:
        """The server stops: whole requests are answered, half-sent ones get a few seconds for their bodies."""
        if self.phase != "answer":
            self._close()
            return
        super().shutdown()
        if self.cycle.more_body:
            self._arm(min(self.server_state.limits.rest, HALF_SENT))

    def drop(self) -> None:
        """Ends the connection at once, whatever is unsent."""
        self.server_state.leave(self)
        self.transport.abort()

    # -- waiting for the client to ask ----------------------------------------------------------------

    def _follow(self) -> None:
        """Begins another phase where the client has come to one; the time of a phase is not prolonged by bytes."""
        if self.refused or self.transport.is_closing():
            return
        phase: Phase = "answer"
        if self.cycle is None or self.cycle.response_complete:
            if self.conn.their_state is h11.SEND_BODY:
                phase = "rest"
            else:
                phase = "header" if self.cycle is None or self.conn.trailing_data[0] else "idle"
        if phase != self.phase:
            self._enter_phase(phase)

    def _enter_phase(self, phase: Phase) -> None:
        self.phase, self.since = phase, time.monotonic()
        limits = self.server_state.limits
        self._arm({"header": limits.header, "rest": limits.rest, "idle": limits.idle, "answer": None}[phase])

    def _arm(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        if self.phase == "header" and self.conn.trailing_data[0]:
            self._refuse(408, "The header of the request took too long to arrive.")
        elif self.phase == "answer":  # a body that did not come while the server stops
            self.drop()
        else:
            self._close()

    def _refuse(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        """Says a last thing, where nothing was said yet, and closes."""
        self.refused = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            body = problems.document(status, detail)
            about = {
                "Content-Type": problems.MEDIA_TYPE,
                "Content-Length": str(len(body)),
                "Connection": "close",
            }
            sent = {**HEADERS, **about, **(headers or {})}
            start: Any = h11.Response(status_code=status, headers=list(sent.items()), reason=b"")
            self.transport.writelines(
                [cast(bytes, self.conn.send(one)) for one in (start, h11.Data(data=body), h11.EndOfMessage())]
            )
        self._close()

    def _close(self) -> None:
        """Ends the connection when what was said is sent, to whoever reads it."""
        self._arm(None)
        self.transport.close()
        if self._unread is None and self.transport.get_write_buffer_size():
            self._look_again(self.transport.get_write_buffer_size())

    # -- waiting for the client to read ---------------------------------------------------------------

    def pause_writing(self) -> None:
        """More is to be sent than the client has taken."""
        super().pause_writing()
        self._look_again(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """The client has taken it."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _look_again(self, left: int) -> None:
        self._unread = self.loop.call_later(self.server_state.limits.unread, self._look_at_reader, left)

    def _look_at_reader(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if before - left < SLOWEST * self.server_state.limits.unread:
            self.drop()
        else:
            self._look_again(left)


LONGEST_HEADER = 16 << 10
"""Bytes."""
HALF_SENT = 5.0
"""Seconds that a half-sent body gets when the server stops."""


def _network(client: tuple[str, int] | None) -> str:
    """Whose connection it is: an address, or the network that one customer of IPv6 is given.

    >>> _network(("192.0.2.7", 5000)), _network(("2001:db8:1:2:3::4", 5000)), _network(("::ffff:192.0.2.7", 1))
    ('192.0.2.7', '2001:db8:1:2::/64', '192.0.2.7')
    """
    try:
        address = ipaddress.ip_address("" if client is None else client[0].partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
