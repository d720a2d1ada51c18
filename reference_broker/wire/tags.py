"""The label on each request and reply that interceptors match. The broker itself makes no decision from it."""

from typing import NamedTuple


class Tag(NamedTuple):
    """``session_id`` and ``session_epoch`` are those of the *request* (0 and -1 if it is not a Fetch). ``error`` is the
    top-level error code of a reply (0 in a request). ``position`` is the byte position that a FetchSnapshot requests,
    or -1 in other messages."""

    api_key: int
    api_version: int
    client_id: str
    session_id: int = 0
    session_epoch: int = -1
    error: int = 0
    position: int = -1
    role: str = "client"
    """``client`` or ``peer`` (another node)."""
