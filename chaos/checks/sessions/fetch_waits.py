"""Parked fetches: when a Fetch must wait, and what ends its wait.

``fetch_model.py`` has the partitions of each request and of its session. They are compared with the node's logs after
each event that touched one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from chaos.checks.check import CheckContext, FetchCheck, ReplicaCheck
from chaos.checks.log.batches import batches_of, read_batches, record_count
from chaos.checks.metadata.metadata_transactions import PUBLISHED_WITHIN_US, SLICED_WITHIN_US
from chaos.checks.replication.replica_view import is_settled
from chaos.checks.sessions.fetch_model import (
    EVICTED,
    FETCH,
    CompletedFetch,
    PartitionName,
    PendingFetch,
    Session,
    WantedPartition,
)
from chaos.checks.sessions.fetch_partitions import end_of_epoch
from chaos.checks.sessions.fetch_responses import LOOKS_AT_ONCE, selects
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import MetadataImage
from reference_broker.records.batch import InvalidRecords
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node

SOON_US = 100_000
"""Time from the reason for a response to the response. Physical: a fetch of many partitions takes several events, and
the simulator adds up to 2 ms to each."""
CLOSED = "session_closed"


class Readable(NamedTuple):
    """The response that a parked fetch could get now. Both byte counts take each partition up to its limit."""

    of_records: int
    """bytes, without batches that the cleaner has emptied, and without partitions at rest (``_rests``)"""
    of_batches: int
    failing: dict[PartitionName, None]
    is_unknown: bool = False
    """whether records must come from the remote tier, or the log cannot be read"""


_Key: TypeAlias = tuple[int, int]
"""Connection and correlation ID."""
_Watched: TypeAlias = tuple[Partition | None, int, UnifiedLog | None]
"""The partition that serves, its leader epoch, and its log."""


@dataclass(slots=True)
class Wait:
    """A fetch that got no response in the event of its request."""

    at_us: int
    soon_us: int
    node: "Node"
    fetch: PendingFetch
    completed: CompletedFetch
    """the fetch with an empty response, to look up its partitions"""
    watched: list[tuple[PartitionName, _Watched]] = field(default_factory=list)
    failing: dict[PartitionName, None] | None = None
    """partitions that failed already when the wait began; None before the first comparison"""
    why: str = ""
    """reason to respond, or nothing"""
    by_role: bool = False
    """whether ``why`` follows from a publication that the node was still applying"""
    found_us: int = 0
    """when ``why`` was first true"""
    since_us: int = 0
    """time from which the node must act on it"""
    over: bool = False
    """whether its session has ended or has accepted a later request"""
    may_end: bool = False
    """whether there has been any reason to end the wait"""
    awaits_tier: bool = False
    """whether the remote tier's own limit applies (KIP-1018)"""
    is_reported: bool = False
    late_us: int = field(init=False)
    """latest time of the response if nothing else ends the wait"""

    def __post_init__(self) -> None:
        self.late_us = self.at_us + self.fetch.max_wait_ms * 1000 + self.soon_us


class FetchWaits(ReplicaCheck, FetchCheck):
    """responses-after-heal: a parked fetch gets its response as soon as there is a reason, and no earlier.

    Protocol guide: a response comes once ``min_bytes`` can be sent, or after ``max_wait_ms``. It comes at once if a
    partition has an error: this node no longer serves it, the leader epoch in the request is no longer the leader's,
    the offset is out of range, or the logs diverge (KIP-320). An error that the session's last response has reported
    already ends a wait only if the request names its partition. In the first revision, records that the previous
    response had end no wait, unless the request names their partition, or more records follow them (G-3, G-5). A
    repeated request gets them again (G-6). By F-3 and G-3 a client that sends the next request of
    its session no longer awaits the previous response. So a session's next request, or its end (F-9), ends the wait.

    A consumer must not get a response earlier, because it would fetch in a busy loop. A follower may, because it can
    then name a new partition.

    Physical: records of the remote tier come when the store delivers them. A consumer with a rack may be redirected to
    another node (KIP-392). Fetches of more than 64 partitions are not judged, because comparing them costs too much.
    """

    guarantee = "responses-after-heal"
    judges_followers = True
    acts_on = (FETCH, Closed, EVICTED, CLOSED, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_viewed.append(self.viewed)
        context.replicas.on_logs_touched.append(self.logs_touched)
        self._waits: dict[int, dict[_Key, Wait]] = {}
        """by node"""
        self._touched: Sequence[UnifiedLog] = ()
        self._replied: list[_Key] = []
        self._request: tuple[int, Request] | None = None
        """a fetch that came in the current event, with its time"""
        self._ended: list[int] = []
        """IDs of the sessions that ended in it, or went on with another request"""
        self._roles: dict[int, tuple[Node, MetadataImage, bool]] = {}
        """by node: its process, its image, and whether it was settled when roles were compared last"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._replied, self._request, self._ended = [], None, []
        waits = self._waits.setdefault(node_id, {})
        if type(event) is Closed:
            for key in [key for key in waits if key[0] == event.connection]:
                del waits[key]
        elif type(event) is Request and event.api_key == FETCH:
            self._request = at_us, event
        for effect in effects:
            if type(effect) is Reply and effect.api_key == FETCH:
                self._replied.append((effect.connection, effect.correlation_id))
            elif type(effect) is Note and effect.what in (EVICTED, CLOSED):
                self._ended.append(int(dict(effect.fields)["session_id"]))

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        self._touched = touched

    # Responses

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        request, reply = fetch.request, fetch.reply
        assert reply is not None
        if request.is_first:
            _note_sent(fetch)
        wait = self._waits.get(fetch.node.broker.node_id, {}).get((reply.connection, reply.correlation_id))
        if self._is_newer(request, (reply.connection, reply.correlation_id)):
            self._ended.append(request.session_id)
        since_us = at_us if wait is None else wait.at_us
        if request.by_follower or at_us - since_us >= request.max_wait_ms * 1000 or (wait is not None and wait.may_end):
            return
        if not self._is_judged(fetch.node, request) or not request.partitions:
            return
        if self._request is not None and request.is_first:
            return  # G-3: a request that is sent again ends the first one, and both get responses.
        if any(
            data.error_code or data.diverging_epoch is not None or data.preferred_read_replica >= 0
            for data in fetch.data.values()
        ):
            return
        self.evidence += 1
        available = readable(fetch, {name: fetch.served(name) for name in request.partitions})
        needed = min(request.min_bytes, request.max_bytes)
        if available.of_batches < needed and not available.is_unknown and not available.failing:
            self.violated(
                at_us,
                f"node-{fetch.node.broker.node_id} responded to {fetch.client_id}, session {request.session_id}, "
                f"request {request.number} after {(at_us - since_us) // 1000} ms with {available.of_batches} bytes, "
                f"and it waits for {needed} or for {request.max_wait_ms} ms",
            )

    # Waits

    def viewed(self, at_us: int, node: "Node") -> None:
        touched, self._touched = self._touched, ()
        waits = self._waits.get(node.broker.node_id)
        if waits is None:
            return
        if self._request is not None or self._replied or self._ended:
            self._follow(at_us, node, waits)
        judged = [wait for wait in waits.values() if wait.node is node and not wait.is_reported]
        if not judged:
            return
        may_be_touched = self._may_have_moved(node) or bool(touched)
        for wait in judged:
            has_moved = may_be_touched and self._has_moved(wait)
            is_touched = bool(touched) and any(log in touched for _, (_, _, log) in wait.watched)
            if wait.failing is None or has_moved or is_touched:
                self._compare(at_us, wait, by_role=not wait.over and has_moved and not is_settled(node))
            if wait.why or at_us > wait.late_us:  # Mostly neither: most events of a node concern no wait.
                self._judge(at_us, wait)

    def _judge(self, at_us: int, wait: Wait) -> None:
        within_us = SLICED_WITHIN_US if self.context.settings.slices_us else PUBLISHED_WITHIN_US
        if wait.by_role and not is_settled(wait.node) and at_us - wait.found_us <= within_us:
            # Physical: a large publication takes several events, and only its end notifies parked fetches.
            wait.since_us = at_us
        if wait.why and at_us - wait.since_us > wait.soon_us:
            self._overdue(at_us, wait, wait.since_us, wait.why)
        if at_us > wait.late_us and not wait.awaits_tier:
            self._overdue(at_us, wait, wait.late_us - wait.soon_us, "max_wait_ms have passed")

    def _follow(self, at_us: int, node: "Node", waits: dict[_Key, Wait]) -> None:
        """Follow the requests, the responses and the ends of sessions of an event."""
        for key in self._replied:
            done = waits.pop(key, None)
            if done is not None and done.node is node:
                self._judge(at_us, done)
        if self._request is not None:
            came_us, event = self._request
            request = self.context.fetches.pending(node.broker.node_id, event)
            if request is not None:
                key = (event.connection, event.correlation_id)
                if self._is_newer(request, key):
                    self._ended.append(request.session_id)
                if self._is_judged(node, request):
                    completed = CompletedFetch(node, "", request.session_id, Session(), request, False, {})
                    waits[key] = Wait(came_us, SOON_US + self.context.settings.slices_us, node, request, completed)
        for session_id in self._ended:
            for key, wait in waits.items():
                if wait.fetch.session_id == session_id and wait.node is node:
                    newest = self._request is not None and key == (
                        self._request[1].connection,
                        self._request[1].correlation_id,
                    )
                    if not newest:
                        wait.over = True
                        wait.failing = None
        for key in [key for key, wait in waits.items() if wait.node is not node]:
            del waits[key]
        self._replied, self._request, self._ended = [], None, []

    def _is_newer(self, request: PendingFetch, key: _Key) -> bool:
        """Return whether the request came in this event, and its session accepted it."""
        if self._request is None or not request.session_id:
            return False
        event = self._request[1]
        return key == (event.connection, event.correlation_id) and (request.incremental or request.is_first)

    @staticmethod
    def _is_judged(node: "Node", request: PendingFetch) -> bool:
        return len(request.partitions) <= LOOKS_AT_ONCE and not (
            request.rack and node.broker.config.replica_selector_class
        )

    def _may_have_moved(self, node: "Node") -> bool:
        """Return whether the event may have changed which partitions the node serves. Only publications do that, and
        those may take several events."""
        if not node.ready:
            return False  # It serves nothing yet, and has no image.
        node_id, image, settled = node.broker.node_id, node.broker.quorum_node.loader.image, is_settled(node)
        known = self._roles.get(node_id)
        if known is not None and known[0] is node and known[1] is image and known[2] and settled:
            return False
        self._roles[node_id] = node, image, settled
        return True

    @staticmethod
    def _has_moved(wait: Wait) -> bool:
        """Return whether the node serves one of the partitions that it did not serve, or in another way."""
        for name, (partition, epoch, _) in wait.watched:
            if partition is None:
                if wait.completed.served(name) is not None:
                    return True
            elif partition.is_removed or partition.leader_epoch != epoch:
                return True
        return False

    def _compare(self, at_us: int, wait: Wait, *, by_role: bool) -> None:
        """Compare a wait with the state of its partitions. ``by_role`` says that these are served in another way since
        a publication that the node still applies."""
        fetch = wait.completed
        served = {name: fetch.served(name) for name in wait.fetch.partitions}
        wait.watched = [
            (name, (None, -1, None) if partition is None else (partition, partition.leader_epoch, partition.log))
            for name, partition in served.items()
        ]
        available = readable(fetch, served)
        if wait.failing is None:
            # A session sends an error for as long as it lasts, and that is no reason to end a wait. After an error
            # ``sent`` is None until the next response (``IncrementalExact``).
            wait.failing = {
                name: None
                for name, partition in wait.fetch.partitions.items()
                if name not in wait.fetch.named and (name in available.failing or partition.sent is None)
            }
        new = [name for name in available.failing if name not in wait.failing]
        needed = min(wait.fetch.min_bytes, wait.fetch.max_bytes)
        why = ""
        if wait.over:
            why = "its session has ended or has accepted a later request"
        elif new:
            why = f"partition {_described(new[0])} fails since"
        elif available.of_records >= needed and not available.is_unknown:
            why = f"{available.of_records} bytes are there and it waits for {needed}"
        wait.may_end = (
            wait.may_end or bool(why or available.failing or available.is_unknown) or available.of_batches >= needed
        )
        wait.awaits_tier = available.is_unknown
        if not why or available.is_unknown:
            wait.why, wait.by_role = "", False
        elif not wait.why:
            wait.why, wait.by_role, wait.found_us, wait.since_us = why, by_role, at_us, at_us

    def _overdue(self, at_us: int, wait: Wait, since_us: int, why: str) -> None:
        node_id = wait.node.broker.node_id
        since_us = max(since_us, self.context.quorum.fault_times.nodes.get(node_id, 0))
        if at_us - since_us > wait.soon_us and not wait.is_reported:
            wait.is_reported = True
            self.violated(
                at_us,
                f"node-{node_id} has not responded to session {wait.fetch.session_id}, request {wait.fetch.number}, "
                f"which came at {wait.at_us} us, for {(at_us - since_us) // 1000} ms, although {why}",
            )


def _described(name: PartitionName) -> str:
    topic, index = name
    return f"{topic if isinstance(topic, str) else topic.hex()}-{index}"


def readable(fetch: CompletedFetch, served: Mapping[PartitionName, Partition | None]) -> Readable:
    """Return what the fetch could be sent from the node's logs now. ``served`` has the partitions that it requests."""
    request, selecting = fetch.request, selects(fetch)
    of_records = of_batches = 0
    failing: dict[PartitionName, None] = {}
    for name, partition in served.items():
        wanted = request.partitions[name]
        if partition is None or _fails(request, wanted, partition):
            failing[name] = None
            continue
        log = partition.log
        if wanted.offset < log.local_log_start_offset or selecting:
            return Readable(of_records, of_batches, failing, is_unknown=True)
        end = log.high_watermark
        if request.by_follower:
            end = log.log_end_offset
        elif request.reads_committed:
            end = log.last_stable_offset
        if wanted.offset >= end:
            continue
        rests = _rests(request, wanted, end)
        if request.min_bytes <= 1 and not log.config.is_compacted:
            of_records, of_batches = of_records + (0 if rests else 1), of_batches + 1  # At least. The log has no gap.
            continue
        limit = max(wanted.max_bytes, 1)
        of_non_empty = of_all = 0
        try:
            for _, batch in read_batches(log, wanted.offset, end):
                of_all += len(batch)
                of_non_empty += len(batch) if record_count(batch) else 0
                if min(of_non_empty, limit) >= request.min_bytes or of_non_empty >= limit:
                    break
        except (OSError, InvalidRecords):
            return Readable(of_records, of_batches, failing, is_unknown=True)
        of_records += 0 if rests else min(of_non_empty, limit)
        of_batches += min(of_all, limit)
    return Readable(of_records, of_batches, failing)


def _note_sent(fetch: CompletedFetch) -> None:
    """Note in the first revision's session up to where a response had records."""
    number = fetch.request.number if fetch.request.incremental else -1
    for name, data in fetch.data.items():
        wanted = fetch.request.partitions.get(name)
        if wanted is not None:
            ends = [batch.last_offset + 1 for batch, _ in batches_of(bytes(data.records or b""))]
            wanted.sent_end, wanted.sent_number = max(ends, default=0), number


def _rests(request: PendingFetch, wanted: WantedPartition, end: int) -> bool:
    """Return whether the fetcher has all records up to ``end`` already, by G-3 and G-5.

    A session of the first revision sends records once, also if the request that follows does not move the partition's
    offset. (The cached offset stays where it is, G-8.) What else changes in the partition may make it send them again.
    """
    return wanted.sent_end >= end and wanted.sent_number != request.number


def _fails(request: PendingFetch, wanted: WantedPartition, partition: Partition) -> bool:
    """Return whether the partition's part of the response is an error or a diverging epoch."""
    log = partition.log
    if wanted.leader_epoch >= 0 and wanted.leader_epoch != partition.leader_epoch:
        return True
    if request.replica_id >= 0 and not partition.is_followed_by(request.replica_id):
        return True
    if not log.log_start_offset <= wanted.offset <= log.log_end_offset or log.is_offline:
        return True
    if request.by_follower and wanted.offset < log.local_log_start_offset:
        return True
    return wanted.last_epoch >= 0 and diverges(log, wanted.offset, wanted.last_epoch)


def diverges(log: UnifiedLog, offset: int, last_epoch: int) -> bool:
    """Return whether the fetcher's log, which ends at ``offset`` in ``last_epoch``, is no beginning of this one
    (KIP-320)."""
    end = end_of_epoch(log, last_epoch)
    return end is None or end[0] < last_epoch or end[1] < offset
