"""Requests for the active controller at another node, encoded and decoded."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.request import AlterConfigsResource as PlainResource
from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.assign_replicas_to_dirs.v0.request import AssignReplicasToDirsRequest
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.static.primitive import i8, i32, i64

from reference_broker.apis.brokers import (
    k56_alter_partition,
    k57_update_features,
    k62_broker_registration,
    k63_broker_heartbeat,
    k64_unregister_broker,
    k67_allocate_producer_ids,
    k73_assign_replicas_to_dirs,
)
from reference_broker.apis.configs import k33_alter_configs, k44_incremental_alter_configs
from reference_broker.apis.metadata import k03_metadata
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminCall, AdminWorld
from reference_broker.apis.tests.controller_requests import (
    SET,
    heartbeat_request,
    incremental_alter_configs_request,
    registration_request,
    update_features_request,
)
from reference_broker.apis.tests.declared import key_of, newest_version, versions_of
from reference_broker.apis.tests.topic_requests import by_name, create_partitions_request, create_topics, topic
from reference_broker.apis.topics import k19_create_topics, k20_delete_topics, k37_create_partitions, k43_elect_leaders
from reference_broker.apis.transactions import k22_init_producer_id
from reference_broker.apis.transactions.tests.transaction_requests import init_request as init
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.retired_fields import MetadataRequest

ELSEWHERE: dict[ModuleType, tuple[Any, Callable[[Any], Any]]] = {
    k19_create_topics: (CreateTopicsRequest(topics=(topic("n"),), timeout=NO_WAIT), lambda a: a.topics[0]),
    k20_delete_topics: (DeleteTopicsRequest(topics=(by_name("t"),), timeout=NO_WAIT), lambda a: a.responses[0]),
    k33_alter_configs: (
        AlterConfigsRequest(
            resources=(PlainResource(resource_type=i8(2), resource_name="t", configs=()),), validate_only=False
        ),
        lambda a: a.responses[0],
    ),
    k37_create_partitions: (create_partitions_request("t", 5), lambda a: a.results[0]),
    k43_elect_leaders: (
        ElectLeadersRequest(
            election_type=i8(0), topic_partitions=(TopicPartitions(topic=TopicName("t"), partitions=(i32(0),)),)
        ),
        lambda a: a,
    ),
    k44_incremental_alter_configs: (
        incremental_alter_configs_request(("t", [("flush.ms", SET, "1")])),
        lambda a: a.responses[0],
    ),
    k56_alter_partition: (AlterPartitionRequest(broker_id=BrokerId(1), broker_epoch=i64(1), topics=()), lambda a: a),
    k57_update_features: (update_features_request(13), lambda a: a),
    k62_broker_registration: (registration_request(), lambda a: a),
    k63_broker_heartbeat: (heartbeat_request(1, 1), lambda a: a),
    k64_unregister_broker: (UnregisterBrokerRequest(broker_id=BrokerId(1)), lambda a: a),
    k67_allocate_producer_ids: (AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=i64(1)), lambda a: a),
    k73_assign_replicas_to_dirs: (
        AssignReplicasToDirsRequest(broker_id=BrokerId(1), broker_epoch=i64(1), directories=()),
        lambda a: a,
    ),
}
PASSED_ON = (
    k19_create_topics,
    k20_delete_topics,
    k33_alter_configs,
    k37_create_partitions,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k57_update_features,
    k64_unregister_broker,
)
"""Clients send these to any broker; the others come from brokers, which look up the controller."""


@pytest.mark.clause("T-10")
@pytest.mark.parametrize("module", ELSEWHERE, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_other_controller_returns_not_controller(module: ModuleType) -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    world.metadata.lose(to=2)
    body, part = ELSEWHERE[module]
    call = world.send(module, body)
    for peer, _, api_key, _, sent_body, _, _, failed in world.ports.sent:
        assert (peer, api_key, sent_body) == (2, key_of(module), body)
        failed()
    assert part(call.responses[0]).error_code == ErrorCode.not_controller
    assert len(world.ports.sent) == (module in PASSED_ON)


@pytest.mark.parametrize("module", PASSED_ON)
def test_client_request_is_forwarded_to_active_controller_once(module: ModuleType) -> None:
    world = AdminWorld()
    world.metadata.lose(to=2)
    body, part = ELSEWHERE[module]
    call = world.send(module, body)
    ((_, channel, _, api_version, _, _, replied, _),) = world.ports.sent
    assert (channel, api_version) == (Channel.FORWARD, newest_version(module))
    replied("the controller's response")
    assert call.responses == ["the controller's response"]
    call = AdminCall(newest_version(module))
    call.client_id = client_id_of(1, world.lifecycle.incarnation_id)
    world.dispatch(call, module, body)
    assert part(call.responses[0]).error_code == ErrorCode.not_controller
    world.metadata.quorum.leader_id = -1
    assert part(world.request(module, body)).error_code == ErrorCode.not_controller
    assert len(world.ports.sent) == 1


def test_auto_topic_creation_is_sent_to_active_controller() -> None:
    world = AdminWorld()
    world.metadata.lose(to=2)
    world.metadata.ports.sent.clear()
    wanted = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName("new"), topic_id=None),),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    world.request(k03_metadata, wanted)
    ((peer, _, api_key, _, body, *_),) = world.metadata.ports.sent
    assert peer == 2
    assert api_key == 19
    assert [each.name for each in body.topics] == ["new"]
    world.metadata.quorum.leader_id = -1
    world.request(k03_metadata, wanted)
    assert len(world.metadata.ports.sent) == 1


def test_producer_id_block_is_allocated_by_active_controller_or_client_retries() -> None:
    world = AdminWorld()
    world.metadata.lose(to=2)
    world.metadata.ports.sent.clear()
    call = world.send(k22_init_producer_id, init())
    ((peer, _, api_key, _, _, _, replied, failed),) = world.metadata.ports.sent
    assert (peer, api_key, call.responses) == (2, 67, [])
    failed()
    assert call.responses[0].error_code == ErrorCode.coordinator_load_in_progress
    call = world.send(k22_init_producer_id, init())
    *_, replied, failed = world.metadata.ports.sent[1]
    replied(_block(ErrorCode.not_controller))
    assert call.responses[0].error_code == ErrorCode.coordinator_load_in_progress
    call = world.send(k22_init_producer_id, init())
    *_, replied, failed = world.metadata.ports.sent[2]
    replied(_block(ErrorCode.none, 7000))
    assert call.responses[0].producer_id == 7000


def _block(error: ErrorCode, first: int = -1) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        throttle_time=NO_WAIT, error_code=error, producer_id_start=ProducerId(first), producer_id_len=i32(1000)
    )


def bodies(world: AdminWorld) -> dict[ModuleType, object]:
    return {
        **{module: body for module, (body, _) in ELSEWHERE.items()},
        k63_broker_heartbeat: heartbeat_request(1, world.lifecycle.registered_epoch),
    }


CASES = [(module, version) for module in ELSEWHERE for version in versions_of(module)]


@pytest.mark.parametrize(("module", "version"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_request_and_response_round_trip_in_each_announced_version(module: ModuleType, version: int) -> None:
    world, key = AdminWorld(), key_of(module)
    create_topics(world, topic("t"))
    frame = memoryview(b"".join(encode_request(key, version, 1, "c", bodies(world)[module])))[4:]
    header, offset = read_request_header(frame)
    assert (header.api_key, header.api_version) == (key, version)
    response = world.request(module, decode_request(key, version, frame, offset), version)
    written = b"".join(encode_response(key, version, 9, response))
    correlation_id, read = decode_response(key, version, memoryview(written)[4:])
    assert correlation_id == 9
    assert b"".join(encode_response(key, version, 9, read)) == written
