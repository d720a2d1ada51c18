"""Fetch and its sessions beside Apache Kafka: the same random requests get the same responses from both.

The differences that are declared on the card of Fetch (``apis/records/k01_fetch.py``) are excluded from the comparison.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bench.peers.clients import connect, create_topic
from bench.peers.systems import KAFKA, REFERENCE
from bench.peers.tests.fetch_sides import (
    OF_DELETED,
    FetchReply,
    FetchSide,
    FetchSpec,
    PartitionRow,
    fetch,
    one_batch,
    produce,
)
from bench.peers.tests.fetch_walk import Walk
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

pytestmark = pytest.mark.peer
_log = logging.getLogger(__name__)

STEPS = int(os.environ.get("FETCH_WALK_STEPS", "3000"))
"""Requests and changes between them. About 300 a second, and 40 with a follower."""
FOLLOWED_STEPS = int(os.environ.get("FETCH_WALK_FOLLOWED_STEPS", "800"))
SEED = int(os.environ.get("FETCH_WALK_SEED", "227"))
SHOWN = 12
FIRST_WITH_DIVERGENCE = 12
CONFIG = {
    "max.incremental.fetch.session.cache.slots": "1000000",
    "auto.create.topics.enable": "false",
}
"""Kafka's slots are dealt to eight shards, and one shard that is full declines a session although others have room. So
no walk may fill one."""
WITH_FOLLOWERS = {
    **CONFIG,
    "broker.rack": "rack-{node}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "replica.fetch.wait.max.ms": "10",
    "default.replication.factor": "2",
    "min.insync.replicas": "2",
}


@contextmanager
def both(folder: Path, nodes: int, config: dict[str, str]) -> Iterator[tuple[FetchSide, FetchSide]]:
    """The reference broker, and Apache Kafka."""
    with ExitStack() as stack:
        sides = []
        for system, name in ((REFERENCE, "ours"), (KAFKA, "kafka")):
            cluster = stack.enter_context(system.launched(folder / name, nodes, config))
            sides.append(FetchSide([stack.enter_context(connect(port)) for port in cluster.ports]))
        yield sides[0], sides[1]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FetchSide, FetchSide]]:
    with both(tmp_path_factory.mktemp("one"), 1, CONFIG) as found:
        yield found


def test_random_requests_get_same_responses(sides: tuple[FetchSide, FetchSide]) -> None:
    seen = _walked(sides, STEPS)
    assert seen["accepted"] > STEPS // 10
    assert seen["sessions"] > 20
    assert min(seen["recreated"], seen["of a deleted topic"]) > STEPS // 1000


@pytest.mark.timeout(600)
def test_random_requests_to_leader_and_follower_get_same_responses(tmp_path: Path) -> None:
    with both(tmp_path, 2, WITH_FOLLOWERS) as sides:
        seen = _walked(sides, FOLLOWED_STEPS)
    assert seen["accepted"] > FOLLOWED_STEPS // 10
    assert min(seen["sent to the follower"], seen["records of the follower"]) > FOLLOWED_STEPS // 50


def _walked(sides: tuple[FetchSide, FetchSide], steps: int) -> Counter[str]:
    """Walk, and count how often what a walk must reach was reached."""
    walk = Walk(Random(SEED), sides)
    walk.begin()
    try:
        return _steps(walk, steps)
    finally:
        walk.end()


def _steps(walk: Walk, steps: int) -> Counter[str]:
    trail: list[object] = []
    seen: Counter[str] = Counter()
    for _ in range(steps):
        if walk.random.random() < 0.4:
            trail.append(walk.change())
            seen["recreated"] += str(trail[-1]).endswith("created")
            continue
        spec = walk.next_fetch()
        trail.append(spec)
        ours, theirs = walk.take(spec)
        found = f"seed {SEED}, after {walk.requests} requests"
        assert not _differences(ours, theirs, spec, walk), "\n".join([found, *map(str, trail[-SHOWN:])])
        seen["accepted"] += spec.epoch > 0 and ours.error_code == ErrorCode.none
        for row in ours.rows:
            seen["of a deleted topic"] += OF_DELETED in row.topic
            seen["sent to the follower"] += row.preferred >= 0
            seen["records of the follower"] += spec.node > 0 and bool(row.batches)
    seen["sessions"], seen["requests"] = len(walk.sessions), walk.requests
    _log.info("seed %s: %s", SEED, dict(seen))
    return seen


def _differences(ours: FetchReply, theirs: FetchReply, spec: FetchSpec, walk: Walk) -> Sequence[object]:
    if spec.version < FIRST_WITH_DIVERGENCE and theirs.error_code == ErrorCode.unsupported_version:
        return []  # A session of version 12 that goes on in an older one: Kafka fails to write the divergence.
    if (ours.error_code, ours.session) != (theirs.error_code, theirs.session):
        return [ours, theirs]
    known = None if spec.session is None else walk.sessions[spec.session]
    if (known is None or known.limited) and ours.order_of_data() != theirs.order_of_data():
        return [ours.order_of_data(), theirs.order_of_data()]
    of_follower = spec.node > 0
    our_rows, their_rows = ({_declared(row, of_follower) for row in side.rows} for side in (ours, theirs))
    return sorted(map(str, our_rows ^ their_rows))


def _declared(row: PartitionRow, of_follower: bool) -> PartitionRow:
    """The ID of a deleted topic stays resolved in Kafka's sessions: its error is that of an unknown name. A follower of
    ours sends a fetcher without leader epochs to the leader, where Kafka's responds with OFFSET_OUT_OF_RANGE."""
    if of_follower and row.error_code == ErrorCode.not_leader_or_follower:
        return replace(row, error_code=int(ErrorCode.offset_out_of_range), leader=(-1, -1))
    if OF_DELETED in row.topic and row.error_code == ErrorCode.unknown_topic_or_partition:
        return replace(row, error_code=int(ErrorCode.unknown_topic_id))
    return row


def test_any_limits_get_the_same_batches_where_each_partition_has_one(sides: tuple[FetchSide, FetchSide]) -> None:
    """With one batch to send, Kafka has no beginning of a next one with which it fills up what is left."""
    random, name = Random(1000), "sizes"
    _settle(sides, {name: 8})
    sizes = [random.choice([10, 100, 500, 600]) for _ in range(8)]
    for index, size in enumerate(sizes):
        for side in sides:
            produce(side, name, index, 1, one_batch(1, size))
    for _ in range(300):
        order = random.sample(range(8), random.randint(1, 8))
        limits = [random.choice([0, 100, 300, 620, 1 << 20]) for _ in order]
        wanted = tuple((name, FetchPartition(index, 0, limit)) for index, limit in zip(order, limits, strict=True))
        spec = FetchSpec(
            random.choice([7, 12, 17]), None, 0, -1, wanted, max_bytes=random.choice([0, 400, 1000, 1500, 2500])
        )
        ours, theirs = (fetch(side, spec)[0] for side in sides)
        assert ours == theirs, (spec, sizes)
    for side in sides:
        side.topic_ids.pop(name)
    _delete(sides, name)


@pytest.mark.parametrize("version", [12, 17])
def test_created_deleted_and_recreated_topics_get_same_responses(
    sides: tuple[FetchSide, FetchSide], version: int
) -> None:
    """Except that a deleted topic's ID stays resolved in Kafka's sessions: its error is that of an unknown name."""
    topics = dict.fromkeys((f"kept-{version}", f"passing-{version}", f"late-{version}"), 1)
    kept, passing, late = topics
    _settle(sides, {kept: 1, passing: 1})
    by_name = version < 13
    first = [kept, passing, *([late] if by_name else [])]
    wanted = tuple((name, FetchPartition(0, 0, 1 << 20)) for name in first)
    session_ids = [fetch(side, FetchSpec(version, None, 0, 0, wanted))[1] for side in sides]

    def look(epoch: int) -> list[dict[str, int]]:
        responses = [
            fetch(side, FetchSpec(version, None, session_id, epoch))[0]
            for side, session_id in zip(sides, session_ids, strict=True)
        ]
        assert [response.error_code for response in responses] == [ErrorCode.none, ErrorCode.none]
        return [{row.topic: row.error_code for row in response.rows} for response in responses]

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


def _settle(sides: tuple[FetchSide, FetchSide], topics: dict[str, int], learn: bool = True) -> None:
    """Create those that are not there. Without ``learn``, recreated ones are still called by their old IDs."""
    for side in sides:
        ids = dict(side.topic_ids)
        for name, count in topics.items():
            create_topic(side.leader, name, count)
        side.learn_ids(topics)
        if not learn:
            side.topic_ids = ids
    time.sleep(0.1)  # In Kafka metadata and partitions follow one another.


def _delete(sides: tuple[FetchSide, FetchSide], name: str) -> None:
    for side in sides:
        side.delete(name)
