"""The blocking consumer and the example on it, with a broker process; and the metadata epoch from end to end."""

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from reference_broker.blocking.connections import ChannelConnections
from reference_broker.blocking.consumer import (
    HEARTBEAT_THREAD,
    BlockingConsumer,
    CommitError,
    ConsumerError,
    InvalidMetadataEpochError,
)
from reference_broker.blocking.examples import offsets_outside
from reference_broker.blocking.tests.raw_topics import create_topic, produce
from reference_broker.client import group_requests
from reference_broker.client.consumer_partitions import ConsumerRecord, Phase
from reference_broker.client.group_consumer import ConsumerConfig, GroupConsumer
from reference_broker.client.group_membership import GroupConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.serve.tests.conftest import Broker
from reference_broker.wire.errors import DraftError, ErrorCode

pytestmark = pytest.mark.live

EAGER, COOPERATIVE = ("range",), ("cooperative-sticky",)
names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAddress]:
    folder = tmp_path_factory.mktemp("broker")
    settings = {
        "crucible.bootstrap.metadata.epoch": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "offsets.topic.num.partitions": 2,
    }
    words = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
    started = Broker(folder / "data", folder / "log", *words)
    yield NodeAddress(-1, *started.address)
    started.kill()


def consumer(
    broker: NodeAddress,
    group: str | None = None,
    protocols: tuple[str, ...] = EAGER,
    epoch: bool = True,
    reset: str = "earliest",
    name: str = "client",
    session_s: int = 45,
    **more: Any,
) -> BlockingConsumer:
    config = None
    if group:
        config = GroupConfig(
            group, (), protocols, session_timeout_us=session_s * 1_000_000, heartbeat_interval_us=100_000
        )
    settings = ConsumerConfig((broker,), config, epoch, FetchSettings(reset=reset, max_wait_ms=50))
    return BlockingConsumer(settings, name, **more)


def read(reader: BlockingConsumer, count: int, limit_s: float = 60.0) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + limit_s
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        records += reader.poll(200)
    return records


@pytest.mark.parametrize("epoch", [True, False])
def test_group_resumes_at_committed_offset(broker: NodeAddress, epoch: bool) -> None:
    topic = next(names)
    create_topic(broker, topic, 2)
    produce(broker, topic, 0, *(f"a{index}" for index in range(10)))
    with consumer(broker, topic, epoch=epoch) as first:
        first.subscribe([topic])
        assert [each.value for each in read(first, 10)] == [f"a{index}".encode() for index in range(10)]
        first.commit()
        assert (first.metadata_epoch() >= 0) is epoch
    produce(broker, topic, 0, "b")
    produce(broker, topic, 1, "c")
    with consumer(broker, topic, epoch=epoch) as second:
        second.subscribe([topic])
        found = sorted((each.partition, each.offset, each.value) for each in read(second, 2))
        assert found == [(0, 10, b"b"), (1, 0, b"c")]


@pytest.mark.parametrize("protocols", [EAGER, COOPERATIVE])
def test_joining_and_leaving_members_read_each_record_once(broker: NodeAddress, protocols: tuple[str, ...]) -> None:
    topic = next(names)
    create_topic(broker, topic, 6)
    for partition in range(6):
        produce(broker, topic, partition, *(f"{partition}.{index}" for index in range(20)))
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def member(name: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        with consumer(broker, topic, protocols, name=name, auto_commit_interval_ms=50) as reader:
            reader.subscribe([topic])
            while time.monotonic() < end and not ended.is_set():
                seen.extend((each.partition, each.offset) for each in reader.poll(50, max_records=7))

    members = [threading.Thread(target=member, args=(f"m{seconds}", seconds)) for seconds in (1.5, 60, 61)]
    for each in members:
        each.start()
        time.sleep(0.3)
    deadline = time.monotonic() + 30
    produced = 20
    while time.monotonic() < deadline and len(set(seen)) < 6 * 40:
        if produced < 40:
            for partition in range(6):
                produce(broker, topic, partition, str(produced))
            produced += 1
        time.sleep(0.05)
    ended.set()
    for each in members:
        each.join(30)
    assert sorted(seen) == [(partition, offset) for partition in range(6) for offset in range(40)]


def until(found: Callable[[], object], *polled: BlockingConsumer, limit_s: float = 60.0) -> None:
    """Poll these until it is so."""
    deadline = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < deadline, "it did not come about"
        for each in polled:
            each.poll(50)


def test_heartbeats_are_sent_while_application_is_busy(broker: NodeAddress) -> None:
    topic = next(names)
    create_topic(broker, topic, 1)
    with consumer(broker, topic, session_s=2) as one:
        one.subscribe([topic])
        until(one.assignment, one)
        membership = one.consumer.membership
        assert membership is not None
        before = membership.identity
        time.sleep(5)
        produce(broker, topic, 0, "a")
        assert [each.value for each in read(one, 1)] == [b"a"]
        one.commit()
        assert membership.identity == before, "it was thrown out and has joined again"


@pytest.mark.parametrize("protocols", [EAGER, COOPERATIVE])
def test_member_beyond_max_poll_interval_leaves_and_rejoins_with_next_poll(
    broker: NodeAddress, protocols: tuple[str, ...]
) -> None:
    topic = next(names)
    create_topic(broker, topic, 2)
    with (
        consumer(broker, topic, protocols, name="slow", max_poll_interval_ms=1000) as slow,
        consumer(broker, topic, protocols, name="other") as other,
    ):
        for each in (slow, other):
            each.subscribe([topic])
        until(lambda: len(slow.assignment()) == len(other.assignment()) == 1, slow, other)
        [lost] = slow.assignment()
        until(lambda: len(other.assignment()) == 2, other)  # Long before the session of the slow one would end.
        assert slow.assignment() == ()
        with pytest.raises(CommitError) as raised:
            slow.commit({lost: OffsetToCommit(1)})
        assert raised.value.error is ErrorCode.unknown_member_id
        until(lambda: len(slow.assignment()) == len(other.assignment()) == 1, slow, other)


def test_consumer_without_group_has_no_poll_interval_and_close_ends_thread(broker: NodeAddress) -> None:
    topic = next(names)
    create_topic(broker, topic, 1)
    produce(broker, topic, 0, "a", "b")
    with consumer(broker, max_poll_interval_ms=100) as alone:
        alone.assign([TopicPartition(topic, 0)])
        assert len(alone.poll(20_000, max_records=1)) == 1
        time.sleep(0.3)
        assert [each.value for each in read(alone, 1)] == [b"b"]
    assert not _beating()
    with consumer(broker, topic) as member:
        member.subscribe([topic])
        member.subscribe([topic, "other"])
        assert len(_beating()) == 1
    assert not _beating()
    member.close()


def _beating() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == HEARTBEAT_THREAD]


def test_next_poll_raises_error_of_the_thread(broker: NodeAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = next(names)

    def fails(_consumer: GroupConsumer, _now_us: int) -> NoReturn:
        raise RuntimeError("a beat")

    monkeypatch.setattr(GroupConsumer, "next_heartbeats", fails)
    with consumer(broker, topic) as one:
        one.subscribe([topic])
        deadline = time.monotonic() + 30
        while _beating():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(RuntimeError, match="a beat"):
            one.poll(0)


@pytest.mark.clause("M-7")
def test_commit_with_older_epoch_raises_and_is_sent_once(broker: NodeAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = next(names)
    create_topic(broker, topic, 1)
    where = TopicPartition(topic, 0)
    with consumer(broker, topic) as one:
        one.assign([where])
        one.poll(500)
        epoch = one.metadata_epoch()
        one.commit({where: OffsetToCommit(7, metadata_epoch=epoch + 1)})
        sent = []
        send = ChannelConnections.send

        def noted(connections: ChannelConnections, channel: str, request: group_requests.GroupRequest) -> None:
            sent.append(request)
            send(connections, channel, request)

        monkeypatch.setattr(ChannelConnections, "send", noted)
        with pytest.raises(InvalidMetadataEpochError) as raised:
            one.commit({where: OffsetToCommit(8, metadata_epoch=epoch)})
        assert raised.value.error is DraftError.INVALID_METADATA_EPOCH
        assert raised.value.result.refused == (where,)
        assert [each.api_key for each in sent].count(group_requests.OFFSET_COMMIT) == 1
    with consumer(broker, topic, epoch=False) as old:
        old.assign([where])
        produce(broker, topic, 0, *(str(index) for index in range(9)))
        assert [each.offset for each in read(old, 2)] == [7, 8]


@pytest.mark.clause("M-10", "M-12")
def test_consumer_waits_for_epoch_of_committed_offset(broker: NodeAddress) -> None:
    topic = next(names)
    create_topic(broker, topic, 1)
    produce(broker, topic, 0, "a", "b")
    where = TopicPartition(topic, 0)
    with consumer(broker, topic) as first:
        first.assign([where])
        assert first.metadata_epoch() == -1
        first.poll(500)
        ahead = first.metadata_epoch() + 1
        first.commit({where: OffsetToCommit(1, metadata_epoch=ahead)})
        assert not first.wait_for_metadata_update(ahead, 300)
        assert first.wait_for_metadata_update(ahead - 1, 0)
    with consumer(broker, topic) as second:
        second.assign([where])
        assert second.poll(500) == []
        assert second.consumer.partitions.held[where].phase is Phase.WAITING
        create_topic(broker, next(names), 1)
        assert [each.value for each in read(second, 1)] == [b"b"]
        assert second.metadata_epoch() >= ahead


def test_out_of_range_offset_with_and_without_reset_policy(broker: NodeAddress) -> None:
    topic = next(names)
    create_topic(broker, topic, 1)
    produce(broker, topic, 0, "a", "b")
    where = TopicPartition(topic, 0)
    with consumer(broker, topic, reset="latest") as late:
        late.assign([where])
        late.poll(500)
        produce(broker, topic, 0, "c")
        assert [each.value for each in read(late, 1)] == [b"c"]
        late.seek(where, 99)
        late.poll(500)
        assert [(reset.from_offset, reset.to_offset, reset.reason) for reset in late.take_resets()] == [
            (-1, 2, "no_offset"),
            (99, 3, "out_of_range"),
        ]
    with consumer(broker, topic, reset="none") as strict:
        strict.assign([where])
        strict.seek(where, 1)
        assert [each.value for each in read(strict, 2)] == [b"b", b"c"]
        strict.seek(where, 99)
        with pytest.raises(ConsumerError, match="OFFSET_OUT_OF_RANGE"):
            strict.poll(5000)


def test_refused_member_raises_reason(broker: NodeAddress) -> None:
    topic = next(names)
    create_topic(broker, topic, 1)
    with consumer(broker, topic) as one, consumer(broker, topic, COOPERATIVE) as other:
        one.subscribe([topic])
        read_nothing = one.poll(1500)
        assert read_nothing == []
        other.subscribe([topic])
        with pytest.raises(ConsumerError, match="INCONSISTENT_GROUP_PROTOCOL"):
            other.poll(10_000)


@pytest.mark.clause("M-13")
def test_example_counts_every_record_once_over_restarts(
    broker: NodeAddress, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, file = next(names), tmp_path / "counts"
    create_topic(broker, topic, 2)
    words = [f"{broker.host}:{broker.port}", topic, str(file), "--records"]
    produce(broker, topic, 0, "to be or", "not to be")
    assert offsets_outside.main([*words, "2"]) == 0
    produce(broker, topic, 1, "that is")
    produce(broker, topic, 0, "be")
    assert offsets_outside.main([*words, "2"]) == 0
    last = capsys.readouterr().out.split("\n")[-7:]
    assert [each.split() for each in last if each] == [
        ["3", "be"],
        ["1", "is"],
        ["1", "not"],
        ["1", "or"],
        ["1", "that"],
        ["2", "to"],
    ]
    rows = sqlite3.connect(file).execute("SELECT partition, next_offset, metadata_epoch FROM offsets").fetchall()
    assert sorted(row[:2] for row in rows) == [(0, 3), (1, 1)]
    assert all(epoch >= 0 for *_, epoch in rows)


@pytest.mark.clause("M-13")
def test_example_does_not_read_before_stored_epoch_is_reached(
    broker: NodeAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, file = next(names), tmp_path / "counts"
    create_topic(broker, topic, 1)
    counts = offsets_outside.WordCounts(file)
    counts.add([], 0)
    with sqlite3.connect(file) as database:
        database.execute("INSERT INTO offsets VALUES (?, 0, 1, 1000000)", (topic,))
    database.close()
    counts.close()
    monkeypatch.setattr(offsets_outside, "WAIT_MS", 300)
    with pytest.raises(ConsumerError, match="no metadata as new"):
        offsets_outside.count(broker, topic, file, 1, "earliest")
