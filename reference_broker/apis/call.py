"""A request as the handlers of the APIs see it."""

from collections.abc import Callable
from typing import ParamSpec, Protocol

GivenT = ParamSpec("GivenT")


class Call(Protocol):
    """A request that is being answered."""

    connection: int
    client_id: str
    api_version: int
    closed: bool
    """True once it is answered or the connection is gone. Then ``respond`` does nothing."""

    @property
    def client_host(self) -> str:
        """The host that the request came from, as groups tell it of their members. This node's own requests have
        none."""
        ...

    @property
    def listener(self) -> str:
        """The name of the listener that it came to, or empty if the node has only one."""
        ...

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:
        """Answers the request. With None the request is done, but no frame is sent (produce with acks=0).

        ``api_version`` is the answer's if it differs from the request's (ApiVersions for an unknown version).
        """
        ...

    def close(self, reason: str) -> None:
        """Closes the connection instead of answering, because the peer broke the protocol."""
        ...

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Calls ``forget`` if the connection closes before the answer, or if the request fails because of a bug."""
        ...

    def contain(self, work: Callable[[], object]) -> bool:
        """Does a part of the request's work in a later event. A bug in it costs this request alone, as a bug in the
        handler does. Returns whether there was none.

        ``work`` may only read what requests share, or change it as the handler may: a step that fails half way must
        leave to the others what they rely on. Work for several requests is not contained, and a bug in it ends the
        node.
        """
        ...


def contained(call: Call, work: Callable[GivenT, object]) -> Callable[GivenT, None]:
    """Returns ``work`` as it may be called in a later event (``Call.contain``)."""

    def run(*given: GivenT.args, **named: GivenT.kwargs) -> None:
        call.contain(lambda: work(*given, **named))

    return run
