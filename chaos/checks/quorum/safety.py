"""Raft's safety: leaders, epochs, logs and committed records."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chaos.checks.check import CheckContext, QuorumCheck, fields_of
from chaos.checks.log.batches import BatchIdentity
from chaos.checks.quorum.quorum_view import Member, Seen
from reference_broker.core.events import Effect, Event, Note
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class OneLeaderPerEpoch(QuorumCheck):
    """one-leader-per-epoch: no two nodes lead in one epoch, and all nodes name the same leader of it."""

    guarantee = "one-leader-per-epoch"
    judges_recordings = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._leaders: dict[int, int] = {}
        self._believed: dict[int, tuple[int, int]] = {}

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.leads and not (before.leads and before.epoch == after.epoch):
            self.evidence += 1
            leader = self._leaders.setdefault(after.epoch, member.node_id)
            if leader != member.node_id:
                self.violated(at_us, f"nodes {leader} and {member.node_id} both lead in epoch {after.epoch}")
            if not member.is_voter:
                self.violated(at_us, f"node {member.node_id} has no vote and leads in epoch {after.epoch}")
        if after.leader_id >= 0:
            leader, who = self._believed.setdefault(after.epoch, (after.leader_id, member.node_id))
            if leader != after.leader_id:
                self.violated(
                    at_us,
                    f"epoch {after.epoch}: node {who} follows {leader}, node {member.node_id} {after.leader_id}",
                )


class MonotonicEpoch(QuorumCheck):
    """monotonic-epoch: a node's epoch never goes back within a process, nor over restarts below an epoch it acted in.

    A node acts in an epoch when it leads, follows a leader, or votes. Such an epoch was durable before. A process that
    ends on the way into an epoch may forget it.
    """

    guarantee = "monotonic-epoch"
    judges_recordings = True
    rows = ("voted",)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._acted: dict[tuple[int, int], int] = {}
        """By node and number of its directory. Physical: a node with another directory cannot remember."""

    def trace(self, row: TraceRow) -> None:
        self._acts(self.quorum.nodes[row.node], fields_of(row)["epoch"])

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if before.incarnation == after.incarnation:
            if after.epoch < before.epoch:
                self.violated(at_us, f"node {member.node_id} went back from epoch {before.epoch} to {after.epoch}")
        elif after.epoch < self._acted.get(self._who(member), -1):
            self.violated(
                at_us,
                f"node {member.node_id} came back in epoch {after.epoch}, although it had acted in epoch "
                f"{self._acted[self._who(member)]}",
            )
        if after.leads or after.leader_id >= 0:
            self._acts(member, after.epoch)

    def _acts(self, member: Member, epoch: int) -> None:
        if epoch > self._acted.get(self._who(member), -1):
            self._acted[self._who(member)] = epoch

    def _who(self, member: Member) -> tuple[int, int]:
        return member.node_id, self.quorum.fault_times.directories.get(member.node_id, 0)


_Before = tuple[int, int]
NOTHING_KNOWN: _Before = (-1, -1)


class LogMatching(QuorumCheck):
    """log-matching: if two metadata logs have a batch of the same offset and epoch, they are equal up to that batch.

    The check works by induction. All logs with a batch of one (offset, epoch) must have the same bytes for it, and the
    same batch right before it. Within one log offsets follow each other and epochs never go back.
    """

    guarantee = "log-matching"
    judges_recordings = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_appended.append(self.appended)
        self._known: dict[tuple[int, int], tuple[BatchIdentity, _Before, int]] = {}

    def appended(self, at_us: int, member: Member, batches: Sequence[BatchIdentity]) -> None:
        if not batches:
            return
        last = self._before(member, batches[0])
        for batch in batches:
            before = NOTHING_KNOWN if last is None else (last.base_offset, last.epoch)
            if last is not None and (batch.base_offset != last.last_offset + 1 or batch.epoch < last.epoch):
                self.violated(at_us, f"node {member.node_id}: {batch.named} comes after {last.named}")
            self._match(at_us, member, batch, before)
            last = batch

    def _match(self, at_us: int, member: Member, batch: BatchIdentity, before: _Before) -> None:
        key = (batch.base_offset, batch.epoch)
        known = self._known.get(key)
        if known is None:
            self._known[key] = (batch, before, member.node_id)
            return
        other, known_before, who = known
        if other != batch:
            self.violated(at_us, f"node {who} holds {other.named}, node {member.node_id} {batch.named}")
        elif known_before == NOTHING_KNOWN:
            self._known[key] = (batch, before, member.node_id)
        elif before not in (NOTHING_KNOWN, known_before):
            self.violated(
                at_us,
                f"before {batch.named} node {who} holds offset {known_before[0]} of epoch {known_before[1]}, node "
                f"{member.node_id} offset {before[0]} of epoch {before[1]}",
            )

    @staticmethod
    def _before(member: Member, first: BatchIdentity) -> BatchIdentity | None:
        """Return the batch before ``first``, or None if the log begins here (or after a snapshot)."""
        last: BatchIdentity | None = None
        for batch in reversed(member.batches.values()):
            if batch.base_offset < first.base_offset:
                last = batch
                break
        start = member.seen.start_offset
        return last if last is not None and start < first.base_offset and last.last_offset >= start else None


class EpochsOfMetadata(QuorumCheck):
    """log-matching: a metadata log's leader epochs are those of its batches (KIP-101).

    By them a voter names the epoch of its last record, to the leader that it fetches from and to the voters whose votes
    it requests, and a leader finds where another log diverges (KIP-595).
    """

    guarantee = "log-matching"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_appended.append(self.appended)

    def appended(self, at_us: int, member: Member, batches: Sequence[BatchIdentity]) -> None:
        log = member.replica.log.log
        for batch in batches:
            self.evidence += 1
            if log.epoch_at(batch.base_offset) != batch.epoch:
                self.violated(
                    at_us,
                    f"node {member.node_id}: offset {batch.base_offset} is in epoch {log.epoch_at(batch.base_offset)}, "
                    f"and is {batch.named} (KIP-101)",
                )


class LeaderCompleteness(QuorumCheck):
    """leader-completeness: every later leader's log has the committed batches unchanged, and all nodes agree on them.

    A leader has all batches committed before the first leader of a later epoch. A node that was stopped may learn late
    that it was elected. By then a later leader may have committed more (in Raft, Leader Completeness is about leaders
    of higher terms).

    A log that starts at a snapshot is judged from the snapshot's end on. snapshot-equals-replay judges the snapshot
    itself.
    """

    guarantee = "leader-completeness"
    judges_recordings = True
    rows = ("truncated",)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._same_to: dict[int, int] = {}
        self._committed_at: dict[int, int] = {}
        """For each epoch, up to where batches were committed when its leader began."""

    def trace(self, row: TraceRow) -> None:
        fields = fields_of(row)
        if "partition" in fields:
            return  # It is not about the metadata log, but about a replica of that partition.
        offset, known = fields["offset"], self.quorum.nodes[row.node].seen.high_watermark
        if offset < known and offset < self._same_to.get(row.node, 0):
            self.violated(row.at_us, f"node {row.node} truncates to {offset}, below its high watermark {known}")

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if before.incarnation != after.incarnation:
            self._same_to[member.node_id] = 0
        if after.leads and not (before.leads and before.epoch == after.epoch):
            committed = self._committed_at.setdefault(after.epoch, self.quorum.committed_end)
            later = (end for epoch, end in self._committed_at.items() if epoch > after.epoch)
            self._compare(at_us, member, after.start_offset, min([committed, *later]), "leads and")
        committed = min(after.high_watermark, self.quorum.committed_end)
        checked = self._same_to.get(member.node_id, 0)
        if committed > checked:
            self._compare(at_us, member, max(checked, after.start_offset), committed, "raised its high watermark and")
            self._same_to[member.node_id] = committed

    def _compare(self, at_us: int, member: Member, start: int, end: int, who: str) -> None:
        held, offset = member.batches, start
        while offset < end:
            wanted = self.quorum.committed.get(offset)
            if wanted is None:
                # Physical: no live node had it as a batch any more when the view read it, but as a snapshot. So it is
                # not known what was there. snapshot-equals-replay judges the snapshot.
                offset = next((each for each in self.quorum.committed if each > offset), end)
                continue
            stored = held.get(offset)
            if stored != wanted:
                holds = "lacks" if stored is None else f"holds {stored.named} instead of"
                self.violated(at_us, f"node {member.node_id} {who} {holds} the committed {wanted.named}")
                return
            offset = wanted.last_offset + 1


class MajorityHighWatermark(QuorumCheck):
    """majority-high-watermark: a majority of the voters durably has all records below a leader's high watermark."""

    guarantee = "majority-high-watermark"
    judges_recordings = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        committed = after.high_watermark
        if not after.leads or committed <= before.high_watermark or committed <= self.quorum.committed_end:
            return
        holders = [node.node_id for node in self.quorum.nodes if node.is_voter and node.seen.synced >= committed]
        if len(holders) < self.quorum.majority:
            self.violated(
                at_us,
                f"leader {member.node_id} of epoch {after.epoch} committed up to {committed}, which is durable on "
                f"voters {holders} only, of {self.quorum.voters}",
            )


class MonotonicHighWatermark(QuorumCheck):
    """monotonic-high-watermark: the high watermark never goes back on a living process, nor from leader to leader."""

    guarantee = "monotonic-high-watermark"
    judges_recordings = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._by_leaders: tuple[int, int] = (-1, -1)
        """The last leader's epoch, and the high watermark of leaders of earlier epochs."""
        self._committed = -1

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        now = after.high_watermark
        if now < 0 or (now == before.high_watermark and after.leads == before.leads):
            return
        if before.incarnation == after.incarnation and now < before.high_watermark:
            self.violated(at_us, f"node {member.node_id}: it went back from {before.high_watermark} to {now}")
        if now > after.end_offset:
            self.violated(at_us, f"node {member.node_id}: {now} is beyond its log's end {after.end_offset}")
        if not after.leads:
            return
        epoch, earlier = self._by_leaders
        if after.epoch > epoch:
            epoch, earlier = self._by_leaders = (after.epoch, self._committed)
        # A new leader reports a high watermark only once a record of its own epoch is committed. That record is above
        # all earlier ones.
        if after.epoch == epoch and now < earlier and now != before.high_watermark:
            self.violated(at_us, f"leader {member.node_id} of epoch {epoch} says {now}, earlier leaders said {earlier}")
        self._committed = max(self._committed, now)


class HighWatermarkOfLeaders(QuorumCheck):
    """monotonic-high-watermark: a leader moves the high watermark only beyond its epoch's first record, and a follower
    only as far as some leader has.

    Raft 5.4.2 and KIP-595: a leader commits no record of an earlier epoch by counting replicas. It commits the first
    record of its own epoch, and with it all earlier ones. A follower takes the high watermark from responses of the
    leader of its epoch.
    """

    guarantee = "monotonic-high-watermark"
    acts_on = ("leader_elected", "high_watermark")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._starts: dict[int, int] = {}
        """by epoch: offset of the first record of its leader"""
        self._by_leaders: dict[int, int] = {}
        """by epoch: the greatest high watermark of its leader"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        """A leader may advance the high watermark, send it, and no longer lead when the event ends."""
        for effect in effects:
            if type(effect) is not Note:
                continue
            if effect.what == "leader_elected":
                fields = dict(effect.fields)
                self._starts[int(fields["epoch"])] = int(fields["start_offset"])
            elif effect.what == "high_watermark" and effect.fields[0][0] == "offset":  # Not that of a partition.
                seen = self.quorum.nodes[node.broker.node_id].seen
                if seen.leads:
                    self._led(seen.epoch, int(effect.fields[0][1]))

    def _led(self, epoch: int, high_watermark: int) -> None:
        self._by_leaders[epoch] = max(high_watermark, self._by_leaders.get(epoch, -1))

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        leads = after.leads or (before.leads and before.incarnation == after.incarnation)
        now, epoch = after.high_watermark, after.epoch if after.leads or not leads else before.epoch
        if leads:
            self._led(epoch, now)
        if now <= before.high_watermark:
            return
        self.evidence += 1
        if leads:
            start = self._starts.get(epoch, -1)
            if now <= start:
                self.violated(
                    at_us,
                    f"leader {member.node_id} of epoch {epoch} moves its high watermark to {now}, not beyond its first "
                    f"record at {start} (Raft 5.4.2)",
                )
        elif not any(now <= each for number, each in self._by_leaders.items() if number <= epoch):
            self.violated(
                at_us,
                f"node {member.node_id} in epoch {epoch} moves its high watermark to {now}, and no leader up to that "
                f"epoch has had it (KIP-595)",
            )
