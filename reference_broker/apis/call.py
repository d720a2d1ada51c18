"""One request, as handlers see it."""

from collections.abc import Callable
from typing import Protocol


class Call(Protocol):
    """One request being answered."""

    connection: int
    client_id: str
    client_host: str
    """From where it came, as groups tell it of their members; empty for a request of this node's own."""
    api_version: int
    closed: bool
    """Answered already, or the connection is gone: responding is no error and does nothing."""

    def respond(self, body: object | None, *, api_version: int | None = None) -> None:
        """Answers the request; None: no frame is sent (produce with acks=0), the request is done.

        ``api_version``: of the answer, where it is not the request's (ApiVersions for an unknown version).
        """
        ...

    def close(self, reason: str) -> None:
        """Ends the connection instead of answering: the peer broke the protocol."""
        ...

    def on_closed(self, forget: Callable[[], None]) -> None:
        """Calls ``forget`` if the connection closes before the answer."""
        ...
