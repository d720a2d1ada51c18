"""Finds the coordinator of a group, or of a transactional ID. All parts of a member that send to it share one
``GroupCoordinator``. There is no I/O.

``node`` is None while the coordinator is not known; a sender then calls ``next_request`` first. One FindCoordinator is
in flight at a time. Times are microseconds of one monotonic clock.
"""

from dataclasses import dataclass, field
from typing import Final

from reference_broker.client.group_requests import (
    FIND_COORDINATOR,
    GROUP_KEY_TYPE,
    GroupRequest,
    GroupVersions,
    coordinator_of,
    find_coordinator,
)
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.wire.errors import Error, ErrorCode

_RETRIABLE: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_server_error,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
    }
)


@dataclass(slots=True)
class GroupCoordinator:
    """What is known of one group's coordinator. ``asking`` says that a FindCoordinator is in flight. ``failure`` is an
    error that a retry does not cure (INVALID_GROUP_ID, no authorisation), or None. ``key_type`` says what ``group_id``
    is."""

    group_id: str
    versions: GroupVersions = field(default_factory=GroupVersions)
    backoff_us: int = 100_000
    request_timeout_us: int = 3_000_000
    node: NodeAddress | None = None
    failure: Error | int | None = None
    retry_at_us: int = 0
    asking: bool = False
    key_type: int = GROUP_KEY_TYPE

    def next_request(self, now_us: int) -> GroupRequest | None:
        """Returns FindCoordinator if the coordinator is unknown, none is in flight and the backoff is over."""
        if self.node is not None or self.asking or self.failure is not None or now_us < self.retry_at_us:
            return None
        self.asking = True
        version = self.versions.find_coordinator
        return GroupRequest(
            FIND_COORDINATOR, version, find_coordinator(self.group_id, self.key_type), self.request_timeout_us
        )

    def answered(self, now_us: int, body: object) -> None:
        """Applies the answer to the request in flight."""
        self.asking = False
        found = coordinator_of(body, self.group_id)
        if isinstance(found, NodeAddress):
            self.node = found
        elif found in _RETRIABLE:
            self.retry_at_us = now_us + self.backoff_us
        else:
            self.failure = found

    def failed(self, now_us: int) -> None:
        """Notes that the request in flight got no answer."""
        self.asking = False
        self.retry_at_us = now_us + self.backoff_us

    def lose(self, now_us: int, node: NodeAddress | None = None) -> None:
        """Forgets the coordinator, because it no longer coordinates the group or did not answer. ``node`` is the node
        that was asked. If another coordinator is known by now, nothing changes."""
        if self.node is None or (node is not None and node != self.node):
            return
        self.node = None
        self.retry_at_us = max(self.retry_at_us, now_us + self.backoff_us)
