"""The tombstone horizon (H-1 to H-7): a replica or reader that may have missed tombstones restarts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from chaos.checks.check import Check, CheckContext, Inspection, Kind, ReplicaCheck
from chaos.checks.history import History, TopicPartition, grouped, partition_of
from chaos.checks.log.batches import newest_offsets
from chaos.checks.log.compacted_log import Compacted
from chaos.checks.replication.replica_view import Copy, Held, PartitionKey, Replicated
from reference_broker.core.events import Effect, Event, Note
from reference_broker.metadata.image import NO_LEADER
from reports.rows import PositionRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


@dataclass(slots=True)
class _Seen:
    """A replica as last seen."""

    incarnation: int
    marker: int
    leader: int
    """node that it follows"""
    furthest: int
    """largest marker of that leader since then; the replica cannot have received a larger one"""


class TombstonesMarked(ReplicaCheck):
    """tombstones-marked: each tombstone at or above a log's marker exists, and no follower's marker overtakes its
    leader's (H-1, H-2).

    A tombstone also counts as present if a newer record of its key is committed, and the log has that record or has not
    reached it yet, since a reader gets to that record. The check judges at the times when replicas use their markers:
    after each pass of a cleaner, when a replica begins to lead, and at the end.

    H-2: after a change of leader a follower's marker may be beyond that of its present leader, since it led itself, or
    followed another leader. Then it must not move. So a follower's marker is judged when it moves, and only against the
    markers of its present leader, even for a pass of the cleaner that began under an earlier one. After a restart the
    marker may be larger than necessary, since its file may be lost.
    """

    guarantee = "tombstones-marked"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)
        self.replicas.on_viewed.append(self.viewed)
        self._seen: dict[PartitionKey, dict[int, _Seen]] = {}
        """by partition and node"""

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        is_due = now.leader_epoch > before.leader_epoch or now.cleaned_offset != before.cleaned_offset
        if self.context.settings.tombstone_horizon and is_due:
            self._judge(at_us, partition, copy)

    def viewed(self, at_us: int, node: "Node") -> None:
        if not self.context.settings.tombstone_horizon:
            return
        node_id = node.broker.node_id
        for key, partition in self.replicas.partitions.items():
            copy = partition.copies.get(node_id)
            if partition.compacted is None or copy is None or copy.log is None:
                continue
            marker, seen = copy.log.horizon.offset, self._seen.setdefault(key, {})
            last, leader = seen.get(node_id), _followed(node, key)
            if copy.leads:
                for other in seen.values():
                    if other.leader == node_id:
                        other.furthest = max(other.furthest, marker)
            if leader == NO_LEADER and last is not None:
                leader = last.leader  # The last one has sent how far it may go.
            if last is None or copy.leads or last.incarnation != copy.held.incarnation:
                seen[node_id] = _Seen(copy.held.incarnation, marker, leader, _marker_of(partition, leader))
                continue
            if leader != last.leader:
                last.leader, last.furthest = leader, _marker_of(partition, leader)
            if marker > max(last.marker, last.furthest):
                self.violated(
                    at_us,
                    f"{partition.name}: node {node_id} follows {leader} and moves its marker from {last.marker} to "
                    f"{marker}; that leader's was never beyond {last.furthest}",
                )
            last.marker = marker

    def end(self, history: History) -> None:
        if self.context.settings.tombstone_horizon:
            for partition in self.replicas.partitions.values():
                for copy in partition.copies.values():
                    self._judge(history.end_us, partition, copy)

    def _judge(self, at_us: int, partition: Replicated, copy: Copy) -> None:
        compacted, log = partition.compacted, copy.log
        if compacted is None or log is None or partition.excused or partition.losses:
            return  # E-7: records committed before a loss are not known any more.
        self.evidence += 1
        held, marker = newest_offsets(log, copy.held.high_watermark), log.horizon.offset
        end = copy.held.high_watermark
        for offset in compacted.between(max(marker, copy.held.start_offset), end):
            lacks_it = _is_tombstone(compacted, offset) and held.get(compacted.records[offset].key, -1) < offset
            if lacks_it and compacted.last_of_key(offset) < end:
                self.violated(
                    at_us,
                    f"{partition.name} on node {copy.node_id} lacks the tombstone at offset {offset}, and its marker "
                    f"is {marker}",
                )
                return


def _followed(node: "Node", key: PartitionKey) -> int:
    """The leader that the node follows by its own metadata, or NO_LEADER."""
    followed = node.broker.partitions.followed.get(key)
    leader = None if followed is None else followed.followed_leader
    return NO_LEADER if leader is None else leader


def _marker_of(partition: Replicated, leader: int) -> int:
    """The leader's marker, or 0 if it does not lead in its own view."""
    copy = partition.copies.get(leader)
    return 0 if copy is None or copy.log is None or not copy.leads else copy.log.horizon.offset


def _is_tombstone(compacted: Compacted, offset: int) -> bool:
    return compacted.records[offset].value is None and compacted.counts(offset)


class DeletedStaysDeleted(ReplicaCheck):
    """deleted-stays-deleted: no replica has a record that a tombstone deleted, and neither that tombstone nor a newer
    record of the key (H-4 to H-6).

    A replica that was down while tombstones were removed would keep the record for ever. Replicas that use their
    leader's marker prevent that: a follower truncates its log fully before it appends records beyond a tombstone that
    it missed. So the guarantee holds at any time. It is judged now and then, when a replica begins to lead, and at the
    end.

    X-11: a newer record that this replica has not reached may have superseded the tombstone where it copies.
    """

    guarantee = "deleted-stays-deleted"
    inspection = Inspection.ONLY_THOROUGH

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        if now.leader_epoch > before.leader_epoch:
            self._judge(at_us, partition, copy)

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        for partition in self.replicas.partitions.values():
            copy = partition.copies.get(node.broker.node_id)
            if copy is not None:
                self._judge(at_us, partition, copy)

    def end(self, history: History) -> None:
        for partition in self.replicas.partitions.values():
            for copy in partition.copies.values():
                self._judge(history.end_us, partition, copy)

    def _judge(self, at_us: int, partition: Replicated, copy: Copy) -> None:
        compacted, log = partition.compacted, copy.log
        if not self.context.settings.tombstone_horizon or compacted is None or log is None:
            return
        if partition.excused or partition.losses:
            return  # E-7: records committed before a loss are not known any more.
        self.evidence += 1
        end = min(copy.held.high_watermark, partition.committed_end)
        newest = _newest_below(compacted, end)
        for key, offset in newest_offsets(log, end).items():
            tombstone = newest.get(key, -1)
            is_deleted = tombstone > offset and compacted.records[tombstone].value is None
            if is_deleted and compacted.counts(offset) and compacted.next_of_key(tombstone) is None:
                self.violated(
                    at_us,
                    f"{partition.name} on node {copy.node_id} holds key {key!r} at offset {offset}, which the "
                    f"tombstone at {tombstone} deleted",
                )
                return


def _newest_below(compacted: Compacted, end: int) -> dict[bytes | None, int]:
    return {compacted.records[each].key: each for each in compacted.between(0, end) if compacted.counts(each)}


BEGUN = "unsafe_bootstrap"
MISSED = "tombstones_missed"


@dataclass(frozen=True, slots=True)
class SentMarker:
    """A response with a marker, and the reason why the reader then reset its position; empty if it continued."""

    at_us: int
    position: int
    marker: int
    reset: str


class OneBootstrapPerMarker(Check):
    """one-bootstrap-per-marker: a fetcher that receives a marker above its position restarts, once for each marker, and
    none restarts without that (H-3 to H-7).

    The check compares the responses that readers received with their actions. In the normal mode a reader below the
    marker restarts (H-3). From then on it is unsafe, and stores that marker. While the marker stays it continues (H-5),
    and when the marker moves it restarts (H-6). At the marker it returns to the normal mode (H-7). The page does not
    define the action after a smaller marker of another replica: records that were read there may need tombstones that
    are gone elsewhere. So both actions are allowed then.

    Of followers it judges the bootstraps that they report. ``deleted-stays-deleted`` finds those that they omit. A
    follower may restart for the same marker under another leader, which may have sent a smaller one meanwhile.
    """

    guarantee = "one-bootstrap-per-marker"
    acts_on: ClassVar[tuple[Kind, ...]] = (BEGUN,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._begun: dict[tuple[int, str], tuple[int, int]] = {}
        """by node and partition: the leader epoch and the marker of the last bootstrap"""

    # Followers

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Note and effect.what == BEGUN:
                sent = dict(effect.fields)
                self._begins(
                    at_us, node.broker.node_id, str(sent["partition"]), int(sent["position"]), int(sent["horizon"])
                )

    def _begins(self, at_us: int, node_id: int, partition: str, position: int, marker: int) -> None:
        self.evidence += 1
        known = (each for each in self.context.replicas.partitions.values() if each.name == partition)
        epoch = next((each.state.leader_epoch for each in known), -1)
        before = self._begun.get((node_id, partition))
        self._begun[node_id, partition] = epoch, marker
        who = f"{partition} on node {node_id} began again at position {position} for the marker {marker}"
        if position >= marker:
            self.violated(at_us, f"{who}, which it is not below (H-7)")
        if before is not None and before[1] == marker and before[0] == epoch:
            self.violated(at_us, f"{who}, as it had done before (H-5)")

    # Readers

    def end(self, history: History) -> None:
        for reader, partition, life in _lives(history):
            for sent in _wrong(life):
                self.violated(
                    sent.at_us,
                    f"{reader} at offset {sent.position} of {partition[0]}-{partition[1]} {_explanation(sent)}",
                )
            self.evidence += sum(each.reset == MISSED for each in life)


def _explanation(sent: SentMarker) -> str:
    if sent.reset == MISSED:
        return f"began again for the marker {sent.marker}, for which it had begun or which it was not below (H-5, H-7)"
    return f"got the marker {sent.marker}, and went on (H-3, H-6)"


def _wrong(life: Sequence[SentMarker]) -> Iterator[SentMarker]:
    """Yield the responses after which a reader did not follow H-3 to H-7."""
    remembered, is_unsafe, was_smaller = 0, False, False
    for sent in life:
        if is_unsafe and sent.position >= remembered:
            is_unsafe = False  # H-7
        has_begun = sent.reset == MISSED
        if not is_unsafe:
            must_begin, may_differ = sent.position < sent.marker, False
        else:
            must_begin, may_differ = sent.marker > remembered, was_smaller
            was_smaller = was_smaller or sent.marker < remembered
        if has_begun != must_begin and not may_differ:
            yield sent
        if has_begun:
            remembered, is_unsafe, was_smaller = sent.marker, True, False


def _lives(history: History) -> Iterator[tuple[str, TopicPartition, list[SentMarker]]]:
    """Yield the markers that each reader with a view received for each partition, by its lives. Each life begins
    without state.
    """
    ends = grouped(history.views, lambda row: (row.process, partition_of(row)))
    reset = {(row.process, partition_of(row), row.at_us): row.reason for row in history.resets}
    for (reader, partition), responses in grouped(
        _responses_with_marker(history), lambda response: (response[1].process, partition_of(response[1]))
    ).items():
        ended_us = sorted({row.at_us for row in ends.get((reader, partition), ())})
        begins_us = -1
        for end_us in ended_us:
            yield (
                reader,
                partition,
                [
                    SentMarker(
                        at_us, row.fetch_offset, row.tombstone_horizon, reset.get((reader, partition, at_us), "")
                    )
                    for at_us, row in sorted(responses, key=lambda response: (response[0], response[1].index))
                    if begins_us < at_us <= end_us
                ],
            )
            begins_us = end_us


def _responses_with_marker(history: History) -> list[tuple[int, PositionRow]]:
    """Return the responses with a marker, each with its time. A response that shows a truncation only says where to
    continue, and the rest of it is ignored (KIP-320)."""
    truncated = {(row.process, partition_of(row), row.at_us) for row in history.resets if row.reason == "truncated"}
    responses = []
    for row in history.positions:
        operation = history.operation_of.get((row.process, row.index))
        if operation is None or row.tombstone_horizon < 0 or row.error is not None:
            continue
        if (row.process, partition_of(row), operation.complete_us) not in truncated:
            responses.append((operation.complete_us, row))
    return responses
