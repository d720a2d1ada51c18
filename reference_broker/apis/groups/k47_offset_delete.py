"""OffsetDelete: forgets single committed offsets of a group (KIP-496)."""

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest
from kio.schema.offset_delete.v0.response import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.OFFSET_DELETE,
    min_version=0,
    max_version=0,
    behaviour="Answered when all replicas in sync have the tombstones. Topics to which the group's members subscribe "
    "are refused (GROUP_SUBSCRIBED_TO_TOPIC), and groups with members of another protocol type (NON_EMPTY_GROUP).",
    kips=(496,),
)


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers later: an error for all, or one for each partition in the request's order."""
    assert isinstance(body, OffsetDeleteRequest)
    wanted = [(topic.name, one.partition_index) for topic in body.topics for one in topic.partitions]

    def answer(error: Error, errors: list[Error]) -> None:
        told = iter(errors)
        topics = tuple(
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=one.partition_index, error_code=ErrorCode(int(next(told)))
                    )
                    for one in topic.partitions
                ),
            )
            for topic in body.topics
            if error is Error.NONE
        )
        call.respond(OffsetDeleteResponse(error_code=ErrorCode(int(error)), throttle_time=NO_THROTTLE, topics=topics))

    broker.groups.commits.delete(body.group_id, wanted, answer)
