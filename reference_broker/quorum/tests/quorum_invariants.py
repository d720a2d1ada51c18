"""Invariants after every event, whatever the nodes and the network do.

They are those of Kafka's RaftEventSimulationTest, and raft's own: log matching, leader completeness, one vote in an
epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.quorum.messages import read_vote_request, read_vote_response
from reference_broker.quorum.metadata_log import MetadataLog, Snapshots
from reference_broker.quorum.raft_client import KafkaRaftClient
from reference_broker.quorum.roles import Role
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.records.batch import iterate
from reference_broker.wire.apis import ApiKey


@dataclass(frozen=True)
class Entry:
    """A batch in a log, by its position; ``content`` without the fields that a log patches."""

    offset: int
    next_offset: int
    epoch: int
    content: bytes


@dataclass
class Seen:
    """The checked state of one node: its log as of the last check, and what its life has shown."""

    entries: list[Entry] = field(default_factory=list)
    start_offset: int = 0
    epoch: int = -1
    reported_epoch: int = -1
    high_watermark: int = -1
    leading: int | None = None


class Node(Protocol):
    """One life of a node, as far as the invariants check it."""

    node_id: int
    quorum: KafkaRaftClient
    log: MetadataLog

    @property
    def snapshots(self) -> Snapshots: ...
    @property
    def alive(self) -> bool: ...


class Invariants:
    """``committed``: batches below some high watermark, by offset.

    ``leaders``: by epoch. ``votes``: by (epoch, voter).
    """

    def __init__(self, node_ids: Sequence[int], voters: Sequence[int], processes: Mapping[int, Node]) -> None:
        self.voters = voters
        self.processes = processes
        self.seen: dict[int, Seen] = {node_id: Seen() for node_id in node_ids}
        self.known: dict[tuple[int, int], tuple[Entry, Entry | None]] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_end = 0
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.majorities = True
        """Off where a voter was wiped: then committed records are on fewer nodes."""

    # Lives

    def started(self, process: Node) -> None:
        seen = self.seen[process.node_id]
        seen.epoch = seen.high_watermark = -1
        seen.leading = None
        assert process.quorum.epoch >= seen.reported_epoch, "a durable epoch was lost"
        self._look(process, reopened=True)

    def ended(self, process: Node) -> None:
        assert process.alive or process.node_id in self.seen

    def wiped(self, node_id: int) -> None:
        self.seen[node_id] = Seen()
        self.majorities = False
        for key in [key for key in self.votes if key[1] == node_id]:
            del self.votes[key]

    # Notifications

    def leader_changed(self, process: Node, leader_id: int, epoch: int) -> None:
        seen = self.seen[process.node_id]
        assert epoch >= seen.reported_epoch, f"epoch {epoch} after {seen.reported_epoch}"
        seen.reported_epoch = epoch
        if leader_id >= 0:
            assert self.leaders.setdefault(epoch, leader_id) == leader_id, f"two leaders in epoch {epoch}"

    def leadership_won(self, process: Node, epoch: int, start_offset: int) -> None:
        assert self.leaders.setdefault(epoch, process.node_id) == process.node_id, f"two leaders in epoch {epoch}"
        seen = self.seen[process.node_id]
        assert seen.leading is None, "leadership is won twice"
        seen.leading = epoch
        self._look(process)
        assert start_offset >= self.committed_end, "a leader lacks committed records"
        if self.committed:
            last = max(self.committed)
            own = {entry.offset: entry for entry in seen.entries}
            if last >= seen.start_offset:
                assert own[last] == self.committed[last], f"leader {process.node_id} lacks committed offset {last}"

    def leadership_lost(self, process: Node, epoch: int) -> None:
        seen = self.seen[process.node_id]
        assert seen.leading == epoch, "leadership is lost that was not won"
        seen.leading = None

    def high_watermark_advanced(self, process: Node, high_watermark: int) -> None:
        seen = self.seen[process.node_id]
        assert high_watermark > seen.high_watermark, "the high watermark went back"
        seen.high_watermark = high_watermark
        self._look(process)
        for entry in reversed(seen.entries):
            if entry.next_offset > high_watermark:
                continue
            if self.committed.get(entry.offset) == entry:
                break
            assert self.committed.setdefault(entry.offset, entry) == entry, f"offset {entry.offset} is committed twice"
        self.committed_end = max(self.committed_end, high_watermark)
        if process.quorum.role is Role.LEADER and self.majorities:
            self._check_majority(high_watermark)

    def snapshot_installed(self, process: Node, snapshot: OffsetAndEpoch) -> None:
        assert process.quorum.role is Role.FOLLOWER, "only a follower loads a snapshot"
        assert snapshot.offset <= self.committed_end, "a snapshot beyond what is committed"
        seen = self.seen[process.node_id]
        seen.high_watermark = max(seen.high_watermark, snapshot.offset)

    def responded(self, process: Node, requester: int, api_key: int, request: object, body: object) -> None:
        if api_key != ApiKey.VOTE:
            return
        vote, response = read_vote_request(request), read_vote_response(body)
        if vote is not None and response is not None and response.granted and not vote.pre_vote:
            before = self.votes.setdefault((vote.epoch, process.node_id), requester)
            assert before == requester, f"node {process.node_id} votes twice in epoch {vote.epoch}"

    # After every event

    def check(self, process: Node) -> None:
        quorum, seen = process.quorum, self.seen[process.node_id]
        assert quorum.epoch >= seen.epoch, "the epoch went back"
        seen.epoch = quorum.epoch
        assert quorum.high_watermark == seen.high_watermark, "a high watermark that no listener got"
        if quorum.epoch_start_offset >= 0:
            assert self.leaders[quorum.epoch] == process.node_id, f"two leaders in epoch {quorum.epoch}"
        self._look(process)
        oldest = process.snapshots.oldest
        if process.log.start_offset > 0:
            assert oldest is not None, "the log begins where no snapshot ends"
            assert oldest.offset == process.log.start_offset, "the log begins where no snapshot ends"

    def _look(self, process: Node, reopened: bool = False) -> None:
        """Record the batches that the log gained and lost."""
        seen, log = self.seen[process.node_id], process.log
        if reopened:
            seen.entries = []
        end, start = log.end.offset, log.start_offset
        if start > seen.start_offset or reopened:
            seen.entries = [each for each in seen.entries if each.offset >= start]
            seen.start_offset = start
        while seen.entries and seen.entries[-1].next_offset > end:
            seen.entries.pop()
        offset = seen.entries[-1].next_offset if seen.entries else start
        before = seen.entries[-1] if seen.entries else None
        while offset < end:
            data = log.read(offset, 1 << 20, end)
            for position, header in iterate(data):
                content = bytes(data[position + 16 : position + header.size_bytes])
                entry = Entry(header.base_offset, header.last_offset + 1, header.leader_epoch, content)
                self._match(entry, before)
                seen.entries.append(entry)
                before, offset = entry, entry.next_offset

    def _match(self, entry: Entry, before: Entry | None) -> None:
        """Log matching: the same offset and epoch mean the same batch, after the same batch."""
        known, known_before = self.known.setdefault((entry.offset, entry.epoch), (entry, before))
        assert known == entry, f"two batches at offset {entry.offset} in epoch {entry.epoch}"
        if before is not None and known_before is not None:
            assert before == known_before, f"offset {entry.offset} of epoch {entry.epoch} follows on two batches"
        elif before is not None:
            self.known[entry.offset, entry.epoch] = (entry, before)
        assert before is None or before.epoch <= entry.epoch, "epochs go back in a log"

    def _check_majority(self, high_watermark: int) -> None:
        holding = 0
        for voter in self.voters:
            process = self.processes.get(voter)
            entries = self.seen[voter].entries
            end = entries[-1].next_offset if entries else self.seen[voter].start_offset
            durable = end if process is None else min(end, process.log.log.synced_offset)
            holding += durable >= high_watermark
        assert holding > len(self.voters) // 2, f"{holding} voters hold all below {high_watermark}"
