"""Replication of partitions: replicas have the committed records, and acknowledged records are committed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaos.checks.batches import BatchIdentity, read_batches
from chaos.checks.check import CheckContext, ReplicaCheck
from chaos.checks.compacted_log import Compacted, Remains, marker_in, records_of, wrongly_cleaned
from chaos.checks.history import History
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replica_view import Copy, Held, PartitionKey, Replicated
from reference_broker.core.events import Effect, Event, Reply, Request
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.image import NO_LEADER
from reference_broker.wire.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class ReplicasEqual(ReplicaCheck):
    """replicas-equal: below its high watermark each replica has the committed batches, byte for byte.

    A new leader must have all committed batches, even those above its own high watermark.

    In a compacted partition records are compared instead of batches. Each record must be at its offset as it was
    committed. ``compacted_log.py`` says which records a replica may lack, and which its cleaned part must lack.
    """

    guarantee = "replicas-equal"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        if partition.excused or (partition.losses and not copy.leads):
            return  # E-7: no replica had kept the committed records. Followers truncate later; ``quiet`` compares.
        another = now.leader_epoch > before.leader_epoch or now.incarnation != before.incarnation
        newly_leads = another and now.leader_epoch == partition.leader_epoch >= 0
        if newly_leads and now.end_offset < partition.committed_end:
            self.violated(
                at_us,
                f"{partition.name}: node {copy.node_id} leads in epoch {now.leader_epoch} with a log that ends at "
                f"{now.end_offset}, below {partition.committed_end}, which is committed",
            )
        if now.cleaned_offset > before.cleaned_offset and now.incarnation == before.incarnation:
            self._cleaned(at_us, partition, copy, now)
        self._compare(at_us, partition, copy, now, partition.committed_end if newly_leads else now.high_watermark)

    def _cleaned(self, at_us: int, partition: Replicated, copy: Copy, now: Held) -> None:
        copy.equal_to = 0  # Any of its batches may be different now.
        if now.cleaned_offset > now.high_watermark:
            self.violated(
                at_us,
                f"{partition.name} on node {copy.node_id} was cleaned up to {now.cleaned_offset}; what is below "
                f"{now.high_watermark} is committed",
            )
        compacted = partition.compacted
        stable_end = now.high_watermark if compacted is None else compacted.stable_end(partition.committed_end)
        if stable_end < now.cleaned_offset <= now.high_watermark:
            self.violated(
                at_us,
                f"{partition.name} on node {copy.node_id} was cleaned up to {now.cleaned_offset}, and a transaction is "
                f"open from offset {stable_end}",
            )

    def end(self, history: History) -> None:
        """Compare all records of each replica, from its beginning."""
        for partition in self.replicas.partitions.values():
            for copy in partition.copies.values():
                # E-7: no replica had kept the committed records, and no leader has taken over since then.
                if copy.log is not None and not partition.excused:
                    copy.equal_to = 0
                    self._compare(history.end_us, partition, copy, copy.held, copy.held.high_watermark)

    def _compare(self, at_us: int, partition: Replicated, copy: Copy, now: Held, end: int) -> None:
        end = min(end, partition.committed_end, now.end_offset)
        # E-7: what is below the log of the leader after a loss was committed before it, and is not known any more.
        begin = max(copy.equal_to, now.start_offset, partition.committed_from)
        if begin >= end or copy.log is None:
            return
        copy.equal_to = end
        found = self._unlike_batch if partition.compacted is None else self._unlike_record
        story = found(at_us, partition, copy, begin, end)
        if story:
            self.violated(at_us, f"{partition.name} on node {copy.node_id} {story}")

    @staticmethod
    def _unlike_batch(at_us: int, partition: Replicated, copy: Copy, begin: int, end: int) -> str:  # noqa: ARG004
        assert copy.log is not None, "nothing to compare"
        for batch, _ in read_batches(copy.log, begin, end):
            committed = partition.committed.get(batch.base_offset)
            if committed != batch:
                there = "no batch" if committed is None else committed.named
                return f"has {batch.named} where {there} is committed"
        return ""

    def _unlike_record(self, at_us: int, partition: Replicated, copy: Copy, begin: int, end: int) -> str:
        compacted = partition.compacted
        assert copy.log is not None, "nothing to compare"
        assert compacted is not None, "a partition that is not compacted"
        partition.note_cleanable()
        remains = Remains(begin, end, min(copy.held.cleaned_offset, end))
        for batch, data in read_batches(copy.log, begin, end):
            remains.batches[batch.base_offset] = batch.last_offset
            story = self._unlike_batch_of(at_us, partition, compacted, remains, batch, data)
            if story:
                return story
        return wrongly_cleaned(at_us, compacted, remains)

    @staticmethod
    def _unlike_batch_of(
        at_us: int, partition: Replicated, compacted: Compacted, remains: Remains, batch: BatchIdentity, data: bytes
    ) -> str:
        """Record the remaining records of a batch, and return those that were never committed."""
        committed_batch = partition.committed.get(batch.base_offset)
        if batch.control:
            marker = marker_in(data)
            if marker is not None:
                remains.markers[batch.base_offset] = None
            known = committed_batch == batch or marker is None or partition.losses
            is_same = known or compacted.is_marker(batch.base_offset, data, marker)
            return "" if is_same else f"has a marker at offset {batch.base_offset} that was not committed there"
        if committed_batch == batch:
            offsets = compacted.between(batch.base_offset, batch.last_offset + 1)
            remains.records.update((offset, None) for offset in offsets)
            return ""
        for offset, record in records_of(data, at_us):
            committed = compacted.records.get(offset)
            if committed is None and partition.losses:
                continue  # E-7: it was read from a leader that had kept less, or had cleaned it.
            if committed is None or not committed.equals(record):
                there = "none" if committed is None else f"{committed[:-1]}"
                return f"has the record {record[:-1]} at offset {offset} where {there} is committed"
            remains.records[offset] = None
        return ""


class ReplicasConverge(ReplicaCheck):
    """replicas-converge: after the heal each partition has a leader, and all its replicas are in sync and equal.

    ``SimWorld`` calls ``reached`` after the heal, and ``overdue`` if the time runs out before that.
    """

    guarantee = "replicas-converge"

    def reached(self) -> bool:
        return all(_is_settled(each) for each in self.replicas.partitions.values())

    def overdue(self, at_us: int, after_us: int) -> None:
        for each in self.replicas.partitions.values():
            if not _is_settled(each):
                held = {copy.node_id: copy.held.end_offset for copy in each.copies.values()}
                self.violated(
                    at_us,
                    f"{each.name}: {after_us // 1_000_000} s after all was healed leader {each.state.leader} has "
                    f"in-sync replicas {each.state.isr} of {each.state.replicas}, whose logs end at {held}",
                )


def _waits_for_an_operator(partition: Replicated) -> bool:
    """E-3, E-6: only an eligible replica may be elected, and only where it has its directory. E-5: another one is, when
    nobody is eligible any more. So there is no leader while all eligible replicas have lost their directories, which
    were really damaged (E-7). To be killed, or to lose the power, damages none.

    An operator decides by an unclean election."""
    state = partition.state
    homes = dict(zip(state.replicas, state.directories, strict=False))
    are_lost = all(homes.get(one) == LOST_DIRECTORY and one in partition.eligible.damaged for one in state.elr)
    return state.leader == NO_LEADER and not state.isr and bool(state.elr) and are_lost


def _is_settled(partition: Replicated) -> bool:
    state = partition.state
    if _waits_for_an_operator(partition):
        return True
    if len(state.isr) < len(state.replicas) or state.leader < 0:
        return False
    if not partition.copies:
        return True  # Physical: no node has changed its log since the view began, so there is nothing to compare.
    leader = partition.copies.get(state.leader)
    if leader is None or leader.log is None:
        return False
    end = leader.held.end_offset
    return all(copy.held.end_offset == end and copy.held.high_watermark == end for copy in partition.copies.values())


class HighWatermarkMonotonic(ReplicaCheck):
    """high-watermark-monotonic: a replica's high watermark never goes back while its process lives, and is in its
    log.
    """

    guarantee = "high-watermark-monotonic"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        # E-7: no replica had kept the committed records, so a follower truncates below its high watermark.
        may_go_back = partition.losses > 0 and now.leader_epoch < 0
        # H-4: a follower whose log ends below its leader's marker empties it, and adopts that marker.
        if self.context.settings.tombstone_horizon and copy.log is not None and now.leader_epoch < 0:
            is_empty = now.start_offset == now.end_offset
            may_go_back |= is_empty and before.end_offset < copy.log.horizon.offset
        who = f"{partition.name} on node {copy.node_id}"
        # Physical: a follower's new process gets the high watermark from its leader (it is no part of the log).
        is_same_process = before.incarnation == now.incarnation
        if is_same_process and not may_go_back and now.high_watermark < before.high_watermark:
            self.violated(at_us, f"{who}: it went back from {before.high_watermark} to {now.high_watermark}")
        if not now.start_offset <= now.high_watermark <= now.end_offset:
            self.violated(
                at_us, f"{who}: {now.high_watermark} is outside its log, {now.start_offset}..{now.end_offset}"
            )


class OnePartitionLeaderPerEpoch(ReplicaCheck):
    """one-partition-leader-per-epoch: no two nodes lead a partition in the same leader epoch."""

    guarantee = "one-partition-leader-per-epoch"

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        epoch = now.leader_epoch
        if epoch < 0:
            return
        self.evidence += epoch != before.leader_epoch
        first = partition.leaders.setdefault(epoch, copy.node_id)
        if first != copy.node_id:
            self.violated(
                at_us, f"{partition.name}: nodes {first} and {copy.node_id} both lead in leader epoch {epoch}"
            )


PRODUCE = 0
ALL = -1


class NoAckedLost(ReplicaCheck):
    """no-acked-lost: when a leader acknowledges a write with acks=all, the write is committed and enough replicas have
    it.

    Enough are all that are in sync by the leader's own metadata, and its min.insync.replicas by the same metadata
    (E-2). It may know less than the controller, so a smaller ISR counts only together with the minimum that holds with
    it. Other checks judge whether it is kept afterwards: replicas-equal at each new leader, lost-write and unseen at
    the end.

    ``acted`` records the acknowledgements of a node. ``viewed`` judges them, when the view has the node's new state.
    """

    guarantee = "no-acked-lost"
    acts_on = (PRODUCE,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[bool]()
        """requests with acks=all"""
        self._responses: list[tuple[Node, ProduceResponse]] = []
        self._acknowledged: dict[tuple[PartitionKey, int], dict[int, None]] = {}
        """the offsets by partition, and by how many losses it had had when they were acknowledged"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if not self.replicas.partitions:
            return
        node_id = node.broker.node_id
        if type(event) is Request and event.api_key == PRODUCE:
            body = event.body
            if isinstance(body, ProduceRequest) and body.acks == ALL:
                self._pending.add(node_id, event, True)
        for effect in effects:
            if (
                type(effect) is Reply
                and isinstance(effect.body, ProduceResponse)
                and self._pending.pop(node_id, effect)
            ):
                self._responses.append((node, effect.body))

    def viewed(self, at_us: int, node: "Node") -> None:
        if not self._responses:
            return
        responses, self._responses = self._responses, []
        for sender, body in responses:
            if sender is not node:
                continue  # It died in that event, so nobody got the response.
            for topic in body.responses:
                for each in topic.partitions:
                    if each.error_code or each.base_offset < 0:
                        continue
                    topic_id = topic.topic_id.strip(b"\0") and topic.topic_id
                    key = (topic_id or node.broker.partitions.topic_ids.get(topic.topic, b""), each.partition)
                    partition = self.replicas.partitions.get(key)
                    if partition is not None and self._is_judged(partition, node.broker.node_id):
                        self._acknowledges(at_us, node, partition, each.base_offset)

    @staticmethod
    def _is_judged(partition: Replicated, node_id: int) -> bool:
        """E-7: if no replica had kept the committed records, judging restarts with the log of the leader elected
        then."""
        copy = partition.copies.get(node_id)
        leads = copy is not None and copy.held.leader_epoch == partition.leader_epoch
        return not partition.excused and (leads or not partition.losses)

    def _acknowledges(self, at_us: int, node: "Node", partition: Replicated, offset: int) -> None:
        node_id = node.broker.node_id
        self._acknowledged.setdefault((partition.key, partition.losses), {})[offset] = None
        batch = partition.committed.get(offset)
        if batch is None:
            self.violated(
                at_us,
                f"{partition.name}: leader {node_id} acknowledged offset {offset} to a producer with acks=all, "
                f"but only what is below {partition.committed_end} is committed",
            )
            return
        holders = [each.node_id for each in partition.copies.values() if each.held.end_offset > batch.last_offset]
        eligible = partition.eligible
        had = (each for each in eligible.tainted if eligible.had(each, batch.last_offset + 1))
        counted = dict.fromkeys((*holders, *had))
        isr, min_isr = self.replicas.isr_known_to(node, partition)
        if len(counted) < min_isr or any(each not in counted and each not in eligible.unclean for each in isr):
            self.violated(
                at_us,
                f"{partition.name}: leader {node_id} acknowledged {batch.named}, which only {holders} hold; "
                f"by its metadata {isr} are in sync, and at least {min_isr} must hold it",
            )

    def end(self, history: History) -> None:
        for (key, losses), offsets in self._acknowledged.items():
            partition = self.replicas.partitions.get(key)
            if partition is None or partition.losses != losses:
                continue  # The topic was deleted; or E-7: no replica had kept the records, and a leader had lost them.
            for leader in (each for each in partition.copies.values() if each.leads):
                lost = [each for each in offsets if each >= leader.held.end_offset]
                if lost and leader.held.leader_epoch == partition.leader_epoch:
                    self.violated(
                        history.end_us,
                        f"{partition.name}: {len(lost)} acknowledged batches are gone, the first at offset {lost[0]}; "
                        f"leader {leader.node_id}'s log ends at {leader.held.end_offset}",
                    )
