"""Draws the script of a differential run: operations of clients, one after the other.

The drawing keeps a small model of topics, producers and groups, so that most operations refer to existing ones. Some
deliberately do not: late producers, gaps in sequences, offsets out of range and deleted topics have results too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from chaos.search.differ_world import COMMITTED, MAX_BYTES, TIMESTAMPS_MS, UNCOMMITTED
from chaos.sim.agenda import START_WALL_MS

LENGTH: Final = 60
"""Number of operations, without those of the start and the end."""
TOPICS: Final = ("t", "u", "v")
PLAIN: Final = "v"
"""The topic that producers with IDs avoid in some scripts."""
COMPACTED: Final = "k"
GROUPS: Final = ("g", "h")
MISSING: Final = 0.03
"""Share of the operations on a partition that name one that does not exist."""
TRANSACTIONAL_IDS: Final = ("x", "y")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of a ``ScriptClient``."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Needs:
    """Features of the scripts of a kind. False stands for those in which the two runs may differ."""

    deletes_of_producers: bool = True
    """DeleteRecords and retention in all topics without compaction. Otherwise only in one that no producer with an ID
    writes to."""
    largest_timestamps: bool = True
    """ListOffsets for the largest timestamp"""
    late_retries: bool = True
    """retries of transactional batches after their transaction"""
    pauses: int = 2
    polls: float = 0.0
    """chance that the reader polls after an operation, beside the polls of all scripts"""


@dataclass(slots=True)
class ScriptDrawing:
    """The model from which operations are drawn."""

    random: Random
    needs: Needs
    operations: list[Operation] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    """number of partitions of each topic"""
    producers: list[str] = field(default_factory=list)
    """idempotent ones"""
    open: dict[str, bool] = field(default_factory=dict)
    """whether each transactional producer has an open transaction"""
    late: list[str] = field(default_factory=list)
    """transactional producers whose ID another one has taken"""
    members: dict[str, list[str]] = field(default_factory=dict)
    static: dict[str, bool] = field(default_factory=dict)
    followed: dict[tuple[str, int], None] = field(default_factory=dict)
    count: int = 0

    def add(self, name: str, *arguments: Any) -> None:
        self.operations.append(Operation(name, arguments))

    def number(self) -> int:
        self.count += 1
        return self.count

    def partition(self) -> tuple[str, int]:
        topic = self.random.choice([*self.topics])
        count = self.topics[topic]
        return topic, count if self.random.random() < MISSING else self.random.randrange(count)

    def written(self) -> tuple[str, int]:
        """Draw a partition for a producer with an ID."""
        where = self.partition()
        while where[0] == PLAIN and not self.needs.deletes_of_producers:
            where = self.partition()
        return where

    # Topics

    def create_topic(self) -> None:
        missing = [topic for topic in TOPICS if topic not in self.topics]
        if not missing:
            self.add("create_topic", self.random.choice(TOPICS), 1, {})  # TOPIC_ALREADY_EXISTS
            return
        self._create(self.random.choice(missing))

    def _create(self, name: str) -> None:
        configs = {"segment.bytes": str(self.random.choice((300, 600, 1200)))}
        if (self.needs.deletes_of_producers or name == PLAIN) and self.random.random() < 0.3:
            configs["retention.bytes"] = str(self.random.choice((1200, 2400)))
        self.topics[name] = self.random.choice((1, 2, 3))
        self.add("create_topic", name, self.topics[name], configs)

    def delete_topic(self) -> None:
        own = [topic for topic in self.topics if topic != COMPACTED]
        if len(own) > 1:
            gone = self.random.choice(own)
            del self.topics[gone]
            self.add("delete_topic", gone)

    def add_partitions(self) -> None:
        topic = self.random.choice([*self.topics])
        self.topics[topic] += 1
        self.add("add_partitions", topic, self.topics[topic])

    def alter_config(self) -> None:
        topic = self.random.choice([*self.topics])
        key, value = self.random.choice(
            (
                ("segment.bytes", "400"),
                ("max.message.bytes", "200"),
                ("max.message.bytes", None),
                ("delete.retention.ms", "5000"),
                ("flush.messages", "1"),
                ("compression.type", "gzip"),
                ("compression.type", "producer"),
                ("min.insync.replicas", "0"),
            )
        )
        self.add("alter_config", topic, key, value)

    def describe(self) -> None:
        topic = self.random.choice((*self.topics, *TOPICS))
        self.add(self.random.choice(("describe_configs", "describe_topic")), topic)

    # Producers

    def init_producer(self) -> None:
        name = f"p{self.number()}"
        self.producers.append(name)
        self.add("init_producer", name, "", False)

    def produce(self) -> None:
        who = self.random.choice((*self.producers, ""))
        gap = 3 if who and self.random.random() < 0.15 else 0
        where = self.written() if who else self.partition()
        self.add("produce", who, *where, self.random.choice((1, 1, 2, 5)), self.number(), gap)

    def retry(self) -> None:
        sent = [
            operation.arguments[:3]
            for operation in self.operations
            if operation.name == "produce" and operation.arguments[0]
        ]
        if not self.needs.late_retries:
            sent = [each for each in sent if each[0] in self.producers]
        if sent:
            where = self.random.choice(sent)
            self.add("retry", *where, self.random.randrange(min(7, sent.count(where))))

    def init_transactional(self) -> None:
        transactional_id = self.random.choice(TRANSACTIONAL_IDS)
        name = f"{transactional_id}{self.number()}"
        for each in [each for each in self.open if each.startswith(transactional_id)]:
            self.late.append(each)
            del self.open[each]
        self.open[name] = False
        self.add("init_producer", name, transactional_id, self.random.random() < 0.5)

    def transact(self) -> None:
        if not self.open:
            self.init_transactional()
        name = self.random.choice([*self.open])
        self.open[name] = True
        for _ in range(self.random.choice((1, 2))):
            where = self.written()
            self.add("add_to_transaction", name, *where)
            self.add("produce", name, *where, self.random.choice((1, 2)), self.number(), 0)
        if self.random.random() < 0.4:
            group = self.random.choice(GROUPS)
            self.add("commit_in_transaction", name, group, *self.partition(), self.random.randrange(50))

    def end_transaction(self) -> None:
        name = next((each for each, is_open in self.open.items() if is_open), None)
        if name is not None:
            self.open[name] = False
            self.add("end_transaction", name, self.random.random() < 0.6)
        elif self.open and self.random.random() < 0.3:
            self.add("end_transaction", self.random.choice([*self.open]), True)

    def come_late(self) -> None:
        if self.late:
            self.add("produce", self.random.choice(self.late), *self.written(), 1, self.number(), 0)

    def look_at_producers(self) -> None:
        self.add("describe_producers", *self.partition())
        self.add("describe_transaction", self.random.choice(TRANSACTIONAL_IDS))

    # Records

    def delete_records(self) -> None:
        topic, partition = self.partition()
        if topic != COMPACTED and (self.needs.deletes_of_producers or topic == PLAIN):
            self.add("delete_records", topic, partition, self.random.choice((0.0, 0.3, 0.6, 1.0)))

    def read(self) -> None:
        share, isolation = self.random.choice((0.0, 0.0, 0.3, 0.8)), self.random.choice((UNCOMMITTED, COMMITTED))
        self.add("read", *self.partition(), share, isolation)

    def list_offsets(self) -> None:
        topic, partition = self.partition()
        within = START_WALL_MS + self.random.randrange(TIMESTAMPS_MS)
        largest = -3 if self.needs.largest_timestamps else -1
        # When a record of a compacted topic is gone depends on the cleaner's passes, but not which ones go.
        timestamp = self.random.choice((-1, -2) if topic == COMPACTED else (-1, -2, largest, within, within))
        isolation = self.random.choice((UNCOMMITTED, COMMITTED))
        self.add("list_offsets", topic, partition, timestamp, isolation)

    def follow(self) -> None:
        where = self.partition()
        self.followed[where] = None
        self.add("follow", *where, self.random.choice((0, 0, 2, 7, 1000)))

    def unfollow(self) -> None:
        if self.followed:
            where = self.random.choice([*self.followed])
            del self.followed[where]
            self.add("unfollow", *where)

    def poll(self) -> None:
        isolation = self.random.choice((UNCOMMITTED, COMMITTED))
        self.add("poll", isolation, self.random.choice((1, 500, MAX_BYTES)))

    # Groups

    def join(self) -> None:
        group = self.random.choice(GROUPS)
        members = self.members.setdefault(group, [])
        static = self.static.setdefault(group, self.random.random() < 0.4)
        if not members or (len(members) < 3 and self.random.random() < 0.6):
            members.append(f"{group}{self.number()}")
        self.add("join", group, tuple(members), static)

    def leave(self) -> None:
        group = self.random.choice(GROUPS)
        if self.members.get(group):
            gone = self.members[group].pop(0)
            self.add("leave", group, gone, self.static[group])
            if self.members[group]:  # A rebalance is not stored before it ends, so no pause may come here.
                self.add("join", group, tuple(self.members[group]), self.static[group])

    def be_a_member(self) -> None:
        group = self.random.choice(GROUPS)
        name = self.random.choice([*self.members.get(group, ()), ""])
        if name and self.random.random() < 0.4:
            self.add("heartbeat", group, name, self.static[group])
        else:
            offset = self.random.randrange(100)
            self.add("commit", group, name, self.static.get(group, False), *self.partition(), offset)

    def look_at_groups(self) -> None:
        group = self.random.choice(GROUPS)
        self.add("committed", group, self.random.random() < 0.5)
        self.add("describe_group", group)

    def delete_of_group(self) -> None:
        group = self.random.choice(GROUPS)
        if self.random.random() < 0.4:
            self.add("delete_group", group)
        else:
            self.add("delete_offset", group, *self.partition())


WEIGHTS: Final[tuple[tuple[Callable[[ScriptDrawing], None], int], ...]] = (
    (ScriptDrawing.create_topic, 2),
    (ScriptDrawing.delete_topic, 1),
    (ScriptDrawing.add_partitions, 1),
    (ScriptDrawing.alter_config, 3),
    (ScriptDrawing.describe, 2),
    (ScriptDrawing.init_producer, 2),
    (ScriptDrawing.produce, 14),
    (ScriptDrawing.retry, 4),
    (ScriptDrawing.init_transactional, 2),
    (ScriptDrawing.transact, 6),
    (ScriptDrawing.end_transaction, 5),
    (ScriptDrawing.come_late, 1),
    (ScriptDrawing.look_at_producers, 3),
    (ScriptDrawing.delete_records, 2),
    (ScriptDrawing.read, 4),
    (ScriptDrawing.list_offsets, 4),
    (ScriptDrawing.follow, 4),
    (ScriptDrawing.unfollow, 1),
    (ScriptDrawing.poll, 6),
    (ScriptDrawing.join, 3),
    (ScriptDrawing.leave, 1),
    (ScriptDrawing.be_a_member, 4),
    (ScriptDrawing.look_at_groups, 3),
    (ScriptDrawing.delete_of_group, 1),
)


def drawn(random: Random, needs: Needs) -> list[Operation]:
    """Draw a script. Its last operations read the whole state, once nothing changes any more."""
    drawing = ScriptDrawing(random, needs)
    for name in TOPICS[:2] if needs.deletes_of_producers else TOPICS:
        drawing._create(name)
    drawing.topics[COMPACTED] = 1
    drawing.add("create_topic", COMPACTED, 1, {"cleanup.policy": "compact", "segment.bytes": "300"})
    drawing.init_producer()
    for _ in range(3 if needs.polls else 0):
        drawing.follow()
    acts, weights = zip(*WEIGHTS, strict=True)
    pauses = {LENGTH * (number + 1) // (needs.pauses + 1) for number in range(needs.pauses)}
    for number in range(LENGTH):
        random.choices(acts, weights)[0](drawing)
        if random.random() < needs.polls:
            drawing.poll()
        if number in pauses:
            drawing.add("pause", random.randrange(3), random.random() < 0.5)
    drawing.add("pause", random.randrange(3), random.random() < 0.5)
    _look_at_all(drawing)
    return drawing.operations


def _look_at_all(drawing: ScriptDrawing) -> None:
    for topic in (*TOPICS, COMPACTED):
        drawing.add("describe_topic", topic)
    for topic, partitions in drawing.topics.items():
        drawing.add("describe_configs", topic)
        for partition in range(partitions):
            for isolation in (UNCOMMITTED, COMMITTED):
                drawing.add("read", topic, partition, 0.0, isolation)
            drawing.add("describe_producers", topic, partition)
    drawing.add("poll", UNCOMMITTED, MAX_BYTES)
    for group in GROUPS:
        drawing.add("committed", group, True)
        drawing.add("describe_group", group)
    for transactional_id in TRANSACTIONAL_IDS:
        drawing.add("describe_transaction", transactional_id)
    drawing.add("list_groups")
    drawing.add("list_transactions")
