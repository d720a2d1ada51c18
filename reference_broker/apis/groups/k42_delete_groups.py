"""DeleteGroups: groups without members go, with all their committed offsets (KIP-229)."""

from functools import partial

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.DELETE_GROUPS,
    min_version=0,
    max_version=2,
    behaviour="Answered when the tombstones of all are replicated. NON_EMPTY_GROUP: it has members; "
    "GROUP_ID_NOT_FOUND.",
    kips=(229,),
)


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers through ``call``, in the request's order, when the last group is settled."""
    assert isinstance(body, DeleteGroupsRequest)
    asked = tuple(dict.fromkeys(body.groups_names))
    results: dict[GroupId, Error] = {}

    def settled(error: Error, group_id: GroupId) -> None:
        results[group_id] = error
        if len(results) == len(asked):
            call.respond(_response(asked, results))

    if not asked:
        call.respond(_response(asked, results))
    for group_id in asked:
        broker.groups.membership.delete(group_id, partial(settled, group_id=group_id))


def _response(asked: tuple[GroupId, ...], results: dict[GroupId, Error]) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        throttle_time=NO_THROTTLE,
        results=tuple(DeletableGroupResult(group_id=each, error_code=ErrorCode(results[each])) for each in asked),
    )
