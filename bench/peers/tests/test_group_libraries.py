"""Consumer groups of each client library on one node: members come and go, commits hold, one group of mixed members."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.node import BrokerNode
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
from bench.peers.tests.nodes import reference_node

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 4
EACH = 50
LIMIT_S = 30.0
KINDS = [
    (LibrdkafkaMember, EAGER),
    (LibrdkafkaMember, COOPERATIVE),
    (KafkaPythonMember, EAGER),
    (KafkaPythonMember, COOPERATIVE),
    (AiokafkaMember, EAGER),
    (ReferenceMember, EAGER),
    (ReferenceMember, COOPERATIVE),
]
QUICK = {"group.initial.rebalance.delay.ms": "100", "offsets.topic.num.partitions": "3"}


@pytest.fixture(scope="module")
def group_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerNode]:
    with quiet(), reference_node(tmp_path_factory.mktemp("groups"), QUICK) as running:
        yield running


def _create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)


def _write(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(EACH * PARTITIONS):
        producer.produce(topic, b"x", partition=number % PARTITIONS)
    assert producer.flush(20) == 0


@contextmanager
def _members(*members: GroupMemberThread) -> Iterator[None]:
    try:
        yield
    finally:
        for member in members:
            if member.is_alive():
                member.stop()


def _all_read(members: tuple[GroupMemberThread, ...], rounds: int) -> bool:
    assert [member.failure for member in members] == [None] * len(members)
    return sum(len(member.read) for member in members) >= rounds * EACH * PARTITIONS


def _share(members: tuple[GroupMemberThread, ...], expected: list[int]) -> bool:
    assert [member.failure for member in members] == [None] * len(members)
    return sorted(member.owned for member in members) == expected


@pytest.mark.parametrize(("kind", "protocol"), KINDS, ids=lambda each: getattr(each, "__name__", each))
def test_members_share_rebalance_commit_and_go_on(
    group_node: BrokerNode, kind: type[GroupMemberThread], protocol: str
) -> None:
    """Without kills nothing is read twice either: each commits before it reads on."""
    topic = f"{kind.__name__}-{protocol}"
    _create(group_node.bootstrap, topic)
    first, second, third = members = tuple(
        kind(group_node.bootstrap, topic, topic, protocol, f"{topic}-{number}") for number in range(3)
    )
    with _members(*members):
        _write(group_node.bootstrap, topic)
        first.start()
        until("the first reads all", lambda: _all_read((first,), 1), LIMIT_S)
        second.start()
        until("two share", lambda: _share((first, second), [2, 2]), LIMIT_S)
        _write(group_node.bootstrap, topic)
        until("both read", lambda: _all_read((first, second), 2), LIMIT_S)
        first.stop()
        until("one has all", lambda: _share((second,), [4]), LIMIT_S)
        second.stop()
        _write(group_node.bootstrap, topic)
        third.start()
        until("the third goes on", lambda: _all_read(members, 3), LIMIT_S)
    read = sorted(each for member in members for each in member.read)
    assert read == [(partition, offset) for partition in range(PARTITIONS) for offset in range(3 * EACH)]
    assert third.committed == dict.fromkeys(range(PARTITIONS), 3 * EACH)


def test_member_of_each_library_in_one_group(group_node: BrokerNode) -> None:
    _create(group_node.bootstrap, "mixed")
    kinds: tuple[type[GroupMemberThread], ...] = (LibrdkafkaMember, KafkaPythonMember, AiokafkaMember, ReferenceMember)
    members = tuple(kind(group_node.bootstrap, "mixed", "mixed", EAGER, kind.__name__) for kind in kinds)
    with _members(*members):
        for number, member in enumerate(members):
            member.start()
            expected = {0: [4], 1: [2, 2], 2: [1, 1, 2], 3: [1, 1, 1, 1]}[number]
            until(f"{number + 1} share", partial(_share, members[: number + 1], expected), LIMIT_S)
            _write(group_node.bootstrap, "mixed")
            until("all is read", partial(_all_read, members, number + 1), LIMIT_S)
        members[0].stop()
        until("three share", lambda: _share(members[1:], [1, 1, 2]), LIMIT_S)
    assert len({each for member in members for each in member.read}) == PARTITIONS * EACH * len(kinds)
