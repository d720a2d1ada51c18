"""The interface of a consumer's observer: it gets what a consumer requests, receives and does, and cannot influence it.

``ConsumerObserver`` ignores everything. A subclass overrides the methods that it needs. It must do no I/O, and it must
not call the consumer back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchResponse, PartitionData

if TYPE_CHECKING:
    from reference_broker.client.consumer import TakenBatch
    from reference_broker.client.group_membership import GroupEvent
    from reference_broker.client.metadata_cache import MetadataUpdate
    from reference_broker.client.offset_commits import Committed, Fetched
    from reference_broker.client.session_handler import FetchPlan, Wanted


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a Fetch response."""

    where: TopicPartition
    data: PartitionData
    before: int
    """The consumer's position before the response, or -1 if there was none."""
    after: int
    """Its position after the response, or -1."""
    error: Error | int = ErrorCode.none
    """From the broker, or CORRUPT_MESSAGE if the batches cannot be read."""
    batches: tuple["TakenBatch", ...] = ()


@dataclass(frozen=True, slots=True)
class FetchResult:
    """One Fetch response, as the consumer applied it."""

    node_id: int
    response: FetchResponse
    problem: str | None
    """The reason why the whole response cannot be used, None if it can."""
    partition_count: int
    """Number of partitions in the response."""
    partitions: tuple[FetchedPartition, ...]
    """Those of them that the consumer still waited for."""


@dataclass(frozen=True, slots=True)
class PositionReset:
    """A position that moved without reading or seeking."""

    partition: TopicPartition
    from_offset: int
    """-1 if there was no position."""
    to_offset: int
    reason: str
    """no_offset, out_of_range, truncated or tombstones_missed."""
    metadata_epoch: int


class ConsumerObserver:
    """An observer that ignores everything. The top of the file says how to write another one."""

    def metadata_received(self, update: "MetadataUpdate", accepted: bool) -> None:
        """``accepted`` is False if the response is older than the last accepted one and is dropped (spec M-5)."""

    def offsets_wanted(self, partitions: tuple[TopicPartition, ...]) -> None:
        """The consumer begins to fetch their committed offsets."""

    def offsets_fetched(self, fetched: "Fetched") -> None:
        """The fetch of committed offsets has ended."""

    def commit_begun(self, partitions: tuple[TopicPartition, ...]) -> None:
        """The consumer begins to commit offsets of these partitions."""

    def committed(self, committed: "Committed") -> None:
        """The commit has ended."""

    def fetching(self, node_id: int, plan: "FetchPlan", partitions: Mapping[TopicPartition, "Wanted"]) -> None:
        """The consumer makes a Fetch for a node. ``partitions`` are all partitions of its session then."""

    def fetched(self, result: FetchResult) -> None:
        """The consumer has applied a Fetch response."""

    def position_reset(self, reset: PositionReset) -> None:
        """A position has moved without reading or seeking."""

    def group_event(self, event: "GroupEvent") -> None:
        """The membership has emitted an event."""
