"""Consumer groups on three nodes while coordinators are killed: every committed batch was read, nothing is skipped."""

from collections.abc import Iterator

import confluent_kafka
import pytest

from bench.peers.tests.group_members import (
    COOPERATIVE,
    EAGER,
    AiokafkaMember,
    GroupMemberThread,
    KafkaPythonMember,
    LibrdkafkaMember,
    ReferenceMember,
    quiet,
    until,
)
from bench.peers.tests.nodes import LIMIT_S, ThreeNodes, three_nodes
from bench.peers.tests.writing import BackgroundWriter

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(500),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KILLS = 2
BETWEEN = 100
PARTITIONS = 4
OFFSETS = "__consumer_offsets"
OFFSETS_PARTITIONS = 50
CATCH_UP_S = 90.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with quiet(), three_nodes(tmp_path_factory.mktemp("three")) as running:
        yield running


def coordinating_partition(group: str) -> int:
    """Java's String.hashCode, as Kafka maps groups to partitions."""
    value = 0
    for character in group:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % OFFSETS_PARTITIONS


def _kill_coordinators(
    nodes: ThreeNodes, group: str, members: tuple[GroupMemberThread, ...], writer: BackgroundWriter
) -> None:
    for _ in range(KILLS):
        writer.await_progress(BETWEEN)
        _await_commits(members)
        killed = nodes.kill_leader(OFFSETS, coordinating_partition(group))
        _await_commits(members)
        nodes.bring_back(killed)
        nodes.whole(OFFSETS, OFFSETS_PARTITIONS)
        nodes.whole(group, PARTITIONS)
    writer.await_progress(BETWEEN)


def _await_commits(members: tuple[GroupMemberThread, ...]) -> None:
    """Some commit that is sent after this call began is accepted."""
    before = [dict(member.committed) for member in members]

    def moved() -> bool:
        assert [member.failure for member in members] == [None] * len(members)
        return any(member.committed != known for member, known in zip(members, before, strict=True))

    until("a commit", moved, CATCH_UP_S)


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return {
            number: consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), timeout=LIMIT_S)[1]
            for number in range(PARTITIONS)
        }
    finally:
        consumer.close()


def _committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        wanted = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(wanted, timeout=LIMIT_S)}
    finally:
        consumer.close()


def _play(nodes: ThreeNodes, group: str, members: tuple[GroupMemberThread, ...]) -> None:
    nodes.create(group, PARTITIONS)
    writer = BackgroundWriter(nodes.bootstrap, group, PARTITIONS)
    started: list[GroupMemberThread | BackgroundWriter] = [writer, *members]
    try:
        for each in started:
            each.start()
        until("all have partitions", lambda: all(thread.owned for thread in members), CATCH_UP_S)
        nodes.whole(OFFSETS, OFFSETS_PARTITIONS)
        _kill_coordinators(nodes, group, members, writer)
        writer.end()
        ends = _ends(nodes.bootstrap, group)
        until("all is committed", lambda: _committed(nodes.bootstrap, group, group) == ends, CATCH_UP_S)
    finally:
        writer.end()
        for member in members:
            member.stop()
    assert writer.failures == []
    read = {each for member in members for each in member.read}
    assert read == {(partition, offset) for partition, end in ends.items() for offset in range(end)}
    for partition, end in ends.items():
        assert max(thread.committed.get(partition, 0) for thread in members) == end


@pytest.mark.parametrize(
    ("kind", "protocol"),
    [
        (LibrdkafkaMember, EAGER),
        (LibrdkafkaMember, COOPERATIVE),
        (KafkaPythonMember, EAGER),
        (KafkaPythonMember, COOPERATIVE),
        (AiokafkaMember, EAGER),
        (ReferenceMember, EAGER),
        (ReferenceMember, COOPERATIVE),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_group_outlives_its_coordinators(nodes: ThreeNodes, kind: type[GroupMemberThread], protocol: str) -> None:
    group = f"{kind.__name__}-{protocol}"
    members = tuple(kind(nodes.bootstrap, group, group, protocol, f"{group}-{number}") for number in range(2))
    _play(nodes, group, members)


def test_group_of_all_libraries_outlives_its_coordinators(nodes: ThreeNodes) -> None:
    kinds: tuple[type[GroupMemberThread], ...] = (LibrdkafkaMember, KafkaPythonMember, AiokafkaMember, ReferenceMember)
    _play(nodes, "mixed", tuple(kind(nodes.bootstrap, "mixed", "mixed", EAGER, kind.__name__) for kind in kinds))


def test_group_of_a_name_is_where_kafka_puts_it() -> None:
    assert [coordinating_partition(each) for each in ("", "g", "group", "polygenelubricants")] == [0, 3, 47, 0]
