"""Writes events to the leaders of ``__remote_log_metadata``, and tells what became of each.

One request at a time goes to each leader, with acks=all. An event whose answer is lost, or refused for now, is written
again until it is read back. So it may be in the topic twice; ``PartitionSegments`` takes it once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from reference_broker.ports.node_ports import Channel, later
from reference_broker.records.record import Record, build
from reference_broker.remote_log.metadata.codec import encode
from reference_broker.remote_log.metadata.events import RemoteLogEvent
from reference_broker.remote_log.metadata.leaders import RETRY_US, MetadataLeaders
from reference_broker.remote_log.metadata.remote_log_metadata import Applied
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

ALL_REPLICAS: Final = -1
REPLICATED_WITHIN_MS: Final = 10_000
EVENTS_A_REQUEST: Final = 200

_FINAL: Final = (
    ErrorCode.invalid_record,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unsupported_for_message_format,
)
"""To write the same again would end in the same way."""


@dataclass(slots=True, eq=False)
class Pending:
    """An event that was not read back yet. ``is_underway``: it is in a request, or a leader has said that it is
    replicated. ``timer`` ends the wait."""

    event: RemoteLogEvent
    index: int
    done: Applied
    timer: int
    is_underway: bool = False


class Writes:
    def __init__(self, leaders: MetadataLeaders, wait_ms: int) -> None:
        self._leaders = leaders
        self._wait_us = wait_ms * 1000
        self._pending: dict[RemoteLogEvent, Pending] = {}
        self._busy: set[int] = set()
        """The leaders that have a request."""
        self._is_paused = False

    def write(self, event: RemoteLogEvent, index: int, done: Applied) -> None:
        ports = self._leaders.ports
        assert event not in self._pending, "the event is being written already"
        timer = later(ports, self._wait_us, lambda: self.settle(event, ErrorCode.request_timed_out))
        self._pending[event] = Pending(event, index, done, timer)
        self.go_on()

    def settle(self, event: RemoteLogEvent, error: Error) -> None:
        """The event was read back, or will not be waited for any more. An event that nobody here waits for is no
        error."""
        pending = self._pending.pop(event, None)
        if pending is not None:
            self._leaders.ports.cancel_timer(pending.timer)
            later(self._leaders.ports, 0, lambda: pending.done(error))

    def forget(self, topic_id: bytes, partition: int) -> None:
        """The partition is not watched any more, so its events would not be read back."""
        for event in [each for each in self._pending if (each.topic_id, each.partition) == (topic_id, partition)]:
            self.settle(event, ErrorCode.not_leader_or_follower)

    def go_on(self) -> None:
        """Sends what waits to each leader that has no request."""
        by_leader: dict[int, list[Pending]] = {}
        for each in self._pending.values():
            if not each.is_underway:
                leader = self._leaders.leader_of(each.index)
                if leader is None:
                    self._pause()
                elif leader not in self._busy:
                    by_leader.setdefault(leader, []).append(each)
        for leader, waiting in by_leader.items():
            self._send(leader, waiting[:EVENTS_A_REQUEST])

    def _send(self, leader: int, sent: Sequence[Pending]) -> None:
        topic = self._leaders.topic
        assert topic is not None, "a leader of no topic"
        now_ms = self._leaders.ports.now().wall_ms
        by_index: dict[int, list[Pending]] = {}
        for each in sent:
            each.is_underway = True
            by_index.setdefault(each.index, []).append(each)
        batches = [
            ProducePartition(index, build([Record(timestamp_ms=now_ms, value=encode(each.event)) for each in some]))
            for index, some in by_index.items()
        ]
        body = ProduceRequest(ALL_REPLICAS, REPLICATED_WITHIN_MS, [ProduceTopic("", topic.topic_id, batches)])
        self._busy.add(leader)
        self._leaders.ask(
            leader,
            Channel.REMOTE_LOG_WRITE,
            ApiKey.PRODUCE,
            body,
            partial(self._replied, leader, by_index),
            partial(self._answered, leader, by_index, lambda _: ErrorCode.network_exception),
        )

    def _replied(self, leader: int, by_index: dict[int, list[Pending]], answer: object) -> None:
        assert isinstance(answer, ProduceResponse), f"Produce was answered by {type(answer).__name__}"
        errors = {
            each.partition: known_error(each.error_code) for topic in answer.responses for each in topic.partitions
        }
        self._answered(leader, by_index, lambda index: errors.get(index, ErrorCode.unknown_server_error))

    def _answered(self, leader: int, by_index: dict[int, list[Pending]], error_of: Callable[[int], Error]) -> None:
        self._busy.discard(leader)
        for index, some in by_index.items():
            error = error_of(index)
            if error in _FINAL:
                for each in some:
                    self.settle(each.event, error)
            elif error:
                for each in some:
                    each.is_underway = False
                self._pause()
        if not self._is_paused:
            self.go_on()

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            later(self._leaders.ports, RETRY_US, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        self.go_on()
