"""A request that is being answered, as the API handlers see it (``apis.call.Call``)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from reference_broker.core.events import Close, Effect, Reply, Request

NO_CONNECTION = -1


@dataclass(slots=True)
class LocalCall:
    """A request from this node's broker to its own controller."""

    client_id: str
    api_version: int
    _answer: Callable[[object], None]
    connection: int = NO_CONNECTION
    client_host: str = ""
    listener: str = ""
    closed: bool = False

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:  # noqa: ARG002
        assert not self.closed, "a local request is answered twice"
        self.closed = True
        self._answer(body)

    def close(self, reason: str) -> None:
        raise AssertionError(f"our own request breaks the protocol: {reason}")

    def on_closed(self, forget: Callable[[], None]) -> None:
        """There is no connection that could close."""

    def contain(self, work: Callable[[], object]) -> bool:
        """No client asked, so a bug costs the node."""
        work()
        return True


class Origin(NamedTuple):
    """Where the requests of a connection come from: the peer's host, and the listener if the node has several."""

    host: str = ""
    listener: str = ""


UNKNOWN_ORIGIN = Origin()


class ActiveCall:
    """A client's request. It is answered at most once; after its connection closed, answering does nothing."""

    __slots__ = (
        "_effects",
        "_failed",
        "_finished",
        "_forget",
        "_origin",
        "_request",
        "api_version",
        "client_id",
        "closed",
        "connection",
    )

    def __init__(
        self,
        request: Request,
        effects: list[Effect],
        finished: Callable[[int], None],
        failed: Callable[["ActiveCall", Request, Exception], None],
        origin: Origin = UNKNOWN_ORIGIN,
    ) -> None:
        self.connection = request.connection
        self.client_id = request.client_id
        self._origin = origin
        self.api_version = request.api_version
        self.closed = False
        self._request = request
        self._effects = effects
        self._finished = finished
        self._failed = failed
        self._forget: Callable[[], None] | None = None

    @property
    def client_host(self) -> str:
        return self._origin.host

    @property
    def listener(self) -> str:
        return self._origin.listener

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:
        """``api_version`` is the answer's if it differs from the request's (ApiVersions for an unknown version)."""
        if self.closed:
            return
        request = self._request
        error = getattr(body, "error_code", 0)
        tag = request.tag if not error else request.tag._replace(error=int(error))
        version = request.api_version if api_version is None else api_version
        self._end(Reply(request.connection, request.correlation_id, request.api_key, version, body, tag))

    def close(self, reason: str) -> None:
        """Ends the connection instead of answering: the peer broke the protocol."""
        if not self.closed:
            self._end(Close(self.connection, reason))

    def release_body(self) -> None:
        """The handler waits. What it still needs of the request's body it holds itself."""
        self._request = self._request._replace(body=None)

    def _end(self, effect: Effect) -> None:
        self.closed = True
        self._forget = None
        self._effects.append(effect)
        self._finished(self.connection)

    def on_closed(self, forget: Callable[[], None]) -> None:
        self._forget = forget

    def contain(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except Exception as bug:
            self.fail(bug)
            return False
        return True

    def fail(self, bug: Exception) -> None:
        """A part of the request's work raised ``bug``. Raises it again if it must not be contained. Else nobody waits
        for the answer any more."""
        forget, self._forget = self._forget, None
        self._failed(self, self._request, bug)
        if forget is not None:
            self.contain(forget)

    def connection_closed(self) -> None:
        """The driver says that the connection is gone."""
        self.closed = True
        forget, self._forget = self._forget, None
        if forget is not None:
            self.contain(forget)
