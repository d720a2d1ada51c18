"""Messages of groups, transactions and in-sync replicas, as checks see them in requests and replies.

They are Kafka's own classes. Each builder has parameters for the fields that checks compare. The defaults are those of
a client that does nothing wrong: member a-1 of group g in generation 3, or producer 7 of the transactional ID x.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.alter_partition.v3.request import AlterPartitionRequest, BrokerState
from kio.schema.alter_partition.v3.request import PartitionData as AlteredPartition
from kio.schema.alter_partition.v3.request import TopicData as AlteredTopic
from kio.schema.alter_partition.v3.response import AlterPartitionResponse
from kio.schema.alter_partition.v3.response import PartitionData as AlteredPartitionResult
from kio.schema.alter_partition.v3.response import TopicData as AlteredTopicResult
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.join_group.v9.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v9.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment
from kio.schema.sync_group.v5.response import SyncGroupResponse
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.types import BrokerId, GroupId, ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v1.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.static.primitive import i16, i32, i32Timedelta, i64

from reference_broker.wire.errors import ErrorCode

MEMBER = "a-1"
GROUP = GroupId("g")
TOPIC = TopicName("t")
TRANSACTIONAL_ID = "x"
NO_THROTTLE = i32Timedelta.parse(timedelta(0))


def _ms(milliseconds: int) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(milliseconds=milliseconds))


def join_group_request(
    member_id: str = "",
    instance: str | None = None,
    *,
    protocols: Mapping[str, bytes] | None = None,
    protocol_type: str = "consumer",
) -> JoinGroupRequest:
    """Return a request with a session timeout of 1 s and a rebalance timeout of 2 s."""
    subscriptions = {"range": b"m"} if protocols is None else protocols
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout=_ms(1000),
        rebalance_timeout=_ms(2000),
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=tuple(JoinGroupRequestProtocol(name=name, metadata=data) for name, data in subscriptions.items()),
    )


def join_group_response(
    member_id: str,
    *,
    error: ErrorCode = ErrorCode.none,
    generation: int = -1,
    protocol: str | None = None,
    leader: str = "",
    members: Sequence[tuple[str, str | None, bytes]] = (),
) -> JoinGroupResponse:
    """``members`` has the ID, the instance ID and the subscription of each."""
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        generation_id=i32(generation),
        protocol_type="consumer",
        protocol_name=protocol,
        leader=leader,
        member_id=member_id,
        members=tuple(
            JoinGroupResponseMember(member_id=each, group_instance_id=instance, metadata=data)
            for each, instance, data in members
        ),
    )


def sync_group_request(
    member_id: str = MEMBER,
    generation: int = 3,
    instance: str | None = None,
    *,
    protocol: str | None = "range",
    assignments: Mapping[str, bytes] | None = None,
) -> SyncGroupRequest:
    """``assignments`` maps member IDs to assignments. Only the leader sends some."""
    return SyncGroupRequest(
        group_id=GROUP,
        generation_id=i32(generation),
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocol_name=protocol,
        assignments=tuple(
            SyncGroupRequestAssignment(member_id=each, assignment=data) for each, data in (assignments or {}).items()
        ),
    )


def sync_group_response(assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        protocol_type="consumer",
        protocol_name="range",
        assignment=assignment,
    )


def heartbeat_request(member_id: str = MEMBER, generation: int = 3, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=GROUP, generation_id=i32(generation), member_id=member_id, group_instance_id=instance
    )


def heartbeat_response(error: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=error)


def leaving_member(member_id: str, instance: str | None = None) -> MemberIdentity:
    return MemberIdentity(member_id=member_id, group_instance_id=instance)


def leave_group_request(*members: MemberIdentity) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id=GROUP, members=members)


def leave_group_response(*errors: ErrorCode) -> LeaveGroupResponse:
    """Return a response with the error of each member that was to leave."""
    members = tuple(MemberResponse(member_id="", group_instance_id=None, error_code=error) for error in errors)
    return LeaveGroupResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, members=members)


def delete_groups_request(group: str = GROUP) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=(GroupId(group),))


def delete_groups_response(error: ErrorCode) -> DeleteGroupsResponse:
    result = DeletableGroupResult(group_id=GROUP, error_code=error)
    return DeleteGroupsResponse(throttle_time=NO_THROTTLE, results=(result,))


def offset_commit_request(
    member_id: str = MEMBER, generation: int = 3, instance: str | None = None, *, offset: int = 0
) -> OffsetCommitRequest:
    """Return a commit of ``offset`` for t-0."""
    partition = OffsetCommitRequestPartition(
        partition_index=i32(0), committed_offset=i64(offset), committed_metadata="text"
    )
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=i32(generation),
        member_id=member_id,
        group_instance_id=instance,
        topics=(OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,)),),
    )


def txn_offset_commit_request(member_id: str = MEMBER, generation: int = 3) -> TxnOffsetCommitRequest:
    """Return a commit of no offset, in a transaction of producer 7."""
    return TxnOffsetCommitRequest(
        transactional_id=TransactionalId(TRANSACTIONAL_ID),
        group_id=GROUP,
        producer_id=ProducerId(7),
        producer_epoch=i16(0),
        generation_id=i32(generation),
        member_id=member_id,
        topics=(),
    )


def offset_commit_response(*errors: ErrorCode) -> OffsetCommitResponse:
    """Return a response with the errors of t-0, t-1 and so on. That of TxnOffsetCommit has the same fields."""
    partitions = tuple(
        OffsetCommitResponsePartition(partition_index=i32(index), error_code=each) for index, each in enumerate(errors)
    )
    return OffsetCommitResponse(
        throttle_time=NO_THROTTLE, topics=(OffsetCommitResponseTopic(name=TOPIC, partitions=partitions),)
    )


def offset_fetch_request(*, of_all_topics: bool = False, require_stable: bool = False) -> OffsetFetchRequest:
    """Return a request for the group's offset of t-0, or for all that it has committed."""
    topics = None if of_all_topics else (OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(i32(0),)),)
    return OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=GROUP, topics=topics),), require_stable=require_stable
    )


def offset_fetch_response(
    offset: int | None, *, leader_epoch: int = 4, metadata: str = "text", error: ErrorCode = ErrorCode.none
) -> OffsetFetchResponse:
    """Return a response with the committed offset of t-0, or with no topic if that is None."""
    topics: tuple[OffsetFetchResponseTopics, ...] = ()
    if offset is not None:
        partition = OffsetFetchResponsePartitions(
            partition_index=i32(0),
            committed_offset=i64(offset),
            committed_leader_epoch=i32(leader_epoch),
            metadata=metadata,
            error_code=error,
        )
        topics = (OffsetFetchResponseTopics(name=TOPIC, partitions=(partition,)),)
    group = OffsetFetchResponseGroup(group_id=GROUP, topics=topics, error_code=ErrorCode.none)
    return OffsetFetchResponse(throttle_time=NO_THROTTLE, groups=(group,))


def offset_delete_request(topic: str, index: int) -> OffsetDeleteRequest:
    """Return a request to delete the group's offset of this partition."""
    partition = OffsetDeleteRequestPartition(partition_index=i32(index))
    return OffsetDeleteRequest(
        group_id=GROUP, topics=(OffsetDeleteRequestTopic(name=TopicName(topic), partitions=(partition,)),)
    )


def offset_delete_response(error: ErrorCode) -> OffsetDeleteResponse:
    """Return a response with the error of t-0."""
    partition = OffsetDeleteResponsePartition(partition_index=i32(0), error_code=error)
    return OffsetDeleteResponse(
        error_code=ErrorCode.none,
        throttle_time=NO_THROTTLE,
        topics=(OffsetDeleteResponseTopic(name=TOPIC, partitions=(partition,)),),
    )


def init_producer_id_request(
    transactional_id: str | None = TRANSACTIONAL_ID,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    timeout_ms: int = 1000,
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=None if transactional_id is None else TransactionalId(transactional_id),
        transaction_timeout=_ms(timeout_ms),
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(producer_epoch),
    )


def init_producer_id_response(
    producer_id: int = 7, producer_epoch: int = 0, error: int = ErrorCode.none
) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error),
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(producer_epoch),
    )


def end_txn_request(transactional_id: str = TRANSACTIONAL_ID, *, commits: bool = True) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=TransactionalId(transactional_id),
        producer_id=ProducerId(7),
        producer_epoch=i16(0),
        committed=commits,
    )


def end_txn_response(producer_id: int = 7, producer_epoch: int = 0, error: int = ErrorCode.none) -> EndTxnResponse:
    return EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error),
        producer_id=ProducerId(producer_id),
        producer_epoch=i16(producer_epoch),
    )


def write_txn_markers_request(*, commit: bool, index: int, coordinator_epoch: int) -> WriteTxnMarkersRequest:
    """Return a request to write a marker of producer 7 to this partition of topic t."""
    topic = WritableTxnMarkerTopic(name=TOPIC, partition_indexes=(i32(index),))
    marker = WritableTxnMarker(
        producer_id=ProducerId(7),
        producer_epoch=i16(0),
        transaction_result=commit,
        topics=(topic,),
        coordinator_epoch=i32(coordinator_epoch),
    )
    return WriteTxnMarkersRequest(markers=(marker,))


def add_partitions_to_txn_request(*indexes: int) -> AddPartitionsToTxnRequest:
    """Return a request that adds these partitions of topic t to the transaction of x."""
    topic = AddPartitionsToTxnTopic(name=TOPIC, partitions=tuple(map(i32, indexes)))
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=TransactionalId(TRANSACTIONAL_ID),
        producer_id=ProducerId(7),
        producer_epoch=i16(0),
        topics=(topic,),
    )
    return AddPartitionsToTxnRequest(transactions=(transaction,))


def add_partitions_to_txn_response(*indexes: int, error: int = ErrorCode.none) -> AddPartitionsToTxnResponse:
    """Return a response with the same error for each of these partitions of topic t."""
    results = tuple(
        AddPartitionsToTxnPartitionResult(partition_index=i32(index), partition_error_code=ErrorCode(error))
        for index in indexes
    )
    of_topic = AddPartitionsToTxnTopicResult(name=TOPIC, results_by_partition=results)
    of_transaction = AddPartitionsToTxnResult(
        transactional_id=TransactionalId(TRANSACTIONAL_ID), topic_results=(of_topic,)
    )
    return AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=(of_transaction,)
    )


def alter_partition_request(
    topic_id: bytes,
    *,
    isr: Sequence[int] = (),
    partition_epoch: int = 1,
    index: int = 0,
    leader_epoch: int = 0,
    broker_epoch: int = 7,
) -> AlterPartitionRequest:
    """Return a leader's proposal of these in-sync replicas. All of them have the same broker epoch."""
    members = tuple(BrokerState(broker_id=BrokerId(each), broker_epoch=i64(broker_epoch)) for each in isr)
    partition = AlteredPartition(
        partition_index=i32(index),
        leader_epoch=i32(leader_epoch),
        new_isr_with_epochs=members,
        partition_epoch=i32(partition_epoch),
    )
    topic = AlteredTopic(topic_id=UUID(bytes=topic_id), partitions=(partition,))
    return AlterPartitionRequest(broker_id=BrokerId(1), broker_epoch=i64(broker_epoch), topics=(topic,))


def alter_partition_response(
    topic_id: bytes, *, error: int = ErrorCode.none, partition_epoch: int = 2
) -> AlterPartitionResponse:
    """Return the controller's response for partition 0."""
    partition = AlteredPartitionResult(
        partition_index=i32(0),
        error_code=ErrorCode(error),
        leader_id=BrokerId(0),
        leader_epoch=i32(0),
        partition_epoch=i32(partition_epoch),
    )
    topic = AlteredTopicResult(topic_id=UUID(bytes=topic_id), partitions=(partition,))
    return AlterPartitionResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, topics=(topic,))
