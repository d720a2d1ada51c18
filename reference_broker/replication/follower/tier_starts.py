"""How a replica begins whose leader has only later records: the ones before are in the remote tier (KIP-405).

It asks the leader where its local records begin and of which leader epoch the record before them is. The tier then
gives the leader epochs and the producers behind the segment of that record, and the log goes on there (P-11; Kafka's
ReplicaFetcherTierStateMachine).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from reference_broker.client.partitions import TopicPartition
from reference_broker.log.partition_log import PartitionLog
from reference_broker.log.producer_state import ProducerStates
from reference_broker.replication.follower.followed import Followed
from reference_broker.replication.follower.intake import Intake, Outcome
from reference_broker.replication.follower.lookups import Question, offset_answers, offsets_request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error
from reference_broker.wire.lazy_schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4 import request as request_schema
    from kio.schema.offset_for_leader_epoch.v4 import response as response_schema
else:
    request_schema = LazySchema("offset_for_leader_epoch.v4.request")
    response_schema = LazySchema("offset_for_leader_epoch.v4.response")

EARLIEST_LOCAL = -4


class TierState(NamedTuple):
    """A log goes on at ``offset`` with these leader epochs, (epoch, start offset), Kafka's file of producers, and
    what it tells."""

    offset: int
    epochs: Sequence[tuple[int, int]]
    snapshot: bytes
    producers: ProducerStates


class Tier(Protocol):
    """What the remote tier tells a replica."""

    def state_before(
        self,
        log: PartitionLog,
        partition: int,
        leader_epoch: int,
        offset: int,
        done: Callable[[TierState | Error], None],
    ) -> None:
        """The state behind the segment with the record before ``offset``, which has that leader epoch."""
        ...


class _Local(NamedTuple):
    """Where a leader's local records begin, and the leader epoch of the first one."""

    offset: int
    epoch: int


@dataclass(slots=True)
class TierStarts:
    """Of one leader. A partition waits in ``_wanted`` until the leader has said where its local records begin, in
    ``_locals`` until it has said which epoch comes before them, and in ``_asked`` until the tier has told.

    ``settled`` gets each partition that can be fetched now, and ``put_off`` each that found no answer. ``tier()`` is
    None on a node without one.
    """

    _node_id: int
    _timeout_ms: int
    _intake: Intake
    _tier: Callable[[], Tier | None]
    _settled: Callable[[Followed], None]
    _put_off: Callable[[Followed], None]
    _log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    _wanted: dict[TopicPartition, Followed] = field(default_factory=dict)
    _locals: dict[TopicPartition, tuple[Followed, _Local]] = field(default_factory=dict)
    _asked: dict[TopicPartition, Followed] = field(default_factory=dict)

    def want(self, one: Followed, log_start_offset: int) -> None:
        """The leader has moved what ``one`` asked for. ``log_start_offset`` is the leader's."""
        self._log_starts[one.name] = log_start_offset
        self._wanted[one.name] = one

    def drop(self, one: Followed) -> None:
        self._log_starts.pop(one.name, None)
        self._wanted.pop(one.name, None)
        self._locals.pop(one.name, None)
        self._asked.pop(one.name, None)

    def next(self) -> Question | None:
        """The next question to send, about one partition. It stays the same until its answer was told."""
        for one in self._wanted.values():
            body = offsets_request(self._node_id, [(one, one.leader_epoch)], EARLIEST_LOCAL, self._timeout_ms)
            return Question(body, partial(self._local_told, one, one.leader_epoch))
        for one, local in self._locals.values():
            told = partial(self._epoch_told, one, one.leader_epoch, local)
            return Question(self._epoch_request(one, local.epoch - 1), told, ApiKey.OFFSET_FOR_LEADER_EPOCH)
        return None

    def _local_told(self, one: Followed, epoch: int, answer: object) -> None:
        if self._wanted.get(one.name) is not one or one.leader_epoch != epoch:
            return
        del self._wanted[one.name]
        found = offset_answers(answer).get(one.name)
        if found is None:
            self._put_off(one)
            return
        local = _Local(int(found.offset), int(found.leader_epoch))
        if local.epoch > 0:
            self._locals[one.name] = one, local
        else:
            self._ask_the_tier(one, local.epoch, local.offset)

    def _epoch_request(self, one: Followed, epoch: int) -> "request_schema.OffsetForLeaderEpochRequest":
        return request_schema.OffsetForLeaderEpochRequest(
            replica_id=BrokerId(self._node_id),
            topics=(
                request_schema.OffsetForLeaderTopic(
                    topic=TopicName(one.name.topic),
                    partitions=(
                        request_schema.OffsetForLeaderPartition(
                            partition=i32(one.name.partition),
                            current_leader_epoch=i32(one.leader_epoch),
                            leader_epoch=i32(epoch),
                        ),
                    ),
                ),
            ),
        )

    def _epoch_told(self, one: Followed, epoch: int, local: _Local, answer: object) -> None:
        waiting = self._locals.get(one.name)
        if waiting is None or waiting[0] is not one or one.leader_epoch != epoch:
            return
        del self._locals[one.name]
        assert isinstance(answer, response_schema.OffsetForLeaderEpochResponse), type(answer).__name__
        (found,) = (each for topic in answer.topics for each in topic.partitions)
        if found.error_code:
            self._put_off(one)
            return
        is_earlier = found.end_offset > local.offset - 1
        self._ask_the_tier(one, int(found.leader_epoch) if is_earlier else local.epoch, local.offset)

    def _ask_the_tier(self, one: Followed, leader_epoch: int, offset: int) -> None:
        tier = self._tier()
        if tier is None:
            self._put_off(one)
            return
        self._asked[one.name] = one
        told = partial(self._state_told, one, one.leader_epoch)
        tier.state_before(one.log, one.name.partition, leader_epoch, offset, told)

    def _state_told(self, one: Followed, epoch: int, state: TierState | Error) -> None:
        if self._asked.get(one.name) is not one or one.leader_epoch != epoch:
            return
        del self._asked[one.name]
        log_start_offset = self._log_starts.pop(one.name)
        if not isinstance(state, TierState):
            self._put_off(one)
            return
        outcome = self._intake.settle(one, lambda: self._intake.start_in_tier(one, state, log_start_offset))
        (self._settled if outcome is Outcome.TAKEN else self._put_off)(one)
