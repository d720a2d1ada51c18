"""Measures how those that were cut off catch up: a follower, a reader that holds the state of a topic, an observer of
the metadata log.

Bytes are those of the keys and values of records that somebody is sent from the heal until it has caught up: until it
has all that was committed at the heal. Then its state is compared with what the writes come to.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from chaos.checks.batches import PlainRecord, batches_of, read_batches, records_in
from chaos.checks.check import Check, Kind
from chaos.checks.compacted_log import Compacted
from chaos.checks.replica_view import Replicated
from reference_broker.core.events import Effect, Event, PeerReply, Reply, Request
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from chaos.checks.check import CheckContext
    from reference_broker.core.node import Node

NEVER_US: Final = 1 << 62
CONFIG_RECORD: Final = b"\x04"
"""The type of a setting's record, behind the version of the frame (KIP-631, ConfigRecord.json)."""
State = dict[bytes | None, int]
"""At which offset somebody holds the newest record of each key, without the keys that were deleted."""


@dataclass(slots=True)
class Caught:
    """``after_us`` is the time from the heal, or -1 if it never caught up. ``again_bytes`` are those of the bytes that
    it had been sent before the heal. ``anew`` is how often it began from the start. ``wrong`` counts the keys of which
    it held something else than what was written, -1 if that was not looked at."""

    after_us: int = -1
    sent_bytes: int = 0
    again_bytes: int = 0
    anew: int = 0
    wrong: int = -1


class CatchUp(Check):
    """Judges nothing. ``caught`` is the result."""

    who: ClassVar[str] = ""

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self.caught = Caught()
        self._target = -1

    @abstractmethod
    def _heal_us(self) -> int:
        """Returns when the cut ends, as far as that is known."""

    @abstractmethod
    def _begin(self) -> int:
        """Notes where it stands at the heal, and returns the offset that it must reach."""

    @abstractmethod
    def _position(self) -> int:
        """Returns up to which offset it has everything, or -1 while it does not know that it has."""

    @abstractmethod
    def _wrong(self) -> int:
        """Returns the number of keys that it holds wrongly, or -1 if that cannot be told now."""

    def viewed(self, at_us: int, node: "Node") -> None:  # noqa: ARG002
        heal_us = self._heal_us()
        if at_us < heal_us:
            return
        if self._target < 0:
            self._target = self._begin()
        caught = self.caught
        if self._position() < self._target:
            caught.after_us = caught.wrong = -1  # It has begun anew, behind the target.
            return
        if caught.after_us < 0:
            caught.after_us = at_us - heal_us
        if caught.wrong < 0:
            caught.wrong = self._wrong()

    @property
    def _is_counted(self) -> bool:
        return self._target >= 0 and self.caught.after_us < 0

    def _got(self, record: PlainRecord, again: bool) -> None:
        size = len(record.key or b"") + len(record.value or b"")
        self.caught.sent_bytes += size
        self.caught.again_bytes += size if again else 0


class NodeCaughtUp(CatchUp):
    """A node whose links to all others were cut."""

    acts_on: ClassVar[tuple[Kind, ...]] = (PeerReply,)

    @property
    def _node_id(self) -> int:
        ends = Counter(node_id for pair in self.context.quorum.fault_times.links for node_id in pair)
        return ends.most_common(1)[0][0] if ends else -1

    def _heal_us(self) -> int:
        return max(self.context.quorum.fault_times.links.values(), default=NEVER_US)


class FollowerCaughtUp(NodeCaughtUp):
    """A follower of the compacted partition."""

    who = "follower"

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self._had = self._end = -1

    def _begin(self) -> int:
        partition = _partition(self.context)
        self._had = self._end = partition.copies[self._node_id].held.end_offset
        return partition.committed_end

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if self._is_counted and node.broker.node_id == self._node_id:
            for record in _records_for_replicas(event):
                self._got(record, record.offset < self._had)

    def _position(self) -> int:
        log = _partition(self.context).copies[self._node_id].log
        if log is None:
            return -1
        self.caught.anew += log.log_end_offset < self._end
        self._end = log.log_end_offset
        return -1 if log.horizon.remembered else self._end

    def _wrong(self) -> int:
        partition = _partition(self.context)
        log = partition.copies[self._node_id].log
        assert log is not None
        assert partition.compacted is not None
        end = min(self._end, partition.committed_end)
        held: State = {}
        for _, data in read_batches(log, log.log_start_offset, end):
            _fold(held, records_in(data))
        return _differing(partition.compacted, held, end)


class ReaderCaughtUp(CatchUp):
    """The reader whose answers are lost until ``heal_us``, which whoever plays sets. It holds what it was told, as far
    as it asked for more behind it. If it asks from an earlier place, it has forgotten all."""

    who = "reader"
    acts_on: ClassVar[tuple[Kind, ...]] = (ApiKey.FETCH.value,)
    client_id: ClassVar[str] = "member-0"

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self.heal_us = NEVER_US
        self._asked = self._had = 0
        self._told: list[PlainRecord] = []
        self._held: State = {}

    def _heal_us(self) -> int:
        return self.heal_us

    def _begin(self) -> int:
        self._had = self._asked
        return _partition(self.context).committed_end

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if type(event) is Request and event.tag.client_id == self.client_id and isinstance(event.body, FetchRequest):
            for topic in event.body.topics:
                for each in topic.partitions:
                    self._asks(each.fetch_offset)
        for effect in effects:
            if type(effect) is Reply and effect.tag.client_id == self.client_id:
                records = list(_records_of(effect.body))
                self._told = [each for each in records if each.offset >= self._asked] or self._told
                for record in records if self._is_counted else ():
                    self._got(record, record.offset < self._had)

    def _asks(self, offset: int) -> None:
        if offset < self._asked:
            self._held.clear()
            self.caught.anew += 1
        elif offset > self._asked:
            _fold(self._held, (each for each in self._told if each.offset < offset))
        self._asked = offset

    def _position(self) -> int:
        return self._asked

    def _wrong(self) -> int:
        compacted = _partition(self.context).compacted
        assert compacted is not None
        return _differing(compacted, self._held, self._asked)


class ObserverCaughtUp(NodeCaughtUp):
    """The observer of the metadata log, whose state are the settings of topics. Only their records count. What it had
    been sent before the heal, byte for byte, counts as sent again."""

    who = "observer"

    def __init__(self, context: "CheckContext") -> None:
        super().__init__(context)
        self._known: set[bytes] = set()
        self._snapshot = bytearray()

    def _begin(self) -> int:
        return self.context.quorum.committed_end

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if node.broker.node_id != self.context.quorum.voters:  # The observer comes after the voters.
            return
        if type(event) is not PeerReply or event.channel is not Channel.RAFT:
            return
        for record in _records_of(event.body):
            self._take(record)
        for piece in _pieces_of(event.body):
            self.caught.anew += self._is_counted and piece.position == 0
            del self._snapshot[piece.position :]
            self._snapshot += piece.unaligned_records
            if len(self._snapshot) == piece.size:
                for _, data in batches_of(bytes(self._snapshot)):
                    for record in records_in(data):
                        self._take(record)

    def _take(self, record: PlainRecord) -> None:
        value = record.value or b""
        if value[1:2] != CONFIG_RECORD:
            return
        if self._is_counted:
            self._got(record, value in self._known)
        elif self._target < 0:
            self._known.add(value)

    def _position(self) -> int:
        replica = self.context.quorum.nodes[self._node_id].replica
        return -1 if replica is None else int(replica.loader.last_offset) + 1

    def _wrong(self) -> int:
        """Compares with another node that has read as far."""
        loader = self.context.quorum.nodes[self._node_id].replica.loader
        for other in self.context.quorum.nodes:
            if (
                other.node_id != self._node_id
                and other.replica is not None
                and other.replica.loader.last_offset == loader.last_offset
            ):
                return len(_settings(loader.image) ^ _settings(other.replica.loader.image))
        return -1


def _partition(context: "CheckContext") -> Replicated:
    (found,) = (each for each in context.replicas.partitions.values() if each.compacted is not None)
    return found


def _records_for_replicas(event: Event | None) -> Iterator[PlainRecord]:
    if type(event) is PeerReply and event.channel is Channel.REPLICA:
        yield from _records_of(event.body)


def _records_of(body: object) -> Iterator[PlainRecord]:
    if isinstance(body, FetchResponse):
        for topic in body.responses:
            for each in topic.partitions:
                for header, data in batches_of(bytes(each.records or b"")):
                    yield from () if header.control else records_in(data)


def _pieces_of(body: Any) -> Iterator[Any]:
    if type(body).__name__ == "FetchSnapshotResponse":
        for topic in body.topics:
            yield from topic.partitions


def _fold(held: State, records: Iterator[PlainRecord]) -> None:
    for each in records:
        if each.value is None:
            held.pop(each.key, None)
        else:
            held[each.key] = each.offset


def _differing(compacted: Compacted, held: State, end: int) -> int:
    """Returns the number of keys of which others than these should be held by who has read up to ``end``. A key with a
    newer record behind that is left out: a cleaner may have taken what it replaces."""
    right: State = {}
    for offset in compacted.between(0, end):
        record = compacted.records[offset]
        _fold(right, iter([PlainRecord(offset, record.timestamp_ms, record.key, record.value)]))
    newer = {compacted.records[offset].key for offset in compacted.between(end, NEVER_US)}
    return sum(held.get(key) != right.get(key) for key in held.keys() | right.keys() if key not in newer)


def _settings(image: Any) -> set[tuple[Any, ...]]:
    return {(owner, *each) for owner, settings in image.configs.items() for each in settings.items()}
