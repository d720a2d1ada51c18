"""Random walks of one fetcher over two brokers at once: the same requests in the same order, answers side by side.

Topic IDs and session IDs differ between brokers; everything else of an answer is kept. All batches have one size, and
limits are multiples of it, so that no answer ends inside a batch (Kafka cuts there, the reference broker before it).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.metadata.v13.request import MetadataRequest
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from bench.peers.raw_client import RawConnection, create_topic
from reference_broker.records.batch import iterate
from reference_broker.records.builder import build
from reference_broker.records.record import Record
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

TOPICS = {"a": 3, "b": 2, "c": 1}
UNKNOWN = "unknown"
UNKNOWN_ID = bytes(range(1, 17))
IN_BATCH = 2
NOW_MS = int(time.time() * 1000)
"""Younger than any retention time."""
BATCH = build([Record(timestamp_ms=NOW_MS, value=bytes(40))] * IN_BATCH)
ALL = 1 << 20
LIMITS = (0, len(BATCH), 2 * len(BATCH), 3 * len(BATCH), ALL, ALL, ALL)
VERSIONS = ((7, 9, 11), (12,), (13, 14, 15, 16, 17, 18))
"""Those that one session may mix: before 12 an answer has no place for what Kafka checks since then."""
STRANGE_IDS = (-1, -77, 424_242_424)
"""Of no session. Kafka's shards fail on the ends of the range, with UNKNOWN_SERVER_ERROR."""


@dataclass(slots=True)
class Side:
    """One broker. ``session_ids``: of the walk's sessions, by their number."""

    connection: RawConnection
    topic_ids: dict[str, bytes] = field(default_factory=lambda: {UNKNOWN: UNKNOWN_ID})
    session_ids: dict[int, int] = field(default_factory=dict)

    def learn_ids(self, topics: Mapping[str, int]) -> None:
        """Waits until the broker knows the leaders of all partitions of these topics, and of no other topic."""
        while True:
            everything = MetadataRequest(topics=None, include_topic_authorized_operations=False)
            answer = self.connection.call(ApiKey.METADATA, 12, everything)
            found = {str(topic.name): topic for topic in answer.topics}  # type: ignore[attr-defined]
            led = {name: sum(int(each.leader_id) >= 0 for each in topic.partitions) for name, topic in found.items()}
            if led == topics:
                self.topic_ids |= {name: topic.topic_id.bytes for name, topic in found.items()}
                return
            time.sleep(0.01)

    def topic(self, name: str, version: int) -> tuple[str, bytes]:
        return ("", self.topic_ids[name]) if version >= 13 else (name, NO_TOPIC_ID)

    def name(self, topic: str, topic_id: bytes) -> str:
        return topic or next(name for name, each in self.topic_ids.items() if each == topic_id)


@dataclass(frozen=True, slots=True)
class Ask:
    """One fetch in terms of the walk. ``session``: number of one of its sessions; None: ``session_id`` as it is."""

    version: int
    session: int | None
    session_id: int
    epoch: int
    wanted: tuple[tuple[str, FetchPartition], ...] = ()
    forgotten: tuple[tuple[str, int], ...] = ()
    max_bytes: int = ALL
    isolation_level: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """What an answer says about one partition. ``leader_epoch``: -1 if it names no leader. ``batches``: base offset,
    leader epoch and checksum of each."""

    topic: str
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    leader_epoch: int
    batches: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """``session``: none, same as asked for, or new."""

    error_code: int
    session: str
    rows: tuple[Row, ...]

    def in_any_order(self) -> list[tuple[str, int, str]]:
        return sorted((row.topic, row.partition, repr(row)) for row in self.rows)

    def order_of_data(self) -> list[tuple[str, int]]:
        """Where the byte limit is spent first: the order that matters."""
        return [(row.topic, row.partition) for row in self.rows if row.batches]


def fetch(side: Side, ask: Ask) -> tuple[Answer, int]:
    """The answer and the session ID that it carries."""
    asked_id = ask.session_id if ask.session is None else side.session_ids[ask.session]
    wanted = [FetchTopic(*side.topic(name, ask.version), [one]) for name, one in ask.wanted]
    forgotten = [ForgottenTopic(*side.topic(name, ask.version), [index]) for name, index in ask.forgotten]
    request = FetchRequest(
        max_wait_ms=0,
        max_bytes=ask.max_bytes,
        isolation_level=ask.isolation_level,
        session_id=asked_id,
        session_epoch=ask.epoch,
        topics=wanted,
        forgotten=forgotten,
    )
    answer = side.connection.call(ApiKey.FETCH, ask.version, request)
    assert isinstance(answer, FetchResponse)
    session = "none" if answer.session_id == 0 else "same" if answer.session_id == asked_id else "new"
    rows = [
        Row(
            side.name(topic.topic, topic.topic_id),
            data.partition,
            data.error_code,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) if data.diverging_epoch else None,
            -1 if data.current_leader is None else data.current_leader.leader_epoch,
            tuple((each.base_offset, each.leader_epoch, each.crc) for _, each in iterate(data.records or b"")),
        )
        for topic in answer.responses
        for data in topic.partitions
    ]
    return Answer(answer.error_code, session, tuple(rows)), answer.session_id


def produce(side: Side, topic: str, partition: int, batches: int, batch: bytes = BATCH) -> None:
    """Each batch in a request of its own, as brokers take one a partition."""
    for _ in range(batches):
        request = ProduceRequest(-1, 5000, [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(partition, batch)])])
        answer = side.connection.call(ApiKey.PRODUCE, 9, request)
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partitions[0].error_code == 0


def delete_records(side: Side, topic: str, partition: int, offset: int) -> None:
    one = DeleteRecordsPartition(partition_index=i32(partition), offset=i64(offset))
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=TopicName(topic), partitions=(one,)),),
        timeout=i32Timedelta.parse(timedelta(seconds=5)),
    )
    answer = side.connection.call(ApiKey.DELETE_RECORDS, 2, request)
    assert [int(each.error_code) for each in answer.topics[0].partitions] == [0], answer  # type: ignore[attr-defined]
    assert [int(each.low_watermark) for each in answer.topics[0].partitions] == [offset], answer  # type: ignore[attr-defined]


@dataclass(slots=True)
class Session:
    """``epoch``: of its next request. ``limited``: requests may have byte limits, so that the order of its partitions
    matters. It is the same on all sides if the session began without records: the reference broker moves partitions
    with records to the end in each answer, Kafka in all but the first."""

    versions: tuple[int, ...]
    limited: bool
    epoch: int = 1


@dataclass(slots=True)
class Walk:
    """Chooses what comes next. ``ends``, ``starts``: log end and log start offset of each partition."""

    random: Random
    sides: Sequence[Side]
    sessions: list[Session] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)

    def begin(self) -> None:
        for side in self.sides:
            for name, count in TOPICS.items():
                create_topic(side.connection, name, count)
            side.learn_ids(TOPICS)
        for name, count in TOPICS.items():
            for index in range(count):
                self.ends[name, index] = self.starts[name, index] = 0

    def change(self) -> str:
        """Something happens to one partition; what, in words."""
        where = self.random.choice(sorted(self.ends))
        if self.ends[where] > self.starts[where] and self.random.random() < 0.2:
            self.starts[where] = offset = self.random.randint(self.starts[where] + 1, self.ends[where])
            for side in self.sides:
                delete_records(side, *where, offset)
            return f"records of {where} before {offset} deleted"
        batches = self.random.choice([1, 1, 2, 3])
        for side in self.sides:
            produce(side, *where, batches)
        self.ends[where] += IN_BATCH * batches
        return f"{where} ends at {self.ends[where]}"

    def ask(self) -> Ask:
        """A fetch: mostly a valid one of an open session, else each kind of session ID and epoch."""
        random = self.random
        session = random.randrange(len(self.sessions)) if self.sessions and random.random() < 0.9 else None
        if session is not None and random.random() < 0.85:
            session = max(0, len(self.sessions) - random.choice([1, 1, 1, 2, 3]))
        known = None if session is None else self.sessions[session]
        epochs = [0, 0, -1, 1, 5, -7, 0x7FFFFFFF]
        if known is not None:
            wrong = [known.epoch + 1, known.epoch - 1, 0x7FFFFFFF]  # below -1, Kafka finds the session all the same
            epochs = [known.epoch] * 60 + [0, -1, 0] + wrong
        epoch = random.choice(epochs)
        versions = known.versions if known is not None and random.random() < 0.96 else random.choice(VERSIONS)
        creates, loud = epoch == 0, random.random() < 0.5
        limited = not loud if creates or known is None else known.limited
        wanted = [self._wanted(limited, creates and not loud) for _ in range(random.choice([0, 0, 0, 1, 1, 2, 3, 6]))]
        return Ask(
            random.choice(versions),
            session,
            random.choice([0, 0, 0, *STRANGE_IDS]),
            epoch,
            tuple(wanted),
            tuple(self._place() for _ in range(random.choice([0, 0, 0, 0, 1, 2]))),
            random.choice(LIMITS) if limited else ALL,
            random.choice([0] * 30 + [1]),
        )

    def take(self, ask: Ask) -> list[Answer]:
        """One answer a side; the sessions go on."""
        given = [fetch(side, ask) for side in self.sides]
        answer = given[0][0]
        if ask.session is not None and answer.error_code == 0 and ask.epoch > 0:
            self.sessions[ask.session].epoch += 1
        if answer.session == "new":
            for side, (_, session_id) in zip(self.sides, given, strict=True):
                side.session_ids[len(self.sessions)] = session_id
            versions = next(each for each in VERSIONS if ask.version in each)
            self.sessions.append(Session(versions, not answer.order_of_data()))
        return [each for each, _ in given]

    def _place(self) -> tuple[str, int]:
        name = self.random.choice([*"aaabbc", UNKNOWN])
        return name, self.random.randrange(TOPICS.get(name, 2) + (self.random.random() < 0.05))

    def _wanted(self, limited: bool, quiet: bool) -> tuple[str, FetchPartition]:
        random = self.random
        name, index = self._place()
        start, end = self.starts.get((name, index), 0), self.ends.get((name, index), 0)
        offsets = [end] if quiet else [start, start, end, end, random.randint(start, end), end + 1, start - 1]
        max_bytes = random.choice(LIMITS) if limited else ALL
        epochs = [-1] * 12 + [0, 0, 0, 1, 7]
        return name, FetchPartition(
            index, random.choice(offsets), max_bytes, random.choice(epochs), random.choice(epochs), -1
        )
