"""CreateTopics, DeleteTopics, CreatePartitions: results, every error, order and durability."""

from uuid import UUID

import pytest
from kio.schema.create_partitions.v3.request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kio.schema.create_partitions.v3.response import CreatePartitionsTopicResult
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v7.response import CreatableTopicResult
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.delete_topics.v6.response import DeletableTopicResult
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32

from reference_broker.apis.tests.admin_world import A_SECOND, NO_WAIT, AdminWorld
from reference_broker.apis.topics import k19_create_topics, k20_delete_topics, k37_create_partitions
from reference_broker.wire.errors import ErrorCode


def topic(
    name: str = "t",
    partitions: int = 1,
    replication_factor: int = 1,
    configs: tuple[tuple[str, str | None], ...] = (),
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(replication_factor),
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=i32(i), broker_ids=tuple(map(BrokerId, b)))
            for i, b in assignments
        ),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs),
    )


def create(world: AdminWorld, *topics: CreatableTopic, validate_only: bool = False) -> tuple[CreatableTopicResult, ...]:
    body = CreateTopicsRequest(topics=topics, timeout=A_SECOND, validate_only=validate_only)
    found: tuple[CreatableTopicResult, ...] = world.request(k19_create_topics, body).topics
    return found


def delete(world: AdminWorld, *states: DeleteTopicState, api_version: int = 6) -> tuple[DeletableTopicResult, ...]:
    body = DeleteTopicsRequest(topics=states, timeout=A_SECOND)
    found: tuple[DeletableTopicResult, ...] = world.request(k20_delete_topics, body, api_version).responses
    return found


def named(name: str) -> DeleteTopicState:
    return DeleteTopicState(name=TopicName(name), topic_id=None)


def growth_of(
    name: str, count: int, assignments: tuple[tuple[int, ...], ...] | None = None, validate_only: bool = False
) -> CreatePartitionsRequest:
    entry = CreatePartitionsTopic(
        name=TopicName(name),
        count=i32(count),
        assignments=None
        if assignments is None
        else tuple(CreatePartitionsAssignment(broker_ids=tuple(map(BrokerId, ids))) for ids in assignments),
    )
    return CreatePartitionsRequest(topics=(entry,), timeout=NO_WAIT, validate_only=validate_only)


def grow(
    world: AdminWorld,
    name: str,
    count: int,
    assignments: tuple[tuple[int, ...], ...] | None = None,
    validate_only: bool = False,
) -> CreatePartitionsTopicResult:
    body = growth_of(name, count, assignments, validate_only)
    results: tuple[CreatePartitionsTopicResult, ...] = world.request(k37_create_partitions, body).results
    (result,) = results
    return result


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopics", "ReplicationControlManagerTest.testCreateTopicsWithConfigs"
)
def test_created_topic_is_open_durable_and_returned_with_configs() -> None:
    world = AdminWorld()
    (result,) = create(world, topic("t", 3, configs=(("retention.ms", "5000"), ("max.message.bytes", "777"))))
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
    (result,) = create(world, topic("t", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 1)


@pytest.mark.clause(
    "ReplicationControlManagerTest.testCreateTopicsWithValidateOnlyFlag",
    "ReplicationControlManagerTest.testInvalidCreateTopicsWithValidateOnlyFlag",
)
def test_create_topics_validate_only_writes_nothing() -> None:
    world = AdminWorld()
    offset = world.controller.latest.provenance.offset
    good, bad = create(world, topic("t", 2), topic("..", 2), validate_only=True)
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
    create(world, topic("x.y"))
    bad, good = create(world, wanted, topic("good"))
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
    results = create(world, *topics)
    assert [result.error_code for result in results] == [ErrorCode.policy_violation] * len(topics)
    assert not world.controller.image.topics


@pytest.mark.clause("ReplicationControlManagerTest.testValidateGoodManualPartitionAssignments")
def test_manual_assignment_places_replicas() -> None:
    world = AdminWorld()
    (result,) = create(world, topic("t", -1, -1, assignments=((1, (1,)), (0, (1,)))))
    assert (result.error_code, result.num_partitions) == (ErrorCode.none, 2)


def test_duplicate_topic_in_request_creates_nothing() -> None:
    world = AdminWorld()
    twice, once = create(world, topic("t"), topic("u"), topic("t", 5))
    assert (twice.name, twice.error_code, once.error_code) == ("t", ErrorCode.invalid_request, ErrorCode.none)
    assert list(world.controller.image.topics) == ["u"]


@pytest.mark.clause("T-2")
def test_request_larger_than_batch_is_rejected_without_metadata_transactions() -> None:
    world = AdminWorld(crucible_bootstrap_metadata_version="12")
    results = create(world, topic("a", 60), topic("b", 60))
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


def test_topic_name_is_free_after_deletion_is_published() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    world.append("t", 0, 3)
    world.auto = False
    deleting = world.send(k20_delete_topics, DeleteTopicsRequest(topics=(named("t"),), timeout=NO_WAIT))
    body = CreateTopicsRequest(topics=(topic("t"),), timeout=NO_WAIT)
    early = world.send(k19_create_topics, body)
    world.settle()
    assert deleting.responses[0].responses[0].error_code == ErrorCode.none
    assert early.responses[0].topics[0].error_code == ErrorCode.topic_already_exists
    world.auto = True
    assert world.request(k19_create_topics, body).topics[0].error_code == ErrorCode.none
    assert world.broker.partitions.by_name["t", 0].log.log_end_offset == 0


def test_full_disk_returns_error_and_node_keeps_running() -> None:
    world = AdminWorld()
    world.metadata.quorum.failing = 1
    assert create(world, topic("t"))[0].error_code == ErrorCode.kafka_storage_error
    assert create(world, topic("t"))[0].error_code == ErrorCode.none


@pytest.mark.clause("ReplicationControlManagerTest.testDeleteTopics")
def test_delete_topics_by_name_and_id_removes_files_in_slices() -> None:
    world = AdminWorld()
    made = create(world, topic("a", 20), topic("b"))
    for index in range(20):
        world.append("a", index, 1)
    results = delete(world, named("a"), DeleteTopicState(name=None, topic_id=made[1].topic_id))
    assert [(result.name, result.error_code) for result in results] == [("a", ErrorCode.none), ("b", ErrorCode.none)]
    assert not world.broker.partitions.by_name
    assert not world.broker.metadata.topics
    assert not world.disk.exists("a-0")
    assert sum(name.endswith("-delete") for name in world.disk.list("")) == 20
    assert world.ports.run_steps() == 1 + 1 + 20, "the new names are made durable before the first file goes"
    assert not any(name.endswith("-delete") for name in world.disk.list(""))


def follow(world: AdminWorld) -> None:
    """Apply the metadata to the partitions. Deleted ones may still have files."""
    while world.publisher.is_behind:
        world.ports.steps.pop(0)()


def test_large_topic_directories_are_renamed_in_slices_before_recreation() -> None:
    world = AdminWorld()
    create(world, topic("a", 100))
    follow(world)
    for index in range(100):
        world.append("a", index, 1)
    delete(world, named("a"))
    follow(world)
    assert 0 < sum(name.endswith("-delete") for name in world.disk.list("")) < 50
    create(world, topic("a", 100))
    follow(world)
    assert all(world.broker.partitions.by_name["a", index].log.log_end_offset == 0 for index in range(100))
    for index in range(100):
        world.append("a", index, 1)
    world.ports.run_steps()
    assert world.disk.list("") == sorted(f"a-{index}" for index in range(100))
    world = world.restart(seed=4)
    follow(world)
    assert world.broker.partitions.by_name["a", 99].log.log_end_offset == 1


def test_duplicate_entries_of_delete_topics_are_rejected() -> None:
    world = AdminWorld()
    create(world, topic("t"), topic("u"))
    entries = (named("gone"), named("t"), named("gone"), named("u"), named("t"))
    errors = [(each.name, each.error_code.name) for each in delete(world, *entries)]
    assert errors == [("gone", "invalid_request"), ("t", "invalid_request"), ("u", "none")]
    assert list(world.controller.image.topics) == ["t"]


@pytest.mark.clause("ReplicationControlManagerTest.testDeleteTopics")
def test_invalid_delete_topics_returns_error() -> None:
    world = AdminWorld()
    (made,) = create(world, topic("a"))
    unknown = DeleteTopicState(name=None, topic_id=UUID(int=77))
    both = DeleteTopicState(name=TopicName("a"), topic_id=made.topic_id)
    neither = DeleteTopicState(name=None, topic_id=None)
    results = delete(world, named("nope"), unknown, both, neither)
    assert [result.error_code for result in results] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    twice = delete(world, named("a"), DeleteTopicState(name=None, topic_id=made.topic_id))
    assert [result.error_code for result in twice] == [ErrorCode.invalid_request] * 2
    assert "a" in world.controller.image.topics


@pytest.mark.parametrize(("version", "error"), [(1, "invalid_request"), (3, "topic_deletion_disabled")])
def test_delete_topics_can_be_disabled(version: int, error: str) -> None:
    world = AdminWorld(delete_topic_enable="false")
    create(world, topic("a"))
    assert delete(world, named("a"), api_version=version)[0].error_code == ErrorCode[error]


def test_start_completes_deletions_and_renames_stray_directories() -> None:
    world = AdminWorld()
    create(world, topic("a", 2), topic("b-1"))
    world.append("a", 0, 1)
    world.append("b-1", 0, 1)
    world.disk.files["gone-0/00000000000000000000.log"] = bytearray(b"x")
    world.disk.files["a-7/00000000000000000000.log"] = bytearray(b"x")
    world.disk.files[f"c-0.{'0f' * 16}-delete/00000000000000000000.log"] = bytearray(b"x")
    world.disk.files["holiday-2026/photo.log"] = bytearray(b"x")
    again = world.restart(seed=4)
    again.ports.run_steps()
    assert again.disk.list("") == ["a-0", "a-7.unknown-stray", "b-1-0", "gone-0.unknown-stray", "holiday-2026"]
    assert again.broker.partitions.by_name["a", 0].log.high_watermark == 1


@pytest.mark.clause("ReplicationControlManagerTest.testCreatePartitions")
def test_create_partitions_adds_partitions() -> None:
    world = AdminWorld()
    create(world, topic("t", 2))
    assert grow(world, "t", 5).error_code == ErrorCode.none
    assert len(world.controller.image.topics["t"].partitions) == 5
    assert ("t", 4) in world.broker.partitions.by_name
    assert grow(world, "t", 6, validate_only=True).error_code == ErrorCode.none
    assert grow(world, "t", 6, assignments=((1,),)).error_code == ErrorCode.none
    assert len(world.restart(seed=3).controller.image.topics["t"].partitions) == 6


@pytest.mark.clause("ReplicationControlManagerTest.testCreatePartitions")
@pytest.mark.parametrize(
    ("name", "count", "assignments", "error"),
    [
        ("nope", 5, None, ErrorCode.unknown_topic_or_partition),
        ("t", 2, None, ErrorCode.invalid_partitions),
        ("t", 1, None, ErrorCode.invalid_partitions),
        ("t", 4, ((1,),), ErrorCode.invalid_replica_assignment),
        ("t", 3, ((9,),), ErrorCode.invalid_replica_assignment),
        ("t", 3, ((),), ErrorCode.invalid_replica_assignment),
        ("t", 1_000_001, None, ErrorCode.policy_violation),
    ],
)
def test_invalid_create_partitions_returns_error(
    name: str, count: int, assignments: tuple[tuple[int, ...]] | None, error: ErrorCode
) -> None:
    world = AdminWorld()
    create(world, topic("t", 2))
    result = grow(world, name, count, assignments)
    assert (result.error_code, bool(result.error_message)) == (error, True)
    assert len(world.controller.latest.topics["t"].partitions) == 2


def test_duplicate_topic_in_create_partitions_is_rejected() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    entry = CreatePartitionsTopic(name=TopicName("t"), count=i32(3), assignments=None)
    body = CreatePartitionsRequest(topics=(entry, entry), timeout=NO_WAIT, validate_only=False)
    (result,) = world.request(k37_create_partitions, body).results
    assert result.error_code == ErrorCode.invalid_request


def test_create_partitions_beyond_limit_is_rejected() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    assert grow(world, "t", 10_002).error_code == ErrorCode.policy_violation
    assert grow(world, "t", 2**31 - 1).error_code == ErrorCode.policy_violation
    assert len(world.controller.image.topics["t"].partitions) == 1


def test_restart_bumps_leader_epoch_and_keeps_records() -> None:
    world = AdminWorld()
    create(world, topic("t"))
    world.append("t", 0, 5)
    again = world.restart(seed=2)
    partition = again.broker.partitions.by_name["t", 0]
    assert (partition.leader_epoch, partition.log.latest_epoch, partition.log.high_watermark) == (2, 2, 5)


@pytest.mark.clause("T-10")
def test_duplicate_create_partitions_returns_not_controller_when_leadership_is_lost() -> None:
    world = AdminWorld()
    create(world, topic())
    world.auto = False
    calls = [world.send(k37_create_partitions, growth_of("t", 2)) for _ in range(2)]
    world.metadata.lose()
    assert [call.responses[0].results[0].error_code for call in calls] == [ErrorCode.not_controller] * 2
