"""Fetch and its sessions beside Apache Kafka: the same random requests get the same answers from both."""

import os
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random

import pytest
from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
from kio.schema.types import TopicName
from kio.static.primitive import i32Timedelta

from bench.peers.node import BrokerNode
from bench.peers.raw_client import RawConnection, create_topic
from bench.peers.systems import KAFKA
from bench.peers.tests.fetch_walk import NOW_MS, TOPICS, Answer, Ask, Side, Walk, fetch, produce
from reference_broker.records.builder import build
from reference_broker.records.record import Record
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

pytestmark = pytest.mark.peer

STEPS = int(os.environ.get("FETCH_WALK_STEPS", "3000"))
"""Requests and changes between them. About 300 a second."""
SHOWN = 12
FIRST_WITH_DIVERGENCE = 12


@pytest.fixture(scope="module")
def sides(node: BrokerNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """The reference broker, and Apache Kafka."""
    with (
        KAFKA.launched(tmp_path_factory.mktemp("kafka"), 1, {}) as kafka,
        RawConnection(node.port) as ours,
        RawConnection(kafka.ports[0]) as theirs,
    ):
        yield Side(ours), Side(theirs)


def test_random_requests_get_the_same_answers(sides: tuple[Side, Side]) -> None:
    walk = Walk(Random(227), sides)
    walk.begin()
    trail: list[object] = []
    accepted = 0
    for _ in range(STEPS):
        if walk.random.random() < 0.4:
            trail.append(walk.change())
            continue
        ask = walk.ask()
        trail.append(ask)
        ours, theirs = walk.take(ask)
        assert not _differences(ours, theirs, ask, walk), "\n".join(map(str, trail[-SHOWN:]))
        accepted += ask.epoch > 0 and ours.error_code == 0
    assert accepted > STEPS // 10
    assert len(walk.sessions) > 20


def _differences(ours: Answer, theirs: Answer, ask: Ask, walk: Walk) -> Sequence[object]:
    if ask.version < FIRST_WITH_DIVERGENCE and theirs.error_code == ErrorCode.unsupported_version:
        return []  # A session of version 12 that goes on in an older one: Kafka fails to write the divergence.
    if (ours.error_code, ours.session) != (theirs.error_code, theirs.session):
        return [ours, theirs]
    known = None if ask.session is None else walk.sessions[ask.session]
    if (known is None or known.limited) and ours.order_of_data() != theirs.order_of_data():
        return [ours.order_of_data(), theirs.order_of_data()]
    return sorted(map(str, set(ours.rows) ^ set(theirs.rows)))


def test_any_limits_get_the_same_batches_where_each_partition_has_one(sides: tuple[Side, Side]) -> None:
    """With one batch to send, Kafka has no beginning of a next one with which it fills up what is left."""
    random, name = Random(1000), "sizes"
    _settle(sides, {name: 8})
    sizes = [random.choice([10, 100, 500, 600]) for _ in range(8)]
    for index, size in enumerate(sizes):
        batch = build([Record(timestamp_ms=NOW_MS, value=bytes(size))])
        for side in sides:
            produce(side, name, index, 1, batch)
    for _ in range(300):
        order = random.sample(range(8), random.randint(1, 8))
        limits = [random.choice([0, 100, 300, 620, 1 << 20]) for _ in order]
        wanted = tuple((name, FetchPartition(index, 0, limit)) for index, limit in zip(order, limits, strict=True))
        ask = Ask(random.choice([7, 12, 17]), None, 0, -1, wanted, max_bytes=random.choice([0, 400, 1000, 1500, 2500]))
        ours, theirs = (fetch(side, ask)[0] for side in sides)
        assert ours == theirs, (ask, sizes)
    for side in sides:
        side.topic_ids.pop(name)
    _delete(sides, name)


@pytest.mark.parametrize("version", [12, 17])
def test_topics_that_come_go_and_come_back_get_the_same_answers(sides: tuple[Side, Side], version: int) -> None:
    """Except that a deleted topic's ID stays resolved in Kafka's sessions: its error is that of an unknown name."""
    topics = dict.fromkeys((f"kept-{version}", f"passing-{version}", f"late-{version}"), 1)
    kept, passing, late = topics
    _settle(sides, {kept: 1, passing: 1})
    by_name = version < 13
    first = [kept, passing, *([late] if by_name else [])]
    wanted = tuple((name, FetchPartition(0, 0, 1 << 20)) for name in first)
    session_ids = [fetch(side, Ask(version, None, 0, 0, wanted))[1] for side in sides]

    def look(epoch: int) -> list[dict[str, int]]:
        answers = [
            fetch(side, Ask(version, None, session_id, epoch))[0]
            for side, session_id in zip(sides, session_ids, strict=True)
        ]
        assert [answer.error_code for answer in answers] == [0, 0]
        return [{row.topic: row.error_code for row in answer.rows} for answer in answers]

    _settle(sides, topics)
    assert look(1) == [{late: 0} if by_name else {}] * 2
    _delete(sides, passing)
    _settle(sides, {kept: 1, late: 1})
    gone = int(ErrorCode.unknown_topic_or_partition)
    assert look(2) == [{passing: gone if by_name else int(ErrorCode.unknown_topic_id)}, {passing: gone}]
    _settle(sides, topics, learn=by_name)
    assert look(3) == [{passing: 0 if by_name else int(ErrorCode.inconsistent_topic_id)}] * 2
    for name in topics:
        _delete(sides, name)


def _settle(sides: tuple[Side, Side], topics: dict[str, int], learn: bool = True) -> None:
    """Creates those that are not there. Without ``learn``, recreated ones are still called by their old IDs."""
    there = {} if "a" not in sides[0].topic_ids else TOPICS
    for side in sides:
        ids = dict(side.topic_ids)
        for name, count in topics.items():
            create_topic(side.connection, name, count)
        side.learn_ids(topics | there)
        if not learn:
            side.topic_ids = ids
    time.sleep(0.1)  # In Kafka metadata and partitions follow one another.


def _delete(sides: tuple[Side, Side], name: str) -> None:
    topic = DeleteTopicState(name=TopicName(name), topic_id=None)
    for side in sides:
        timeout = i32Timedelta.parse(timedelta(seconds=5))
        side.connection.call(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(topics=(topic,), timeout=timeout))
