"""Scripts of a whole node for enumerated power losses: topics, groups' offsets, clean stops.

The node is the only voter of its cluster, and syncs each append (``flush.messages`` = 1), so what it has acknowledged
is owed.
"""

from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.types import GroupId

from chaos.checks.log.batches import batches_of, records_in
from chaos.checks.log.log_folders import batches_in, contradictions, false_claims, folder_of, segments_of
from chaos.search.power_losses import Differs, Resumed, Script, require
from chaos.sim.disk import SimDisk
from reference_broker.apis.tests.messages import message_from
from reference_broker.core.tests.node_world import NodeWorld, produce_request, sent_batch
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.messages import body_class

SETTINGS: dict[str, Any] = {
    "log_flush_interval_messages": "1",
    "log_segment_bytes": "300",
    "offsets_topic_num_partitions": "1",
    "offsets_topic_segment_bytes": "400",
    "auto_create_topics_enable": "false",
}
OFFSETS = "__consumer_offsets-0"
TOPIC = "t"
PRODUCER = 7
TRIES = 50
_KEY_VERSION, _LENGTH, _INDEX = Struct(">h"), Struct(">h"), Struct(">i")
_VALUE = Struct(">hq")
_OFFSET_KEYS = (0, 1)


@dataclass(frozen=True, slots=True)
class OwedNode:
    """The acknowledged state of the node."""

    commits: tuple[tuple[str, int], ...] = ()
    """the offset of each group in partition 0"""
    open_commit: tuple[str, int] | None = None
    """the last commit without a response yet"""
    records: tuple[bytes, ...] = ()
    """the values of the records"""
    open_record: bytes | None = None
    has_topic: bool = False


class Node:
    """A node with a client."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.world = NodeWorld(disk, seed=seed, **SETTINGS)
        self.sent = -1
        """the number of the last request whose response acknowledges something"""
        require(self.world.node.ready, "the node does not start")

    @property
    def has_acknowledged(self) -> bool:
        """Whether the last request has a response without an error, which may be on its way still."""
        reply = self.world.replies.get(self.sent)
        return reply is not None and not _error_in(reply.body)

    def _send(self, key: ApiKey, version: int, request: object) -> Any:
        self.sent = self.world.send(key, version, request)
        self.world.settle()
        return self.world.replies[self.sent].body

    def commit(self, group: str, offset: int) -> None:
        partition = {"partition_index": 0, "committed_offset": offset}
        values = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": TOPIC, "partitions": [partition]}],
        }
        request = message_from(body_class(ApiKey.OFFSET_COMMIT, "request"), values)
        for _ in range(TRIES):
            response = self._send(ApiKey.OFFSET_COMMIT, 8, request)
            if not _error_in(response):
                return
            self._find_coordinator(group)
        raise Differs(f"the commit of group {group} is refused: {response}")

    def _find_coordinator(self, group: str) -> None:
        """The first one makes the topic of the offsets."""
        version = VERSIONS[ApiKey.FIND_COORDINATOR][1]
        values = {"key_type": 0, "coordinator_keys": (group,)}
        self.world.request(
            ApiKey.FIND_COORDINATOR, version, message_from(body_class(ApiKey.FIND_COORDINATOR, "request"), values)
        )
        self.world.advance(50)

    def committed(self, group: str) -> int:
        wanted = OffsetFetchRequestGroup(group_id=GroupId(group), topics=None)
        for _ in range(TRIES):
            response: Any = self.world.request(ApiKey.OFFSET_FETCH, 9, OffsetFetchRequest(groups=(wanted,))).groups[0]
            if not int(response.error_code):
                offsets = [
                    int(of_partition.committed_offset) for topic in response.topics for of_partition in topic.partitions
                ]
                return offsets[0] if offsets else -1
            self.world.advance(50)
        raise Differs(f"the offsets of group {group} cannot be fetched: {response}")

    def produce(self, sequence: int, value: bytes) -> int:
        request = produce_request(TOPIC, 0, sent_batch(PRODUCER, sequence, value))
        response = self._send(ApiKey.PRODUCE, 9, request)
        require(not _error_in(response), f"record {value!r} is refused: {response}")
        return int(response.responses[0].partitions[0].base_offset)


def _error_in(body: Any) -> int:
    """The error code of the only partition in a response to OffsetCommit or Produce."""
    topics = body.topics if hasattr(body, "topics") else body.responses
    return int(topics[0].partitions[0].error_code)


class ResumedNode(Resumed):
    def __init__(self, node: Node, owed: OwedNode, records: tuple[bytes, ...]) -> None:
        self.node = node
        self.owed = owed
        self.records = records

    def use(self) -> OwedNode:
        """Retry the last record, then produce and commit."""
        node, owed = self.node, self.owed
        if not owed.has_topic:
            return owed
        count = len(self.records)
        if count:
            offset = node.produce(count - 1, self.records[-1])
            require(offset == count - 1, f"a retry of the record at offset {count - 1} got offset {offset}")
        offset = node.produce(count, b"after")
        require(offset == count, f"the next record got offset {offset}, not {count}")
        commits = dict(owed.commits)
        node.commit("a", 1000)
        commits["a"] = 1000
        return replace(
            owed,
            commits=tuple(sorted(commits.items())),
            records=(*self.records, b"after"),
            open_record=None,
        )


class GroupsOfANode(Script):
    name = "groups"
    about = "a node with a topic and the committed offsets of groups, clean stops and kills"

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self._owed = OwedNode()
        self.node: Node

    def owed(self) -> OwedNode:
        owed = self._owed
        if (owed.open_commit or owed.open_record) and self.node.has_acknowledged:
            commits = dict([*owed.commits, *([owed.open_commit] if owed.open_commit else [])])
            records = (*owed.records, *([owed.open_record] if owed.open_record else []))
            self._owed = OwedNode(tuple(sorted(commits.items())), None, records, None, owed.has_topic)
        return self._owed

    def commit(self, group: str, offset: int) -> None:
        self.node.sent = -1
        self._owed = replace(self._owed, open_commit=(group, offset))
        self.node.commit(group, offset)
        self.owed()

    def produce(self, value: bytes) -> None:
        self.node.sent = -1
        self._owed = replace(self._owed, open_record=value)
        self.node.produce(len(self._owed.records), value)
        self.owed()

    def stop(self) -> None:
        self.node.world.shut_down()
        self.node.world.settle_until(lambda: self.node.world.node.stopped)
        assert self.node.world.node.stopped

    def start(self, seed: int) -> None:
        self.disk.process_started()
        self.node = Node(self.disk, seed)

    def play(self) -> None:
        self.node = Node(self.disk, 0)
        assert not int(self.node.world.create(TOPIC).error_code)
        self._owed = replace(self._owed, has_topic=True)
        for number in range(3):
            self.produce(b"first %d" % number)
        self.commit("a", 1)
        self.commit("b", 2)
        self.commit("a", 3)
        self.stop()
        self.start(1)
        self.produce(b"second")
        for offset in (4, 5, 6):
            self.commit("a", offset)
        self.start(2)
        self.commit("b", 3)
        self.stop()

    @classmethod
    def resume(cls, disk: SimDisk, owed: OwedNode) -> ResumedNode:  # type: ignore[override]
        for directory in (OFFSETS, f"{TOPIC}-0"):
            for claim in false_claims(folder_of(disk.all_files(), directory), 0):
                raise Differs(f"{directory}: {claim}")
        node = Node(disk, 9)
        if not owed.has_topic:
            return ResumedNode(node, owed, ())
        for group, offset in owed.commits:
            open_offset = owed.open_commit[1] if owed.open_commit and owed.open_commit[0] == group else offset
            committed = node.committed(group)
            require(
                committed in (offset, open_offset),
                f"group {group} has offset {committed}, and {offset} was acknowledged",
            )
            stored = _stored_offsets(disk).get(group)
            require(
                stored == committed, f"group {group} has offset {committed}, and its partition's batches give {stored}"
            )
        for directory in (OFFSETS, f"{TOPIC}-0"):
            folder = folder_of(disk.all_files(), directory)
            batches = batches_in(segments_of(folder))
            for contradiction in contradictions(folder, [], batches, 0):
                raise Differs(f"{directory}: {contradiction}")
        records = tuple(
            record.value or b""
            for data in batches_in(segments_of(folder_of(disk.all_files(), f"{TOPIC}-0")))
            for record in records_in(data)
        )
        require(
            records in (owed.records, (*owed.records, owed.open_record or b"")),
            f"the topic has the records {records}, and {owed.records} were acknowledged",
        )
        return ResumedNode(node, owed, records)


def _stored_offsets(disk: SimDisk) -> dict[str, int]:
    """Read the newest offset of each group from the batches (OffsetCommitKey and OffsetCommitValue)."""
    offsets: dict[str, int] = {}
    for data in batches_in(segments_of(folder_of(disk.all_files(), OFFSETS))):
        identity, _ = next(batches_of(data))
        for record in () if identity.control else records_in(data):
            key = record.key or b""
            if _KEY_VERSION.unpack_from(key)[0] not in _OFFSET_KEYS:
                continue
            (size,) = _LENGTH.unpack_from(key, 2)
            group = key[4 : 4 + size].decode()
            if record.value is None:
                offsets.pop(group, None)
            else:
                offsets[group] = _VALUE.unpack_from(record.value)[1]
    return offsets
