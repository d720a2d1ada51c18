"""ListGroups: the groups that this node coordinates (KIP-518, 848)."""

from collections.abc import Iterator
from itertools import islice

from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.types import GroupId

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.groups.state.group import Group
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.LIST_GROUPS,
    min_version=0,
    max_version=5,
    behaviour="All groups of the partitions of __consumer_offsets that are led here, of given states and types (either "
    "case; every group is classic). COORDINATOR_LOAD_IN_PROGRESS while one of them is not loaded.",
    kips=(518, 848),
)

TYPE = "classic"
GROUPS_A_SLICE = 1000


def handle(broker: Broker, call: Call, body: object) -> ListGroupsResponse | None:
    """Many groups are listed in slices, and answered through ``call``."""
    assert isinstance(body, ListGroupsRequest)
    if broker.groups.loading():
        return _response(Error.COORDINATOR_LOAD_IN_PROGRESS, [])
    if body.types_filter and TYPE not in (each.strip().lower() for each in body.types_filter):
        return _response(Error.NONE, [])
    states = frozenset(each.strip().lower() for each in body.states_filter)
    groups = (group for each in tuple(broker.groups.active()) for group in tuple(each.groups.values()))
    _list_slice(broker, call, groups, states, [])
    return None


def _list_slice(
    broker: Broker, call: Call, groups: Iterator[Group], states: frozenset[str], listed: list[ListedGroup]
) -> None:
    if call.closed:
        return
    batch = tuple(islice(groups, GROUPS_A_SLICE))
    listed.extend(_listed(each) for each in batch if not states or each.state.value.lower() in states)
    if len(batch) < GROUPS_A_SLICE:
        call.respond(_response(Error.NONE, listed))
    else:
        now_us = broker.outside.now().mono_us
        broker.outside.set_timer(now_us, lambda: _list_slice(broker, call, groups, states, listed))


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=GroupId(group.group_id),
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=TYPE,
    )


def _response(error: Error, listed: list[ListedGroup]) -> ListGroupsResponse:
    return ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(error), groups=tuple(listed))
