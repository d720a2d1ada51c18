"""DeleteTopics: results, every error, and the removal of directories."""

from uuid import UUID

import pytest
from kio.schema.create_topics.v7.request import (
    CreateTopicsRequest,
)
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.types import TopicName

from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.topic_requests import by_name, create_topics, delete_topics, topic
from reference_broker.apis.topics import k19_create_topics, k20_delete_topics
from reference_broker.wire.errors import ErrorCode


def follow(world: AdminWorld) -> None:
    """Apply the metadata to the partitions. Deleted ones may still have files."""
    while world.publisher.is_behind:
        world.ports.steps.pop(0)()


def test_topic_name_is_free_after_deletion_is_published() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    world.append("t", 0, 3)
    world.auto = False
    deleting = world.send(k20_delete_topics, DeleteTopicsRequest(topics=(by_name("t"),), timeout=NO_WAIT))
    body = CreateTopicsRequest(topics=(topic("t"),), timeout=NO_WAIT)
    early = world.send(k19_create_topics, body)
    world.settle()
    assert deleting.responses[0].responses[0].error_code == ErrorCode.none
    assert early.responses[0].topics[0].error_code == ErrorCode.topic_already_exists
    world.auto = True
    assert world.request(k19_create_topics, body).topics[0].error_code == ErrorCode.none
    assert world.broker.partitions.by_name["t", 0].log.log_end_offset == 0


@pytest.mark.clause("ReplicationControlManagerTest.testDeleteTopics")
def test_delete_topics_by_name_and_id_removes_files_in_slices() -> None:
    world = AdminWorld()
    made = create_topics(world, topic("a", 20), topic("b"))
    for index in range(20):
        world.append("a", index, 1)
    results = delete_topics(world, by_name("a"), DeleteTopicState(name=None, topic_id=made[1].topic_id))
    assert [(result.name, result.error_code) for result in results] == [("a", ErrorCode.none), ("b", ErrorCode.none)]
    assert not world.broker.partitions.by_name
    assert not world.broker.metadata.topics
    assert not world.disk.exists("a-0")
    assert sum(name.endswith("-delete") for name in world.disk.list("")) == 20
    assert world.ports.run_steps() == 1 + 1 + 20, "the new names are made durable before the first file goes"
    assert not any(name.endswith("-delete") for name in world.disk.list(""))


def test_large_topic_directories_are_renamed_in_slices_before_recreation() -> None:
    world = AdminWorld()
    create_topics(world, topic("a", 100))
    follow(world)
    for index in range(100):
        world.append("a", index, 1)
    delete_topics(world, by_name("a"))
    follow(world)
    assert 0 < sum(name.endswith("-delete") for name in world.disk.list("")) < 50
    create_topics(world, topic("a", 100))
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
    create_topics(world, topic("t"), topic("u"))
    entries = (by_name("gone"), by_name("t"), by_name("gone"), by_name("u"), by_name("t"))
    errors = [(each.name, each.error_code.name) for each in delete_topics(world, *entries)]
    assert errors == [("gone", "invalid_request"), ("t", "invalid_request"), ("u", "none")]
    assert list(world.controller.image.topics) == ["t"]


@pytest.mark.clause("ReplicationControlManagerTest.testDeleteTopics")
def test_invalid_delete_topics_returns_error() -> None:
    world = AdminWorld()
    (made,) = create_topics(world, topic("a"))
    unknown = DeleteTopicState(name=None, topic_id=UUID(int=77))
    both = DeleteTopicState(name=TopicName("a"), topic_id=made.topic_id)
    neither = DeleteTopicState(name=None, topic_id=None)
    results = delete_topics(world, by_name("nope"), unknown, both, neither)
    assert [result.error_code for result in results] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    twice = delete_topics(world, by_name("a"), DeleteTopicState(name=None, topic_id=made.topic_id))
    assert [result.error_code for result in twice] == [ErrorCode.invalid_request] * 2
    assert "a" in world.controller.image.topics


@pytest.mark.parametrize(("version", "error"), [(1, "invalid_request"), (3, "topic_deletion_disabled")])
def test_delete_topics_can_be_disabled(version: int, error: str) -> None:
    world = AdminWorld(delete_topic_enable="false")
    create_topics(world, topic("a"))
    assert delete_topics(world, by_name("a"), api_version=version)[0].error_code == ErrorCode[error]


def test_start_completes_deletions_and_renames_stray_directories() -> None:
    world = AdminWorld()
    create_topics(world, topic("a", 2), topic("b-1"))
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
