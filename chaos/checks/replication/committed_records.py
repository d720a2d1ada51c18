"""Acknowledged records are committed, and replicas have them."""

from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any

from chaos.checks.check import CheckContext, ReplicaCheck
from chaos.checks.history import History
from chaos.checks.log.batches import BatchIdentity, batches_of, read_batches
from chaos.checks.log.compacted_log import Compacted, Remains, marker_in, records_of, wrongly_cleaned
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.follower_progress import ALTER_PARTITION, Counted, LeaderTerm
from chaos.checks.replication.replica_view import Copy, Held, PartitionKey, Replicated
from chaos.checks.sessions.fetch_model import FETCH, partitions_of
from chaos.interceptor.watched_disk import WatchedDisk
from reference_broker.core.events import Effect, Event, PeerDown, PeerReply, Reply, Request, Send
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.image import NO_LEADER
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import FetchPartition, FetchRequest
from reference_broker.wire.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class ReplicasEqual(ReplicaCheck):
    """replicas-equal: below its high watermark each replica has the committed batches, byte for byte.

    A new leader must have all committed batches, even those above its own high watermark.

    In a compacted partition records are compared instead of batches. Each record must be at the offset at which it was
    committed. ``compacted_log.py`` has the rules for the records that a replica may lack, and for those that its
    cleaned part must lack.
    """

    guarantee = "replicas-equal"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)

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
        compare = self._unlike_batch if partition.compacted is None else self._unlike_record
        explanation = compare(at_us, partition, copy, begin, end)
        if explanation:
            self.violated(at_us, f"{partition.name} on node {copy.node_id} {explanation}")

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
            explanation = self._unlike_batch_of(at_us, partition, compacted, remains, batch, data)
            if explanation:
                return explanation
        # Physical: a cleaner removes a tombstone by its node's wall clock, which a fault may have set ahead.
        return wrongly_cleaned(at_us + self.replicas.fault_times.clock_jumps_us, compacted, remains)

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
        return all(map(self._is_settled, self.replicas.partitions.values()))

    def overdue(self, at_us: int, after_us: int) -> None:
        for partition in self.replicas.partitions.values():
            if not self._is_settled(partition):
                held = {copy.node_id: copy.held.end_offset for copy in partition.copies.values()}
                self.violated(
                    at_us,
                    f"{partition.name}: {after_us // 1_000_000} s after all was healed leader {partition.state.leader} "
                    f"has in-sync replicas {partition.state.isr} of {partition.state.replicas},"
                    f" whose logs end at {held}",
                )

    def _is_settled(self, partition: Replicated) -> bool:
        state = partition.state
        if _waits_for_an_operator(partition):
            return True
        if state.leader < 0:
            return False
        if not partition.copies:
            # Physical: no node has changed its log since the view began, so there is nothing to compare.
            return len(state.isr) >= len(state.replicas)
        leader = partition.copies.get(state.leader)
        if leader is None or leader.log is None:
            return False
        end, begin = leader.held.end_offset, leader.held.start_offset
        # KIP-405: a replica whose log ends before the leader's local log start begins behind the remote segments. It
        # cannot, if the metadata of these may be lost (E-7).
        is_cut_off = self.replicas.tier_excused(partition) and leader.log.config.remote_storage_enable
        waiting = {
            node_id: None
            for node_id, copy in partition.copies.items()
            if is_cut_off and node_id not in state.isr and copy.held.end_offset < begin
        }
        return len(state.isr) + len(waiting) >= len(state.replicas) and all(
            copy.held.end_offset == end and copy.held.high_watermark == end
            for node_id, copy in partition.copies.items()
            if node_id not in waiting
        )


def _waits_for_an_operator(partition: Replicated) -> bool:
    """E-3, E-6: only an eligible replica may be elected, and only where it has its directory. E-5: another one is, when
    nobody is eligible any more. So there is no leader while all eligible replicas have lost their directories, which
    were really damaged (E-7). To be killed, or to lose the power, damages none.

    An operator decides by an unclean election."""
    state = partition.state
    homes = dict(zip(state.replicas, state.directories, strict=False))
    are_lost = all(
        homes.get(replica) == LOST_DIRECTORY and replica in partition.eligible.damaged for replica in state.elr
    )
    return state.leader == NO_LEADER and not state.isr and bool(state.elr) and are_lost


class HighWatermarkMonotonic(ReplicaCheck):
    """high-watermark-monotonic: a replica's high watermark never goes back while its process lives, and is in its
    log.
    """

    guarantee = "high-watermark-monotonic"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)
        self._settled: dict[tuple[PartitionKey, int], int] = {}
        """by partition and node: losses of the partition when the replica was in sync last"""

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        # E-7: no replica had kept the committed records, so a follower truncates below its high watermark. KIP-497: it
        # does so before it is in sync again.
        key = partition.key, copy.node_id
        may_go_back = partition.losses > self._settled.get(key, 0) and now.leader_epoch < 0
        if copy.node_id in partition.state.isr and not partition.excused:
            self._settled[key] = partition.losses
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


class HighWatermarkByRequests(ReplicaCheck):
    """high-watermark-monotonic: a leader's high watermark is the least offset of the in-sync replicas' requests.

    It moves to an offset only when each member of the maximal ISR has requested it (KIP-497: a proposed ISR counts as
    well), while the ISR has the minimum of the same metadata (E-2), and never beyond what its own log must have synced
    (flush.messages). A new leader knows no progress (F-22), and a request from before a follower's registration does
    not count (KIP-903). Once the last needed request is counted, the high watermark has moved.

    A replica outside the ISR that is about to join may delay it (KIP-497). The leader's state of a follower equals the
    follower's last accepted request.
    """

    guarantee = "high-watermark-monotonic"
    acts_on = (NoneType, FETCH, (Send, ALTER_PARTITION), PeerReply, PeerDown)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)
        self.replicas.on_viewed.append(self.viewed)
        self._progress = context.progress
        self._moved: list[tuple[Replicated, int, int, int]] = []
        """(partition, node, high watermark before, log end before) of leaders whose term or high watermark has changed
        in this event"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        self._progress.acted(at_us, node, event, effects)

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:  # noqa: ARG002
        if now.leader_epoch < 0:
            return
        is_same = before.incarnation == now.incarnation
        if not is_same or before.leader_epoch != now.leader_epoch or now.high_watermark > before.high_watermark:
            known = before.high_watermark if is_same else now.high_watermark
            self._moved.append((partition, copy.node_id, known, before.end_offset))

    def viewed(self, at_us: int, node: "Node") -> None:
        node_id = node.broker.node_id
        if self._moved:
            moved, self._moved = self._moved, []
            for partition, leader, before, end_before in moved:
                led = node.broker.partitions.by_id.get(partition.key)
                if leader == node_id and led is not None and self._progress.nodes.get(node_id) is node:
                    term = self._progress.term(at_us, node, led)
                    self._judge_begin(at_us, node_id, partition, led, term)
                    if led.log.high_watermark > before:
                        self._judge_move(at_us, node, partition, led, term, end_before)
        if self._progress.counted:
            for each in self._progress.counted:
                known = self.replicas.partitions.get((each.partition.topic_id, each.partition.index))
                if known is not None and not each.partition.is_removed and self._progress.nodes.get(node_id) is node:
                    self._judge_count(at_us, node, known, each)
            self._progress.counted.clear()

    def _judge_begin(self, at_us: int, leader: int, partition: Replicated, led: Partition, term: LeaderTerm) -> None:
        """Judge what a leader counts of its followers before they have fetched from it in its term."""
        for replica, state in {} if led.followers is None else led.followers.states.items():
            if term.latest(replica) is None and state.log_end_offset >= 0:
                self.violated(
                    at_us,
                    f"{partition.name}: leader {leader} of epoch {led.leader_epoch} counts replica {replica} as far as "
                    f"{state.log_end_offset}, which has requested nothing from it since its term began (F-22)",
                )

    def _judge_move(
        self, at_us: int, node: "Node", partition: Replicated, led: Partition, term: LeaderTerm, end_before: int
    ) -> None:
        isr, min_isr = self.replicas.isr_known_to(node, partition)
        if not isr:
            return
        self.evidence += 1
        node_id, mark = node.broker.node_id, led.log.high_watermark
        who = f"{partition.name}: leader {node_id} of epoch {led.leader_epoch} moved its high watermark to {mark}"
        if len(isr) < min_isr:
            self.violated(at_us, f"{who}, and only {isr} are in sync, of at least {min_isr} (E-2)")
        # Physical: one event may append after it has moved the high watermark.
        if mark > max(_counted_end(led.log, each) for each in (end_before, led.log.log_end_offset)):
            self.violated(at_us, f"{who}, and its own log is synced up to {led.log.synced_offset} (flush.messages)")
        image = node.broker.quorum_node.loader.image
        proposed = self._progress.proposal(node_id, led, _partition_epoch(node, partition))
        for member in dict.fromkeys((*isr, *(() if proposed is None else proposed.isr))):
            if member == node_id:
                continue
            progress = term.latest(member)
            broker = image.brokers.get(member)
            if progress is None:
                self.violated(at_us, f"{who}, and replica {member} has requested nothing from it yet (F-22)")
            elif progress.offset < mark:
                self.violated(at_us, f"{who}, and replica {member} has requested only {progress.offset} (F-22)")
            elif broker is not None and 0 <= progress.broker_epoch < broker.broker_epoch:
                self.violated(
                    at_us,
                    f"{who}; replica {member} requested that offset as broker epoch {progress.broker_epoch}, and is "
                    f"registered in epoch {broker.broker_epoch} (KIP-903)",
                )

    def _judge_count(self, at_us: int, node: "Node", partition: Replicated, counted: Counted) -> None:
        led, node_id, followers = counted.partition, node.broker.node_id, counted.partition.followers
        is_at_once = counted.is_single and not self.context.settings.slices_us
        if followers is None or not is_at_once or node._publisher.is_behind:
            return
        state = followers.states.get(counted.replica)
        known = self._progress.term(at_us, node, led).followers
        progress = known.get(counted.replica)
        if state is None or progress is None or progress.offset != counted.offset:
            return
        self.evidence += 1
        if state.log_end_offset != counted.offset:
            self.violated(
                at_us,
                f"{partition.name}: leader {node_id} counts replica {counted.replica} as far as "
                f"{state.log_end_offset}, whose accepted request fetches from {counted.offset} (F-22)",
            )
        # One that has requested nothing joins nothing.
        offsets = [known[replica].offset for replica in partition.state.replicas if replica in known]
        least = min(_counted_end(led.log, led.log.log_end_offset), *offsets)
        if led.log.high_watermark >= least:
            return
        isr, min_isr = self.replicas.isr_known_to(node, partition)
        needed = {*isr, *followers.maximal_isr} - {node_id}
        if min_isr <= len(isr) and all(each in known and known[each].offset >= least for each in needed):
            self.violated(
                at_us,
                f"{partition.name}: leader {node_id} has its high watermark at {led.log.high_watermark}, although all "
                f"replicas in sync {isr} have requested offset {least} (F-22)",
            )


def _counted_end(log: UnifiedLog, end_offset: int) -> int:
    """Return the offset up to which a leader counts its own log, if that ends at ``end_offset``: once flush.messages
    records are unsynced, they count only as far as they are synced."""
    unsynced = end_offset - log.synced_offset
    return log.synced_offset if unsynced >= log.config.flush_messages else end_offset


def _partition_epoch(node: "Node", partition: Replicated) -> int:
    topic = node.broker.quorum_node.loader.image.topic_by_id(partition.key[0])
    return -1 if topic is None else topic.partitions[partition.key[1]].partition_epoch


class HighWatermarkFromLeader(ReplicaCheck):
    """high-watermark-monotonic: a follower's high watermark is not beyond that of all leaders so far, and a new process
    starts with the high watermark of its checkpoint.

    A restarted replica has at least the checkpoint's row (replication-offset-checkpoint), unless its log ends below.

    After a loss (E-7) other records are committed, so nothing is compared.
    """

    guarantee = "high-watermark-monotonic"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)
        self.replicas.on_viewed.append(self.viewed)
        self._led: dict[PartitionKey, int] = {}
        """the greatest high watermark that a leader had"""
        self._restarted: list[tuple[Replicated, Copy]] = []
        """replicas of new processes, in this event"""

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        if before.incarnation != now.incarnation and now.incarnation > 0:
            self._restarted.append((partition, copy))
        greatest = self._led.get(partition.key, 0)
        if now.leader_epoch >= 0:
            self._led[partition.key] = max(greatest, now.high_watermark)
            return
        self.evidence += now.high_watermark > before.high_watermark
        if now.high_watermark > greatest and not partition.losses:
            self.violated(
                at_us,
                f"{partition.name}: follower {copy.node_id} has high watermark {now.high_watermark}, and no leader had "
                f"more than {greatest}",
            )

    def viewed(self, at_us: int, node: "Node") -> None:
        if not self._restarted:
            return
        restarted, self._restarted = self._restarted, []
        with WatchedDisk.unwatched():
            rows = _checkpoint(node.broker.disk)
        for partition, copy in restarted:
            held, row = copy.held, rows.get(partition.name, -1)
            if copy.node_id != node.broker.node_id or partition.losses or row < 0:
                continue
            self.evidence += 1
            if held.high_watermark < row <= held.end_offset:
                self.violated(
                    at_us,
                    f"{partition.name}: node {copy.node_id} starts with high watermark {held.high_watermark}, and its "
                    f"checkpoint has {row}",
                )


class LoneHighWatermark(ReplicaCheck):
    """high-watermark-monotonic: a leader without other replicas has committed all of its log, or all that is synced of
    it while flush.messages requires a sync (KIP-101: the ISR is the leader).
    """

    guarantee = "high-watermark-monotonic"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        context.replicas.on_logs_touched.append(self.logs_touched)

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        for log in touched:
            led = node.broker.partitions.by_id.get((log.topic_id, int(log.directory.rpartition("-")[2])))
            if led is None or led.followers is not None or led.log is not log or log.is_offline:
                continue
            self.evidence += 1
            if log.high_watermark < _counted_end(log, log.log_end_offset):
                self.violated(
                    at_us,
                    f"{led.topic}-{led.index}: node {node.broker.node_id} is the only replica, with high watermark "
                    f"{log.high_watermark} in {log.log_start_offset}..{log.log_end_offset}, synced to "
                    f"{log.synced_offset}",
                )


CHECKPOINT = "replication-offset-checkpoint"


def _checkpoint(disk: Any) -> dict[str, int]:
    """Return the high watermark of each partition in Kafka's file of them: a version, the number of rows, and rows of
    topic, partition and offset. A file that a power loss has torn has none."""
    if not disk.exists(CHECKPOINT):
        return {}
    data = bytes(disk.read(CHECKPOINT, 0, disk.size(CHECKPOINT)))
    rows = [line.split(b" ") for line in data.splitlines()[1:]]
    if not data.endswith(b"\n") or not rows or rows[0] != [b"%d" % (len(rows) - 1)]:
        return {}
    if not all(len(row) == 3 and row[1].isdigit() and row[2].isdigit() for row in rows[1:]):
        return {}
    return {f"{topic.decode()}-{int(index)}": int(offset) for topic, index, offset in rows[1:]}


class EpochsOfBatches(ReplicaCheck):
    """replicas-equal: a log's leader epochs are those of its batches (KIP-101).

    A leader has its own epoch before its first append. No epoch begins beyond the log's end. The committed batches are
    compared when the high watermark passes them, and all of them after a start.
    """

    guarantee = "replicas-equal"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)

    def copy_changed(self, at_us: int, partition: Replicated, copy: Copy, before: Held, now: Held) -> None:
        log = copy.log
        if log is None or partition.losses or log.is_offline:
            return
        epochs = log.epochs
        who = f"{partition.name} on node {copy.node_id}"
        if epochs.starts and epochs.starts[-1] > now.end_offset:
            self.violated(at_us, f"{who}: epoch {epochs.latest} begins at {epochs.starts[-1]}, beyond {now.end_offset}")
        if now.leader_epoch >= 0 and epochs.latest != now.leader_epoch:
            self.violated(at_us, f"{who}: it leads in epoch {now.leader_epoch}, and its last one is {epochs.latest}")
        offset = before.high_watermark if before.incarnation == now.incarnation else now.start_offset
        offset = max(offset, log.log_start_offset)  # KIP-101: the epochs begin at the log's start.
        while offset < min(now.high_watermark, partition.committed_end):
            batch = partition.committed.get(offset)
            if batch is None:
                return  # Offset in the middle of a batch, or where a cleaner or a deletion removed batches.
            self.evidence += 1
            if epochs.epoch_at(offset) != batch.epoch:
                self.violated(
                    at_us, f"{who}: offset {offset} is in epoch {epochs.epoch_at(offset)}, and is {batch.named}"
                )
                return
            offset = batch.last_offset + 1


class FetchesFromLogEnd(ReplicaCheck):
    """replicas-equal: a follower fetches each partition that it names from its log's end, in the leader epoch of its
    metadata, with the epoch of its last batch (KIP-320, F-12).

    A larger last epoch is right if the follower has led in it without an append. A log without local batches has no
    last epoch.
    """

    guarantee = "replicas-equal"
    acts_on = ((Send, FETCH),)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._compared: dict[tuple[int, PartitionKey], tuple[Node, int, int]] = {}
        """by node and partition: process, leader epoch and last epoch of the last request that was compared with
        bytes. While the last epoch is the leader's, it stays right until one of them changes"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is not Send or effect.api_key != FETCH or not isinstance(effect.body, FetchRequest):
                continue
            if effect.body.replica_id < 0:
                continue  # The node consumes the topic of the remote tier's metadata.
            for (topic, index), each in partitions_of(effect.api_version, effect.body.topics):
                if isinstance(topic, str):
                    known = node.broker.controller.image.topics.get(topic)
                    topic = b"" if known is None else known.topic_id
                followed = node.broker.partitions.followed.get((topic, index))
                if followed is not None and followed.followed_leader == effect.peer:
                    self._judge(at_us, node, followed, each)

    def _judge(self, at_us: int, node: "Node", followed: Partition, each: FetchPartition) -> None:
        self.evidence += 1
        log = followed.log
        who = f"{followed.topic}-{followed.index}: follower {node.broker.node_id}"
        if (each.fetch_offset, each.log_start_offset) != (log.log_end_offset, log.log_start_offset):
            self.violated(
                at_us,
                f"{who} fetches from {each.fetch_offset} with log start {each.log_start_offset}, and its log is "
                f"{log.log_start_offset}..{log.log_end_offset} (F-12, F-13)",
            )
        topic = node.broker.quorum_node.loader.image.topic_by_id(followed.topic_id)
        if topic is not None and not node._publisher.is_behind:
            epoch = topic.partitions[followed.index].leader_epoch
            if each.current_leader_epoch != epoch:
                named = each.current_leader_epoch
                self.violated(at_us, f"{who} fetches in leader epoch {named}, and its metadata has {epoch} (KIP-320)")
        key = node.broker.node_id, (followed.topic_id, followed.index)
        compared = node, each.current_leader_epoch, each.last_fetched_epoch
        if each.current_leader_epoch == each.last_fetched_epoch and self._compared.get(key) == compared:
            return
        self._compared[key] = compared
        last = _last_epoch(log)
        if last >= 0 and each.last_fetched_epoch != last:
            name = f"{followed.topic}-{followed.index}", each.last_fetched_epoch
            if each.last_fetched_epoch < last or node.broker.node_id not in self.replicas.leaders[name]:
                self.violated(
                    at_us, f"{who} names last epoch {each.last_fetched_epoch}, and its last batch has {last} (KIP-320)"
                )


def _last_epoch(log: UnifiedLog) -> int:
    """Return the leader epoch of the last local batch, -1 if there is none."""
    end = log.log_end_offset
    if log.local_log_start_offset >= end:
        return -1
    with WatchedDisk.unwatched():
        data = log.read(end - 1, 1, end)
    last = -1
    for batch, _ in batches_of(data):
        last = batch.epoch
    return last


class OnePartitionLeaderPerEpoch(ReplicaCheck):
    """one-partition-leader-per-epoch: no two nodes lead a partition in the same leader epoch."""

    guarantee = "one-partition-leader-per-epoch"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_copy_changed.append(self.copy_changed)

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

    Enough means all replicas of the ISR in the leader's own metadata, and at least the min.insync.replicas of the same
    metadata (E-2). The leader may lag behind the controller, so a smaller ISR counts only together with the minimum of
    the same image. Other checks judge whether the write is kept afterwards: replicas-equal at each new leader,
    lost-write and unseen at the end.

    ``acted`` records the acknowledgements of a node. ``viewed`` judges them, when the view has the node's new state.
    """

    guarantee = "no-acked-lost"
    acts_on = (PRODUCE,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_viewed.append(self.viewed)
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
        holders = [copy.node_id for copy in partition.copies.values() if copy.held.end_offset > batch.last_offset]
        eligible = partition.eligible
        tainted = (each for each in eligible.tainted if eligible.had(each, batch.last_offset + 1))
        counted = dict.fromkeys((*holders, *tainted))
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
            for leader in (copy for copy in partition.copies.values() if copy.leads):
                lost = [offset for offset in offsets if offset >= leader.held.end_offset]
                if lost and leader.held.leader_epoch == partition.leader_epoch:
                    self.violated(
                        history.end_us,
                        f"{partition.name}: {len(lost)} acknowledged batches are gone, the first at offset {lost[0]}; "
                        f"leader {leader.node_id}'s log ends at {leader.held.end_offset}",
                    )
