"""What only the active controller does: configs, features, brokers, blocks of IDs; large changes; elsewhere refused."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.alter_configs.v2.request import AlterableConfig as PlainConfig
from kio.schema.alter_configs.v2.request import AlterConfigsRequest
from kio.schema.alter_configs.v2.request import AlterConfigsResource as PlainResource
from kio.schema.alter_partition.v3.request import AlterPartitionRequest
from kio.schema.assign_replicas_to_dirs.v0.request import AssignReplicasToDirsRequest
from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest, Feature, Listener
from kio.schema.create_topics.v7.request import CreateTopicsRequest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.metadata.v13.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.update_features.v2.request import FeatureUpdateKey, UpdateFeaturesRequest
from kio.static.primitive import i8, i16, i32, i64, u16

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
from reference_broker.apis.records import k22_init_producer_id
from reference_broker.apis.tests.admin_world import A_SECOND, NO_WAIT, AdminCall, AdminWorld
from reference_broker.apis.tests.declared import key_of, newest, versions_of
from reference_broker.apis.tests.test_config_and_ids import init
from reference_broker.apis.tests.test_topic_admin import create, delete, growth_of, named, topic
from reference_broker.apis.topics import k19_create_topics, k20_delete_topics, k37_create_partitions, k43_elect_leaders
from reference_broker.metadata.node_names import client_id_of
from reference_broker.ports.channels import Channel
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.headers import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response

Setting: TypeAlias = tuple[str, int, str | None]
Resource: TypeAlias = tuple[str, Sequence[Setting]] | tuple[str, Sequence[Setting], int]
SET, DELETE, APPEND, SUBTRACT = range(4)


def changes(*resources: Resource, validate_only: bool = False) -> IncrementalAlterConfigsRequest:
    """Resources as (name, [(setting, operation, value)]) or (name, settings, type)."""
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            AlterConfigsResource(
                resource_type=i8(kind[0] if kind else 2),
                resource_name=name,
                configs=tuple(
                    AlterableConfig(name=key, config_operation=i8(operation), value=value)
                    for key, operation, value in configs
                ),
            )
            for name, configs, *kind in resources
        ),
        validate_only=validate_only,
    )


def alter(world: AdminWorld, *resources: Resource, validate_only: bool = False) -> list[str]:
    answer = world.ask(k44_incremental_alter_configs, changes(*resources, validate_only=validate_only))
    return [one.error_code.name for one in answer.responses]


def replace_all(world: AdminWorld, name: str, pairs: list[tuple[str, str | None]], kind: int = 2) -> str:
    resource = PlainResource(
        resource_type=i8(kind),
        resource_name=name,
        configs=tuple(PlainConfig(name=key, value=value) for key, value in pairs),
    )
    answer = world.ask(k33_alter_configs, AlterConfigsRequest(resources=(resource,), validate_only=False))
    return str(answer.responses[0].error_code.name)


def settings_of(world: AdminWorld, name: str) -> dict[str, str]:
    return dict(world.controller.image.topic_configs(name))


def raised(
    level: int, upgrade_type: int = 1, feature: str = "metadata.version", validate_only: bool = False
) -> UpdateFeaturesRequest:
    update = FeatureUpdateKey(feature=feature, max_version_level=i16(level), upgrade_type=i8(upgrade_type))
    return UpdateFeaturesRequest(timeout=A_SECOND, feature_updates=(update,), validate_only=validate_only)


def registration(
    broker_id: int = 7, incarnation: int = 5, cluster_id: str = "cluster", directory: int = 3
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=BrokerId(broker_id),
        cluster_id=cluster_id,
        incarnation_id=UUID(int=incarnation),
        listeners=(Listener(name="PLAINTEXT", host="h", port=u16(1), security_protocol=i16(0)),),
        features=(
            Feature(name="metadata.version", min_supported_version=i16(1), max_supported_version=i16(25)),
            Feature(
                name="eligible.leader.replicas.version", min_supported_version=i16(0), max_supported_version=i16(1)
            ),
        ),
        rack=None,
        log_dirs=(UUID(int=directory),),
    )


def heartbeat(broker_id: int, epoch: int, fence: bool = False, shut_down: bool = False) -> BrokerHeartbeatRequest:
    return BrokerHeartbeatRequest(
        broker_id=BrokerId(broker_id),
        broker_epoch=i64(epoch),
        current_metadata_offset=i64(10**6),
        want_fence=fence,
        want_shut_down=shut_down,
    )


# Configs


def test_settings_are_set_deleted_and_lists_grow_and_shrink() -> None:
    world = AdminWorld()
    create(world, topic("t", configs=(("retention.ms", "5"), ("segment.bytes", "9000"))))
    change = [("retention.ms", SET, "7"), ("segment.bytes", DELETE, None), ("cleanup.policy", APPEND, "compact")]
    assert alter(world, ("t", change)) == ["none"]
    assert settings_of(world, "t") == {"retention.ms": "7", "cleanup.policy": "delete,compact"}
    assert world.broker.partitions.by_name["t", 0].log.config.retention_ms == 7
    assert alter(world, ("t", [("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None)])) == ["none"]
    assert settings_of(world, "t") == {"cleanup.policy": "compact"}
    assert settings_of(world.again(seed=1), "t") == {"cleanup.policy": "compact"}


def test_alter_configs_replaces_all() -> None:
    world = AdminWorld()
    create(world, topic("t", configs=(("retention.ms", "5"), ("segment.bytes", "9000"))))
    assert replace_all(world, "t", [("segment.bytes", "9000"), ("flush.ms", "1")]) == "none"
    assert settings_of(world, "t") == {"segment.bytes": "9000", "flush.ms": "1"}
    assert replace_all(world, "t", []) == "none"
    assert settings_of(world, "t") == {}


@pytest.mark.parametrize(
    ("resource", "error"),
    [
        (("nope", []), "unknown_topic_or_partition"),
        (("no good", []), "invalid_topic_exception"),
        (("1", [("fetch.max.bytes", SET, "1")], 4), "invalid_request"),
        (("x", [], 32), "invalid_request"),
        (("t", [("nonsense", SET, "1")]), "invalid_config"),
        (("t", [("retention.ms", SET, "soon")]), "invalid_config"),
        (("t", [("retention.ms", SET, None)]), "invalid_config"),
        (("t", [("retention.ms", APPEND, "1")]), "invalid_config"),
        (("t", [("retention.ms", 9, "1")]), "invalid_request"),
        (("t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]), "invalid_request"),
        (("t", [("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "5")]), "invalid_config"),
    ],
)
def test_each_bad_change_of_settings_gets_its_error_and_stops_no_other(resource: Resource, error: str) -> None:
    world = AdminWorld()
    create(world, topic("t"), topic("u"))
    assert alter(world, resource, ("u", [("flush.ms", SET, "3")])) == [error, "none"]
    assert (settings_of(world, "t"), settings_of(world, "u")) == ({}, {"flush.ms": "3"})


def test_a_resource_twice_and_a_wish_only_to_validate_change_nothing() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    good: Resource = ("t", [("flush.ms", SET, "3")])
    end = world.metadata.log.end
    assert alter(world, good, good) == ["invalid_request"] * 2
    assert alter(world, good, validate_only=True) == ["none"]
    assert world.metadata.log.end == end
    assert alter(world, good) == ["none"]
    end = world.metadata.log.end
    assert alter(world, good) == ["none"]
    assert world.metadata.log.end == end, "a setting that stays as it is needs no record"
    assert replace_all(world, "t", [("flush.ms", None)]) == "invalid_config"
    assert replace_all(world, "t", [("flush.ms", "1"), ("flush.ms", "2")]) == "invalid_request"


# Features


@pytest.mark.clause("T-2")
def test_the_metadata_version_is_raised_and_then_transactions_are_allowed() -> None:
    world = AdminWorld(crucible_bootstrap_metadata_version="12")
    assert create(world, topic("big", 200))[0].error_code == ErrorCode.policy_violation
    answer = world.ask(k57_update_features, raised(13))
    assert answer.error_code == ErrorCode.none
    assert world.controller.image.features == {"metadata.version": 13}
    assert create(world, topic("big", 200))[0].error_code == ErrorCode.none
    assert world.ask(k57_update_features, raised(12, upgrade_type=2)).error_code == ErrorCode.none
    assert create(world, topic("other", 200))[0].error_code == ErrorCode.policy_violation


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (raised(26), "invalid_update_version"),
        (raised(0), "invalid_update_version"),
        (raised(12), "invalid_update_version"),
        (raised(25, upgrade_type=2), "none"),
        (raised(25, upgrade_type=9), "invalid_request"),
        (raised(1, feature="kraft.version"), "feature_update_failed"),
    ],
)
def test_each_bad_update_of_a_feature_gets_its_error(body: UpdateFeaturesRequest, error: str) -> None:
    world = AdminWorld()
    end = world.metadata.log.end
    assert world.ask(k57_update_features, body).error_code.name == error
    assert world.ask(k57_update_features, body, 1).results[0].error_code.name == error
    assert world.metadata.log.end == end


def test_an_update_only_to_be_validated_writes_nothing() -> None:
    world = AdminWorld(crucible_bootstrap_metadata_version="12")
    assert world.ask(k57_update_features, raised(13, validate_only=True)).error_code == ErrorCode.none
    assert world.controller.latest.features == {"metadata.version": 12}


# Brokers


def test_a_broker_registers_once_however_often_it_asks() -> None:
    world = AdminWorld()
    first, again = (world.ask(k62_broker_registration, registration()) for _ in range(2))
    assert (first.error_code, again.error_code, first.broker_epoch) == (ErrorCode.none,) * 2 + (again.broker_epoch,)
    assert world.controller.image.brokers[7].broker_epoch == first.broker_epoch
    assert world.controller.image.brokers[7].fenced
    later = world.ask(k62_broker_registration, registration(incarnation=6))
    assert later.broker_epoch > first.broker_epoch, "a broker that is fenced waits for nobody"
    wrong = world.ask(k62_broker_registration, registration(cluster_id="other"))
    assert (wrong.error_code, wrong.broker_epoch) == (ErrorCode.inconsistent_cluster_id, -1)


def test_a_broker_without_an_id_is_not_registered() -> None:
    """A partition that it led would count as one without a leader."""
    world = AdminWorld()
    answer = world.ask(k62_broker_registration, registration(broker_id=-1))
    assert (answer.error_code, answer.broker_epoch) == (ErrorCode.invalid_request, -1)
    assert -1 not in world.controller.image.brokers


@pytest.mark.parametrize("directory", [3, 4])
def test_a_second_broker_with_the_same_id_waits_until_the_first_has_been_silent(directory: int) -> None:
    """Also on the same directory: it may be an old request that somebody sends again."""
    world = AdminWorld(broker_session_timeout_ms="3000")
    epoch = world.ask(k62_broker_registration, registration()).broker_epoch
    for _ in range(2):
        assert world.ask(k63_broker_heartbeat, heartbeat(7, epoch)).error_code is ErrorCode.none
    world.metadata.ports.advance(2000)
    other = world.ask(k62_broker_registration, registration(incarnation=6, directory=directory))
    assert (other.error_code, other.broker_epoch) == (ErrorCode.duplicate_broker_registration, -1)
    assert world.ask(k63_broker_heartbeat, heartbeat(7, epoch)).error_code is ErrorCode.none
    world.metadata.ports.advance(2000)
    other = world.ask(k62_broker_registration, registration(incarnation=6, directory=directory))
    assert other.error_code is ErrorCode.duplicate_broker_registration
    world.metadata.ports.advance(1001)
    other = world.ask(k62_broker_registration, registration(incarnation=6, directory=directory))
    assert (other.error_code, other.broker_epoch > epoch) == (ErrorCode.none, True)


def test_a_broker_that_shut_down_is_back_at_once() -> None:
    world = AdminWorld()
    epoch = world.ask(k62_broker_registration, registration()).broker_epoch
    for _ in range(2):
        assert world.ask(k63_broker_heartbeat, heartbeat(7, epoch)).error_code is ErrorCode.none
    while not world.ask(k63_broker_heartbeat, heartbeat(7, epoch, shut_down=True)).should_shut_down:
        world.ask(k63_broker_heartbeat, heartbeat(1, world.lifecycle.registered_epoch))
    again = world.ask(k62_broker_registration, registration(incarnation=6))
    assert (again.error_code, again.broker_epoch > epoch) == (ErrorCode.none, True)


def test_an_old_registration_of_the_controllers_own_broker_is_refused_and_a_restarted_one_is_back_at_once() -> None:
    world = AdminWorld()
    own = world.controller.image.brokers[1]
    for _ in range(2):
        answer = world.ask(k62_broker_registration, registration(broker_id=1))
        assert answer.error_code is ErrorCode.duplicate_broker_registration
        assert world.controller.image.brokers[1].incarnation_id == own.incarnation_id
        world.controller.heartbeats.forget(1)
    again = world.again(2)
    assert again.lifecycle.registered_epoch > own.broker_epoch


def test_topics_are_placed_on_live_brokers_only_and_spread_over_them() -> None:
    world = AdminWorld()
    epoch = world.ask(k62_broker_registration, registration()).broker_epoch
    create(world, topic("before", 4))
    assert {one.leader for one in world.controller.image.topics["before"].partitions} == {1}
    assert world.ask(k63_broker_heartbeat, heartbeat(7, epoch)).is_fenced
    assert not world.ask(k63_broker_heartbeat, heartbeat(7, epoch)).is_fenced
    create(world, topic("after", 4))
    leaders = [one.leader for one in world.controller.image.topics["after"].partitions]
    assert leaders in ([1, 7, 1, 7], [7, 1, 7, 1])
    assert [name for name in world.broker.partitions.by_name if name[0] == "after"] == [
        ("after", index) for index, leader in enumerate(leaders) if leader == 1
    ]
    world.ask(k37_create_partitions, growth_of("after", 6))
    grown = [one.leader for one in world.controller.image.topics["after"].partitions]
    assert grown == (leaders * 2)[:6]


def test_a_broker_is_unregistered() -> None:
    world = AdminWorld()
    world.ask(k62_broker_registration, registration())
    assert world.ask(k64_unregister_broker, UnregisterBrokerRequest(broker_id=BrokerId(7))).error_code == ErrorCode.none
    assert list(world.controller.image.brokers) == [1]
    unknown = world.ask(k64_unregister_broker, UnregisterBrokerRequest(broker_id=BrokerId(7)))
    assert unknown.error_code == ErrorCode.broker_id_not_registered


def test_blocks_of_producer_ids_are_given_once_and_to_registered_brokers() -> None:
    world = AdminWorld()
    body = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=i64(world.lifecycle.registered_epoch))
    answers = [world.ask(k67_allocate_producer_ids, body) for _ in range(2)]
    assert [(one.producer_id_start, one.producer_id_len) for one in answers] == [(0, 1000), (1000, 1000)]
    refused = world.ask(
        k67_allocate_producer_ids, AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=i64(1))
    )
    assert (refused.error_code, refused.producer_id_len) == (ErrorCode.stale_broker_epoch, 0)


# Not the controller


ELSEWHERE: dict[ModuleType, tuple[Any, Callable[[Any], Any]]] = {
    k19_create_topics: (CreateTopicsRequest(topics=(topic("n"),), timeout=NO_WAIT), lambda a: a.topics[0]),
    k20_delete_topics: (DeleteTopicsRequest(topics=(named("t"),), timeout=NO_WAIT), lambda a: a.responses[0]),
    k33_alter_configs: (
        AlterConfigsRequest(
            resources=(PlainResource(resource_type=i8(2), resource_name="t", configs=()),), validate_only=False
        ),
        lambda a: a.responses[0],
    ),
    k37_create_partitions: (growth_of("t", 5), lambda a: a.results[0]),
    k43_elect_leaders: (
        ElectLeadersRequest(
            election_type=i8(0), topic_partitions=(TopicPartitions(topic=TopicName("t"), partitions=(i32(0),)),)
        ),
        lambda a: a,
    ),
    k44_incremental_alter_configs: (changes(("t", [("flush.ms", SET, "1")])), lambda a: a.responses[0]),
    k56_alter_partition: (AlterPartitionRequest(broker_id=BrokerId(1), broker_epoch=i64(1), topics=()), lambda a: a),
    k57_update_features: (raised(13), lambda a: a),
    k62_broker_registration: (registration(), lambda a: a),
    k63_broker_heartbeat: (heartbeat(1, 1), lambda a: a),
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
"""Clients ask any broker for these; the others come from brokers, who look for the controller."""


@pytest.mark.clause("T-10")
@pytest.mark.parametrize("module", ELSEWHERE, ids=lambda module: module.__name__.rsplit(".", 1)[-1])
def test_only_the_active_controller_changes_anything(module: ModuleType) -> None:
    world = AdminWorld()
    create(world, topic("t"))
    world.metadata.lose(to=2)
    body, part = ELSEWHERE[module]
    call = world.begin(module, body)
    for peer, _, api_key, _, asked, _, _, failed in world.outside.sent:
        assert (peer, api_key, asked) == (2, key_of(module), body)
        failed()
    assert part(call.answers[0]).error_code == ErrorCode.not_controller
    assert len(world.outside.sent) == (module in PASSED_ON)


@pytest.mark.parametrize("module", PASSED_ON)
def test_what_clients_ask_any_broker_for_is_passed_on_to_the_active_controller_once(module: ModuleType) -> None:
    world = AdminWorld()
    world.metadata.lose(to=2)
    body, part = ELSEWHERE[module]
    call = world.begin(module, body)
    ((_, channel, _, api_version, _, _, replied, _),) = world.outside.sent
    assert (channel, api_version) == (Channel.FORWARD, newest(module))
    replied("the controller's answer")
    assert call.answers == ["the controller's answer"]
    call = AdminCall(newest(module))
    call.client_id = client_id_of(1, world.lifecycle.incarnation_id)
    world.give(call, module, body)
    assert part(call.answers[0]).error_code == ErrorCode.not_controller
    world.metadata.quorum.leader_id = -1
    assert part(world.ask(module, body)).error_code == ErrorCode.not_controller
    assert len(world.outside.sent) == 1


def test_another_controller_is_asked_for_topics_that_are_created_by_the_way() -> None:
    world = AdminWorld()
    world.metadata.lose(to=2)
    world.metadata.ports.sent.clear()
    wanted = MetadataRequest(
        topics=(MetadataRequestTopic(name=TopicName("new"), topic_id=None),),
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    world.ask(k03_metadata, wanted)
    ((peer, _, api_key, _, body, *_),) = world.metadata.ports.sent
    assert (peer, api_key, [one.name for one in body.topics]) == (2, 19, ["new"])
    world.metadata.quorum.leader_id = -1
    world.ask(k03_metadata, wanted)
    assert len(world.metadata.ports.sent) == 1


def test_producer_ids_come_from_another_controller_and_without_one_clients_come_again() -> None:
    world = AdminWorld()
    world.metadata.lose(to=2)
    world.metadata.ports.sent.clear()
    call = world.begin(k22_init_producer_id, init())
    ((peer, _, api_key, _, _, _, replied, failed),) = world.metadata.ports.sent
    assert (peer, api_key, call.answers) == (2, 67, [])
    failed()
    assert call.answers[0].error_code == ErrorCode.coordinator_load_in_progress
    call = world.begin(k22_init_producer_id, init())
    *_, replied, failed = world.metadata.ports.sent[1]
    replied(_block(ErrorCode.not_controller))
    assert call.answers[0].error_code == ErrorCode.coordinator_load_in_progress
    call = world.begin(k22_init_producer_id, init())
    *_, replied, failed = world.metadata.ports.sent[2]
    replied(_block(ErrorCode.none, 7000))
    assert call.answers[0].producer_id == 7000


def _block(error: ErrorCode, first: int = -1) -> AllocateProducerIdsResponse:
    return AllocateProducerIdsResponse(
        throttle_time=NO_WAIT, error_code=error, producer_id_start=ProducerId(first), producer_id_len=i32(1000)
    )


# Large changes


@pytest.mark.clause("T-6", "T-8")
def test_a_topic_of_10000_partitions_is_seen_whole_and_deleted_again() -> None:
    world = AdminWorld()
    seen = []
    world.metadata.loader.subscribe(
        lambda _, image: seen.append({name: len(one.partitions) for name, one in image.topics.items()})
    )
    (result,) = create(world, topic("big", 10_000))
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 10_000)
    (again,) = create(world, topic("big", 10_000))
    assert again.error_code == ErrorCode.topic_already_exists
    assert seen == [{"big": 10_000}]
    assert delete(world, named("big"))[0].error_code == ErrorCode.none
    assert seen[1:] == [{}]


@pytest.mark.clause("T-6")
def test_a_request_of_500_topics_is_seen_whole() -> None:
    world = AdminWorld()
    seen = []
    world.metadata.loader.subscribe(lambda _, image: seen.append(len(image.topics)))
    results = create(world, *(topic(f"t.{number}", 3) for number in range(500)), topic("t_7"))
    errors = [result.error_code for result in results]
    assert (errors[:500], errors[500]) == ([ErrorCode.none] * 500, ErrorCode.invalid_topic_exception)
    assert seen == [500]


@pytest.mark.clause("T-6")
def test_3000_changes_of_settings_in_one_request_are_one_change() -> None:
    world = AdminWorld()
    create(world, *(topic(f"t{number}") for number in range(500)))
    keys = ("flush.ms", "flush.messages", "retention.ms", "retention.bytes", "segment.ms")
    before = world.metadata.kinds().count("begin")
    pairs: list[Setting] = [*((key, SET, "77") for key in keys), ("segment.bytes", SET, "5000")]
    assert alter(world, *((f"t{number}", pairs) for number in range(500))) == ["none"] * 500
    assert sum(len(settings_of(world, f"t{number}")) for number in range(500)) == 3000
    assert world.metadata.kinds().count("begin") == before + 1


@pytest.mark.clause("T-10")
def test_a_repeated_request_is_not_told_that_the_topic_exists_by_a_leader_that_loses_it() -> None:
    """The first one was on its way, and went with the leadership: the second one was judged by what never was."""
    world = AdminWorld()
    world.auto = False
    body = CreateTopicsRequest(topics=(topic("t", 1),), timeout=NO_WAIT)
    calls = [world.begin(k19_create_topics, body) for _ in range(2)]
    assert [call.answers for call in calls] == [[], []]
    world.metadata.lose()
    assert [call.answers[0].topics[0].error_code for call in calls] == [ErrorCode.not_controller] * 2


@pytest.mark.clause("T-10")
def test_a_request_that_is_repeated_after_a_failover_has_one_effect() -> None:
    world = AdminWorld()
    world.auto = False
    body = CreateTopicsRequest(topics=(topic("big", 300),), timeout=NO_WAIT)
    call = world.begin(k19_create_topics, body)
    world.metadata.lose()
    assert call.answers[0].topics[0].error_code == ErrorCode.not_controller
    world.metadata.win()
    world.settle()
    world.auto = True
    assert world.ask(k19_create_topics, body).topics[0].error_code == ErrorCode.topic_already_exists
    assert len(world.controller.image.topics["big"].partitions) == 300


# On the wire


def bodies(world: AdminWorld) -> dict[ModuleType, object]:
    return {
        **{module: body for module, (body, _) in ELSEWHERE.items()},
        k63_broker_heartbeat: heartbeat(1, world.lifecycle.registered_epoch),
    }


NEW = (
    k33_alter_configs,
    k43_elect_leaders,
    k44_incremental_alter_configs,
    k56_alter_partition,
    k57_update_features,
    k62_broker_registration,
    k63_broker_heartbeat,
    k64_unregister_broker,
    k67_allocate_producer_ids,
    k73_assign_replicas_to_dirs,
)
CASES = [(module, version) for module in NEW for version in versions_of(module)]


@pytest.mark.parametrize(("module", "version"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_requests_and_answers_go_over_the_wire_in_each_announced_version(module: ModuleType, version: int) -> None:
    world, key = AdminWorld(), key_of(module)
    create(world, topic("t"))
    frame = memoryview(b"".join(encode_request(key, version, 1, "c", bodies(world)[module])))[4:]
    header, offset = read_request_header(frame)
    assert (header.api_key, header.api_version) == (key, version)
    answer = world.ask(module, decode_request(key, version, frame, offset), version)
    written = b"".join(encode_response(key, version, 9, answer))
    correlation_id, read = decode_response(key, version, memoryview(written)[4:])
    assert correlation_id == 9
    assert b"".join(encode_response(key, version, 9, read)) == written
