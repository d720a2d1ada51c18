"""View of all replicas of the metadata log.

It survives a node's death. After each event it compares only a few numbers of one node. Batches are read once, when
they appear.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.log.batches import BatchIdentity, read_batches
from reference_broker.core.events import Note

if TYPE_CHECKING:
    from chaos.checks.fault_times import FaultTimes
    from reference_broker.core.node import Node


NOTHING_TRUNCATED = 1 << 62


class Seen(NamedTuple):
    """One member's replica of the metadata log at one time."""

    incarnation: int = -1
    epoch: int = -1
    leads: bool = False
    leader_id: int = -1
    high_watermark: int = -1
    """-1 while it is not known"""
    start_offset: int = 0
    end_offset: int = 0
    synced: int = 0
    """records below this offset are durable"""


GROWTH = Seen._fields.index("end_offset")
"""The first field of ``Seen`` that says only how far the log reaches. ``on_changed`` is not called for these fields
alone: they change most often, and ``on_appended`` gets what is new."""


@dataclass(slots=True)
class Member:
    """One node, as last seen."""

    node_id: int
    is_voter: bool
    seen: Seen = field(default_factory=Seen)
    batches: dict[int, BatchIdentity] = field(default_factory=dict)
    """the batches of its log, by base offset, ascending"""
    replica: Any = None
    """None while the node has none"""
    read_to: int = 0
    """offset up to which ``batches`` were read"""
    truncated_to: int = NOTHING_TRUNCATED
    """least offset to which the log was truncated since the last look"""

    @property
    def leads(self) -> bool:
        return self.replica is not None and self.seen.leads


class QuorumView:
    """The replicas of the metadata log. Each list ``on_...`` has the functions to call for one kind of event."""

    def __init__(self, voters: int, observers: int, fault_times: "FaultTimes") -> None:
        self.fault_times = fault_times
        self.voters = voters
        self.nodes = [Member(number, number < voters) for number in range(voters + observers)]
        self.committed: dict[int, BatchIdentity] = {}
        """all batches known to be committed, by base offset, ascending"""
        self.committed_end = 0
        """offset after them"""
        self.on_changed: list[Callable[[int, Member, Seen, Seen], None]] = []
        """called with the time, the member, and its state before and now, when something of ``Seen`` changed, not only
        how far the log reaches. The state before is the last one of the same node, in this or an earlier incarnation"""
        self.on_appended: list[Callable[[int, Member, Sequence[BatchIdentity]], None]] = []
        """called with the time, the member, and the batches appended to its log. After a start all are read again"""
        self.on_committed: list[Callable[[int, Member, Sequence[tuple[BatchIdentity, bytes]]], None]] = []
        """called with the time, the member that is the first in the run to know that these batches are committed, and
        the batches with their bytes"""
        self.on_recomputed: list[Callable[[int, int, int, int], None]] = []
        """called with the time, the node, and two digests of its image: one that followed the deltas, and that of the
        whole image"""
        self.on_ended: list[Callable[[int, int, str], None]] = []
        """called with the time, the node and the reason when a node has ended itself although no fault had affected its
        disk"""

    @property
    def majority(self) -> int:
        return self.voters // 2 + 1

    def gone(self, node_id: int) -> None:
        """Record that the process ended. The state of its disk stays known."""
        member = self.nodes[node_id]
        member.replica = None
        member.read_to = 0
        member.truncated_to = NOTHING_TRUNCATED

    def note(self, node_id: int, note: Note) -> None:
        if note.what == "truncated":
            member = self.nodes[node_id]
            offset = int(dict(note.fields)["offset"])
            member.truncated_to = min(member.truncated_to, offset)

    def ended(self, at_us: int, node_id: int, explanation: str) -> None:
        """Record that the node ended itself although no fault had affected its disk."""
        for ended in self.on_ended:
            ended(at_us, node_id, explanation)

    def recomputed(self, at_us: int, node_id: int, followed: int, whole: int) -> None:
        """Note the digest of a node's image that followed the deltas, and that of the whole image."""
        for recomputed in self.on_recomputed:
            recomputed(at_us, node_id, followed, whole)

    def observe(self, at_us: int, incarnation: int, node: "Node", thorough: bool) -> None:
        """Follow the state of a node after one of its events."""
        member = self.nodes[node.broker.node_id]
        if member.replica is None:
            if not node.listening:
                return
            member.replica = node.broker.quorum_node
        quorum, log, before = member.replica.quorum, member.replica.log.log, member.seen
        numbers = (
            incarnation,
            quorum.epoch,
            quorum.is_leader,
            quorum.leader_id,
            quorum.high_watermark,
            log.log_start_offset,
            log.log_end_offset,
            log.synced_offset,
        )
        if numbers == before and member.truncated_to == NOTHING_TRUNCATED and not thorough:
            return
        after = member.seen = Seen(*numbers)
        self._follow_log(at_us, member, before, after, thorough)
        if after[:GROWTH] != before[:GROWTH]:
            for changed in self.on_changed:
                changed(at_us, member, before, after)
        if after.high_watermark > self.committed_end:
            self._commit(at_us, member, after.high_watermark)

    # The log

    def _follow_log(self, at_us: int, member: Member, before: Seen, after: Seen, thorough: bool) -> None:
        if thorough or before.incarnation != after.incarnation:
            member.read_to = 0
        offset = max(min(member.read_to, member.truncated_to, after.end_offset), after.start_offset)
        member.read_to, member.truncated_to = max(offset, after.end_offset), NOTHING_TRUNCATED
        if offset >= after.end_offset:
            return
        while member.batches and next(reversed(member.batches)) >= offset:
            member.batches.popitem()
        fresh = [batch for batch, _ in read_batches(member.replica.log, offset, after.end_offset)]
        member.batches.update((batch.base_offset, batch) for batch in fresh)
        for appended in self.on_appended:
            appended(at_us, member, fresh)

    def _commit(self, at_us: int, member: Member, high_watermark: int) -> None:
        """Read the committed batches from the first member that knows of them, but not below the log's start, since
        earlier members have shown the batches that a snapshot replaced there."""
        offset = max(self.committed_end, member.seen.start_offset)
        fresh = list(read_batches(member.replica.log, offset, min(high_watermark, member.seen.end_offset)))
        self.committed.update((batch.base_offset, batch) for batch, _ in fresh)
        self.committed_end = high_watermark
        for committed in self.on_committed:
            committed(at_us, member, fresh)
