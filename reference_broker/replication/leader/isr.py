"""Asks the active controller to change the in-sync replicas: AlterPartition (KIP-497, KIP-903).

One request is in flight at a time; what is proposed meanwhile goes with the next. A proposal is repeated until a
response says what becomes of it. An accepted one still holds until the leader's image has it: the controller judged it
by its own min.insync.replicas, which may be newer than the leader's (E-2). Both come to the leader with the metadata.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32, i64

from reference_broker.controller.metadata_replica import MetadataReplica
from reference_broker.metrics.metrics import Counter
from reference_broker.ports.node_ports import Ports, later
from reference_broker.replication.leader.replicas import Proposal
from reference_broker.replication.partitions import Partition
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.lazy_schema import LazySchema

if TYPE_CHECKING:
    from kio.schema.alter_partition.v3 import request as request_schema
    from kio.schema.alter_partition.v3 import response as response_schema
else:
    request_schema = LazySchema("alter_partition.v3.request")
    response_schema = LazySchema("alter_partition.v3.response")

RETRY_MS = 50
"""The pause after a request that failed as a whole, as in Kafka."""

PARTITIONS_PER_REQUEST = 200
"""With this limit, building the request, writing it as metadata and taking the answer each stay below 5 ms."""

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
"""This leader's knowledge is out of date: newer metadata will settle the proposal."""


@dataclass(slots=True)
class IsrProposals:
    """Calls ``refused`` when a response says that a proposal is not applied and is still the partition's current one.

    ``failures`` counts each proposal that was not applied, once per attempt.
    """

    _ports: Ports
    _node_id: int
    _replica: MetadataReplica
    _refused: Callable[[Partition], None]
    _failures: Counter
    _pending: dict[Partition, Proposal] = field(default_factory=dict)
    _asking: bool = False
    _retry_planned: bool = False

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        """Asks the controller for ``proposal``, which ``partition.followers`` already holds."""
        self._pending[partition] = proposal
        self._ask_soon(0)

    def _ask_soon(self, pause_ms: int) -> None:
        """Asks in a separate event, so that all that one request or one tick proposes goes in one AlterPartition."""
        if not self._asking and not self._retry_planned and self._pending:
            self._retry_planned = True
            later(self._ports, pause_ms * 1000, self._ask)

    def _ask(self) -> None:
        self._retry_planned = False
        sent = self._still_wanted()
        if not sent:
            return
        self._asking = True
        channel, version = self._replica.lifecycle.channel, VERSIONS[ApiKey.ALTER_PARTITION][1]
        answered = partial(self._answered, sent)
        channel.ask(ApiKey.ALTER_PARTITION, version, self._request(sent), answered, self._failed)

    def _still_wanted(self) -> dict[Partition, Proposal]:
        """The oldest proposals that no metadata has settled meanwhile."""
        sent: dict[Partition, Proposal] = {}
        for partition, proposal in list(self._pending.items()):
            if not _holds(partition, proposal):
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
            broker_epoch=i64(self._replica.lifecycle.registered_epoch),
            topics=tuple(
                request_schema.TopicData(topic_id=UUID(bytes=topic_id), partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )

    def _failed(self) -> None:
        """The request may have been applied. Asking again is harmless, since its partition epoch is then too old."""
        self._asking = False
        self._ask_soon(RETRY_MS)

    def _answered(self, sent: dict[Partition, Proposal], answer: object) -> None:
        assert isinstance(answer, response_schema.AlterPartitionResponse), (
            f"AlterPartition was answered by {type(answer).__name__}"
        )
        self._asking = False
        if answer.error_code:
            self._ports.note("isr_proposal_failed", ("error", int(answer.error_code)))
            self._ask_soon(RETRY_MS)
            return
        by_id = {(topic.topic_id, one.partition_index): one for topic in answer.topics for one in topic.partitions}
        retried = False
        for partition, proposal in sent.items():
            one = by_id.get((UUID(bytes=partition.topic_id), i32(partition.index)))
            retried = not self._settled(partition, proposal, one) or retried
        self._ask_soon(RETRY_MS if retried else 0)

    def _settled(
        self, partition: Partition, proposal: Proposal, answer: "response_schema.PartitionData | None"
    ) -> bool:
        """Handles one partition's answer. Returns False if the proposal must be asked again."""
        if self._pending.get(partition) is not proposal:
            return True
        if not _holds(partition, proposal):  # Newer metadata was first.
            del self._pending[partition]
            return True
        if answer is None:
            return False
        error = answer.error_code
        if error:
            self._failures.value += 1
            self._ports.note("isr_proposal_refused", ("partition", partition.log.directory), ("error", int(error)))
            if error not in _REFUSED | _WAIT_FOR_METADATA:
                return False
        del self._pending[partition]
        if error in _REFUSED:
            self._refused(partition)
        return True


def _members(proposal: Proposal) -> "tuple[request_schema.BrokerState, ...]":
    return tuple(
        request_schema.BrokerState(broker_id=BrokerId(replica_id), broker_epoch=i64(epoch))
        for replica_id, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
    )


def _holds(partition: Partition, proposal: Proposal) -> bool:
    followers = partition.followers
    return followers is not None and followers.proposal is proposal
