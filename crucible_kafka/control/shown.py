"""Values of the control API: what JSON has in place of the library's objects, and back."""

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from crucible_kafka.library import Hit, NodeHandle, Rule, Sent, StoredRecord
from crucible_kafka.library.observation import GroupView, TransactionView


class Bytes(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: bytes
    """As JSON has it, in base64."""


Value: TypeAlias = str | Bytes
"""A key or value of a record: text if it is UTF-8."""


class ReadValue(msgspec.Struct, forbid_unknown_fields=True):
    """A value that was read, and where."""

    value: Value
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


def shown_value(value: bytes) -> Value:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return Bytes(value)


def bytes_of(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else value.base64


class Node(msgspec.Struct):
    """A node of the cluster."""

    id: int
    address: Annotated[str, Meta(description="HOST:PORT for clients, also after a restart.")]
    running: bool
    serving: Annotated[bool, Meta(description="Whether it runs and is not paused.")]
    pid: Annotated[int, Meta(description="The process that it runs in.")]

    @classmethod
    def of(cls, node: NodeHandle) -> "Node":
        return cls(node.id, node.address, node.is_running, node.is_serving, node.pid)


class ClusterShown(msgspec.Struct):
    """The cluster."""

    bootstrap_servers: Annotated[str, Meta(description="The addresses of all nodes, as clients take them.")]
    nodes: list[Node]


class NodeId(msgspec.Struct):
    """The node that has a role now."""

    node: Annotated[int, Meta(description="-1 if none has it.")]


class Count(msgspec.Struct):
    """How many there were."""

    count: int


class Offset(msgspec.Struct):
    """An offset of a log."""

    offset: int


class RuleShown(msgspec.Struct):
    """A rule."""

    id: int
    text: Annotated[str, Meta(description="As a test in Python would write it.")]
    act: str
    optional: bool
    fired: Annotated[int, Meta(description="How often it has acted, on all nodes.")]
    hits: Annotated[list[Hit], Meta(description="Each time that it acted, in order.")]

    @classmethod
    def of(cls, rule: Rule) -> "RuleShown":
        hits = rule.hits
        return cls(rule.spec.id, str(rule), rule.spec.act, rule.optional, len(hits), hits)


class Record(msgspec.Struct):
    """A record in the log of a partition."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Value | None
    value: Value | None
    headers: list[tuple[str, Value | None]]
    committed: Annotated[bool, Meta(description="Whether a consumer with read_committed gets it.")]
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    leader_epoch: int

    @classmethod
    def of(cls, record: StoredRecord) -> "Record":
        return cls(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            _optional(record.key),
            _optional(record.value),
            [(name, _optional(value)) for name, value in record.headers],
            record.committed,
            record.producer_id,
            record.producer_epoch,
            record.is_transactional,
            record.leader_epoch,
        )


def _optional(value: bytes | None) -> Value | None:
    return None if value is None else shown_value(value)


class FrameShown(msgspec.Struct):
    """A request or a response, decoded."""

    at_s: Annotated[float, Meta(description="Unix time.")]
    direction: Annotated[str, Meta(description="request or response.")]
    node: int
    connection: Annotated[int, Meta(description="A number that the node never uses twice.")]
    peer: Annotated[str, Meta(description="HOST:PORT at the other end.")]
    client_id: str
    api: str
    version: int
    correlation_id: int
    fault: Annotated[str, Meta(description="What a rule did to it, or an empty string.")]
    text: Annotated[str, Meta(description="The frame in one line.")]
    body: Annotated[object, Meta(description="Its fields, in the newest version. Records are counted only.")]


class Committed(msgspec.Struct):
    """A committed offset."""

    topic: str
    partition: int
    offset: int


class Group(msgspec.Struct):
    """A consumer group, as its coordinator has it."""

    group_id: str
    state: Annotated[str, Meta(description="Kafka's name, such as Stable.")]
    generation: int
    protocol: str | None
    leader: str | None
    members: Annotated[list[str], Meta(description="Member IDs, in the order in which they joined.")]
    client_ids: list[str]
    committed: list[Committed]
    coordinator: int

    @classmethod
    def of(cls, group: GroupView) -> "Group":
        return cls(
            group.group_id,
            group.state,
            group.generation,
            group.protocol,
            group.leader,
            list(group.members),
            list(group.client_ids),
            [Committed(topic, partition, offset) for (topic, partition), offset in group.committed.items()],
            group.coordinator,
        )


class Partition(msgspec.Struct):
    """A partition of a topic."""

    topic: str
    partition: int


class Transaction(msgspec.Struct):
    """A transactional ID, as its coordinator has it."""

    transactional_id: str
    state: Annotated[str, Meta(description="Kafka's name, such as Ongoing.")]
    producer_id: int
    producer_epoch: int
    partitions: list[Partition]
    coordinator: int

    @classmethod
    def of(cls, view: TransactionView) -> "Transaction":
        partitions = [Partition(topic, index) for topic, index in view.partitions]
        return cls(
            view.transactional_id, view.state, view.producer_id, view.producer_epoch, partitions, view.coordinator
        )


class GivenValues(Sent):
    """Values that a client of the API has sent."""

    def __init__(self, sent: Sequence[bytes], unacknowledged: set[bytes]) -> None:
        super().__init__("given")
        self._given = sent
        self._unacknowledged = unacknowledged

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._given)

    @property
    def has_outcome(self) -> bool:
        return True

    def must_be_read(self) -> list[bytes]:
        return [value for value in self._given if value not in self._unacknowledged]
