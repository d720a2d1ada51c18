"""OffsetCommit: keeps where the consumers of a group are.

* The answer comes when all replicas in sync have the commits.
* The commit of a member counts as its heartbeat.
* Unlike Kafka: the retention time that versions 2 to 4 carry is not looked at. The broker's own retention holds.

Version notes:
* v9: GROUP_ID_NOT_FOUND where the group does not exist.
* v1000: carries the metadata epoch of each partition. INVALID_METADATA_EPOCH where it is below that of the last commit.
* v1001: as v1000, with leader epochs and the member's instance ID.

KIPs: 211, 232, 320, 345.
"""

from typing import TypeAlias

from kio.schema.offset_commit.v9.request import OffsetCommitRequest
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call, contained
from reference_broker.apis.parts import HasGroups
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.groups.offsets.committed_offsets import NO_EPOCH
from reference_broker.groups.offsets.requests import CommitRequest, WantedOffset
from reference_broker.wire.drafts.offsets import (
    OffsetCommitRequest1000,
    OffsetCommitRequest1001,
    OffsetCommitRequestPartition1001,
    OffsetCommitResponse1000,
    OffsetCommitResponsePartition1000,
    OffsetCommitResponseTopic1000,
)
from reference_broker.wire.errors import Error, ErrorCode

GROUP_NOT_FOUND_FROM = 9


Draft: TypeAlias = OffsetCommitRequest1000 | OffsetCommitRequest1001


def handle(broker: HasGroups, call: Call, body: OffsetCommitRequest | Draft) -> None:
    """Answers later: an error for each partition, in the request's order."""
    if isinstance(body, OffsetCommitRequest1000 | OffsetCommitRequest1001):
        _commit_draft(broker, call, body)
        return
    request = CommitRequest(
        group_id=body.group_id,
        generation=body.generation_id_or_member_epoch,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id,
        offsets=tuple(
            WantedOffset(
                topic.name,
                one.partition_index,
                one.committed_offset,
                one.committed_leader_epoch,
                one.committed_metadata,
            )
            for topic in body.topics
            for one in topic.partitions
        ),
        knows_missing_groups=call.api_version >= GROUP_NOT_FOUND_FROM,
    )

    def answer(errors: list[Error]) -> None:
        told = iter(errors)
        topics = tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=ErrorCode(next(told)))
                    for one in topic.partitions
                ),
            )
            for topic in body.topics
        )
        call.respond(OffsetCommitResponse(throttle_time=NO_THROTTLE, topics=topics))

    broker.groups.commits.commit(request, contained(call, answer), call.contain)


API: Api[OffsetCommitRequest | Draft] = Api.of(
    (OffsetCommitRequest, OffsetCommitRequest1000, OffsetCommitRequest1001), handle
)


def _commit_draft(broker: HasGroups, call: Call, body: Draft) -> None:
    request = CommitRequest(
        group_id=body.group_id,
        generation=body.generation_id_or_member_epoch,
        member_id=body.member_id,
        group_instance_id=body.group_instance_id if isinstance(body, OffsetCommitRequest1001) else None,
        offsets=tuple(
            WantedOffset(
                topic.name,
                one.partition_index,
                one.committed_offset,
                one.committed_leader_epoch if isinstance(one, OffsetCommitRequestPartition1001) else NO_EPOCH,
                one.committed_metadata,
                one.metadata_epoch,
            )
            for topic in body.topics
            for one in topic.partitions
        ),
    )

    def answer(errors: list[Error]) -> None:
        told = iter(errors)
        topics = tuple(
            OffsetCommitResponseTopic1000(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition1000(partition_index=one.partition_index, error_code=int(next(told)))
                    for one in topic.partitions
                ),
            )
            for topic in body.topics
        )
        call.respond(OffsetCommitResponse1000(topics=topics))

    broker.groups.commits.commit(request, contained(call, answer), call.contain)
