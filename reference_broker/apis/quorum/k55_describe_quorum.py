"""DescribeQuorum: returns who votes, who leads, and how far each replica of the metadata log has come.

* Only the leader knows. Any other node queries it, so a client may query any node. Kafka's brokers forward this request
  to the controller in the same way.
* The error is NOT_LEADER_OR_FOLLOWER while no leader is known or the leader does not respond.
* A request for anything but the metadata partition gets UNKNOWN_TOPIC_OR_PARTITION.
* Unlike Kafka: there are no directory IDs.

KIPs: 595, 836, 853.
"""

from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest
from kio.schema.describe_quorum.v2.response import (
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64, u16

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.forwarding import comes_from_node
from reference_broker.apis.registry import Api
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.messages import METADATA_TOPIC, names_metadata_partition
from reference_broker.quorum.values import QuorumDescription, ReplicaDescription
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: DescribeQuorumRequest) -> DescribeQuorumResponse | None:
    """Return the response, or None if the request is sent on to the leader."""
    if not names_metadata_partition(body.topics):
        return _unknown_partitions(body)
    if broker.quorum.is_leader:
        return _described(broker, broker.quorum.describe())
    leader_id = broker.quorum.leader_id
    if leader_id in (-1, broker.node_id) or comes_from_node(broker, call):
        return _not_leader()
    broker.ports.send(
        leader_id,
        Channel.CONTROLLER,
        ApiKey.DESCRIBE_QUORUM,
        VERSIONS[ApiKey.DESCRIBE_QUORUM][1],
        body,
        broker.config.controller_quorum_request_timeout_ms,
        call.respond,
        lambda: call.respond(_not_leader()),
    )
    return None


API = Api.of(DescribeQuorumRequest, handle)


def _unknown_partitions(body: DescribeQuorumRequest) -> DescribeQuorumResponse:
    error = ErrorCode.unknown_topic_or_partition
    return _response(
        tuple(
            TopicData(
                topic_name=topic.topic_name,
                partitions=tuple(_failed(partition.partition_index, error) for partition in topic.partitions),
            )
            for topic in body.topics
        )
    )


def _not_leader() -> DescribeQuorumResponse:
    return _response(_metadata_partition(_failed(i32(0), ErrorCode.not_leader_or_follower)))


def _failed(partition_index: i32, error: ErrorCode) -> PartitionData:
    """Kafka leaves the other fields of such a partition at zero."""
    return PartitionData(
        partition_index=partition_index,
        error_code=error,
        error_message=None,
        leader_id=BrokerId(0),
        leader_epoch=i32(0),
        high_watermark=i64(0),
        current_voters=(),
        observers=(),
    )


def _described(broker: Broker, quorum: QuorumDescription) -> DescribeQuorumResponse:
    partition = PartitionData(
        partition_index=i32(0),
        error_code=ErrorCode.none,
        error_message=None,
        leader_id=BrokerId(quorum.leader_id),
        leader_epoch=i32(quorum.leader_epoch),
        high_watermark=i64(quorum.high_watermark),
        current_voters=tuple(_replica(voter) for voter in quorum.voters),
        observers=tuple(_replica(observer) for observer in quorum.observers),
    )
    return _response(_metadata_partition(partition), _nodes(broker, [voter.replica_id for voter in quorum.voters]))


def _replica(replica: ReplicaDescription) -> ReplicaState:
    return ReplicaState(
        replica_id=BrokerId(replica.replica_id),
        replica_directory_id=None,
        log_end_offset=i64(replica.log_end_offset),
        last_fetch_timestamp=i64(replica.last_fetch_ms),
        last_caught_up_timestamp=i64(replica.last_caught_up_ms),
    )


def _nodes(broker: Broker, voters: list[int]) -> tuple[Node, ...]:
    """The addresses at which clients reach the voters. A voter that has never registered has none."""
    return tuple(
        Node(
            node_id=BrokerId(one.broker_id),
            listeners=tuple(Listener(name=name, host=host, port=u16(port)) for name, host, port in one.endpoints),
        )
        for _, one in sorted(broker.loader.image.brokers.items())
        if one.broker_id in voters
    )


def _metadata_partition(partition: PartitionData) -> tuple[TopicData, ...]:
    return (TopicData(topic_name=METADATA_TOPIC, partitions=(partition,)),)


def _response(topics: tuple[TopicData, ...], nodes: tuple[Node, ...] = ()) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=ErrorCode.none, error_message=None, topics=topics, nodes=nodes)
