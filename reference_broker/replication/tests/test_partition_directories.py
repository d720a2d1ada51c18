"""Names of the directories of partitions and of deleted partitions."""

import pytest

from reference_broker.metadata.image import MetadataImage
from reference_broker.replication.partition_directories import DELETED_DIRECTORY, deleted_directory_of
from reference_broker.replication.tests.test_broker_metadata_publisher import PublisherWorld, started

SEGMENT = f"{0:020d}.log"


@pytest.mark.clause(
    "LocalLogTest.testParseTopicPartitionName",
    "LocalLogTest.testParseTopicPartitionNameWithPeriodForDeletedTopic",
)
@pytest.mark.parametrize("topic", ["test_topic", "foo.bar-testtopic"])
def test_directory_name_has_topic_and_index(topic: str) -> None:
    world = PublisherWorld()
    world.disk.write(f"{topic}-143/{SEGMENT}", b"")
    assert started(world, MetadataImage()).notes == [
        ("stray_renamed", {"directory": f"{topic}-143", "name": f"{topic}-143.unknown-stray"})
    ]


@pytest.mark.clause(
    "LocalLogTest.testParseTopicPartitionNameForMissingSeparator",
    "LocalLogTest.testParseTopicPartitionNameForMissingTopic",
    "LocalLogTest.testParseTopicPartitionNameForMissingPartition",
    "LocalLogTest.testParseTopicPartitionNameForInvalidPartition",
    "LocalLogTest.testParseTopicPartitionNameForExistingInvalidDir",
)
@pytest.mark.parametrize(
    "name",
    ["test_topic1999", "-1999", "test_topic-", "test_topic-1999a", "non_kafka_dir", "non_kafka_dir-delete"]
    + [f"{name}.{'0' * 32}-delete" for name in ("test_topic1999", "-1999", "test_topic-")]
    + ["test_topic-1999.0123-delete"],
)
def test_directories_with_other_names_are_ignored(name: str) -> None:
    world = PublisherWorld()
    world.disk.write(f"{name}/{SEGMENT}", b"")
    again = started(world, MetadataImage())
    assert again.disk.exists(f"{name}/{SEGMENT}")
    assert again.notes == []


@pytest.mark.clause("LocalLogTest.testLogDeleteDirName")
@pytest.mark.parametrize("topic", ["foo", "n" * 249])
def test_directory_name_of_deleted_partition_fits_and_is_recognised(topic: str) -> None:
    name = deleted_directory_of(topic, 3, bytes(range(16)))
    assert len(name) <= 255
    assert name.endswith("-3.000102030405060708090a0b0c0d0e0f-delete")
    assert DELETED_DIRECTORY.fullmatch(name)
    world = PublisherWorld()
    world.disk.write(f"{name}/{SEGMENT}", b"")
    assert not started(world, MetadataImage()).disk.exists(name)
