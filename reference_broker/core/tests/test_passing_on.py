"""Which requests a broker passes on to the active controller: those of clients, whatever they call themselves."""

import pytest

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.wire.errors import ErrorCode


def another_than_the_controller(world: ClusterWorld) -> int:
    return next(number for number in world.members if number != world.controller)


@pytest.mark.parametrize("client_id", ["app", "node-app", "node-1", "node-1:AAAAAAAAAAAAAAAAAAAAAA"])
def test_a_request_of_a_client_is_passed_on(client_id: str) -> None:
    world = ClusterWorld()
    world.ready()
    assert world.create("t", at=another_than_the_controller(world), client_id=client_id).error_code == ErrorCode.none


def test_a_request_that_a_node_has_passed_on_is_not_passed_on_again() -> None:
    world = ClusterWorld()
    world.ready()
    there = another_than_the_controller(world)
    passed_on = world.members[world.controller].node._client_id()
    assert world.create("t", at=there, client_id=passed_on).error_code == ErrorCode.not_controller
