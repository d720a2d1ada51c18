"""OffsetCommit: commits offsets of a group.

* The response is sent when all replicas in sync have the commits.
* The commit of a member counts as its heartbeat.

Version notes:
* v2-4: carry a retention time, which replaces the broker's own.
* v9: GROUP_ID_NOT_FOUND where the group does not exist.
* v1000: as v3, with the metadata epoch of each partition. INVALID_METADATA_EPOCH where it is below that of the last
  commit.
* v1001: as v7, with the same, so it has no retention time.

KIPs: 211, 232, 320, 345.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeAlias

from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, respond_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, topics_with_errors
from reference_broker.groups.committed_offsets import NO_EPOCH
from reference_broker.groups.offset_metadata_manager import BROKERS_RETENTION, CommitRequest, Committed, RequestedOffset
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.drafts import (
    OffsetCommitRequest1000,
    OffsetCommitRequest1001,
    OffsetCommitRequestPartition1001,
    OffsetCommitResponse1000,
    OffsetCommitResponsePartition1000,
    OffsetCommitResponseTopic1000,
)
from reference_broker.wire.errors import Error
from reference_broker.wire.retired_fields import OffsetCommitRequest

GROUP_NOT_FOUND_FROM = 9
MILLISECOND = timedelta(milliseconds=1)


Draft: TypeAlias = OffsetCommitRequest1000 | OffsetCommitRequest1001


def handle(broker: Broker, call: Call, body: OffsetCommitRequest | Draft) -> None:
    """Respond later: an error for each partition, in the request's order."""
    if isinstance(body, OffsetCommitRequest1000 | OffsetCommitRequest1001):
        _commit_draft(broker, call, body)
        return
    request = CommitRequest(
        group_id=body.group_id,
        generation=body.generation_id_or_member_epoch,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        offsets=tuple(
            RequestedOffset(
                topic.name,
                partition.partition_index,
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata,
            )
            for topic in body.topics
            for partition in topic.partitions
        ),
        knows_missing_groups=call.api_version >= GROUP_NOT_FOUND_FROM,
        retention_ms=body.retention_time // MILLISECOND,
    )

    def build_response(errors: list[Error]) -> Sliced[object]:
        topics = topics_with_errors(body.topics, errors, OffsetCommitResponseTopic, OffsetCommitResponsePartition)
        return OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=(yield from topics))

    broker.groups.offset_manager.commit_offsets(request, _when_committed(broker, call, build_response), call.run)


API: Api[OffsetCommitRequest | Draft] = Api.of(
    (OffsetCommitRequest, OffsetCommitRequest1000, OffsetCommitRequest1001), handle
)


def _commit_draft(broker: Broker, call: Call, body: Draft) -> None:
    request = CommitRequest(
        group_id=body.group_id,
        generation=body.generation_id_or_member_epoch,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id if isinstance(body, OffsetCommitRequest1001) else None,
        offsets=tuple(
            RequestedOffset(
                topic.name,
                partition.partition_index,
                partition.committed_offset,
                partition.committed_leader_epoch
                if isinstance(partition, OffsetCommitRequestPartition1001)
                else NO_EPOCH,
                partition.committed_metadata,
                partition.metadata_epoch,
            )
            for topic in body.topics
            for partition in topic.partitions
        ),
        retention_ms=body.retention_time_ms if isinstance(body, OffsetCommitRequest1000) else BROKERS_RETENTION,
    )

    def build_response(errors: list[Error]) -> Sliced[object]:
        topics = topics_with_errors(
            body.topics, errors, OffsetCommitResponseTopic1000, OffsetCommitResponsePartition1000
        )
        return OffsetCommitResponse1000(topics=(yield from topics))

    broker.groups.offset_manager.commit_offsets(request, _when_committed(broker, call, build_response), call.run)


def _when_committed(broker: Broker, call: Call, build_response: Callable[[list[Error]], Sliced[object]]) -> Committed:
    return callback(call, lambda errors: respond_in_slices(broker, call, build_response(errors)))
