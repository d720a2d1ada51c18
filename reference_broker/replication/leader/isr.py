"""In-sync replicas of led partitions: the lag check, and AlterPartition requests (Kafka's AlterPartitionManager;
KIP-497, KIP-903).

The lag check visits partitions that have a replica behind, twice in ``replica.lag.time.max.ms`` and when brokers
change. A partition is watched from its first append (or proposal) until all replicas are in sync and at the leader's
end again. A partition at rest is therefore not visited. A round runs in slices, one slice per event.

A change of the in-sync replicas is proposed to the active controller. One AlterPartition request is in flight at a
time; later proposals go with the next. A proposal is repeated until a response settles it. An accepted one remains
until the leader's image has it: the controller checked it against its own min.insync.replicas, which may be newer than
the leader's (E-2). Both reach the leader with the metadata.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32, i64

from reference_broker.controller.metadata_quorum_node import MetadataQuorumNode
from reference_broker.metrics.metrics import Counter
from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import ISR_PARTITIONS_PER_SLICE, Sliced, run_slices
from reference_broker.replication.leader.replicas import Followers, Proposal
from reference_broker.replication.partitions import Partition
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.alter_partition.v3 import request as request_schema
    from kio.schema.alter_partition.v3 import response as response_schema
else:
    request_schema = LazySchema("alter_partition.v3.request")
    response_schema = LazySchema("alter_partition.v3.response")


Visit: TypeAlias = Callable[[Partition, Followers, bool], None]
"""(partition, its followers, whether the leader may propose to remove those that lag)."""


@dataclass(slots=True)
class LagCheck:
    """Visits the watched partitions in rounds."""

    _ports: Ports
    _max_lag_ms: int
    _visit: Visit
    watched: dict[Partition, None] = field(default_factory=dict)
    """In the order in which they fell behind."""
    _is_running: bool = False
    _again: bool = False
    _shrinks_again: bool = False

    def watch(self, partition: Partition, followers: Followers) -> None:
        followers.is_watched = True
        self.watched[partition] = None

    def unwatch(self, partition: Partition) -> None:
        self.watched.pop(partition, None)

    def begin(self, *, shrinks: bool) -> None:
        """Start a round. If one is running, another follows it, since the running one may have passed the change."""
        if self._is_running:
            self._again = True
            self._shrinks_again = self._shrinks_again or shrinks
        elif self.watched:
            self._is_running = True
            run_slices(self._ports, self._round(shrinks), self._round_over)

    def start(self) -> None:
        """The first round begins after half of ``replica.lag.time.max.ms``, and so does each further one."""
        later(self._ports, self._max_lag_ms * 500, self._time_passed)

    def _time_passed(self) -> None:
        self.start()
        self.begin(shrinks=True)

    def _round_over(self) -> None:
        self._is_running = False
        if self._again:
            shrinks = self._shrinks_again
            self._again = self._shrinks_again = False
            self.begin(shrinks=shrinks)

    def _round(self, shrinks: bool) -> Sliced[None]:
        for number, partition in enumerate(list(self.watched), 1):
            followers = partition.followers
            if followers is not None:
                if followers.is_at_rest(partition.log.log_end_offset):
                    followers.is_watched = False
                    self.unwatch(partition)
                self._visit(partition, followers, shrinks)
            if number % ISR_PARTITIONS_PER_SLICE == 0:
                yield


RETRY_MS = 50
"""The pause after a request that failed as a whole, as in Kafka."""

PARTITIONS_PER_REQUEST = 200
"""With this limit, building the request, writing it as metadata and handling the response each stay below 5 ms."""

_RECOVERED = 0
"""A leader elected uncleanly serves what it has. Its first proposal says that it has recovered, as Kafka's does."""

_REFUSED = frozenset({ErrorCode.operation_not_attempted, ErrorCode.ineligible_replica})
"""The proposal was not applied and this leader's knowledge is current: the committed set still holds."""

_WAIT_FOR_METADATA = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.invalid_request,
        ErrorCode.new_leader_elected,
    }
)
"""Errors of a leader whose knowledge is out of date: newer metadata will settle the proposal."""


@dataclass(slots=True)
class AlterPartitionManager:
    """Pending proposals, and the AlterPartition request in flight."""

    _ports: Ports
    _node_id: int
    _quorum_node: MetadataQuorumNode
    _refused: Callable[[Partition], None]
    """Is called when a response refuses a proposal that is still the partition's current one."""
    _failures: Counter
    """Counts each proposal that was not applied, once per attempt."""
    _pending: dict[Partition, Proposal] = field(default_factory=dict)
    _is_in_flight: bool = False
    _retry_planned: bool = False

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        """Send ``proposal``, which ``partition.followers`` already has, to the controller."""
        self._pending[partition] = proposal
        self._send_soon(0)

    def _send_soon(self, pause_ms: int) -> None:
        """Send in a separate event, so that all proposals of one request or one tick go in one AlterPartition."""
        if not self._is_in_flight and not self._retry_planned and self._pending:
            self._retry_planned = True
            later(self._ports, pause_ms * 1000, self._send)

    def _send(self) -> None:
        self._retry_planned = False
        sent = self._still_wanted()
        if not sent:
            return
        self._is_in_flight = True
        channel, version = self._quorum_node.lifecycle.channel, VERSIONS[ApiKey.ALTER_PARTITION][1]
        responded = partial(self._responded, sent)
        channel.send_request(ApiKey.ALTER_PARTITION, version, self._request(sent), responded, self._failed)

    def _still_wanted(self) -> dict[Partition, Proposal]:
        """The oldest proposals that no metadata has settled meanwhile."""
        sent: dict[Partition, Proposal] = {}
        for partition, proposal in list(self._pending.items()):
            if not _is_current(partition, proposal):
                del self._pending[partition]
            elif len(sent) < PARTITIONS_PER_REQUEST:
                sent[partition] = proposal
        return sent

    def _request(self, sent: dict[Partition, Proposal]) -> "request_schema.AlterPartitionRequest":
        topics: dict[bytes, list[request_schema.PartitionData]] = {}
        for partition, proposal in sent.items():
            topics.setdefault(partition.topic_id, []).append(
                request_schema.PartitionData(
                    partition_index=i32(partition.index),
                    leader_epoch=i32(proposal.leader_epoch),
                    new_isr_with_epochs=_members(proposal),
                    leader_recovery_state=i8(_RECOVERED),
                    partition_epoch=i32(proposal.partition_epoch),
                )
            )
        return request_schema.AlterPartitionRequest(
            broker_id=BrokerId(self._node_id),
            broker_epoch=i64(self._quorum_node.lifecycle.registered_epoch),
            topics=tuple(
                request_schema.TopicData(topic_id=UUID(bytes=topic_id), partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )

    def _failed(self) -> None:
        """The request may have been applied. A retry is harmless, since its partition epoch is then too old."""
        self._is_in_flight = False
        self._send_soon(RETRY_MS)

    def _responded(self, sent: dict[Partition, Proposal], response: object) -> None:
        assert isinstance(response, response_schema.AlterPartitionResponse), (
            f"the response to AlterPartition is a {type(response).__name__}"
        )
        self._is_in_flight = False
        if response.error_code:  # Decision alter-partition
            self._ports.note("isr_proposal_failed", ("error", int(response.error_code)))
            self._send_soon(RETRY_MS)
            return
        by_id = {
            (topic.topic_id, result.partition_index): result for topic in response.topics for result in topic.partitions
        }
        retried = False
        for partition, proposal in sent.items():
            result = by_id.get((UUID(bytes=partition.topic_id), i32(partition.index)))
            retried = not self._settled(partition, proposal, result) or retried
        self._send_soon(RETRY_MS if retried else 0)

    def _settled(
        self, partition: Partition, proposal: Proposal, response: "response_schema.PartitionData | None"
    ) -> bool:
        """Handle one partition's result. Return False if the proposal must be sent again."""
        if self._pending.get(partition) is not proposal:
            return True
        # Decision proposal-raced
        if not _is_current(partition, proposal):  # Newer metadata was first.
            del self._pending[partition]
            return True
        if response is None:
            return False
        error = response.error_code
        if error:
            self._failures.value += 1
            self._ports.note("isr_proposal_refused", ("partition", partition.log.directory), ("error", int(error)))
            if error not in _REFUSED | _WAIT_FOR_METADATA:  # Decision proposal-error
                return False
        del self._pending[partition]
        if error in _REFUSED:  # Decision proposal-refused
            self._refused(partition)
        return True


def _members(proposal: Proposal) -> "tuple[request_schema.BrokerState, ...]":
    return tuple(
        request_schema.BrokerState(broker_id=BrokerId(replica_id), broker_epoch=i64(epoch))
        for replica_id, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
    )


def _is_current(partition: Partition, proposal: Proposal) -> bool:
    followers = partition.followers
    return followers is not None and followers.proposal is proposal
