"""CreateTopics: results, every error, order, replicas and durability."""

import pytest
from kio.schema.create_topics.v7.request import (
    CreatableTopic,
    CreateTopicsRequest,
)

from reference_broker.apis.brokers import (
    k62_broker_registration,
    k63_broker_heartbeat,
)
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.controller_requests import heartbeat_request, registration_request
from reference_broker.apis.tests.three_brokers import Cluster, with_topic
from reference_broker.apis.tests.topic_requests import (
    by_name,
    create_partitions,
    create_partitions_request,
    create_topics,
    delete_topics,
    topic,
)
from reference_broker.apis.topics import k19_create_topics, k37_create_partitions
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopics", "ReplicationControlManagerTest.testCreateTopicsWithConfigs"
)
def test_created_topic_is_open_durable_and_returned_with_configs() -> None:
    world = AdminWorld()
    (result,) = create_topics(world, topic("t", 3, configs=(("retention.ms", "5000"), ("max.message.bytes", "777"))))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 3, 1)
    values = {config.name: (config.value, config.config_source) for config in result.configs or ()}
    assert (values["retention.ms"], values["segment.bytes"]) == (("5000", 1), ("1073741824", 5))
    assert [index for _, index in world.broker.partitions.by_name] == [0, 1, 2]
    assert world.broker.partitions.by_name["t", 2].log.config.max_message_bytes == 777
    again = world.restart(seed=9)
    assert result.topic_id is not None
    assert again.controller.image.topics["t"].topic_id == result.topic_id.bytes
    assert again.broker.partitions.by_name["t", 2].log.config.retention_ms == 5000


def test_minus_one_means_default_partitions_and_replication_factor() -> None:
    world = AdminWorld(num_partitions="4")
    (result,) = create_topics(world, topic("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 1)


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopicsWithValidateOnlyFlag",
    "ReplicationControlManagerTest.testInvalidCreateTopicsWithValidateOnlyFlag",
)
def test_create_topics_validate_only_writes_nothing() -> None:
    world = AdminWorld()
    offset = world.controller.latest.provenance.offset
    good, bad = create_topics(world, topic("t", 2), topic("..", 2), validate_only=True)
    assert (good.error_code, bad.error_code) == (ErrorCode.none, ErrorCode.invalid_topic_exception)
    assert (world.controller.latest.provenance.offset, dict(world.broker.partitions.by_name)) == (offset, {})


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopics",
    "ReplicationControlManagerTest.testCreateTopicsWithConfigs",
    "ReplicationControlManagerTest.testCreateTopicWithCollisionChars",
    "ReplicationControlManagerTest.testValidateNewTopicNames",
    "ReplicationControlManagerTest.testValidateBadManualPartitionAssignments",
)
@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (topic(""), ErrorCode.invalid_topic_exception),
        (topic("."), ErrorCode.invalid_topic_exception),
        (topic("a" * 250), ErrorCode.invalid_topic_exception),
        (topic("sp ace"), ErrorCode.invalid_topic_exception),
        (topic("x_y"), ErrorCode.invalid_topic_exception),
        (topic("__cluster_metadata"), ErrorCode.invalid_request),
        (topic("x.y"), ErrorCode.topic_already_exists),
        (topic("x.y", 0), ErrorCode.topic_already_exists),
        (topic("x.y", replication_factor=0), ErrorCode.topic_already_exists),
        (topic("x.y", configs=(("nonsense", "1"),)), ErrorCode.topic_already_exists),
        (topic(partitions=0), ErrorCode.invalid_partitions),
        (topic(partitions=-2), ErrorCode.invalid_partitions),
        (topic(replication_factor=0), ErrorCode.invalid_replication_factor),
        (topic(replication_factor=2), ErrorCode.invalid_replication_factor),
        (topic(configs=(("nonsense", "1"),)), ErrorCode.invalid_config),
        (topic(configs=(("segment.bytes", "few"),)), ErrorCode.invalid_config),
        (topic(configs=(("cleanup.policy", "burn"),)), ErrorCode.invalid_config),
        (topic(configs=(("retention.ms", None),)), ErrorCode.invalid_config),
        (topic(assignments=((0, (1,)),)), ErrorCode.invalid_request),
        (topic(partitions=-1, assignments=((0, (1,)),)), ErrorCode.invalid_request),
        (topic(partitions=-1, replication_factor=-1, assignments=((0, (9,)),)), ErrorCode.invalid_replica_assignment),
        (topic(partitions=-1, replication_factor=-1, assignments=((0, ()),)), ErrorCode.invalid_replica_assignment),
        (topic(partitions=-1, replication_factor=-1, assignments=((0, (1, 1)),)), ErrorCode.invalid_replica_assignment),
        (topic(partitions=-1, replication_factor=-1, assignments=((1, (1,)),)), ErrorCode.invalid_replica_assignment),
        (
            topic(partitions=-1, replication_factor=-1, assignments=((0, (1,)), (0, (1,)))),
            ErrorCode.invalid_replica_assignment,
        ),
    ],
)
def test_invalid_topic_returns_error_and_others_are_created(wanted: CreatableTopic, error: ErrorCode) -> None:
    world = AdminWorld()
    create_topics(world, topic("x.y"))
    bad, good = create_topics(world, wanted, topic("good"))
    assert (bad.error_code, good.error_code) == (error, ErrorCode.none)
    assert bad.error_message
    assert sorted(world.controller.image.topics) == ["good", "x.y"]


@pytest.mark.clause(
    "ReplicationControlManagerTest.testExcessiveNumberOfTopicsCannotBeCreated",
    "KRaftClusterTest.testOverlyLargeCreateTopics",
)
@pytest.mark.parametrize(
    "topics",
    [
        [topic(partitions=1_000_000)],
        [topic(partitions=2**31 - 1), topic("u")],
        [topic(partitions=10_001)],
        [topic(partitions=5000), topic("u", 5001)],
        [topic(f"t{number}", -1) for number in range(10_001)],
    ],
)
def test_request_with_too_many_partitions_creates_nothing(topics: list[CreatableTopic]) -> None:
    world = AdminWorld()
    results = create_topics(world, *topics)
    assert [result.error_code for result in results] == [ErrorCode.policy_violation] * len(topics)
    assert not world.controller.image.topics


@pytest.mark.clause("ReplicationControlManagerTest.testValidateGoodManualPartitionAssignments")
def test_manual_assignment_places_replicas() -> None:
    world = AdminWorld()
    (result,) = create_topics(world, topic("t", -1, -1, assignments=((1, (1,)), (0, (1,)))))
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 2)


def test_duplicate_topic_in_request_creates_nothing() -> None:
    world = AdminWorld()
    twice, once = create_topics(world, topic("t"), topic("u"), topic("t", 5))
    assert (twice.name, twice.error_code, once.error_code) == ("t", ErrorCode.invalid_request, ErrorCode.none)
    assert list(world.controller.image.topics) == ["u"]


@pytest.mark.clause("T-2")
def test_request_larger_than_batch_is_rejected_without_metadata_transactions() -> None:
    world = AdminWorld(crucible_bootstrap_metadata_version="12")
    results = create_topics(world, topic("a", 60), topic("b", 60))
    assert [result.error_code for result in results] == [ErrorCode.policy_violation] * 2
    assert not world.controller.latest.topics


def test_concurrent_create_topics_create_topic_once_after_sync() -> None:
    world = AdminWorld()
    world.auto = False
    body = CreateTopicsRequest(topics=(topic("t"),), timeout=NO_WAIT)
    first, second = (world.send(k19_create_topics, body) for _ in range(2))
    assert (first.responses, second.responses) == ([], [])
    world.settle()
    codes = [call.responses[0].topics[0].error_code for call in (first, second)]
    assert codes == [ErrorCode.none, ErrorCode.topic_already_exists]


def test_full_disk_returns_error_and_node_keeps_running() -> None:
    world = AdminWorld()
    world.metadata.quorum.failing = 1
    assert create_topics(world, topic("t"))[0].error_code == ErrorCode.kafka_storage_error
    assert create_topics(world, topic("t"))[0].error_code == ErrorCode.none


def test_restart_bumps_leader_epoch_and_keeps_records() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    world.append("t", 0, 5)
    again = world.restart(seed=2)
    partition = again.broker.partitions.by_name["t", 0]
    assert (partition.leader_epoch, partition.log.latest_epoch, partition.log.high_watermark) == (2, 2, 5)


@pytest.mark.thorough
@pytest.mark.clause("T-6", "T-8")
def test_topic_of_10000_partitions_is_published_and_deleted_atomically() -> None:
    world = AdminWorld()
    seen = []
    world.metadata.loader.subscribe(
        lambda _, image: seen.append({name: len(one.partitions) for name, one in image.topics.items()})
    )
    (result,) = create_topics(world, topic("big", 10_000))
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 10_000)
    (again,) = create_topics(world, topic("big", 10_000))
    assert again.error_code == ErrorCode.topic_already_exists
    assert seen == [{"big": 10_000}]
    assert delete_topics(world, by_name("big"))[0].error_code == ErrorCode.none
    assert seen[1:] == [{}]


@pytest.mark.clause("T-6")
def test_create_500_topics_in_one_request_is_published_atomically() -> None:
    world = AdminWorld()
    seen = []
    world.metadata.loader.subscribe(lambda _, image: seen.append(len(image.topics)))
    results = create_topics(world, *(topic(f"t.{number}", 3) for number in range(500)), topic("t_7"))
    errors = [result.error_code for result in results]
    assert (errors[:500], errors[500]) == ([ErrorCode.none] * 500, ErrorCode.invalid_topic_exception)
    assert seen == [500]


@pytest.mark.clause("T-10")
def test_duplicate_create_topics_returns_not_controller_when_leadership_is_lost() -> None:
    """The first request was in flight and was lost with the leadership: the second one was judged by its pending
    change."""
    world = AdminWorld()
    world.auto = False
    body = CreateTopicsRequest(topics=(topic("t", 1),), timeout=NO_WAIT)
    calls = [world.send(k19_create_topics, body) for _ in range(2)]
    assert [call.responses for call in calls] == [[], []]
    world.metadata.lose()
    assert [call.responses[0].topics[0].error_code for call in calls] == [ErrorCode.not_controller] * 2


@pytest.mark.clause("T-10")
def test_create_topics_retried_after_failover_returns_topic_already_exists() -> None:
    world = AdminWorld()
    world.auto = False
    body = CreateTopicsRequest(topics=(topic("big", 300),), timeout=NO_WAIT)
    call = world.send(k19_create_topics, body)
    world.metadata.lose()
    assert call.responses[0].topics[0].error_code == ErrorCode.not_controller
    world.metadata.win()
    world.settle()
    world.auto = True
    assert world.request(k19_create_topics, body).topics[0].error_code == ErrorCode.topic_already_exists
    assert len(world.controller.image.topics["big"].partitions) == 300


@pytest.mark.clause("ClusterControlManagerTest.testPlaceReplicas")
def test_replicas_are_spread_over_unfenced_brokers_only() -> None:
    world = AdminWorld()
    epoch = world.request(k62_broker_registration, registration_request()).broker_epoch
    create_topics(world, topic("before", 4))
    assert {partition.leader for partition in world.controller.image.topics["before"].partitions} == {1}
    assert world.request(k63_broker_heartbeat, heartbeat_request(7, epoch)).is_fenced
    assert not world.request(k63_broker_heartbeat, heartbeat_request(7, epoch)).is_fenced
    create_topics(world, topic("after", 4))
    leaders = [partition.leader for partition in world.controller.image.topics["after"].partitions]
    assert leaders in ([1, 7, 1, 7], [7, 1, 7, 1])
    assert [name for name in world.broker.partitions.by_name if name[0] == "after"] == [
        ("after", index) for index, leader in enumerate(leaders) if leader == 1
    ]
    world.request(k37_create_partitions, create_partitions_request("after", 6))
    grown = [partition.leader for partition in world.controller.image.topics["after"].partitions]
    assert grown == (leaders * 2)[:6]


def test_created_topic_is_in_sync_and_leaders_are_spread() -> None:
    world = Cluster()
    (result,) = create_topics(world, topic(partitions=6, replication_factor=3))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 6, 3)
    partitions = world.controller.image.topics["t"].partitions
    assert all(
        sorted(partition.replicas) == [1, 2, 3] and partition.isr == partition.replicas for partition in partitions
    )
    assert all(
        (partition.leader, partition.leader_epoch, partition.partition_epoch) == (partition.replicas[0], 0, 0)
        for partition in partitions
    )
    assert sorted(partition.leader for partition in partitions) == [1, 1, 2, 2, 3, 3]


def test_replication_factor_minus_one_is_default_and_too_large_is_rejected() -> None:
    world = Cluster(default_replication_factor="2")
    (result,) = create_topics(world, topic(replication_factor=-1))
    assert (result.error_code, result.replication_factor) == (ErrorCode.none, 2)
    (refused,) = create_topics(world, topic("u", replication_factor=4))
    assert refused.error_code is ErrorCode.invalid_replication_factor
    assert "4 cannot be reached because only 3" in (refused.error_message or "")


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopicsISRInvariants", "BrokerHeartbeatManagerTest.testUsableBrokerIterator"
)
def test_replicas_on_fenced_brokers_are_not_in_sync() -> None:
    world = Cluster()
    world.beat(3, want_fence=True)
    create_topics(world, topic(partitions=4, replication_factor=3))
    for partition in world.controller.image.topics["t"].partitions:
        assert sorted(partition.replicas) == [1, 2, 3]
        assert partition.isr == tuple(broker for broker in partition.replicas if broker != 3)
        assert partition.leader == partition.replicas[0] != 3


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreatePartitionsISRInvariants",
    "ReplicationControlManagerTest.testManualPartitionAssignmentOnAllFencedBrokers",
    "ReplicationControlManagerTest.testCreatePartitionsFailsWithManualAssignmentWithAllFenced",
)
def test_assignment_to_fenced_brokers_only_is_rejected() -> None:
    world = with_topic((1, 2))
    world.beat(2, want_fence=True)
    world.beat(3, want_fence=True)
    wanted = topic("u", partitions=-1, replication_factor=-1, assignments=((0, (1, 2)), (1, (2, 3))))
    assert create_topics(world, wanted)[0].error_code is ErrorCode.invalid_replica_assignment
    assert create_partitions(world, "t", 2, assignments=((3, 2),)).error_code is ErrorCode.invalid_replica_assignment
    assert create_partitions(world, "t", 2, assignments=((3, 1),)).error_code is ErrorCode.none
    assert (world.partition(1).leader, world.partition(1).isr) == (1, (1,))
