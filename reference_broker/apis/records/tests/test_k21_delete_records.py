"""DeleteRecords of one node."""

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i64

from reference_broker.apis.records import k21_delete_records
from reference_broker.apis.tests.admin_world import NO_WAIT, AdminWorld
from reference_broker.apis.tests.topic_requests import create_topics, topic
from reference_broker.replication.partitions import Partition


def delete_records(world: AdminWorld, *offsets: tuple[int, int], name: str = "t") -> list[tuple[str, int]]:
    partitions = tuple(
        DeleteRecordsPartition(partition_index=i32(index), offset=i64(offset)) for index, offset in offsets
    )
    body = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=TopicName(name), partitions=partitions),), timeout=NO_WAIT
    )
    response = world.request(k21_delete_records, body).topics[0].partitions
    return [(each.error_code.name, each.low_watermark) for each in response]


def test_delete_records_up_to_offset_or_high_watermark() -> None:
    world = AdminWorld()
    create_topics(world, topic("t", 2))
    world.append("t", 0, 10)
    world.append("t", 1, 10)
    assert delete_records(world, (0, 4), (1, -1)) == [("none", 4), ("none", 10)]
    assert delete_records(world, (0, 2)) == [("none", 4)]
    assert world.broker.partitions.by_name["t", 0].log.log_start_offset == 4


def test_delete_records_notifies_watchers_of_partition() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"))
    world.append("t", 0, 3)
    seen = []

    class Watching:
        def partition_changed(self, partition: Partition) -> None:
            seen.append(partition.log.log_start_offset)

    world.broker.partitions.by_name["t", 0].watch(Watching())
    delete_records(world, (0, 2))
    assert seen == [2]


def test_invalid_delete_records_returns_error() -> None:
    world = AdminWorld()
    create_topics(world, topic("t"), topic("c", configs=(("cleanup.policy", "compact"),)))
    world.append("t", 0, 3)
    assert delete_records(world, (0, 4), (0, -2), (5, 0)) == [
        ("offset_out_of_range", -1),
        ("offset_out_of_range", -1),
        ("unknown_topic_or_partition", -1),
    ]
    assert delete_records(world, (0, 0), name="c") == [("policy_violation", -1)]
