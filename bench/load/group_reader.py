"""A reader in a consumer group. The group assigns its partitions, and it commits offsets.

``GroupConsumer`` of the reference broker's client joins, sends heartbeats, finds positions and commits, over
connections of its own. All its partitions are paused, since ``LoadReader`` fetches and verifies them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from bench.load.producer import monotonic_us
from bench.load.reader import LoadReader, ReadPlan, Taken
from reference_broker.blocking.connections import ChannelConnections, NoDraftError
from reference_broker.blocking.transport import TransportError
from reference_broker.client.consumer_partitions import Phase
from reference_broker.client.group_consumer import ConsumerConfig, GroupConsumer
from reference_broker.client.group_membership import Assigned, GroupConfig, Lost, MemberState, Revoked
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import error_name

COMMIT_INTERVAL_US: Final = 5_000_000
"""Kafka's default for ``auto.commit.interval.ms``."""
_STEP_US: Final = 5_000
"""Interval between steps of the group's membership."""
_LEAVE_US: Final = 5_000_000
_CALL_US: Final = 5_000_000


class GroupLoadReader(LoadReader):
    """A ``LoadReader`` for a plan with a ``group_id``, whose partitions are those of its topic."""

    def __init__(self, plan: ReadPlan, bootstrap: Sequence[tuple[str, int]], taken: Callable[[Taken], None]) -> None:
        assert plan.group_id, "a member without a group"
        super().__init__(replace(plan, partitions=()), bootstrap, taken)
        topics = tuple(dict.fromkeys(partition.topic for partition in plan.partitions))
        nodes = tuple(NodeAddress(-1, host, port) for host, port in bootstrap)
        config = ConsumerConfig(
            nodes, GroupConfig(plan.group_id, topics), metadata_epoch=False, fetch=FetchSettings(reset="earliest")
        )
        self._consumer = GroupConsumer(config)
        self._consumer.subscribe(topics)
        self._connections = ChannelConnections(plan.process, _CALL_US, lambda *_: None)
        self._committed_us = 0
        self._step_us = 0
        self.rebalances = 0
        """Number of times the group has assigned partitions."""

    @property
    def lag(self) -> int:
        membership = self._consumer.membership
        is_stable = membership is not None and membership.state is MemberState.STABLE
        return super().lag + (0 if is_stable else 1)

    def run(self) -> None:
        try:
            super().run()
            self._leave_group()
        finally:
            self._connections.close_all()

    def _step(self, now_us: int) -> None:
        if now_us >= self._step_us:
            self._step_us = now_us + _STEP_US
            self._look_after_group()
        super()._step(now_us)

    def _look_after_group(self) -> None:
        self._exchange(monotonic_us())
        for event in self._consumer.take_events():
            if isinstance(event, Assigned):
                self.rebalances += 1
                self._consumer.pause(event.partitions)
            elif isinstance(event, Revoked):
                self._drop(event.partitions)
                self._revoked(event.partitions)
                self._consumer.release(event.partitions)
            elif isinstance(event, Lost):
                self._drop(event.partitions)
                self._lost(event.partitions)
        for partition, held in self._consumer.partitions.held.items():
            if held.phase is Phase.READING and not held.is_revoked and partition not in self.assigned:
                self.assigned[partition] = None
                self._seek(partition, self._consumer.position(partition))
                self._stale = True
        self._commit_now_and_then()
        self._note_commit()

    def _commit_now_and_then(self) -> None:
        now_us = monotonic_us()
        if now_us >= self._committed_us + COMMIT_INTERVAL_US and self.assigned:
            self._committed_us = now_us
            self._consumer.commit(now_us, self._read_so_far())

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Do what must be done before another member gets these partitions."""

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Another member may have these partitions already."""

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self.assigned.pop(partition, None)
        self._stale = True

    def _read_so_far(self) -> dict[TopicPartition, OffsetToCommit]:
        positions = self._state.positions
        return {
            partition: OffsetToCommit(positions[partition].offset, positions[partition].leader_epoch)
            for partition in self.assigned
        }

    def _note_commit(self) -> bool:
        """Report the errors of a commit that has ended. Return whether one has."""
        result = self._consumer.take_commit(monotonic_us())
        if result is None:
            return False
        for partition, error in result.errors.items():
            if error:
                self._taken(Taken(partition, (), (), 0, -1, monotonic_us(), f"commit: {error_name(int(error))}"))
        return True

    def _exchange(self, until_us: int) -> None:
        """Send what the group's side has to send, and handle the responses that come until then."""
        for channel, request in self._consumer.next_requests(monotonic_us()):
            try:
                self._connections.send(channel, request)
            except (TransportError, NoDraftError):
                self._consumer.failed(channel, monotonic_us())
        for outcome in self._connections.receive(until_us / 1e6):
            if outcome.body is None:
                self._consumer.failed(outcome.channel, monotonic_us())
            else:
                self._consumer.responded(outcome.channel, monotonic_us(), outcome.body)

    def _leave_group(self) -> None:
        """Commit what was read, and leave the group, unless that takes too long."""
        deadline_us = monotonic_us() + _LEAVE_US
        membership, offsets = self._consumer.membership, self._read_so_far()
        is_begun = not offsets
        is_committed = not offsets
        while monotonic_us() < deadline_us and not is_committed:
            # A commit that began before comes first.
            is_ended = self._note_commit()
            is_committed = is_begun and is_ended
            is_begun = is_begun or self._consumer.commit(monotonic_us(), offsets)
            self._exchange(monotonic_us() + _STEP_US)
        self._consumer.leave()
        while monotonic_us() < deadline_us and membership is not None and not membership.is_over:
            self._exchange(monotonic_us() + _STEP_US)
            for event in self._consumer.take_events():
                if isinstance(event, Revoked):
                    self._consumer.release(event.partitions)
            time.sleep(0)
