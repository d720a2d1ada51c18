"""OffsetDelete: deletes single committed offsets of a group.

* The response follows when all replicas in sync have the tombstones.
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

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, respond_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, topics_with_errors
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import Error, ErrorCode


def handle(broker: Broker, call: Call, body: OffsetDeleteRequest) -> None:
    """Respond later: an error for all, or one for each partition in the request's order."""
    partitions = [(topic.name, partition.partition_index) for topic in body.topics for partition in topic.partitions]

    def build_response(error: Error, errors: list[Error]) -> Sliced[OffsetDeleteResponse]:
        requested = () if error else body.topics
        topics = yield from topics_with_errors(
            requested, errors, OffsetDeleteResponseTopic, OffsetDeleteResponsePartition
        )
        return OffsetDeleteResponse(error_code=ErrorCode(error), throttle_time=NO_THROTTLE, topics=topics)

    def respond(error: Error, errors: list[Error]) -> None:
        respond_in_slices(broker, call, build_response(error, errors))

    broker.groups.offset_manager.delete_offsets(body.group_id, partitions, callback(call, respond), call.run)


API = Api.of(OffsetDeleteRequest, handle)
