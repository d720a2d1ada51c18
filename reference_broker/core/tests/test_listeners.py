"""The requests that a node accepts on each of its listeners, and the addresses it returns there."""

from typing import Any

import pytest
from kio.schema.api_versions.v4.request import ApiVersionsRequest

from reference_broker.apis.listener_scopes import CONTROLLERS_ONLY, CONTROLLERS_TOO
from reference_broker.apis.registry import SERVED
from reference_broker.configuration.listeners import Endpoint
from reference_broker.core.events import Opened
from reference_broker.core.node import Node
from reference_broker.core.tests.node_world import NodeWorld, fetch_request, produce_request, sent_batch
from reference_broker.metadata.delta import MetadataDelta, replay
from reference_broker.metadata.image import EMPTY_IMAGE
from reference_broker.metadata.snapshots import records_of
from reference_broker.ports.disk import MemoryDisk
from reference_broker.quorum.messages import (
    VoteRequest,
    build_begin_quorum_epoch_request,
    build_end_quorum_epoch_request,
    build_fetch_request,
    build_vote_request,
)
from reference_broker.quorum.values import OffsetAndEpoch, Provenance
from reference_broker.wire.apis import DRAFTS, ApiKey
from reference_broker.wire.retired_fields import MetadataRequest

NAMES = {"CLIENTS": 1, "REPLICATION": 2, "CONTROLLER": 3}
"""The listeners, each with the number of a connection that it accepted."""
ENDPOINTS = (Endpoint("outside", 1, "CLIENTS"), Endpoint("inside", 2, "REPLICATION"))
START = OffsetAndEpoch(0, 0)


@pytest.fixture
def world() -> NodeWorld:
    made = NodeWorld(
        start=False,
        listeners="CLIENTS://h:1,REPLICATION://h:2,CONTROLLER://h:3",
        controller_listener_names="CONTROLLER",
        inter_broker_listener_name="REPLICATION",
    )
    node: Any = made.node
    made.node = Node(node.broker.node_id, node.broker.config, MemoryDisk(), 5, endpoints=ENDPOINTS)
    made.start()
    made.settle_until(lambda: made.node.ready)
    for name, connection in NAMES.items():
        made.give(Opened(connection, "10.1.2.3:5000", name))
    made.create("t")
    return made


def taken_on(world: NodeWorld, api_key: int, version: int, body: object) -> list[str]:
    """Return the listeners that serve or park a request. The others close its connection."""
    taken = []
    for name, connection in NAMES.items():
        world.closed.pop(connection, None)
        world.send(api_key, version, body, connection)
        world.settle()
        if connection not in world.closed:
            taken.append(name)
        else:
            assert f"is not taken on the listener {name}" in world.closed[connection]
    return taken


def test_controller_requests_are_accepted_only_on_controller_listener(world: NodeWorld) -> None:
    requests: list[tuple[int, int, object]] = [
        (ApiKey.VOTE, 2, build_vote_request(VoteRequest("c", 1, 2, 9, START, False))),
        (ApiKey.BEGIN_QUORUM_EPOCH, 1, build_begin_quorum_epoch_request("c", 1, 2, 9)),
        (ApiKey.END_QUORUM_EPOCH, 1, build_end_quorum_epoch_request("c", 2, 9, ())),
        (ApiKey.FETCH, 17, build_fetch_request("c", 2, 1, START, 0, 0, 0)),
    ]
    for api_key, version, body in requests:
        assert taken_on(world, api_key, version, body) == ["CONTROLLER"]


def test_follower_fetch_is_accepted_only_on_inter_broker_listener(world: NodeWorld) -> None:
    """On the clients' listener a stranger could otherwise move the high watermark."""
    request = fetch_request("t", max_wait_ms=0)
    request_of_follower = fetch_request("t", max_wait_ms=0)
    request_of_follower.replica_id = 2  # type: ignore[misc]
    assert taken_on(world, ApiKey.FETCH, 12, request_of_follower) == ["REPLICATION"]
    assert taken_on(world, ApiKey.FETCH, 12, request) == ["CLIENTS", "REPLICATION"]


def test_clients_are_served_on_broker_listeners(world: NodeWorld) -> None:
    produce = produce_request("t", 0, sent_batch(1, 0))
    assert taken_on(world, ApiKey.PRODUCE, 9, produce) == ["CLIENTS", "REPLICATION"]


def test_metadata_returns_addresses_of_its_listener(world: NodeWorld) -> None:
    body = MetadataRequest(topics=(), include_topic_authorized_operations=False)
    brokers = [world.request(ApiKey.METADATA, 12, body, NAMES[name]).brokers[0] for name in ("CLIENTS", "REPLICATION")]
    assert [(broker.host, broker.port) for broker in brokers] == [("outside", 1), ("inside", 2)]
    assert world.node.registered_address(world.node.broker.node_id) == ("inside", 2)


def test_endpoints_survive_snapshot(world: NodeWorld) -> None:
    image = world.node.broker.loader.image
    delta = MetadataDelta(EMPTY_IMAGE)
    for record in records_of(image):
        replay(delta, record)
    (broker,) = delta.build(Provenance()).brokers.values()
    assert broker == next(iter(image.brokers.values()))
    assert broker.endpoints == (("CLIENTS", "outside", 1), ("REPLICATION", "inside", 2))


def test_api_versions_lists_requests_of_listener(world: NodeWorld) -> None:
    body = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    responses = {name: world.request(ApiKey.API_VERSIONS, 4, body, connection) for name, connection in NAMES.items()}
    keys = {name: {int(key.api_key) for key in response.api_keys} for name, response in responses.items()}
    announced = {key for key in SERVED if key != ApiKey.UPDATE_METADATA}
    assert keys["CLIENTS"] == keys["REPLICATION"] == announced - CONTROLLERS_ONLY
    assert keys["CONTROLLER"] == CONTROLLERS_ONLY | CONTROLLERS_TOO
    drafts = {name: {feature.name for feature in response.supported_features} for name, response in responses.items()}
    of_updates = DRAFTS[ApiKey.UPDATE_METADATA, 1000]
    assert [name for name in NAMES if of_updates in drafts[name]] == ["REPLICATION"]


def test_single_listener_accepts_all_requests() -> None:
    alone = NodeWorld()
    alone.give(Opened(1, "10.1.2.3:5000"))
    alone.request(ApiKey.VOTE, 2, build_vote_request(VoteRequest("c", 1, 2, 9, START, False)))
    assert not alone.closed
