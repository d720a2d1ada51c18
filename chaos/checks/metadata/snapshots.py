"""Snapshots of the metadata log (KIP-630): their ends, their contents, and their transfer between nodes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from chaos.checks.check import Check, CheckContext, FetchCheck, Inspection, QuorumCheck, fields_of
from chaos.checks.history import History
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.quorum.quorum_view import Member, Seen
from chaos.checks.quorum.synced_before_sent import durable_bytes
from chaos.checks.sessions.fetch_model import CompletedFetch
from chaos.hooks.metadata_digest import ROW as PUBLISHED
from chaos.interceptor.watched_disk import WatchedDisk
from reference_broker.core.events import Closed, Effect, Event, Note, PeerReply, Reply, Request, Send
from reference_broker.metrics.metrics import Gauge, Histogram
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


class SnapshotAtLogStart(QuorumCheck):
    """snapshot-at-log-start: a log that does not begin at 0 has a snapshot that reaches its start.

    Each snapshot ends at a committed offset, in the epoch that the log has there.
    """

    guarantee = "snapshot-at-log-start"
    judges_recordings = True
    rows = ("snapshot_renamed", "snapshot_deleted", "download_finished")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_changed.append(self.changed)
        self._ids: dict[int, tuple[tuple[int, int], ...]] = {}

    def changed(self, at_us: int, member: Member, before: Seen, after: Seen) -> None:
        if after.start_offset == before.start_offset and after.incarnation == before.incarnation:
            return
        self._look(at_us, member)

    def trace(self, row: TraceRow) -> None:
        self._look(row.at_us, self.quorum.nodes[row.node])

    def end(self, history: History) -> None:
        for member in self.quorum.nodes:
            self._look(history.end_us, member)

    def _look(self, at_us: int, member: Member) -> None:
        replica: Any = member.replica
        if replica is None:
            return
        ids, start = tuple(replica.store.ids), replica.log.start_offset
        if start > 0 and not any(offset >= start for offset, _ in ids):
            self.violated(
                at_us, f"node {member.node_id}: its log begins at {start}, but there is no snapshot up to there: {ids}"
            )
        known = self._ids.get(member.node_id, ())
        self._ids[member.node_id] = ids
        for offset, epoch in ids:
            if (offset, epoch) not in known:
                self._valid(at_us, member, offset, epoch)

    def _valid(self, at_us: int, member: Member, offset: int, epoch: int) -> None:
        who = f"node {member.node_id}: snapshot ({offset}, {epoch})"
        if offset > self.quorum.committed_end:
            self.violated(at_us, f"{who} reaches beyond the committed end {self.quorum.committed_end}")
            return
        last = next((each for each in reversed(self.quorum.committed.values()) if each.base_offset < offset), None)
        if last is not None and (last.last_offset + 1 != offset or last.epoch != epoch):
            self.violated(at_us, f"{who} does not end where {last.named} does")


class SnapshotEqualsReplay(QuorumCheck):
    """snapshot-equals-replay: at each offset all nodes publish the same metadata, whatever snapshot and log they
    started from, and a digest that followed the deltas equals that of the whole image.
    """

    guarantee = "snapshot-equals-replay"
    judges_recordings = True
    rows = (PUBLISHED,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.quorum.on_recomputed.append(self.recomputed)
        self._published: dict[int, tuple[str, int, int]] = {}

    def trace(self, row: TraceRow) -> None:
        fields = fields_of(row)
        offset, digest, partitions = fields["offset"], fields["digest"], fields["partitions"]
        known = self._published.setdefault(offset, (digest, row.node, partitions))
        if known[0] != digest:
            self.violated(
                row.at_us,
                f"offset {offset}: node {known[1]} has {known[2]} partitions and digest {known[0]}, node {row.node} "
                f"has {partitions} and {digest}",
            )

    def recomputed(self, at_us: int, node_id: int, followed: int, whole: int) -> None:
        if followed != whole:
            self.violated(
                at_us, f"node {node_id}: the deltas lead to digest {followed:016x}, its image has {whole:016x}"
            )


class LeaderNeverLoadsSnapshot(QuorumCheck):
    """leader-never-loads-snapshot: a leader never loads a snapshot, its own or another's."""

    guarantee = "leader-never-loads-snapshot"
    judges_recordings = True
    rows = ("snapshot_loaded", "download_started", "download_finished")

    def trace(self, row: TraceRow) -> None:
        """A node may finish loading and be elected in one event, so it must lead both before and after the event."""
        member = self.quorum.nodes[row.node]
        if member.leads and member.replica.quorum.is_leader:
            self.violated(row.at_us, f"node {row.node} leads in epoch {member.seen.epoch}: {row.what} {row.detail}")


MAX_STARTED_DOWNLOADS = 3
"""No clause gives this number. S-15 keeps a superseded snapshot as long as its download advances, and S-10 lets a
leader name a newer one after each error. So two such changes are allowed for, and a download that never ends is red.
The newer ones may be larger, so their limit is their own size."""


DAMAGE = re.compile(r"\.checkpoint\.part at byte \d+")
"""The words with which a node describes an error inside a file that it has fetched."""


class _Source(NamedTuple):
    leader: int
    end_offset: int
    epoch: int


@dataclass(slots=True)
class _Spent:
    """Bytes fetched of one or more snapshots."""

    size: int = 0
    """size of these snapshots together, 0 while it is not known"""
    received: int = 0
    starts: int = 0
    """number of times that a fetch began"""
    chunk: int = 0
    """most bytes fetched at once"""

    def receive(self, size: int) -> None:
        self.received += size
        self.chunk = max(self.chunk, size)


@dataclass(slots=True)
class _Transfer:
    """The transfer from one source."""

    source: _Source
    incarnation: int
    held: int = 0
    """bytes in the partial file, by the node's notes"""
    durable: int = 0
    """bytes of them that were durable when the last chunk was requested"""
    spent: _Spent = field(default_factory=_Spent)


@dataclass(slots=True)
class _Catching:
    """A node between its first request for a snapshot and its first whole snapshot."""

    transfer: _Transfer | None = None
    spent: _Spent = field(default_factory=_Spent)
    """since the last change of the leader; its size is that of the first ``MAX_STARTED_DOWNLOADS`` ones with bytes"""
    begun: int = 0
    """number of those transfers"""


class SnapshotTransfer(Check):
    """snapshot-transfer-bounded: a download resumes at its position, has bytes of one snapshot of one leader, and ends.

    The check reads the downloading node's own notes. From one leader a node fetches at most a snapshot's size, plus one
    chunk for each restart (S-11). Until it has a whole snapshot it fetches from one leader at most the bytes of the
    first three snapshots that it began to download, plus a chunk for each of them, whatever snapshots appear meanwhile
    (S-15).
    """

    guarantee = "snapshot-transfer-bounded"
    rows: ClassVar[tuple[str, ...]] = ("download_started", "download_chunk", "download_finished", "download_discarded")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._nodes: dict[int, _Catching] = {}

    def trace(self, row: TraceRow) -> None:
        fields = fields_of(row)
        node = self._nodes.setdefault(row.node, _Catching())
        if row.what == "download_started":
            self._started(row, node, fields)
        elif row.what == "download_chunk":
            self._received(row, node, fields)
        elif row.what == "download_finished":
            del self._nodes[row.node]
        else:
            self._discarded(row, node, str(fields["why"]))

    def _started(self, row: TraceRow, node: _Catching, fields: Mapping[str, int]) -> None:
        source, position = _Source(fields["leader"], fields["end_offset"], fields["epoch"]), fields["position"]
        transfer = node.transfer
        if transfer is None or transfer.source != source:
            if position:
                held = "nothing" if transfer is None else f"{transfer.held} bytes of {transfer.source}"
                self.violated(row.at_us, f"{_name(row)} requests {source} from byte {position} and holds {held}")
            if transfer is not None and transfer.source.leader != source.leader:
                node.spent, node.begun = _Spent(), 0
            transfer = node.transfer = _Transfer(source, row.incarnation)
        elif position > transfer.held or (row.incarnation == transfer.incarnation and position < transfer.held):
            self.violated(
                row.at_us, f"{_name(row)} requests {source} from byte {position} and holds {transfer.held} bytes"
            )
        elif position < transfer.durable:
            self.violated(
                row.at_us,
                f"{_name(row)} requests {source} from byte {position}, and {transfer.durable} were durable (S-11)",
            )
        transfer.incarnation, transfer.held = row.incarnation, position
        transfer.spent.starts += 1
        node.spent.starts += 1

    def _received(self, row: TraceRow, node: _Catching, fields: Mapping[str, int]) -> None:
        self.evidence += 1
        transfer, position, size = node.transfer, fields["position"], fields["bytes"]
        if transfer is None:
            self.violated(row.at_us, f"{_name(row)} got {size} bytes at {position} that it did not request")
            return
        if position != transfer.held:
            self.violated(
                row.at_us, f"{_name(row)} holds {transfer.held} bytes of {transfer.source} and took those at {position}"
            )
        transfer.held, transfer.durable = position + size, position
        if not transfer.spent.received and node.begun < MAX_STARTED_DOWNLOADS:
            node.begun += 1
            node.spent.size += max(fields["size"], 0)  # KIP-630's earlier layout has no size: -1.
        transfer.spent.size = max(transfer.spent.size, fields["size"])
        transfer.spent.receive(size)
        node.spent.receive(size)
        self._bounded(row, f"of {transfer.source}", transfer.spent)
        self._bounded(row, "until it has one", node.spent)

    def _discarded(self, row: TraceRow, node: _Catching, why: str) -> None:
        if DAMAGE.search(why):  # S-10: a file with bytes of one snapshot of one leader is whole.
            self.violated(row.at_us, f"{_name(row)} put together a damaged snapshot: {why}")
        if node.transfer is not None:
            node.transfer.held = node.transfer.durable = 0

    def _bounded(self, row: TraceRow, what: str, spent: _Spent) -> None:
        most = spent.size + spent.starts * spent.chunk
        if spent.size and spent.received > most:
            explanation = (
                f"{_name(row)} fetched {spent.received} bytes {what}, in {spent.starts} starts; at most {most}"
            )
            self.violated(row.at_us, explanation)


def _name(row: TraceRow) -> str:
    return f"node-{row.node} (incarnation {row.incarnation})"


FETCH = 1
FETCH_SNAPSHOT = 59
DRAFT = 1000
METADATA = ("__cluster_metadata", 0)
METADATA_ID = (1).to_bytes(16, "big")
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_PARTITION = 3
NOT_LEADER = 6
FENCED_EPOCH = 74
UNKNOWN_EPOCH = 75
SNAPSHOT_NOT_FOUND = 98
POSITION_OUT_OF_RANGE = 99
EXCUSED = (8, 56, 104)
"""BROKER_NOT_AVAILABLE, KAFKA_STORAGE_ERROR, INCONSISTENT_CLUSTER_ID."""


_Id: TypeAlias = tuple[int, int]
"""End offset and epoch."""


class _SnapshotRequest(NamedTuple):
    place: tuple[str, int]
    epoch: int
    snapshot: tuple[int, int]
    position: int
    max_bytes: int


class _SnapshotResponse(NamedTuple):
    """The fields of a response about the snapshot."""

    error: int
    position: int
    data: bytes
    size: int
    """-1 in the draft, which has ``more`` instead"""
    more: bool
    """whether anything remains"""


class SnapshotResponses(FetchCheck):
    """snapshot-responses-exact: each request for bytes of a snapshot gets those bytes, or the error that fits it.

    KIP-630, FetchSnapshot: only the metadata log has snapshots (S-13), so any other partition is unknown. A node that
    does not lead responds with NOT_LEADER_OR_FOLLOWER (S-7), or with the error for an older or newer epoch than its
    own. The leader responds with SNAPSHOT_NOT_FOUND (S-5), or with POSITION_OUT_OF_RANGE (S-6). Otherwise it sends
    bytes from the position on (S-2, S-3), with the size of the snapshot, or whether more bytes remain (S-4). Fetch
    responses to clients name no snapshot (S-13).

    Some cases are excused: a node in shutdown does not respond (KIP-595), damaged bytes are not served (S-9), and a
    node does not respond to requests that do not name its cluster.
    """

    guarantee = "snapshot-responses-exact"
    needs_one_node = True
    acts_on = (FETCH_SNAPSHOT, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[_SnapshotRequest]()
        """by node and connection, then by correlation ID"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == FETCH_SNAPSHOT:
            request = _read_request(event.body)
            if request is not None:
                self._pending.add(node_id, event, request)
        for effect in effects:
            if type(effect) is Reply and effect.api_key == FETCH_SNAPSHOT:
                completed = self._pending.pop(node_id, effect)
                response = _read_response(effect.body)
                if completed is not None and response is not None:
                    wrong = _wrong(node.broker.quorum_node, completed, response, effect.api_version == DRAFT)
                    if wrong:
                        explanation = (
                            f"node-{node_id}, fetch of {completed.place[0]}, snapshot {completed.snapshot} from byte"
                        )
                        self.violated(
                            at_us, f"{explanation} {completed.position} in epoch {completed.epoch}; response: {wrong}"
                        )

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        for named, data in fetch.data.items():
            if data.snapshot_id is not None and named[0] != METADATA[0]:
                topic = named[0] if isinstance(named[0], str) else named[0].hex()
                self.violated(at_us, f"{fetch.client_id} was sent snapshot {data.snapshot_id} of {topic}-{named[1]}")


class SnapshotRequested(Check):
    """snapshot-transfer-bounded: a follower requests the snapshot that its leader named last, in its own epoch, from
    the end of what it holds durably (S-8, S-10, S-11).
    """

    guarantee = "snapshot-transfer-bounded"
    acts_on = (PeerReply, (Send, FETCH_SNAPSHOT), type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._named: dict[int, dict[int, _Id]] = {}
        """by node, then by peer: the last snapshot that a response of the peer has named"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._named.pop(node_id, None)
        elif type(event) is PeerReply:
            named = _named_snapshot(event.body)
            if named is not None:
                self._named.setdefault(node_id, {})[event.peer] = named
        for effect in effects:
            if type(effect) is Send and effect.api_key == FETCH_SNAPSHOT:
                self._judge(at_us, node, effect)

    def _judge(self, at_us: int, node: "Node", effect: Send) -> None:
        request = _read_request(effect.body)
        if request is None:
            return
        self.evidence += 1
        node_id, wrong = node.broker.node_id, ""
        named, epoch = self._named.get(node_id, {}).get(effect.peer), node.broker.quorum_node.quorum.epoch
        disk, part = node.broker.disk, f"{_path(*request.snapshot)}.part"
        with WatchedDisk.unwatched():
            held = disk.size(part) if disk.exists(part) else 0
        durable = durable_bytes(node, part)
        if request.snapshot != named:
            wrong = f"it had named {named} (S-10)"
        elif request.epoch != epoch:
            wrong = f"the node is in epoch {epoch} (S-7)"
        elif request.position != held:
            wrong = f"the node holds {held} bytes (S-8, S-11)"
        elif request.position > len(durable or b""):
            wrong = f"a power loss would leave it {len(durable or b'')} bytes (S-11)"
        if wrong:
            self.violated(
                at_us,
                f"node {node_id} requests snapshot {request.snapshot} of node {effect.peer} from byte "
                f"{request.position} in epoch {request.epoch}, and {wrong}",
            )


def _named_snapshot(body: Any) -> _Id | None:
    """Return the snapshot that a response to a fetch of the metadata log names, or None."""
    topics: Any = getattr(body, "responses", ())
    if len(topics) != 1 or getattr(topics[0], "topic_id", None) != METADATA_ID or len(topics[0].partitions) != 1:
        return None
    named = topics[0].partitions[0].snapshot_id
    return None if named is None else (int(named.end_offset), int(named.epoch))


def _path(end_offset: int, epoch: int) -> str:
    """Return where a snapshot is (KIP-630)."""
    return f"{METADATA[0]}-{METADATA[1]}/{end_offset:020d}-{epoch:010d}.checkpoint"


LOG_DELETED, DELETED, RENAMED, INSTALLED = (
    "log_deleted_before",
    "snapshot_deleted",
    "snapshot_renamed",
    "download_finished",
)


class SnapshotsKept(Check):
    """snapshot-at-log-start: a node deletes only records that a durable snapshot contains (S-9, S-15).

    - The log is deleted only before the end of a snapshot whose name and bytes are durable.
    - The newest snapshot is never deleted. A superseded one stays for the time of the setting of S-15 (60 s), and while
      a follower receives further bytes of it. A node that installs a download deletes its older ones at once.

    Physical: a power loss may undo a deletion, which the node repeats after its restart.
    """

    guarantee = "snapshot-at-log-start"
    acts_on = (LOG_DELETED, DELETED, RENAMED, INSTALLED, FETCH_SNAPSHOT, Closed, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[_SnapshotRequest]()
        self._named_us: dict[int, dict[_Id, int]] = {}
        """by node: when each of its snapshots got its name"""
        self._gone: dict[int, set[_Id]] = {}
        """by node: the snapshots that it has deleted"""
        self._reached: dict[int, dict[tuple[int, _Id], int]] = {}
        """by node, then by connection and snapshot: the greatest position from which bytes were sent"""
        self._advanced_us: dict[int, dict[_Id, int]] = {}
        """by node, then by snapshot: when a response had bytes from a greater position, and more remained"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
            self._reached[node_id], self._advanced_us[node_id] = {}, {}
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and event.api_key == FETCH_SNAPSHOT:
            request = _read_request(event.body)
            if request is not None:
                self._pending.add(node_id, event, request)
        installs = False
        for effect in effects:
            if type(effect) is Reply and effect.api_key == FETCH_SNAPSHOT:
                self._served(at_us, node_id, effect)
            elif type(effect) is Note and effect.what in self.acts_on:
                fields = dict(effect.fields)
                installs |= effect.what == INSTALLED
                if effect.what == LOG_DELETED:
                    self._log_deleted(at_us, node, int(fields["offset"]))
                elif effect.what == INSTALLED:
                    self._log_deleted(at_us, node, node.broker.quorum_node.log.start_offset)
                else:
                    snapshot = int(fields["end_offset"]), int(fields["epoch"])
                    gone = self._gone.setdefault(node_id, set())
                    if effect.what == RENAMED:
                        self._named_us.setdefault(node_id, {})[snapshot] = at_us
                        gone.discard(snapshot)
                        continue
                    if node.listening and not installs and snapshot not in gone:
                        self._deleted(at_us, node, snapshot)
                    gone.add(snapshot)

    def _served(self, at_us: int, node_id: int, reply: Reply) -> None:
        request, response = self._pending.pop(node_id, reply), _read_response(reply.body)
        if request is None or response is None or response.error or not response.data:
            return
        remains = response.more if response.size < 0 else request.position + len(response.data) < response.size
        reached, key = self._reached.setdefault(node_id, {}), (reply.connection, request.snapshot)
        if request.position > reached.get(key, -1):
            reached[key] = request.position
            if remains:
                self._advanced_us.setdefault(node_id, {})[request.snapshot] = at_us
            else:
                self._advanced_us.get(node_id, {}).pop(request.snapshot, None)

    def _log_deleted(self, at_us: int, node: "Node", offset: int) -> None:
        self.evidence += 1
        store = node.broker.quorum_node.store
        for each in store.ids:
            if each[0] >= offset:
                data = durable_bytes(node, _path(*each))
                if data is not None and len(data) == store.size(each):
                    return
        self.violated(
            at_us,
            f"node {node.broker.node_id} deletes its log before {offset}, and a power loss would leave it no snapshot "
            f"that reaches there, of {[tuple(each) for each in store.ids]} (S-9, S-15)",
        )

    def _deleted(self, at_us: int, node: "Node", snapshot: _Id) -> None:
        self.evidence += 1
        node_id, config = node.broker.node_id, node.broker.config
        who = f"node {node_id} deletes its snapshot {snapshot}"
        newer = [tuple(each) for each in node.broker.quorum_node.store.ids if tuple(each) > snapshot]
        if not newer:
            self.violated(at_us, f"{who}, which is its newest (S-15)")
            return
        keep_us = config.crucible_metadata_snapshot_keep_ms * 1000
        named = [at for each, at in self._named_us.get(node_id, {}).items() if each > snapshot]
        if named and at_us < min(named) + keep_us:
            self.violated(at_us, f"{who} {at_us - min(named)} us after a newer one, and keeps it {keep_us} us (S-15)")
        patience_us = min(keep_us, config.controller_quorum_fetch_timeout_ms * 1000)
        advanced_us = self._advanced_us.get(node_id, {}).get(snapshot, -patience_us)
        if at_us < advanced_us + patience_us:
            self.violated(at_us, f"{who} {at_us - advanced_us} us after a follower got further bytes of it (S-15)")


def _read_request(body: Any) -> _SnapshotRequest | None:
    """Return None for a request that does not name one partition."""
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1:
        return None
    (partition,) = body.topics[0].partitions
    snapshot = int(partition.snapshot_id.end_offset), int(partition.snapshot_id.epoch)
    place = str(body.topics[0].name), int(partition.partition)
    return _SnapshotRequest(
        place, int(partition.current_leader_epoch), snapshot, int(partition.position), int(body.max_bytes)
    )


def _read_response(body: Any) -> _SnapshotResponse | None:
    """Return None for a response with an error of the whole request."""
    if int(body.error_code):
        return None
    (partition,) = body.topics[0].partitions
    if hasattr(partition, "more"):
        return _SnapshotResponse(
            int(partition.error_code), int(partition.position), bytes(partition.data), -1, bool(partition.more)
        )
    data = bytes(partition.unaligned_records or b"")
    return _SnapshotResponse(int(partition.error_code), int(partition.position), data, int(partition.size), False)


def _wrong(replica: Any, request: _SnapshotRequest, response: _SnapshotResponse, is_draft: bool) -> str:
    """Return what is wrong with the response, or nothing."""
    if response.error in EXCUSED:
        return ""
    must = _error(replica, request, is_draft)
    if response.error != must:
        return f"error {response.error}, not {must}"
    if must or request.place != METADATA:
        return ""
    held = {tuple(each): each for each in replica.store.ids}[request.snapshot]
    size, end = replica.store.size(held), request.position + len(response.data)
    with WatchedDisk.unwatched():
        there = bytes(replica.store.read(held, request.position, len(response.data)))
    if response.position != request.position or response.data != there:
        return f"{len(response.data)} bytes from {response.position} on that are not those of the snapshot"
    if len(response.data) > max(request.max_bytes, 0):
        return f"{len(response.data)} bytes, more than {request.max_bytes}"
    if response.size >= 0:
        return "" if response.size == size else f"size {response.size}, and the snapshot has {size} bytes"
    if response.more == (end < size):
        return ""
    return f"{'more' if response.more else 'nothing'} remains after {end}"


def _error(replica: Any, request: _SnapshotRequest, is_draft: bool) -> int:
    """The error that the request must get; 0 if there is none."""
    quorum = replica.quorum
    if request.place != METADATA:
        return UNKNOWN_PARTITION
    if request.epoch != quorum.epoch:
        return FENCED_EPOCH if request.epoch < quorum.epoch else UNKNOWN_EPOCH
    if not quorum.is_leader:
        return NOT_LEADER
    held = {tuple(each): each for each in replica.store.ids}.get(request.snapshot)
    if held is None:
        return SNAPSHOT_NOT_FOUND
    size = replica.store.size(held)
    if is_draft:
        return 0 if 0 <= request.position <= size else OFFSET_OUT_OF_RANGE
    return 0 if 0 <= request.position < size else POSITION_OUT_OF_RANGE


STARTED, LOADED, DAMAGED = "snapshot_started", "snapshot_loaded", "snapshot_damaged"


@dataclass(slots=True)
class _Snapshots:
    """The snapshots of one process of a node."""

    node: "Node"
    seen_from_start: bool
    """false for a live node, which is seen only from when it takes part in the quorum"""
    held: tuple[_Id, ...] = ()
    started_us: dict[_Id, int] = field(default_factory=dict)
    """when the node began to make each"""
    made: int = 0
    """number of complete ones"""
    made_ms: int = 0
    """what they took together"""
    loaded: int = 0
    is_damaged: bool = False
    metrics: tuple[Gauge, Histogram, Histogram] | None = None


class SnapshotMetricsExact(Check):
    """snapshot-metrics-exact: the three metrics of KIP-630 count the snapshots that the node made, loaded and has.

    ``SnapshotSizeBytes`` is the size of the newest snapshot of the node. ``GenSnapshotLatencyMs`` has an entry for each
    snapshot that the node has made, and ``LoadSnapshotLatencyMs`` one for each that it has loaded (S-14). The duration
    of an attempt is known from the note of its start and the event after which the snapshot is there.

    The duration of a snapshot that replaces a damaged one of the same ID is not judged, since nothing shows its
    completion.
    """

    guarantee = "snapshot-metrics-exact"
    inspection = Inspection.AFTER_EVENTS
    needs_one_node = True
    acts_on = (STARTED, LOADED, DAMAGED, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._nodes: dict[int, _Snapshots] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        known = self._nodes.get(node_id)
        if known is None or known.node is not node:
            known = self._nodes[node_id] = _Snapshots(node, seen_from_start=event is None)
        for effect in effects:
            if type(effect) is not Note:
                continue
            if effect.what == STARTED:
                fields = dict(effect.fields)
                known.started_us[int(fields["end_offset"]), int(fields["epoch"])] = at_us
            elif effect.what == LOADED:
                known.loaded += 1
            elif effect.what == DAMAGED:
                known.is_damaged = True

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        known = self._nodes.get(node.broker.node_id)
        if known is None or not node.listening:
            return
        store = node.broker.quorum_node.store
        ids = tuple(store.ids)
        if ids != known.held:
            for each in ids:
                if each not in known.held and each in known.started_us:
                    known.made += 1
                    known.made_ms += (at_us - known.started_us[each]) // 1000
            known.held = ids
        if known.metrics is None:
            known.metrics = _metrics(node)
            if not known.seen_from_start:
                known.loaded = known.metrics[2].count
        size, made, loaded = known.metrics
        newest = store.size(ids[-1]) if ids else 0
        if size.value != newest:
            self.violated(at_us, f"SnapshotSizeBytes is {size.value}, and the newest snapshot has {newest} bytes")
        if not known.is_damaged and (made.count != known.made or made.sum != known.made_ms):
            shown = f"GenSnapshotLatencyMs has {made.count} entries of {made.sum} ms"
            self.violated(at_us, f"{shown}; the node made {known.made} in {known.made_ms} ms")
        if loaded.count != known.loaded:
            self.violated(
                at_us, f"LoadSnapshotLatencyMs has {loaded.count} entries, and the node loaded {known.loaded}"
            )


def _metrics(node: "Node") -> tuple[Gauge, Histogram, Histogram]:
    metrics, names = node.broker.metrics, ("kafka.controller", "KafkaController")
    return (
        metrics.gauge(*names, "SnapshotSizeBytes"),
        metrics.histogram(*names, "GenSnapshotLatencyMs"),
        metrics.histogram(*names, "LoadSnapshotLatencyMs"),
    )
