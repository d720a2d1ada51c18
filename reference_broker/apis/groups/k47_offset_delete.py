"""OffsetDelete: forgets single committed offsets of a group.

* The answer comes when all replicas in sync have the tombstones.
* Topics to which the members of the group subscribe are refused: GROUP_SUBSCRIBED_TO_TOPIC.
* So are groups with members of another protocol type: NON_EMPTY_GROUP.

KIPs: 496.
"""

from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call, contained
from reference_broker.apis.parts import HasGroups
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.wire.errors import Error, ErrorCode


def handle(broker: HasGroups, call: Call, body: OffsetDeleteRequest) -> None:
    """Answers later: an error for all, or one for each partition in the request's order."""
    wanted = [(topic.name, one.partition_index) for topic in body.topics for one in topic.partitions]

    def answer(error: Error, errors: list[Error]) -> None:
        told = iter(errors)
        topics = tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(partition_index=one.partition_index, error_code=ErrorCode(next(told)))
                    for one in topic.partitions
                ),
            )
            for topic in body.topics
            if not error
        )
        call.respond(OffsetDeleteResponse(error_code=ErrorCode(error), throttle_time=NO_THROTTLE, topics=topics))

    broker.groups.commits.delete(body.group_id, wanted, contained(call, answer))


API = Api.of(OffsetDeleteRequest, handle)
