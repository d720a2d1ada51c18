"""DeleteGroups: deletes groups without members, with all their committed offsets.

* The response follows when the tombstones of all groups are replicated.
* NON_EMPTY_GROUP says that the group has members, GROUP_ID_NOT_FOUND that there is none.

KIPs: 229.
"""

from functools import partial

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.types import GroupId

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, run_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.ports.slicing import DELETED_GROUPS_PER_SLICE, Sliced
from reference_broker.wire.errors import Error, ErrorCode


def handle(broker: Broker, call: Call, body: DeleteGroupsRequest) -> None:
    """Respond in the request's order, when the last group is settled."""
    group_ids = tuple(dict.fromkeys(body.groups_names))
    results: dict[GroupId, Error] = {}

    def settled(error: Error, group_id: GroupId) -> None:
        results[group_id] = error
        if len(results) == len(group_ids):
            call.respond(_response(group_ids, results))

    if not group_ids:
        call.respond(_response(group_ids, results))

    def delete() -> Sliced[None]:
        for number, group_id in enumerate(group_ids):
            if number and number % DELETED_GROUPS_PER_SLICE == 0:
                yield
            broker.groups.group_manager.delete_group(group_id, partial(callback(call, settled), group_id=group_id))

    run_in_slices(broker, call, delete())


API = Api.of(DeleteGroupsRequest, handle)


def _response(group_ids: tuple[GroupId, ...], results: dict[GroupId, Error]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(
            DeletableGroupResult(group_id=group_id, error_code=ErrorCode(results[group_id])) for group_id in group_ids
        ),
    )
