"""The small label on each request and reply that interceptors match; it decides nothing in the broker."""

from typing import NamedTuple


class Tag(NamedTuple):
    """``session_id`` / ``session_epoch``: of the *request* (fetch only, else 0 / -1); ``error``: top-level error
    code of a reply (0 in a request); ``position``: byte position for snapshot fetches, else -1."""

    api_key: int
    api_version: int
    client_id: str
    session_id: int = 0
    session_epoch: int = -1
    error: int = 0
    position: int = -1
    role: str = "client"
    """``client`` or ``peer`` (another node)."""
