from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.check import Check
from chaos.checks.fetch_model import Answer
from chaos.checks.history import without_node
from chaos.checks.surroundings import Surroundings
from chaos.watched_disk import WatchedDisk
from reference_broker.core.effects import Effect, Reply
from reference_broker.core.events import Closed, Event, Request

if TYPE_CHECKING:
    from reference_broker.core.node import Node

FETCH_SNAPSHOT = 59
DRAFT = 1000
METADATA = ("__cluster_metadata", 0)
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_PARTITION = 3
NOT_LEADER = 6
FENCED_EPOCH = 74
UNKNOWN_EPOCH = 75
SNAPSHOT_NOT_FOUND = 98
POSITION_OUT_OF_RANGE = 99
EXCUSED = (8, 56, 104)
"""BROKER_NOT_AVAILABLE, KAFKA_STORAGE_ERROR, INCONSISTENT_CLUSTER_ID."""


class _Asked(NamedTuple):
    place: tuple[str, int]
    epoch: int
    snapshot: tuple[int, int]
    position: int
    max_bytes: int


class _Told(NamedTuple):
    """``size`` is -1 in the draft, which says in ``more`` whether anything remains."""

    error: int
    position: int
    data: bytes
    size: int
    more: bool


class SnapshotAnswers(Check):
    """snapshot-answers-exact: each request for bytes of a snapshot gets those bytes, or the error that fits it.

    KIP-630, FetchSnapshot: only the metadata log has snapshots (S-13), so any other partition is unknown. A node that
    does not lead says so (S-7), or that the epoch in the request is older or newer than its own. The leader says that
    it has no such snapshot (S-5), or that the position lies outside of it (S-6). Otherwise it sends bytes from the
    position on (S-2, S-3), and says how large the snapshot is, or whether more remains (S-4). Fetch answers tell
    clients of no snapshot (S-13).

    Some answers are excused: a node that leaves answers nobody (KIP-595), damaged bytes are not served (S-9), and a
    node answers nobody who does not name its cluster.
    """

    guarantee = "snapshot-answers-exact"
    needs_one_node = True
    acts_on = (FETCH_SNAPSHOT, Closed, type(None))

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._asked: dict[tuple[int, int], dict[int, _Asked]] = {}
        """by node and connection, then by correlation ID"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._asked = without_node(self._asked, node_id)
        elif type(event) is Closed:
            self._asked.pop((node_id, event.connection), None)
        elif type(event) is Request and event.api_key == FETCH_SNAPSHOT:
            asked = _read(event.body)
            if asked is not None:
                self._asked.setdefault((node_id, event.connection), {})[event.correlation_id] = asked
        for effect in effects:
            if type(effect) is Reply and effect.api_key == FETCH_SNAPSHOT:
                found = self._asked.get((node_id, effect.connection), {}).pop(effect.correlation_id, None)
                told = _told(effect.body)
                if found is not None and told is not None:
                    wrong = _wrong(node.broker.replica, found, told, effect.api_version == DRAFT)
                    if wrong:
                        story = f"node-{node_id}, asked for {found.place[0]}, snapshot {found.snapshot} from byte"
                        self.violated(at_us, f"{story} {found.position} in epoch {found.epoch}, {wrong}")

    def answered(self, at_us: int, answer: Answer) -> None:
        for named, data in answer.data.items():
            if data.snapshot_id is not None and named[0] != METADATA[0]:
                topic = named[0] if isinstance(named[0], str) else named[0].hex()
                self.violated(
                    at_us, f"{answer.client_id} was told of snapshot {data.snapshot_id} of {topic}-{named[1]}"
                )


def _read(body: Any) -> _Asked | None:
    """Returns None for a request that does not name one partition."""
    if len(body.topics) != 1 or len(body.topics[0].partitions) != 1:
        return None
    (one,) = body.topics[0].partitions
    snapshot = int(one.snapshot_id.end_offset), int(one.snapshot_id.epoch)
    place = str(body.topics[0].name), int(one.partition)
    return _Asked(place, int(one.current_leader_epoch), snapshot, int(one.position), int(body.max_bytes))


def _told(body: Any) -> _Told | None:
    """Returns None for an answer with an error of the whole request."""
    if int(body.error_code):
        return None
    (one,) = body.topics[0].partitions
    if hasattr(one, "more"):
        return _Told(int(one.error_code), int(one.position), bytes(one.data), -1, bool(one.more))
    data = bytes(one.unaligned_records or b"")
    return _Told(int(one.error_code), int(one.position), data, int(one.size), False)


def _wrong(replica: Any, asked: _Asked, told: _Told, is_draft: bool) -> str:
    """Returns what is wrong with the answer, or nothing."""
    if told.error in EXCUSED:
        return ""
    must = _error(replica, asked, is_draft)
    if told.error != must:
        return f"answered error {told.error}, not {must}"
    if must or asked.place != METADATA:
        return ""
    held = {tuple(each): each for each in replica.store.ids}[asked.snapshot]
    size, end = replica.store.size(held), asked.position + len(told.data)
    with WatchedDisk.looked_at():
        there = bytes(replica.store.read(held, asked.position, len(told.data)))
    if told.position != asked.position or told.data != there:
        return f"answered {len(told.data)} bytes from {told.position} on that are not those of the snapshot"
    if len(told.data) > max(asked.max_bytes, 0):
        return f"answered {len(told.data)} bytes, more than {asked.max_bytes}"
    if told.size >= 0:
        return "" if told.size == size else f"answered that it has {told.size} bytes, and it has {size}"
    return "" if told.more == (end < size) else f"answered {'' if told.more else 'not '}that more remains after {end}"


def _error(replica: Any, asked: _Asked, is_draft: bool) -> int:
    """The error that the request must get; 0 if there is none."""
    quorum = replica.quorum
    if asked.place != METADATA:
        return UNKNOWN_PARTITION
    if asked.epoch != quorum.epoch:
        return FENCED_EPOCH if asked.epoch < quorum.epoch else UNKNOWN_EPOCH
    if not quorum.is_leader:
        return NOT_LEADER
    held = {tuple(each): each for each in replica.store.ids}.get(asked.snapshot)
    if held is None:
        return SNAPSHOT_NOT_FOUND
    size = replica.store.size(held)
    if is_draft:
        return 0 if 0 <= asked.position <= size else OFFSET_OUT_OF_RANGE
    return 0 if 0 <= asked.position < size else POSITION_OUT_OF_RANGE
