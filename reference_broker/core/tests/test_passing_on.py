"""Requests that a broker forwards to the active controller: those of clients, with any client ID."""

import pytest

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.wire.errors import ErrorCode


def another_than_the_controller(world: ClusterWorld) -> int:
    return next(number for number in world.members if number != world.controller)


@pytest.mark.parametrize("client_id", ["app", "node-app", "node-1", "node-1:AAAAAAAAAAAAAAAAAAAAAA"])
def test_client_request_is_forwarded(client_id: str) -> None:
    world = ClusterWorld()
    world.ready()
    assert world.create("t", at=another_than_the_controller(world), client_id=client_id).error_code == ErrorCode.none


def test_forwarded_request_is_not_forwarded_again() -> None:
    world = ClusterWorld()
    world.ready()
    there = another_than_the_controller(world)
    passed_on = world.members[world.controller].node._client_id()
    assert world.create("t", at=there, client_id=passed_on).error_code == ErrorCode.not_controller
