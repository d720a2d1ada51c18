"""Fetched partitions compared with the node's log: errors, offsets, sizes, and their cached state in the session.

``fetch_model.py`` has the partitions of each request and of its session.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.check import CheckContext, FetchCheck
from chaos.checks.log.batches import batches_of
from chaos.checks.sessions.fetch_model import FETCH, CompletedFetch, PartitionName, WantedPartition
from chaos.checks.sessions.fetch_responses import LOOKS_AT_ONCE, NO_REPLICA, selects
from reference_broker.core.events import Effect, Event, Reply, Request
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.replication.partitions import Partition
from reference_broker.wire.apis import FIRST_DRAFT_VERSION
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import INCREMENTAL_FETCH_OK, FetchRequest, FetchResponse, PartitionData

if TYPE_CHECKING:
    from reference_broker.core.node import Node

LARGEST_EPOCH = 2**31 - 1
FIRST_WITH_DIVERGENCE = 12
"""The version of Fetch from which responses have diverging epochs (KIP-595)."""
FIRST_WITH_LEADERS = 16
"""The version of Fetch from which responses have leaders and their addresses (KIP-951)."""
NAMING_LEADERS = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
UNREADABLE = (ErrorCode.corrupt_message, ErrorCode.kafka_storage_error)
"""Physical: a disk may fail, and bits may flip, at any time."""


def named(name: PartitionName) -> str:
    topic, index = name
    return f"{topic if isinstance(topic, str) else topic.hex()}-{index}"


class _Offsets(NamedTuple):
    """Offsets of a log after an event."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int


def _offsets_of(log: UnifiedLog) -> _Offsets:
    return _Offsets(log.high_watermark, log.last_stable_offset, log.log_start_offset, log.log_end_offset)


def end_of_epoch(log: UnifiedLog, epoch: int) -> tuple[int, int] | None:
    """Return the largest epoch of the log that is at most ``epoch``, and its end (KIP-320). An epoch before the first
    one ends where that begins. Of one above the latest nothing is known."""
    epochs, starts = log.epochs.epochs, log.epochs.starts
    if not epochs or epoch > epochs[-1]:
        return None
    at = bisect_right(epochs, epoch)
    return (epochs[at - 1] if at else epoch), (starts[at] if at < len(starts) else log.log_end_offset)


class PartitionsSent(FetchCheck):
    """incremental-response-exact, for each partition of any response: its error is that of its state, its offsets are
    those of its log, and its records are within the limits.

    - A full response has each partition that its request names, once (F-5, G-4). No response has a partition twice.
    - A node that does not serve a partition sends the error that says why (KIP-320, KIP-516). A leader
      compares the leader epoch first, then the fetch offset with its log. A diverging epoch is the last that both logs
      may have, with its end (KIP-595).
    - With NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH a consumer also gets the leader that the node knows, and the
      address of that leader once (KIP-951).
    - High watermark, last stable offset and log start are those before or after the event of the response.
    - The records of a response are within its ``max_bytes``, and those of a partition within its own. Only the first
      batch of the response may be larger (F-16, KIP-74).

    Physical: a response that takes several events may have older states. So responses in sessions with more partitions
    than one event handles are judged by their sizes only.
    """

    guarantee = "incremental-response-exact"
    judges_followers = True

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        context.replicas.on_logs_touched.append(self.logs_touched)
        self._before: dict[UnifiedLog, _Offsets] = {}
        """by log: its offsets after the last event that changed it"""

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        for log in touched:
            self._before[log] = _offsets_of(log)

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        reply = fetch.reply
        if not fetch.data and fetch.request.incremental and reply is not None and not _endpoints(reply):
            return  # Nothing is in it, and nothing has to be.
        wrong = [*self._names(fetch), *self._sizes(fetch)]
        at_once = 1 if self.context.settings.slices_us else LOOKS_AT_ONCE
        if len(fetch.request.partitions) <= at_once:
            for name, data in fetch.data.items():
                wanted = fetch.request.partitions.get(name)
                if wanted is not None:
                    self.evidence += 1
                    for state in self._states(fetch, name, wanted, data):
                        wrong.append(f"{named(name)} {state}")  # noqa: PERF401
            wrong += self._leaders(fetch)
        for explanation in wrong:
            who = f"{fetch.client_id}, session {fetch.session_id}, response to {fetch.request.number}"
            self.violated(at_us, f"node-{fetch.node.broker.node_id} to {who}: {explanation}")

    @staticmethod
    def _names(fetch: CompletedFetch) -> Iterator[str]:
        """Yield what is wrong with the list of partitions."""
        body = None if fetch.reply is None else fetch.reply.body
        if isinstance(body, FetchResponse) and sum(len(response.partitions) for response in body.responses) > len(
            fetch.data
        ):
            yield "a partition is in it twice"
        if not fetch.request.incremental and len(fetch.data) < len(fetch.request.partitions):
            missing = next(partition for partition in fetch.request.partitions if partition not in fetch.data)
            yield f"{named(missing)} is missing in a full response"

    @staticmethod
    def _leaders(fetch: CompletedFetch) -> Iterator[str]:
        """Yield what is wrong with the leaders that the response names, and with their addresses."""
        reply = fetch.reply
        if reply is None or not FIRST_WITH_LEADERS <= reply.api_version < FIRST_DRAFT_VERSION:
            return
        if fetch.request.replica_id >= 0 or not isinstance(reply.body, FetchResponse):
            return
        brokers, leaders = fetch.node.broker.controller.image.brokers, dict[int, None]()
        for name, data in fetch.data.items():
            if data.current_leader is not None:
                leaders[data.current_leader.leader_id] = None
            if data.error_code not in NAMING_LEADERS or _is_followed(fetch, name):
                continue  # Unlike Kafka (card of Fetch): a follower that serves consumers names no leader.
            known = _leader(fetch, name)
            sent = data.current_leader and (data.current_leader.leader_id, data.current_leader.leader_epoch)
            if known is not None and sent != known:
                yield f"{named(name)} has (leader, epoch) {sent}, and the node knows {known} (KIP-951)"
        for endpoint in reply.body.node_endpoints:
            broker = brokers.get(endpoint.node_id)
            known_at = () if broker is None else [(host, port) for _, host, port in broker.endpoints]
            if endpoint.node_id not in leaders or (endpoint.host, endpoint.port) not in known_at:
                said = f"{endpoint.host}:{endpoint.port}"
                yield f"node {endpoint.node_id} is said to be at {said}, and is at {known_at} (KIP-951)"
        at = [endpoint.node_id for endpoint in reply.body.node_endpoints]
        if len(at) != len(dict.fromkeys(at)) or any(leader not in at for leader in leaders if leader in brokers):
            yield f"it has the addresses of {at}, and names the leaders {list(leaders)} (KIP-951)"

    @staticmethod
    def _sizes(fetch: CompletedFetch) -> Iterator[str]:
        """Yield which records exceed their limits."""
        request, config = fetch.request, fetch.node.broker.config
        most = config.fetch_max_bytes
        if request.replica_id >= 0:  # Unlike Kafka (card of Fetch): followers have a limit of their own.
            most = max(most, config.replica_fetch_response_max_bytes)
        most = min(max(request.max_bytes, 0), most)
        sent = 0
        for name, data in fetch.data.items():
            size = len(data.records or b"")
            wanted = request.partitions.get(name)
            if not size or wanted is None:
                continue
            limit = min(max(wanted.max_bytes, 0), most - sent)
            if size > limit and (sent or sum(1 for _ in batches_of(bytes(data.records or b""))) > 1):
                yield f"{named(name)} has {size} bytes, {limit} are the most after {sent} others"
            sent += size

    # The state of a partition

    def _states(
        self, fetch: CompletedFetch, name: PartitionName, wanted: WantedPartition, data: PartitionData
    ) -> Iterator[str]:
        """Yield what is wrong with an error, a diverging epoch, or offsets."""
        partition = fetch.served(name)
        if partition is None:
            errors = _errors_elsewhere(fetch, name, wanted)
            if data.error_code not in errors:
                yield f"has error {data.error_code}, and is not served here: {sorted(map(int, errors))}"
            return
        if fetch.request.replica_id >= 0 and not partition.is_followed_by(fetch.request.replica_id):
            return  # It has no replica, as far as this leader knows.
        error, end = _expected(fetch, wanted, partition)
        is_stale = fetch.request.replica_id >= 0 and data.error_code == ErrorCode.not_leader_or_follower
        is_in_tier = partition.log.log_start_offset <= wanted.offset < partition.log.local_log_start_offset
        if data.error_code != error and data.error_code not in UNREADABLE and not is_stale and not is_in_tier:
            yield f"has error {data.error_code}, and its state gives {int(error)}"
            return
        diverging = (
            None if data.diverging_epoch is None else (data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
        )
        if (
            not data.error_code
            and diverging != end
            and data.preferred_read_replica == NO_REPLICA
            and not selects(fetch)
        ):
            yield f"has the diverging epoch {diverging}, and its log gives {end}"
        if not data.error_code:
            yield from self._wrong_offsets(partition.log, data)

    def _wrong_offsets(self, log: UnifiedLog, data: PartitionData) -> Iterator[str]:
        now = _offsets_of(log)
        sent = data.high_watermark, data.last_stable_offset, data.log_start_offset
        if sent == now[:3]:
            return
        before = self._before.get(log, now)
        for what, offset, *states in zip(_Offsets._fields, sent, before, now, strict=False):
            if not min(states) <= offset <= max(states):
                yield f"has {what} {offset}, and its log has {states[0]} before and {states[1]} after the event"


def _endpoints(reply: Reply) -> Sequence[Any]:
    return reply.body.node_endpoints if isinstance(reply.body, FetchResponse) else ()


def _expected(
    fetch: CompletedFetch, wanted: WantedPartition, partition: Partition
) -> tuple[ErrorCode, tuple[int, int] | None]:
    """Return the error of a partition that is served here, and where the fetcher's log diverges."""
    log, known = partition.log, max(wanted.leader_epoch, -1)
    if known not in (-1, partition.leader_epoch):
        is_old = known < partition.leader_epoch
        return (ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch), None
    if wanted.offset < log.log_start_offset:
        return ErrorCode.offset_out_of_range, None
    version = 0 if fetch.reply is None else fetch.reply.api_version
    if wanted.last_epoch >= 0 and version >= FIRST_WITH_DIVERGENCE:
        end = end_of_epoch(log, wanted.last_epoch)
        if end is None:
            return ErrorCode.offset_out_of_range, None
        if end[0] < wanted.last_epoch or end[1] < wanted.offset:
            return ErrorCode.none, end
    if wanted.offset > log.log_end_offset:
        # M-15: a fetcher without a leader epoch may take this follower for the leader.
        is_misled = partition.followed_leader is not None and known < 0
        return (ErrorCode.not_leader_or_follower if is_misled else ErrorCode.offset_out_of_range), None
    if fetch.request.replica_id >= 0 and wanted.offset < log.local_log_start_offset:
        return ErrorCode.offset_moved_to_tiered_storage, None
    return ErrorCode.none, None


def _is_followed(fetch: CompletedFetch, name: PartitionName) -> bool:
    partition = fetch.served(name)
    return partition is not None and partition.followed_leader is not None


def _leader(fetch: CompletedFetch, name: PartitionName) -> tuple[int, int] | None:
    """Return the leader and leader epoch of a partition that the node knows, or None if there is no such partition."""
    led, broker = fetch.led(name), fetch.node.broker
    if led is not None:
        return broker.node_id, led.leader_epoch
    topic, index = name
    image = broker.controller.image
    topic_image = image.topics.get(topic) if isinstance(topic, str) else image.topic_by_id(topic)
    if topic_image is None or not 0 <= index < len(topic_image.partitions):
        return None
    return topic_image.partitions[index].leader, topic_image.partitions[index].leader_epoch


def _errors_elsewhere(fetch: CompletedFetch, name: PartitionName, wanted: WantedPartition) -> tuple[ErrorCode, ...]:
    """Return the errors that a partition may have which the node does not serve."""
    topic, index = name
    broker = fetch.node.broker
    image = broker.controller.image
    topic_image = image.topics.get(topic) if isinstance(topic, str) else image.topic_by_id(topic)
    if topic_image is None and not isinstance(topic, str):
        # Its name may belong to a topic that was created since, with another ID (KIP-516).
        return ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id, ErrorCode.unknown_topic_or_partition
    if topic_image is None or not 0 <= index < len(topic_image.partitions):
        return (ErrorCode.unknown_topic_or_partition,)
    elsewhere = (ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error, ErrorCode.inconsistent_topic_id)
    known, epoch = wanted.leader_epoch, topic_image.partitions[index].leader_epoch
    if known < 0 or known == epoch or broker.node_id not in topic_image.partitions[index].replicas:
        return elsewhere
    return (ErrorCode.fenced_leader_epoch if known < epoch else ErrorCode.unknown_leader_epoch), *elsewhere[1:]


@dataclass(slots=True)
class _Compared:
    responses: int = 0


COMPARED_AT_ONCE = 16
"""Number of responses after which all partitions of a session are compared. Those in a response are compared then."""


class SessionCacheExact(FetchCheck):
    """incremental-response-exact (F-1, F-3, F-13, F-19, G-2, G-3): a session caches what its requests named last, what
    was sent last, its creator and the next epoch.

    Fetch offset, limit, epochs and log start of a partition are those of the latest request that named it, whatever was
    sent since (G-8). High watermark and log start are those sent last, and unknown after an error (F-14). The first
    revision has a number in place of the epoch. There a resent request ends the parked one (G-3), and changes the
    session in the event of that response, which is not judged.
    """

    guarantee = "incremental-response-exact"
    needs_one_node = True
    judges_followers = True
    acts_on = (FETCH,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._request: Request | None = None
        """the request of the current event"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self._request = event if type(event) is Request and isinstance(event.body, FetchRequest) else None

    def fetched(self, at_us: int, fetch: CompletedFetch) -> None:
        came, reply = self._request, fetch.reply
        if came is not None and reply is not None and came[:2] != (reply.connection, reply.correlation_id):
            assert isinstance(came.body, FetchRequest)
            if came.body.session_id == fetch.session_id:
                return
        session: Any = fetch.node.broker.fetch_sessions.sessions.get(fetch.session_id)
        if session is None or session.has_unfinished_fetch:
            return
        body = None if fetch.reply is None else fetch.reply.body
        request = fetch.request
        if request.is_first and isinstance(body, FetchResponse) and not body.response_flags & INCREMENTAL_FETCH_OK:
            return  # G-10: it caches nothing.
        wrong = list(self._of_session(fetch, session))
        kept = fetch.session.kept(_Compared)
        kept.responses += 1
        touched = dict.fromkeys((*request.named, *fetch.data))
        for name in request.partitions if kept.responses % COMPARED_AT_ONCE == 0 else touched:
            wanted, cached = request.partitions.get(name), session.partitions.get(name)
            if wanted is not None and cached is not None:
                for difference in _differences(wanted, cached, fetch.data.get(name)):
                    wrong.append(f"{named(name)}: {difference}")  # noqa: PERF401
            elif (wanted is None) != (cached is None):
                wrong.append(f"{named(name)} is {'missing' if cached is None else 'cached, and no request named it'}")
        for explanation in wrong:
            who = f"session {fetch.session_id} of {fetch.client_id} after the response to {request.number}"
            self.violated(at_us, f"node-{fetch.node.broker.node_id}, {who}: {explanation}")

    @staticmethod
    def _of_session(fetch: CompletedFetch, session: Any) -> Iterator[str]:
        request = fetch.request
        if len(session.partitions) != len(request.partitions):
            yield f"it caches {len(session.partitions)} partitions, and its requests name {len(request.partitions)}"
        if session.privileged != (request.replica_id >= 0) or session.replica_id != request.replica_id:
            yield f"it is that of replica {session.replica_id}, privileged: {session.privileged}"
        number = request.number + 1 if 0 <= request.number < LARGEST_EPOCH or request.is_first else 1
        if request.incremental and session.epoch != number:
            yield f"it expects {session.epoch}"


_CACHED = ("fetch offset", "limit", "leader epoch", "last fetched epoch", "fetcher's log start")


def _differences(wanted: WantedPartition, cached: Any, sent: PartitionData | None) -> Iterator[str]:
    """Yield the fields of a cached partition that differ from what the fetcher sent, and from what it was sent now."""
    requested = wanted.offset, max(wanted.max_bytes, 0), wanted.leader_epoch, wanted.last_epoch, wanted.log_start_offset
    kept = (
        cached.fetch_offset,
        cached.max_bytes,
        cached.current_leader_epoch,
        cached.last_fetched_epoch,
        cached.log_start_offset,
    )
    if requested != kept:
        for what, expected, found in zip(_CACHED, requested, kept, strict=True):
            if expected != found:
                yield f"{what} {found} is cached, and {expected} was requested last"
    if sent is not None:
        last = (-1, -1) if sent.error_code else (sent.high_watermark, sent.log_start_offset)
        if (cached.sent_high_watermark, cached.sent_log_start_offset) != last:
            found = cached.sent_high_watermark, cached.sent_log_start_offset
            yield f"{found} counts as sent last, and {last} was sent"
