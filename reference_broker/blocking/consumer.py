"""The blocking consumer that applications use. It drives ``group_consumer`` over plain sockets.

    with BlockingConsumer(ConsumerConfig((NodeAddress(-1, "127.0.0.1", 9092),), GroupConfig("g", ()))) as consumer:
        consumer.subscribe(["t"])
        while True:
            for record in consumer.poll(timeout_ms=1000): ...
            consumer.commit()

A member's heartbeats go out inside these methods, and between them from a thread of the consumer's own. If the
application does not call ``poll`` for ``max.poll.interval.ms``, the member leaves its group: its partitions go to
others, and the next ``poll`` joins again. One lock guards the consumer: a method that waits keeps it, and sends the
heartbeats itself meanwhile. ``metadata_epoch`` and ``wait_for_metadata_update`` are for applications that store
offsets, with the metadata epoch, outside Kafka (KIP-232, M-12).
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import TracebackType
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

from reference_broker.blocking.connections import ChannelConnections, NoDraftError
from reference_broker.blocking.transport import TransportError
from reference_broker.client.api_versions import announces_drafts
from reference_broker.client.consumer_observer import PositionReset
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.client.group_consumer import ChannelRequest, ConsumerConfig, GroupConsumer
from reference_broker.client.group_membership import Revoked
from reference_broker.client.group_requests import NO_GENERATION, MemberIdentity, name_of
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import Committed, OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import Error, ErrorCode

HEARTBEAT_THREAD: Final = "consumer-heartbeats"
"""The name of the thread."""
_IDLE_US: Final = 50_000
"""The longest wait of the loop while nothing is due."""
_CLOSE_US: Final = 5_000_000
MAX_POLL_INTERVAL_MS: Final = 300_000
_BEATS_PER_INTERVAL: Final = 4
"""Number of times the thread runs within the shorter of the heartbeat's and the poll's interval."""


class ConsumerError(Exception):
    """An error that retries do not cure. ``error`` is Kafka's."""

    def __init__(self, error: Error | int, detail: str = "") -> None:
        super().__init__(f"{name_of(error)}{detail}")
        self.error = error


class InvalidOffsetError(ConsumerError):
    """A position is outside of the log, and the reset policy is ``none``."""


class TombstonesMissedError(InvalidOffsetError):
    """Tombstones may have been missed, so records that were read may be deleted by now (H-3). ``partitions`` are read
    from the start of the log again. The application must forget what it has made of their records before it polls
    again."""

    def __init__(self, partitions: tuple[TopicPartition, ...]) -> None:
        listed = ", ".join(f"{partition.topic}-{partition.partition}" for partition in partitions)
        super().__init__(ErrorCode.offset_out_of_range, f" (tombstones of {listed} may have been missed)")
        self.partitions = partitions


class CommitError(ConsumerError):
    """At least one partition is not committed, or its commit is unknown. ``result`` says which."""

    def __init__(self, result: Committed) -> None:
        failed = {partition: error for partition, error in result.errors.items() if error}
        listed = ", ".join(
            f"{partition.topic}-{partition.partition}: {name_of(each)}" for partition, each in failed.items()
        )
        super().__init__(next(iter(failed.values())), f" ({listed})")
        self.result = result


class InvalidMetadataEpochError(CommitError):
    """The coordinator has a commit with a newer metadata epoch (spec M-7). It is never retried."""


P = ParamSpec("P")
T = TypeVar("T")


def _locked(
    method: Callable[Concatenate["BlockingConsumer", P], T],
) -> Callable[Concatenate["BlockingConsumer", P], T]:
    """Hold the lock while the method runs. The thread of the heartbeats waits until it is done."""

    @wraps(method)
    def locked(consumer: "BlockingConsumer", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with consumer.lock:
            return method(consumer, *args, **kwargs)

    return locked


RevocationListener = Callable[[tuple[TopicPartition, ...]], None]


class BlockingConsumer:
    """A consumer and context manager. If ``auto_commit_interval_ms`` is None, the application commits. Otherwise what
    earlier polls returned is committed at the beginning of a later one, before partitions are revoked, and on close.
    ``on_revoked`` is called before partitions are revoked, and may commit. A member must ``poll`` within
    ``max_poll_interval_ms``."""

    def __init__(
        self,
        config: ConsumerConfig,
        client_id: str = "crucible-client",
        auto_commit_interval_ms: int | None = None,
        on_revoked: RevocationListener | None = None,
        connect_timeout_ms: int = 2000,
        max_poll_interval_ms: int = MAX_POLL_INTERVAL_MS,
    ) -> None:
        self.consumer = GroupConsumer(config)
        self.lock = threading.RLock()
        self._max_poll_interval_us = max_poll_interval_ms * 1000
        self._polled_at_us = _now_us()
        interval_us = self._max_poll_interval_us
        if config.group is not None:
            interval_us = min(interval_us, config.group.heartbeat_interval_us)
        self._heartbeats = Heartbeats(self._beat, interval_us / _BEATS_PER_INTERVAL / 1e6)
        self._connections = ChannelConnections(client_id, connect_timeout_ms * 1000, self._learn_drafts)
        self._auto_commit_us = auto_commit_interval_ms * 1000 if auto_commit_interval_ms is not None else None
        self._committed_at_us = _now_us()
        self._on_revoked = on_revoked
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what an application does -------------------------------------------------------------------------------

    @_locked
    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe to the topics as a member of the group. ``poll`` joins the group."""
        self.consumer.subscribe(tuple(topics))
        self._polled_at_us = _now_us()
        self._heartbeats.start()

    @_locked
    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without being a member of a group."""
        self.consumer.assign(partitions)

    @_locked
    def assignment(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that are assigned now."""
        return tuple(self.consumer.partitions.held)

    @_locked
    def poll(self, timeout_ms: int = 1000, max_records: int = 500) -> list[ConsumerRecord]:
        """Return records as soon as there are any, or none after the timeout.

        :raises ConsumerError: the member was refused for good, or a partition cannot be read.
        :raises TombstonesMissedError: the application must forget what it has read of some partitions.
        """
        if self.consumer.is_away:
            self.consumer.come_back()
        try:
            return self._poll(timeout_ms, max_records)
        finally:
            self._polled_at_us = _now_us()

    def _poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        self._auto_commit()
        deadline_us = _now_us() + timeout_ms * 1000
        while True:
            self._handle_events()
            self._raise_failures()
            if records := self.consumer.take_records(max_records):
                return records
            if _now_us() >= deadline_us:
                return []
            self._turn(deadline_us, placing=True)

    @_locked
    def partitions_for(self, topic: str, timeout_ms: int = 5000) -> list[TopicPartition]:
        """Return all partitions of a topic, or none if it does not exist within the time."""
        deadline_us = _now_us() + timeout_ms * 1000
        self.consumer.look_up(topic)
        while True:
            info = self.consumer.metadata.cache.topics.get(topic)
            if info is not None or _now_us() >= deadline_us:
                return (
                    [TopicPartition(topic, partition) for partition in sorted(info.partitions)]
                    if info is not None
                    else []
                )
            self._turn(deadline_us)

    @_locked
    def commit(self, offsets: Mapping[TopicPartition, OffsetToCommit] | None = None) -> None:
        """Commit these offsets, or by default what ``poll`` has returned, and wait for the result. Given offsets keep
        the epoch that they have. The default ones carry the epoch of the last accepted metadata (M-6).

        :raises InvalidMetadataEpochError: a partition was refused (M-7). :raises CommitError: another error.
        """
        result = self._commit(offsets)
        if result.refused:
            raise InvalidMetadataEpochError(result)
        if not result.succeeded:
            raise CommitError(result)

    @_locked
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue to read at this offset."""
        self.consumer.seek(partition, offset)

    @_locked
    def position(self, partition: TopicPartition) -> int:
        """Return the next offset that ``poll`` would return, or -1 while that is not known."""
        return self.consumer.position(partition)

    @_locked
    def positions(self) -> dict[TopicPartition, OffsetToCommit]:
        """Return the offsets behind what ``poll`` has returned of each partition, for a producer's transaction."""
        return self.consumer.read_so_far(self.consumer.partitions.held)

    @_locked
    def group_identity(self) -> MemberIdentity:
        """Return the identity with which this consumer commits now, for a transaction with its offsets (KIP-447)."""
        return self.consumer.identity

    @_locked
    def metadata_epoch(self) -> int:
        """Return the epoch of the last accepted metadata, or -1 before there is any."""
        return self.consumer.metadata_epoch()

    @_locked
    def wait_for_metadata_update(self, min_metadata_epoch: int, timeout_ms: int) -> bool:
        """Wait for metadata with at least this epoch. Return False after the timeout."""
        deadline_us = _now_us() + timeout_ms * 1000
        self.consumer.want_epoch(min_metadata_epoch)
        try:
            while not (reached := self.consumer.has_reached(min_metadata_epoch)):
                if _now_us() >= deadline_us:
                    break
                self._turn(deadline_us)
        finally:
            self.consumer.want_epoch(-1)
        return reached

    @_locked
    def take_resets(self) -> list[PositionReset]:
        """Return the positions that the reset policy or a truncation moved since the last call."""
        return self.consumer.take_resets()

    def close(self) -> None:
        """End the thread and leave the group. Commit first if that is automatic. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._heartbeats.stop()
        with self.lock:
            try:
                self._leave()
            finally:
                self._connections.close_all()

    # -- the loop -----------------------------------------------------------------------------------------------

    def _turn(self, deadline_us: int, placing: bool = False) -> None:
        """Send the requests that are due, then handle responses until the deadline.

        With ``placing``, positions that are not set are looked up. Otherwise a seek may still come.
        """
        self._send(self.consumer.next_requests(_now_us(), placing))
        wake_us = self.consumer.wake_at_us
        until_us = min(deadline_us, wake_us if wake_us is not None else deadline_us, _now_us() + _IDLE_US)
        self._receive(until_us)

    def _learn_drafts(self, node: NodeAddress, versions: object) -> None:
        self.consumer.metadata.learn_drafts(node, announces_drafts(versions))

    def _receive(self, until_us: int) -> None:
        for outcome in self._connections.receive(until_us / 1e6):
            if outcome.body is None:
                self.consumer.failed(outcome.channel, _now_us())
            else:
                self.consumer.responded(outcome.channel, _now_us(), outcome.body)

    def _beat(self) -> None:
        """Handle what has arrived and keep the membership, or end it if the application is late. Runs in the thread."""
        with self.lock:
            self._receive(_now_us())
            if _now_us() - self._polled_at_us >= self._max_poll_interval_us:
                self.consumer.step_out()
            self._send(self.consumer.next_heartbeats(_now_us()))

    def _send(self, requests: Iterable[ChannelRequest]) -> None:
        for channel, request in requests:
            try:
                self._connections.send(channel, request)
            except (TransportError, NoDraftError):
                self.consumer.failed(channel, _now_us())

    def _handle_events(self) -> None:
        for event in self.consumer.take_events():
            if isinstance(event, Revoked):
                if self._auto_commit_us is not None:
                    self._commit(self.consumer.read_so_far(event.partitions))
                if self._on_revoked is not None:
                    self._on_revoked(event.partitions)
                self.consumer.release(event.partitions)

    def _raise_failures(self) -> None:
        if self._heartbeats.failure is not None:
            raise self._heartbeats.failure
        membership = self.consumer.membership
        if membership is not None and membership.failure is not None:
            raise ConsumerError(membership.failure)
        coordinator = self.consumer.coordinator
        if coordinator is not None and coordinator.failure is not None:
            raise ConsumerError(coordinator.failure)
        for error in self.consumer.take_failures():
            raise InvalidOffsetError(error) if error is ErrorCode.offset_out_of_range else ConsumerError(error)
        if missed := self.consumer.take_missed_tombstones():
            raise TombstonesMissedError(tuple(missed))

    def _auto_commit(self) -> None:
        if self._auto_commit_us is None or _now_us() < self._committed_at_us + self._auto_commit_us:
            return
        now_us = _now_us()
        self.consumer.take_commit(now_us)
        self.consumer.commit(now_us)
        self._committed_at_us = now_us

    def _commit(self, offsets: Mapping[TopicPartition, OffsetToCommit] | None) -> Committed:
        """Commit after any commit that is under way. A consumer that lost its membership cannot commit as a member."""
        membership = self.consumer.membership
        if membership is not None and membership.generation == NO_GENERATION:
            chosen = offsets or {}
            errors = dict.fromkeys(chosen, ErrorCode.unknown_member_id)
            return Committed(chosen, errors, self.consumer.identity, ErrorCode.unknown_member_id)
        begun = False
        while True:
            result = self.consumer.take_commit(_now_us())
            if begun and result is not None:
                return result
            begun = begun or self.consumer.commit(_now_us(), offsets)
            self._turn(_now_us() + _IDLE_US)

    def _leave(self) -> None:
        if self._auto_commit_us is not None and self.consumer.membership is None:
            self._commit(None)
        membership = self.consumer.membership
        self.consumer.leave()
        deadline_us = _now_us() + _CLOSE_US
        while membership is not None and not membership.is_over and _now_us() < deadline_us:
            self._handle_events()
            self._turn(deadline_us)
        self.consumer.end_fetches()
        while not self.consumer.has_ended_fetches and _now_us() < deadline_us:
            self._turn(deadline_us)


@dataclass(slots=True)
class Heartbeats:
    """The thread that calls ``beat`` between polls."""

    beat: Callable[[], None]
    period_s: float
    failure: Exception | None = None
    """The exception of ``beat``. The thread has ended then."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=HEARTBEAT_THREAD, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it. The caller must not hold a lock that ``beat`` waits for."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self.period_s):
            try:
                self.beat()
            except Exception as failure:
                self.failure = failure
                return


def _now_us() -> int:
    return time.monotonic_ns() // 1000
