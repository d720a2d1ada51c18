"""Somebody who watches a consumer: it hears what the consumer asks, learns and does, and has no say in it.

``ConsumerObserver`` ignores everything. A class that wants to know something overrides that method. It must do no I/O,
and it must not call the consumer back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchResponse, PartitionData

if TYPE_CHECKING:
    from reference_broker.client.consumer import TakenBatch
    from reference_broker.client.consumer_partitions import PositionReset
    from reference_broker.client.fetch_plan import FetchPlan, Wanted
    from reference_broker.client.group_events import GroupEvent
    from reference_broker.client.metadata_cache import MetadataUpdate
    from reference_broker.client.offset_commits import Committed, Fetched


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of an answer to Fetch. ``before`` and ``after``: the position, -1 where there is none. ``error``:
    the broker's, or CORRUPT_MESSAGE where the batches cannot be read."""

    where: TopicPartition
    data: PartitionData
    before: int
    after: int
    error: Error | int = ErrorCode.none
    batches: tuple["TakenBatch", ...] = ()


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """``problem``: why the answer cannot be used as a whole, None if it can. ``answered``: how many partitions it had.
    ``partitions``: those that the consumer still waited for."""

    node_id: int
    response: FetchResponse
    problem: str | None
    answered: int
    partitions: tuple[FetchedPartition, ...]


class ConsumerObserver:
    """See the top of the file."""

    def metadata_answered(self, update: "MetadataUpdate", accepted: bool) -> None:
        """``accepted`` False: the answer is older than the last accepted one and is dropped (spec M-5)."""

    def offsets_wanted(self, partitions: tuple[TopicPartition, ...]) -> None:
        """The consumer begins to fetch their committed offsets."""

    def offsets_fetched(self, fetched: "Fetched") -> None:
        """That has ended."""

    def commit_begun(self, partitions: tuple[TopicPartition, ...]) -> None:
        """The consumer begins to commit offsets of these."""

    def committed(self, committed: "Committed") -> None:
        """That has ended."""

    def fetching(self, node_id: int, plan: "FetchPlan", wanted: Mapping[TopicPartition, "Wanted"]) -> None:
        """A Fetch is made for a node. ``wanted``: all that its session holds then."""

    def fetched(self, answer: FetchAnswer) -> None:
        """It was answered."""

    def position_reset(self, reset: "PositionReset") -> None:
        """A position has moved other than by reading and seeking."""

    def group_event(self, event: "GroupEvent") -> None:
        """The membership says something."""
