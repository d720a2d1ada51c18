"""ListGroups: returns the groups that this node coordinates.

* A request may filter by states and types, in either case. Every group is of the type classic.
* COORDINATOR_LOAD_IN_PROGRESS while a partition of ``__consumer_offsets`` that is led here is not loaded.

KIPs: 518, 848.
"""

from collections.abc import Iterator
from itertools import islice

from kio.schema.list_groups.v5.request import ListGroupsRequest
from kio.schema.list_groups.v5.response import ListedGroup, ListGroupsResponse
from kio.schema.types import GroupId

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, run_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.groups.group import Group
from reference_broker.ports.slicing import LISTED_PER_SLICE, Sliced
from reference_broker.wire.errors import Error, ErrorCode

TYPE = "classic"


def handle(broker: Broker, call: Call, body: ListGroupsRequest) -> ListGroupsResponse | None:
    """The groups are sent through ``call``."""
    if broker.groups.loading():
        return _response(ErrorCode.coordinator_load_in_progress, [])
    if body.types_filter and TYPE not in (name.strip().lower() for name in body.types_filter):
        return _response(ErrorCode.none, [])
    states = frozenset(name.strip().lower() for name in body.states_filter)
    groups = (group for shard in tuple(broker.groups.active()) for group in tuple(shard.groups.values()))
    run_in_slices(broker, call, _list(call, groups, states))
    return None


API = Api.of(ListGroupsRequest, handle)


def _list(call: Call, groups: Iterator[Group], states: frozenset[str]) -> Sliced[None]:
    listed: list[ListedGroup] = []
    while not call.closed:
        batch = tuple(islice(groups, LISTED_PER_SLICE))
        listed.extend(_listed(group) for group in batch if not states or group.state.value.lower() in states)
        if len(batch) < LISTED_PER_SLICE:
            call.respond(_response(ErrorCode.none, listed))
            return
        yield


def _listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=GroupId(group.group_id),
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=TYPE,
    )


def _response(error: Error, listed: list[ListedGroup]) -> ListGroupsResponse:
    return ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(error), groups=tuple(listed))
