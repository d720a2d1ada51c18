"""Asks the leader where its log ends and begins (ListOffsets as a replica), for a partition that was out of range."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.client.partitions import TopicPartition
from reference_broker.replication.follower.followed import Followed
from reference_broker.replication.follower.intake import Intake, Outcome
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.lazy_schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10 import request as request_schema
    from kio.schema.list_offsets.v10 import response as response_schema
else:
    request_schema = LazySchema("list_offsets.v10.request")
    response_schema = LazySchema("list_offsets.v10.response")

LATEST = -1
EARLIEST = -2
"""Special timestamps of ListOffsets."""
PARTITIONS_PER_REQUEST = 200

Asked: TypeAlias = list[tuple[Followed, int]]
"""Pairs of a partition and the leader epoch under which it was asked about."""


class Question(NamedTuple):
    """``told(answer)`` carries out the answer."""

    body: object
    told: Callable[[object], None]
    api_key: ApiKey = ApiKey.LIST_OFFSETS


@dataclass(slots=True)
class Lookups:
    """``settled`` gets each partition that can be fetched now, and ``put_off`` each that found no answer.

    Until its answer comes, a partition is in ``_ends`` or in ``_starts``.
    """

    _node_id: int
    _timeout_ms: int
    _intake: Intake
    _settled: Callable[[Followed], None]
    _put_off: Callable[[Followed], None]
    _ends: dict[TopicPartition, Followed] = field(default_factory=dict)
    _starts: dict[TopicPartition, Followed] = field(default_factory=dict)

    def want_offsets(self, one: Followed) -> None:
        self._ends[one.name] = one

    def drop(self, one: Followed) -> None:
        for waiting in (self._ends, self._starts):
            waiting.pop(one.name, None)

    def next(self) -> Question | None:
        """The next question to send. It stays the same until its answer was told."""
        for waiting, timestamp, told in (
            (self._ends, LATEST, self._end_told),
            (self._starts, EARLIEST, self._start_told),
        ):
            if waiting:
                asked = _asked(waiting)
                return Question(
                    offsets_request(self._node_id, asked, timestamp, self._timeout_ms), partial(told, asked)
                )
        return None

    # Where the leader's log ends and begins

    def _end_told(self, asked: Asked, answer: object) -> None:
        """Truncates if the leader's log ends before the follower's: the leader lost records in an unclean election.

        Otherwise the leader's log holds only later records, and the next question asks where it starts.
        """
        for one, end_offset in self._current(self._ends, asked, _offsets(answer)):
            if end_offset >= one.log.log_end_offset:
                self._starts[one.name] = one
            else:
                self._settle(one, partial(self._intake.truncate, one, end_offset))

    def _start_told(self, asked: Asked, answer: object) -> None:
        for one, start_offset in self._current(self._starts, asked, _offsets(answer)):
            if start_offset > one.log.log_end_offset:
                self._settle(one, partial(self._intake.start_anew, one, start_offset))
            else:
                self._put_off(one)  # The leader's log grew meanwhile: the next fetch finds where they diverge.

    def _settle(self, one: Followed, change: Callable[[], None]) -> None:
        outcome = self._intake.settle(one, change)
        (self._settled if outcome is Outcome.TAKEN else self._put_off)(one)

    def _current(
        self, waiting: dict[TopicPartition, Followed], asked: Asked, found: Mapping[TopicPartition, int]
    ) -> Iterator[tuple[Followed, int]]:
        """The partitions that still wait as they did when asked about. Those without an answer are put off."""
        for one, epoch in asked:
            if waiting.get(one.name) is not one or one.leader_epoch != epoch:
                continue
            del waiting[one.name]
            answer = found.get(one.name)
            if answer is None:
                self._put_off(one)
            else:
                yield one, answer


def offsets_request(node_id: int, asked: Asked, timestamp: int, timeout_ms: int) -> "request_schema.ListOffsetsRequest":
    return request_schema.ListOffsetsRequest(
        replica_id=BrokerId(node_id),
        isolation_level=i8(0),
        topics=tuple(
            request_schema.ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    request_schema.ListOffsetsPartition(
                        partition_index=i32(one.name.partition),
                        current_leader_epoch=i32(epoch),
                        timestamp=i64(timestamp),
                    )
                    for one, epoch in partitions
                ),
            )
            for topic, partitions in _by_topic(asked)
        ),
        timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
    )


def _asked(waiting: Mapping[TopicPartition, Followed]) -> Asked:
    return [(one, one.leader_epoch) for one in list(waiting.values())[:PARTITIONS_PER_REQUEST]]


def _by_topic(asked: Asked) -> Iterable[tuple[str, Asked]]:
    topics: dict[str, Asked] = {}
    for one, epoch in asked:
        topics.setdefault(one.name.topic, []).append((one, epoch))
    return topics.items()


def _offsets(answer: object) -> Mapping[TopicPartition, int]:
    return {name: int(each.offset) for name, each in offset_answers(answer).items()}


def offset_answers(answer: object) -> Mapping[TopicPartition, "response_schema.ListOffsetsPartitionResponse"]:
    """The answers by partition, without those that are an error or have no offset."""
    assert isinstance(answer, response_schema.ListOffsetsResponse), (
        f"ListOffsets was answered by {type(answer).__name__}"
    )
    return {
        TopicPartition(topic.name, int(each.partition_index)): each
        for topic in answer.topics
        for each in topic.partitions
        if not each.error_code and each.offset >= 0
    }
