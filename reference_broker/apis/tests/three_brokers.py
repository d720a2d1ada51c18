"""A controller with three brokers, and topics with several replicas."""

from typing import Any
from uuid import UUID

from kio.schema.alter_partition.v3.request import AlterPartitionRequest, BrokerState, PartitionData, TopicData
from kio.schema.alter_partition.v3.response import AlterPartitionResponse
from kio.schema.alter_partition.v3.response import PartitionData as PartitionAnswer
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest, Feature, Listener
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i64, u16

from reference_broker.apis.brokers import (
    k56_alter_partition,
    k62_broker_registration,
    k63_broker_heartbeat,
)
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.topic_requests import create_topics, topic
from reference_broker.apis.topics import k43_elect_leaders
from reference_broker.metadata.image import PartitionImage
from reference_broker.wire.errors import ErrorCode


class Cluster(AdminWorld):
    """Node 1 and brokers 2 and 3."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.epochs = {1: self.lifecycle.registered_epoch}
        for broker_id in (2, 3):
            self.register(broker_id, broker_id)
            self.beat(broker_id)

    def register(self, broker_id: int, incarnation: int) -> None:
        """Register the broker after the session of an earlier incarnation has expired."""
        self.controller.heartbeats.forget(broker_id)
        response = self.request_registration(broker_id, incarnation)
        assert response.error_code is ErrorCode.none
        self.epochs[broker_id] = response.broker_epoch

    def request_registration(self, broker_id: int, incarnation: int) -> BrokerRegistrationResponse:
        body = BrokerRegistrationRequest(
            broker_id=BrokerId(broker_id),
            cluster_id="cluster",
            incarnation_id=UUID(int=incarnation),
            listeners=(Listener(name="PLAINTEXT", host="h", port=u16(9092), security_protocol=i16(0)),),
            features=(
                Feature(name="metadata.version", min_supported_version=i16(7), max_supported_version=i16(27)),
                Feature(
                    name="eligible.leader.replicas.version", min_supported_version=i16(0), max_supported_version=i16(1)
                ),
                Feature(name="transaction.version", min_supported_version=i16(0), max_supported_version=i16(2)),
            ),
            rack=None,
            log_dirs=(UUID(int=100 + broker_id),),
        )
        found: BrokerRegistrationResponse = self.request(k62_broker_registration, body)
        return found

    def beat(self, broker_id: int, want_fence: bool = False, want_shut_down: bool = False, offset: int = 10**6) -> None:
        body = BrokerHeartbeatRequest(
            broker_id=BrokerId(broker_id),
            broker_epoch=i64(self.epochs[broker_id]),
            current_metadata_offset=i64(offset),
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        assert self.request(k63_broker_heartbeat, body).error_code is ErrorCode.none

    def partition(self, index: int = 0, name: str = "t") -> PartitionImage:
        return self.controller.image.topics[name].partitions[index]

    def topic_id(self, name: str = "t") -> UUID:
        return UUID(bytes=self.controller.image.topics[name].topic_id)

    def change(
        self, isr: tuple[int, ...], *, leader: int = 1, epochs: dict[int, int] | None = None, **changed: int
    ) -> PartitionAnswer:
        """Request an ISR of partition 0 as its leader does. Return the response for that partition."""
        known = self.partition()
        fields: dict[str, Any] = {
            "partition_index": 0,
            "leader_epoch": known.leader_epoch,
            "partition_epoch": known.partition_epoch,
            "leader_recovery_state": 0,
            **changed,
        }
        sent = epochs or {}
        wanted = tuple(
            BrokerState(broker_id=BrokerId(each), broker_epoch=i64(sent.get(each, self.epochs.get(each, 9))))
            for each in isr
        )
        entry = PartitionData(new_isr_with_epochs=wanted, **fields)
        ((response,),) = (each.partitions for each in self.alter(leader, (entry,)).topics)
        return response

    def alter(
        self,
        leader: int,
        partitions: tuple[PartitionData, ...],
        topic_id: UUID | None = None,
        broker_epoch: int | None = None,
    ) -> AlterPartitionResponse:
        body = AlterPartitionRequest(
            broker_id=BrokerId(leader),
            broker_epoch=i64(self.epochs[leader] if broker_epoch is None else broker_epoch),
            topics=(TopicData(topic_id=topic_id or self.topic_id(), partitions=partitions),),
        )
        found: AlterPartitionResponse = self.request(k56_alter_partition, body)
        return found

    def elect(
        self, kind: int, *wanted: tuple[str, tuple[int, ...]], api_version: int | None = None
    ) -> tuple[str, dict[tuple[str, int], str]]:
        """``wanted``: (topic, partitions); none: all."""
        entries = tuple(
            TopicPartitions(topic=TopicName(name), partitions=tuple(map(i32, indexes))) for name, indexes in wanted
        )
        body = ElectLeadersRequest(election_type=i8(kind), topic_partitions=entries or None, timeout=NO_WAIT)
        response = self.request(k43_elect_leaders, body, api_version)
        results = {
            (result.topic, part.partition_id): part.error_code.name
            for result in response.replica_election_results
            for part in result.partition_result
        }
        return response.error_code.name, results


def with_topic(*assignments: tuple[int, ...], **config: str) -> Cluster:
    """Return a cluster with topic t."""
    world = Cluster(**config)
    wanted = topic(partitions=-1, replication_factor=-1, assignments=tuple(enumerate(assignments)))
    assert create_topics(world, wanted)[0].error_code is ErrorCode.none
    return world
