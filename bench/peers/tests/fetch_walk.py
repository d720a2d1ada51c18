"""Random walks of one fetcher over two brokers at once: the same requests in the same order, responses side by side.

Between the requests records come and go, and topics are deleted and created again. All batches have one size, and
limits are multiples of it, so that no response ends inside a batch (Kafka cuts there, the reference broker before it).
With more than one node the followers get requests, too, once they have applied each change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from bench.peers.tests.fetch_sides import (
    ALL,
    OF_DELETED,
    UNKNOWN,
    FetchReply,
    FetchSide,
    FetchSpec,
    delete_records,
    fetch,
    one_batch,
    produce,
)
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

TOPICS = {"a": 3, "b": 2, "c": 1}
IN_BATCH = 2
BATCH = one_batch(IN_BATCH, 40)
LIMITS = (0, len(BATCH), 2 * len(BATCH), 3 * len(BATCH), ALL, ALL, ALL)
VERSIONS = ((7, 9, 10, 11), (12,), (13, 14, 15, 16, 17, 18))
"""Those that one session may mix: before 12 a response has no place for what Kafka checks since then."""
STRANGE_IDS = (-1, -77, 424_242_424)
"""Of no session. Kafka's shards fail on the ends of the range, with UNKNOWN_SERVER_ERROR."""
NOT_THERE = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)
REMEMBERED = 2
"""Number of deleted topics that are still requested by their IDs."""


@dataclass(slots=True)
class WalkSession:
    """``epoch``: of its next request. ``limited``: requests may have byte limits, so that the order of its partitions
    matters. It is the same on all sides if the session began without records and without topics that were not there:
    the reference broker moves partitions with records to the end in each response, Kafka in all but the first, and
    Kafka puts what its metadata does not have at the end of the first."""

    versions: tuple[int, ...]
    limited: bool
    node: int = 0
    epoch: int = 1


@dataclass(slots=True)
class Walk:
    """Chooses what comes next. ``ends``, ``starts``: log end and log start offset of each partition that is there.
    ``deleted`` has the labels of the last deleted topics, and ``requests`` counts the fetches."""

    random: Random
    sides: Sequence[FetchSide]
    sessions: list[WalkSession] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    requests: int = 0
    _deletions: int = 0

    @property
    def nodes(self) -> int:
        return len(self.sides[0].connections)

    @property
    def topics(self) -> dict[str, int]:
        """The topics that are there, with their numbers of partitions."""
        return {name: TOPICS[name] for name, index in self.ends if index == 0}

    def begin(self) -> None:
        for name in TOPICS:
            self._create(name)

    def end(self) -> None:
        """Delete all topics."""
        for name in self.topics:
            self._delete(name)

    # What happens

    def change(self) -> str:
        """Change one partition or topic, and return the change in words."""
        gone = [name for name in TOPICS if name not in self.topics]
        if gone and self.random.random() < 0.2:
            return self._create(self.random.choice(gone))
        if len(self.topics) > 1 and self.random.random() < 0.015:
            return self._delete(self.random.choice(sorted(self.topics)))
        where = self.random.choice(sorted(self.ends))
        if self.ends[where] > self.starts[where] and self.random.random() < 0.2:
            self.starts[where] = offset = self.random.randint(self.starts[where] + 1, self.ends[where])
            for side in self.sides:
                delete_records(side, *where, offset)
            self._settle(where)
            return f"records of {where} before {offset} deleted"
        batches = self.random.choice([1, 1, 2, 3])
        for side in self.sides:
            produce(side, *where, batches, BATCH)
        self.ends[where] += IN_BATCH * batches
        self._settle(where)
        return f"{where} ends at {self.ends[where]}"

    def _settle(self, partition: tuple[str, int]) -> None:
        if self.nodes > 1:
            for side in self.sides:
                side.await_replicas(*partition, self.starts[partition], self.ends[partition])

    def _create(self, name: str) -> str:
        for index in range(TOPICS[name]):
            self.ends[name, index] = self.starts[name, index] = 0
        for side in self.sides:
            side.create(name, TOPICS[name])
            side.learn_ids(self.topics)
            for index in range(TOPICS[name]):  # In Kafka metadata and partitions follow one another.
                side.await_replicas(name, index, 0, 0)
        return f"{name} created"

    def _delete(self, name: str) -> str:
        for index in range(TOPICS[name]):
            del self.ends[name, index], self.starts[name, index]
        self._deletions += 1
        label = f"{name}{OF_DELETED}{self._deletions}"
        self.deleted = [*self.deleted, label][-REMEMBERED:]
        for side in self.sides:
            side.topic_ids[label] = side.topic_ids.pop(name)
            side.delete(name)
            side.learn_ids(self.topics)
        return f"{name} deleted, its ID is now {label}"

    # Requests

    def next_fetch(self) -> FetchSpec:
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
        node = random.randrange(self.nodes) if known is None or random.random() < 0.02 else known.node
        version = random.choice(versions)
        wanted = [
            self._wanted(version, limited, creates and not loud) for _ in range(random.choice([0, 0, 0, 1, 1, 2, 3, 6]))
        ]
        return FetchSpec(
            version,
            session,
            random.choice([0, 0, 0, *STRANGE_IDS]),
            epoch,
            tuple(wanted),
            tuple(self._place(version) for _ in range(random.choice([0, 0, 0, 0, 1, 2]))),
            random.choice(LIMITS) if limited else ALL,
            random.choice([0] * 30 + [1]),
            node,
            random.choice(["", *(f"rack-{number}" for number in range(self.nodes + 1))]) if self.nodes > 1 else "",
        )

    def take(self, spec: FetchSpec) -> list[FetchReply]:
        """One response from each side; the sessions continue."""
        self.requests += 1
        given = [fetch(side, spec) for side in self.sides]
        response = given[0][0]
        if spec.session is not None and response.error_code == 0 and spec.epoch > 0:
            self.sessions[spec.session].epoch += 1
        if response.session == "new":
            for side, (_, session_id) in zip(self.sides, given, strict=True):
                side.session_ids[len(self.sessions)] = session_id
            versions = next(version for version in VERSIONS if spec.version in version)
            misses = any(row.error_code in NOT_THERE and row.topic != UNKNOWN for row in response.rows)
            self.sessions.append(WalkSession(versions, not misses and not response.order_of_data(), spec.node))
        return [each for each, _ in given]

    def _place(self, version: int, quiet: bool = False) -> tuple[str, int]:
        """A partition, mostly one that is there. Deleted topics are requested by their IDs. With ``quiet`` nothing that
        is deleted is requested."""
        there = quiet or version >= 13
        names = [name for name in [*"aaabbc", UNKNOWN] if not there or name == UNKNOWN or name in self.topics]
        if not quiet and version >= 13 and self.deleted and self.random.random() < 0.1:
            names = self.deleted
        name = self.random.choice(names)
        count = TOPICS.get(name.partition(OF_DELETED)[0], 2)
        return name, self.random.randrange(count + (self.random.random() < 0.05))

    def _wanted(self, version: int, limited: bool, quiet: bool) -> tuple[str, FetchPartition]:
        random = self.random
        name, index = self._place(version, quiet)
        start, end = self.starts.get((name, index), 0), self.ends.get((name, index), 0)
        offsets = [end] if quiet else [start, start, end, end, random.randint(start, end), end + 1, start - 1]
        max_bytes = random.choice(LIMITS) if limited else ALL
        epochs = [-1] * 12 + [0, 0, 0, 1, 7]
        return name, FetchPartition(
            index, random.choice(offsets), max_bytes, random.choice(epochs), random.choice(epochs), -1
        )
