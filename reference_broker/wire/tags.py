"""The label on each request and reply that interceptors match. The broker itself makes no decision from it."""

from typing import NamedTuple


class Tag(NamedTuple):
    """The part of a request or reply that interceptors match."""

    api_key: int
    api_version: int
    client_id: str
    session_id: int = 0
    """The session ID of the request, also in a reply; 0 if it is not a Fetch."""
    session_epoch: int = -1
    """The session epoch of the request, also in a reply; -1 if it is not a Fetch."""
    error: int = 0
    """The top-level error code of a reply, 0 in a request."""
    position: int = -1
    """The byte position that a FetchSnapshot requests, -1 in other messages."""
    role: str = "client"
    """``client`` or ``peer`` (another node)."""
