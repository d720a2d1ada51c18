"""ListOffsets responses compared with the log (KIP-207): also with the start of the leader epoch."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chaos.checks.check import CheckContext, ReplicaCheck
from chaos.checks.history import TopicPartition
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.replica_view import Copy, Held, PartitionKey, Replicated
from reference_broker.core.events import Closed, Effect, Event, Reply, Request
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from reference_broker.core.node import Node

LIST_OFFSETS = 2
CONSUMER, READ_COMMITTED = -1, 1
LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4
"""Special timestamps (KIP-79, KIP-405)."""
NOT_AVAILABLE = (ErrorCode.offset_not_available, ErrorCode.leader_not_available)
"""Requests before version 5 get LEADER_NOT_AVAILABLE."""


class _Offsets(NamedTuple):
    """A leader's offsets when a request came."""

    log: UnifiedLog
    leader_epoch: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    local_log_start_offset: int


class _EpochStart(NamedTuple):
    """The end of a log when its node began to lead: between the ends before and after that event."""

    leader_epoch: int
    least: int
    most: int


_Pending: TypeAlias = tuple[Any, dict[TopicPartition, _Offsets]]
"""A request, with the offsets of the partitions that the node leads."""


class OffsetsListed(ReplicaCheck):
    """high-watermark-monotonic (KIP-207, KIP-320): the latest offset that consumers get from leaders never goes back.

    - With read_uncommitted the latest offset is the high watermark, with read_committed the last stable offset. The
      earliest one is the log start offset, and the earliest local one is where the local records begin. Each is that of
      the log at some time between the request and its response.
    - Until its high watermark has reached the end that its log had when its leader epoch began, a new leader returns
      OFFSET_NOT_AVAILABLE for the latest offset, since its predecessor may have returned a later one. From then on it
      does not.
    - Another leader epoch than the leader's gets FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.

    A partition that the node did not lead all the time in one leader epoch is not judged.
    """

    guarantee = "high-watermark-monotonic"
    acts_on = (LIST_OFFSETS, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)
        self._pending = PendingRequests[_Pending]()
        self._replied: list[tuple[_Pending, Any]] = []
        """responses of the current event"""
        self._starts: dict[tuple[int, PartitionKey], _EpochStart] = {}
        """by node and partition: the last leader epoch that began there"""

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:  # noqa: ARG002
        if now.leader_epoch >= 0 and (now.leader_epoch, now.incarnation) != (before.leader_epoch, before.incarnation):
            ends = before.end_offset, now.end_offset
            start = _EpochStart(now.leader_epoch, min(ends), max(ends))
            self._starts[copy.node_id, partition.key] = start

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        node_id = node.broker.node_id
        self._replied = []
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == LIST_OFFSETS:
            body: Any = event.body
            if int(body.replica_id) == CONSUMER:
                self._pending.add(node_id, event, (body, _led(node, body)))
        for effect in effects:
            if type(effect) is Reply and effect.api_key == LIST_OFFSETS:
                pending = self._pending.pop(node_id, effect)
                if pending is not None:
                    self._replied.append((pending, effect.body))
        if self._replied:
            self.replicas.after_event(node, self._judge)

    def _judge(self, at_us: int, node: "Node") -> None:
        replied, self._replied = self._replied, []
        node_id = node.broker.node_id
        for (request, led), response in replied:
            now, is_committed = _led(node, request), int(request.isolation_level) == READ_COMMITTED
            named = Counter(_where(topic, each) for topic in request.topics for each in topic.partitions)
            results = {_where(topic, each): each for topic in response.topics for each in topic.partitions}
            for topic in request.topics:
                for each in topic.partitions:
                    partition = _where(topic, each)
                    result, before, after = results.get(partition), led.get(partition), now.get(partition)
                    if (
                        result is None
                        or before is None
                        or after is None
                        or named[partition] > 1
                        or (after.log, after.leader_epoch) != (before.log, before.leader_epoch)
                    ):
                        continue
                    self.evidence += 1
                    for wrong in self._wrong(node_id, partition, each, result, before, after, is_committed):
                        who = f"{partition[0]}-{partition[1]}: leader {node_id} of epoch {after.leader_epoch}"
                        self.violated(at_us, f"{who} {wrong}")

    def _wrong(
        self,
        node_id: int,
        partition: TopicPartition,
        wanted: Any,
        result: Any,
        before: _Offsets,
        after: _Offsets,
        is_committed: bool,
    ) -> Iterator[str]:
        error, offset, timestamp = int(result.error_code), int(result.offset), int(wanted.timestamp)
        known = int(wanted.current_leader_epoch)
        if known not in (-1, after.leader_epoch):
            due = ErrorCode.fenced_leader_epoch if known < after.leader_epoch else ErrorCode.unknown_leader_epoch
            if error != due:
                yield f"returned error {error} for leader epoch {known}, and {int(due)} is due (KIP-320)"
            return
        if timestamp == LATEST:
            key = after.log.topic_id, partition[1]
            start = self._starts.get((node_id, key))
            if start is not None and start.leader_epoch == after.leader_epoch:
                if not error and after.high_watermark < start.least:
                    yield (
                        f"returned {offset} as the latest offset with a high watermark of {after.high_watermark}, and "
                        f"its log ended at {start.least} when the epoch began (KIP-207)"
                    )
                if error in NOT_AVAILABLE and before.high_watermark >= start.most:
                    yield (
                        f"returned no latest offset, and its high watermark {before.high_watermark} has reached "
                        f"{start.most}, where the epoch began (KIP-207)"
                    )
        if error:
            return
        name = {
            LATEST: "last_stable_offset" if is_committed else "high_watermark",
            EARLIEST: "log_start_offset",
            EARLIEST_LOCAL: "local_log_start_offset",
        }.get(timestamp)
        if name is not None:
            ends = getattr(before, name), getattr(after, name)
            if not min(ends) <= offset <= max(ends):
                yield f"returned {offset} for timestamp {timestamp}, and its {name} was {ends[0]}, then {ends[1]}"


def _where(topic: Any, partition: Any) -> TopicPartition:
    return str(topic.name), int(partition.partition_index)


def _led(node: "Node", body: Any) -> dict[TopicPartition, _Offsets]:
    found = dict[TopicPartition, _Offsets]()
    for topic in body.topics:
        for each in topic.partitions:
            partition = _where(topic, each)
            led = node.broker.partitions.by_name.get(partition)
            if led is not None:
                log = led.log
                found[partition] = _Offsets(
                    log,
                    led.leader_epoch,
                    log.high_watermark,
                    log.last_stable_offset,
                    log.log_start_offset,
                    log.local_log_start_offset,
                )
    return found
