"""View of the replicated values of transactional IDs.

They are in ``__transaction_state``. ``wrong_step`` has the rules of their changes.

Sources: Kafka's TransactionLogKey and TransactionLogValue schemas (versions 0 and 1), KIP-98 (states and transitions),
KIP-360 (a producer that continues after an error) and KIP-890 (transaction.version 2: the epoch is raised at each end).
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from chaos.checks.history import TopicPartition
from chaos.checks.log.batches import read_batches, records_in
from chaos.checks.replication.replica_view import ReplicaView
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node


STATE_TOPIC = "__transaction_state"
EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
"""Kafka's numbers of the states that are written."""
REMOVED = -1
"""The state of a tombstone."""
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "removed")
OUTCOMES = {PREPARE_COMMIT: True, PREPARE_ABORT: False, COMPLETE_COMMIT: True, COMPLETE_ABORT: False}
PREPARED = (PREPARE_COMMIT, PREPARE_ABORT)
_WHO = Struct(">hqhib")
"""Version, producer ID, producer epoch, timeout and state."""
_TIMES = Struct(">qq")
_NEXT_ID, _CLIENT_VERSION = 1, 2
_KEPT = 24
"""Number of values kept of each ID: more than one event can commit."""


class StateValue(NamedTuple):
    """One value of a transactional ID."""

    offset: int
    at_us: int
    """time at which it was seen to be committed"""
    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: int
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int
    next_producer_id: int
    client_version: int

    @property
    def named(self) -> str:
        return f"{STATES[self.state]} of producer {self.producer_id}, epoch {self.epoch}, at offset {self.offset}"


def read_value(offset: int, key: bytes, value: bytes | None) -> StateValue | None:
    """Read a record of the topic, or return None if its key is of another kind."""
    if key[:2] != b"\x00\x00":
        return None
    transactional_id = key[4 : 4 + int.from_bytes(key[2:4])].decode()
    if value is None:
        return StateValue(offset, 0, transactional_id, -1, -1, 0, REMOVED, frozenset(), 0, 0, -1, 0)
    version, producer_id, epoch, timeout_ms, state = _WHO.unpack_from(value)
    fields = _Fields(value, _WHO.size, is_flexible=version > 0)
    partitions: set[TopicPartition] = set()
    for _ in range(fields.length()):
        topic = fields.text()
        partitions.update((topic, fields.int32()) for _ in range(fields.length()))
        fields.tags()
    updated_ms, started_ms = _TIMES.unpack_from(value, fields.at)
    fields.at += _TIMES.size
    tags = fields.tags()
    return StateValue(
        *(offset, 0, transactional_id, producer_id, epoch, timeout_ms, state, frozenset(partitions)),
        *(updated_ms, started_ms),
        int.from_bytes(tags.get(_NEXT_ID, b"\xff"), signed=True),
        int.from_bytes(tags.get(_CLIENT_VERSION, b"\x00"), signed=True),
    )


@dataclass(slots=True)
class _Fields:
    """The fields of a message from ``at`` on."""

    data: bytes
    at: int
    is_flexible: bool

    def length(self) -> int:
        """Return the length of an array or a text, 0 for null."""
        if self.is_flexible:
            return max(self._varint() - 1, 0)
        return max(self.int32(), 0)

    def int32(self) -> int:
        self.at += 4
        return int.from_bytes(self.data[self.at - 4 : self.at], signed=True)

    def text(self) -> str:
        if self.is_flexible:
            size = self._varint() - 1
        else:
            size = int.from_bytes(self.data[self.at : self.at + 2])
            self.at += 2
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def tags(self) -> dict[int, bytes]:
        tags = {}
        for _ in range(self._varint() if self.is_flexible else 0):
            tag, size = self._varint(), self._varint()
            tags[tag] = self.data[self.at : self.at + size]
            self.at += size
        return tags

    def _varint(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7


@dataclass(slots=True)
class StatePartition:
    """One partition of the topic."""

    index: int
    key: "_Key"
    """topic ID and index"""
    leader: tuple[int, int] = (-1, -1)
    """leader epoch and node"""
    log: UnifiedLog | None = None
    """the leader's"""
    read_end: int = 0
    committed_end: int = 0
    pending: deque[StateValue] = field(default_factory=deque)
    """values that are in the leader's log and not committed"""
    values: dict[str, list[StateValue]] = field(default_factory=dict)
    """the last committed values of each ID, oldest first"""
    losses: int = 0
    """number of times that no replica had kept its committed records (E-7)"""
    has_lost: bool = False
    """whether that, or the loss of its only replica's unsynced bytes (physical), has happened"""
    kept_end: int = 0
    """end of the log that remained after the last loss"""
    lost_epochs: dict[int, int] = field(default_factory=dict)
    """by producer ID: the greatest epoch of its values before the last loss, some of which are lost"""


_Key: TypeAlias = tuple[bytes, int]


class StateView:
    """The committed values of all transactional IDs, read from the bytes of the leaders' logs.

    A value is committed when the leader's high watermark has passed it.
    """

    def __init__(self) -> None:
        self.partitions: dict[_Key, StatePartition] = {}
        self.on_value_appended: list[Callable[[int, Node, StatePartition, StateValue], None]] = []
        """called with the time, the node, the partition, and a value that this leader has appended"""
        self.on_value_committed: list[Callable[[int, Node, StatePartition, StateValue | None, StateValue], None]] = []
        """called with the time, the leader, the partition, the last committed value of the same ID (None if it is not
        known), and a value that is committed now"""
        self.owners: dict[int, tuple[StatePartition, str]] = {}
        """the partition and the transactional ID to which each producer ID belongs or belonged"""
        self.ids: dict[str, StatePartition] = {}
        self.decided: set[tuple[int, int, bool, TopicPartition]] = set()
        """producer ID, epoch, whether to commit, and partition of each decided transaction"""
        self._replicas: ReplicaView | None = None

    def follow(self, replicas: ReplicaView) -> None:
        """Follow the logs of the topic from now on."""
        if self._replicas is None:
            self._replicas = replicas
            replicas.on_logs_touched.append(self.logs_touched)

    def known(self, transactional_id: str) -> list[StateValue]:
        """Return the last committed values of the ID, oldest first."""
        owner = self.ids.get(transactional_id)
        return [] if owner is None else owner.values.get(transactional_id, [])

    def has_lost(self, transactional_id: str) -> bool:
        """Return whether committed values of the ID's partition may have been lost (E-7)."""
        known = self.ids.get(transactional_id)
        return (known is not None and known.has_lost) or (
            self._replicas is not None and self._replicas.transactions_excused(transactional_id)
        )

    def may_have_lost_decision(self, transactional_id: str, producer_id: int, epoch: int) -> bool:
        """Return whether values of this producer epoch may be among the committed values that the ID's partition has
        lost (E-7). Until the next leader's log is read, these may be any."""
        if not self.has_lost(transactional_id):
            return False
        known = self.ids.get(transactional_id)
        if known is None or not known.has_lost or self._losses(known.key) > known.losses:
            return True
        return epoch <= known.lost_epochs.get(producer_id, -1)

    def since(self, transactional_id: str, at_us: int) -> list[StateValue]:
        """Return the committed values of the ID that were the last one at some time since ``at_us``."""
        values = self.known(transactional_id)
        first = len(values) - 1
        while first > 0 and values[first].at_us >= at_us:
            first -= 1
        return values[max(first, 0) :]

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        """Follow the logs of the topic that the node leads and that changed."""
        for log in touched:
            if log.directory.startswith(STATE_TOPIC):
                name, _, index = log.directory.rpartition("-")
                partition = node.broker.partitions.by_name.get((name, int(index)))
                if partition is not None and partition.log is log:
                    self._follow(at_us, node, partition)

    def _follow(self, at_us: int, node: "Node", led: Partition) -> None:
        key, log = (led.topic_id, led.index), led.log
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = StatePartition(led.index, key)
        leader = led.leader_epoch, node.broker.node_id
        if leader < partition.leader or log.is_offline:
            return
        if leader != partition.leader or log is not partition.log or log.log_end_offset < partition.read_end:
            partition.leader, partition.log = leader, log
            self._check_losses(partition, log)
            partition.pending.clear()
            partition.read_end = max(partition.committed_end, log.local_log_start_offset)
        for value in _values(log, partition.read_end, log.log_end_offset):
            partition.pending.append(value)
            for value_appended in self.on_value_appended:
                value_appended(at_us, node, partition, value)
        partition.read_end = log.log_end_offset
        while partition.pending and partition.pending[0].offset < log.high_watermark:
            self._commit(at_us, node, partition, partition.pending.popleft()._replace(at_us=at_us))
        partition.committed_end = max(partition.committed_end, log.high_watermark)

    def _losses(self, key: _Key) -> int:
        """Return how often no replica had kept the partition's committed records, -1 if it has only one replica."""
        replicated = None if self._replicas is None else self._replicas.partitions.get(key)
        return -1 if replicated is None else replicated.losses

    def _check_losses(self, partition: StatePartition, log: UnifiedLog) -> None:
        losses = self._losses(partition.key)
        if losses > partition.losses or (losses < 0 and log.log_end_offset < partition.committed_end):
            # E-7: no replica has kept all committed records. What follows is not compared with them.
            partition.lost_epochs.clear()
            for value in (*(each for values in partition.values.values() for each in values), *partition.pending):
                for producer_id, epoch in ((value.producer_id, value.epoch), (value.next_producer_id, 0)):
                    partition.lost_epochs[producer_id] = max(epoch, partition.lost_epochs.get(producer_id, -1))
            partition.values.clear()
            partition.committed_end, partition.losses, partition.has_lost = 0, max(losses, 0), True
            partition.kept_end = log.log_end_offset

    def _commit(self, at_us: int, node: "Node", partition: StatePartition, value: StateValue) -> None:
        values = partition.values.setdefault(value.transactional_id, [])
        before = values[-1] if values else None
        self.ids[value.transactional_id] = partition
        for producer_id in (value.producer_id, value.next_producer_id):
            if producer_id >= 0:
                self.owners.setdefault(producer_id, (partition, value.transactional_id))
        if value.state in PREPARED:
            commits = OUTCOMES[value.state]
            self.decided.update(
                (value.producer_id, value.epoch, commits, topic_partition) for topic_partition in value.partitions
            )
        for value_committed in self.on_value_committed:
            value_committed(at_us, node, partition, before, value)
        values.append(value)
        del values[:-_KEPT]


def _values(log: UnifiedLog, offset: int, end_offset: int) -> Iterator[StateValue]:
    for batch, data in read_batches(log, offset, end_offset):
        if batch.control:
            continue
        for record in records_in(data):
            value = read_value(record.offset, record.key or b"", record.value)
            if value is not None and record.offset >= offset:
                yield value


FIRST_VALUE = StateValue(-1, 0, "", -1, -1, 0, REMOVED, frozenset(), 0, 0, -1, 0)
"""Precedes the first value of an ID."""
LAST_EPOCH = 32_766
"""The greatest epoch that a producer gets: the coordinator fences it with 32,767."""
FENCE_EPOCH = 32_767
_AFTER_REST = (EMPTY, ONGOING, PREPARE_ABORT, REMOVED)
NEXT: dict[int, tuple[int, ...]] = {
    EMPTY: _AFTER_REST,
    ONGOING: (ONGOING, PREPARE_COMMIT, PREPARE_ABORT),
    PREPARE_COMMIT: (COMPLETE_COMMIT,),
    PREPARE_ABORT: (COMPLETE_ABORT,),
    COMPLETE_COMMIT: _AFTER_REST,
    COMPLETE_ABORT: _AFTER_REST,
    REMOVED: (EMPTY,),
}
"""Kafka's transitions between the states that are written (KIP-98, KIP-890)."""
RAISES_EPOCH = 2
"""The ``transaction.version`` from which each end raises the epoch."""


def wrong_step(before: StateValue, value: StateValue) -> str:
    """Return which rule a step of a transactional ID violates, or nothing."""
    if value.state not in NEXT[before.state]:
        return "no such transition exists (X-2)"
    if value.state == REMOVED:
        return ""
    if value.state == EMPTY:
        return _wrong_init(before, value)
    if value.timeout_ms != before.timeout_ms:
        return f"the timeout changes from {before.timeout_ms} to {value.timeout_ms} ms without InitProducerId (X-1)"
    if value.state == ONGOING:
        return _wrong_begin(before, value)
    if value.state in PREPARED:
        return _wrong_decision(before, value)
    return _wrong_completion(before, value)


def _wrong_init(before: StateValue, value: StateValue) -> str:
    """X-1, KIP-360: InitProducerId raises the epoch, or repeats it for a producer that lost the response, or gives
    another producer ID where the epochs are used up."""
    if value.partitions:
        return "it has partitions, and no transaction (X-2)"
    if before.state == REMOVED:
        return "" if value.epoch == 0 else "a new transactional ID begins at epoch 0 (X-1)"
    if value.producer_id != before.producer_id:
        if before.epoch < LAST_EPOCH:
            return "a new producer ID comes only when the epochs are used up (X-1)"
        return "" if value.epoch == 0 else "a new producer ID begins at epoch 0 (X-1)"
    if value.epoch not in (before.epoch, before.epoch + 1) or value.epoch > LAST_EPOCH:
        return "InitProducerId gives the next epoch (X-1)"
    return ""


def _wrong_begin(before: StateValue, value: StateValue) -> str:
    if (value.producer_id, value.epoch) != (before.producer_id, before.epoch):
        return "partitions are added by the owner, with its epoch (X-1)"
    if before.state == ONGOING:
        if not value.partitions >= before.partitions:
            return f"an open transaction loses partitions {sorted(before.partitions - value.partitions)} (X-9)"
        if value.started_ms != before.started_ms:
            return "the start of an open transaction moves (X-7)"
    elif not value.partitions:
        return "it begins without partitions (X-9)"
    return ""


def _wrong_decision(before: StateValue, value: StateValue) -> str:
    """X-3, KIP-890: an end keeps the partitions and the start. From version 2 on it raises the epoch. Before, only the
    abort of a fenced producer does (X-1, X-7)."""
    if value.producer_id != before.producer_id:
        return "the producer ID changes while markers are due (X-1)"
    if value.partitions != before.partitions:
        return "the end has other partitions than the open transaction (X-3)"
    if before.state == ONGOING and value.started_ms != before.started_ms:
        return "the start of an open transaction moves (X-7)"
    raised = min(before.epoch + 1, FENCE_EPOCH)
    raises = value.client_version >= RAISES_EPOCH
    if before.state != ONGOING and not raises:
        return "only a producer of version 2 aborts what has not begun (KIP-890)"
    may_stay = not raises
    may_rise = raises or value.state == PREPARE_ABORT
    if not ((may_stay and value.epoch == before.epoch) or (may_rise and value.epoch == raised)):
        return f"the epoch is {before.epoch} before, and {raised if raises else before.epoch} is due (X-1, KIP-890)"
    has_next, is_used_up = value.next_producer_id >= 0, before.epoch >= LAST_EPOCH
    if has_next != (raises and is_used_up):
        return "a next producer ID is taken exactly when version 2 has used up the epochs (X-1, KIP-890)"
    return ""


def _wrong_completion(before: StateValue, value: StateValue) -> str:
    owner = (before.producer_id, before.epoch) if before.next_producer_id < 0 else (before.next_producer_id, 0)
    if (value.producer_id, value.epoch) != owner:
        return f"the owner is producer {owner[0]} with epoch {owner[1]} then (X-1, KIP-890)"
    if value.partitions:
        return "a complete transaction has partitions (X-2)"
    if value.next_producer_id >= 0:
        return "a complete transaction has a next producer ID (KIP-890)"
    return "" if value.started_ms == before.started_ms else "the start of the transaction moves (X-7)"
