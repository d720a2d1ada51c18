"""Partition records of the metadata log compared with nodes' images.

The log is replayed from its bytes, with the schemas of Kafka's PartitionRecord and PartitionChangeRecord. So each
change is judged by the state right before it, however many changes a node publishes at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.checks.check import CheckContext, ReplicaCheck
from chaos.checks.history import History
from chaos.checks.log.batches import BatchIdentity
from chaos.checks.metadata.metadata_transactions import ABORT, MARKERS, TransactionCheck
from chaos.checks.quorum.quorum_view import Member
from chaos.checks.replication.replica_view import PartitionKey, Replicated
from reference_broker.metadata.identifiers import LOST_DIRECTORY
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, PartitionImage

REGISTER, UNREGISTER, TOPIC, PARTITION, SETTING, CHANGE = 0, 1, 2, 3, 4, 5
REMOVE_TOPIC, FEATURE, REGISTRATION_CHANGE, CLEAR_ELR = 9, 12, 17, 28
"""API keys of records."""
MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
ELR_FEATURE = "eligible.leader.replicas.version"
NO_LEADER_CHANGE = -2
RECOVERING = 1
ISR, LEADER, REPLICAS, REMOVING, ADDING, RECOVERY, ELR, LAST_KNOWN, DIRECTORIES = range(9)
"""Tags of a PartitionChangeRecord."""
_FENCED, _LEAVING, _CHANGED_DIRECTORIES = range(3)
"""Tags of a BrokerRegistrationChangeRecord."""


REGISTERED_WITHIN_US = 5_000_000
"""The controller writes the registration right behind the changes that it needs."""
RESERVED = bytes(15) + b"\x64"
"""IDs up to here name no directory (KIP-858): 0 is unassigned, 1 is lost."""


class PartitionState(NamedTuple):
    """A partition after one record, in the fields of a PartitionRecord."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    recovery: int
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]
    directories: tuple[bytes, ...]

    @staticmethod
    def of(image: PartitionImage) -> "PartitionState":
        return PartitionState(
            image.replicas,
            image.isr,
            image.leader,
            image.leader_epoch,
            image.partition_epoch,
            image.leader_recovery_state,
            image.elr,
            image.last_known_elr,
            image.directories,
        )

    def has_directory(self, broker_id: int, log_dirs: Sequence[bytes]) -> bool:
        """Return whether the broker's replica is in a directory that it has, or in none that is known."""
        directory = dict(zip(self.replicas, self.directories, strict=False)).get(broker_id, b"")
        return directory != LOST_DIRECTORY and (
            not directory.strip(b"\0") or not log_dirs or directory in log_dirs or len(directory) < 16
        )


class BrokerState(NamedTuple):
    """A registered broker."""

    fenced: bool
    leaving: bool
    log_dirs: tuple[bytes, ...]


@dataclass(slots=True)
class _Unit:
    """Records that take effect together: a batch, or a transaction (KIP-868)."""

    values: list[tuple[int, bytes]] = field(default_factory=list)
    """API key and bytes of each record"""
    changes: list[tuple[PartitionKey, PartitionState, PartitionState, bool]] = field(default_factory=list)
    """partition, its states before and after a record, and whether the record names a leader"""
    registered: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    """replicas that a change left not eligible, unless they register after an unclean shutdown (E-4)"""
    stopped: set[int] = field(default_factory=set)
    """brokers that were fenced, or began to shut down"""


class PartitionChangesByRule(TransactionCheck, ReplicaCheck):
    """isr-honest: each committed change of a partition follows from the state before it, and images follow the log.

    A change that leaves fewer replicas in the ISR than the minimum makes the removed ones eligible, and any other
    change clears the ELR (E-1). A leader comes from the ISR, or from the ELR if no member of the ISR is live. If both
    are empty it is the last leader, which recovers (E-3, E-5). It is live and has its directory (E-6), and each replica
    that joins the ISR is live (KIP-903). A broker that is fenced leaves every ISR in the same change (E-4).

    Each record raises the partition epoch by one, and the leader epoch if it names a leader (KIP-631). A node's image
    at a partition epoch equals the records.
    """

    guarantee = "isr-honest"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.replicas.on_metadata_changed.append(self.metadata_changed)
        self._is_known = True
        """False once a snapshot replaced records"""
        self._unit = _Unit()
        self._names: dict[bytes, str] = {}
        self._partitions: dict[PartitionKey, PartitionState] = {}
        self._history: dict[PartitionKey, dict[int, PartitionState]] = {}
        """by partition epoch"""
        self._brokers: dict[int, BrokerState] = {}
        self._minimums: dict[tuple[int, str], int] = {}
        self._features: dict[str, int] = {}
        self._is_unclean = False
        """whether any topic may elect uncleanly"""
        self._unexplained: list[tuple[int, int, set[int], str]] = []
        """(time, epoch of the batch, replicas, explanation) of replicas that a change made not eligible. They may
        register next (E-4)"""
        self._published: list[tuple[int, str, PartitionKey, PartitionState]] = []
        """states in images whose records may not be read yet"""

    def skipped(self) -> None:
        self._is_known = False
        self._published.clear()

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:  # noqa: ARG002
        if api_key == ABORT:
            self._unit = _Unit()
        elif api_key not in MARKERS:
            self._unit.values.append((api_key, value))

    def _records(self, at_us: int, batch: BatchIdentity, data: bytes) -> None:
        if not self._is_known:
            return
        super()._records(at_us, batch, data)
        if self.open_at < 0 and self._unit.values:
            unit, self._unit = self._unit, _Unit()
            for api_key, value in unit.values:
                self._apply(unit, api_key, Fields(value))
            self._judge(at_us, unit, batch)

    # Replay

    def _apply(self, unit: _Unit, api_key: int, fields: "Fields") -> None:
        if api_key == CHANGE:
            self._change(unit, fields)
        elif api_key == PARTITION:
            self._partition(fields)
        elif api_key == TOPIC:
            name = fields.text()
            self._names[fields.take(16)] = name
        elif api_key == REMOVE_TOPIC:
            topic_id = fields.take(16)
            for key in [partition for partition in self._partitions if partition[0] == topic_id]:
                del self._partitions[key]
        elif api_key == REGISTER:
            self._register(unit, fields)
        elif api_key == UNREGISTER:
            self._brokers.pop(fields.number(4), None)
        elif api_key == REGISTRATION_CHANGE:
            self._change_registration(unit, fields)
        elif api_key == SETTING:
            self._set(fields)
        elif api_key == FEATURE:
            name = fields.text()
            self._features[name] = fields.number(2)
        elif api_key == CLEAR_ELR:
            self._clear(fields.text())

    def _change(self, unit: _Unit, fields: "Fields") -> None:
        index, topic_id = fields.number(4), fields.take(16)
        key, tags = (topic_id, index), fields.tags()
        before = self._partitions.get(key)
        if before is None:
            return
        leader, after = changed_state(before, tags)
        self._put(key, after)
        unit.changes.append((key, before, after, leader >= 0))

    def _partition(self, fields: "Fields") -> None:
        self._put(*read_partition(fields))

    def _put(self, key: PartitionKey, state: PartitionState) -> None:
        self._partitions[key] = state
        self._history.setdefault(key, {})[state.partition_epoch] = state

    def _register(self, unit: _Unit, fields: "Fields") -> None:
        broker_id = fields.number(4)
        fields.take(fields.version >= 2)
        fields.take(16 + 8)
        for _ in range(fields.size()):
            fields.text()
            fields.text()
            fields.take(2 + 2)
            fields.tags()
        for _ in range(fields.size()):
            fields.text()
            fields.take(2 + 2)
            fields.tags()
        fields.text()
        fenced = fields.number(1) != 0
        leaving = fields.version >= 1 and fields.number(1) != 0
        tags = fields.tags()
        self._brokers[broker_id] = BrokerState(fenced, leaving, tags[0].ids() if 0 in tags else ())
        unit.registered.add(broker_id)
        if fenced:
            unit.stopped.add(broker_id)

    def _change_registration(self, unit: _Unit, fields: "Fields") -> None:
        broker_id, _ = fields.number(4), fields.take(8)
        tags, known = fields.tags(), self._brokers.get(broker_id)
        if known is None:
            return
        fenced = tags[_FENCED].number(1) if _FENCED in tags else 0
        leaving = known.leaving or (_LEAVING in tags and tags[_LEAVING].number(1) > 0)
        log_dirs = tags[_CHANGED_DIRECTORIES].ids() if _CHANGED_DIRECTORIES in tags else known.log_dirs
        self._brokers[broker_id] = BrokerState(known.fenced if fenced == 0 else fenced > 0, leaving, log_dirs)
        if fenced > 0:
            unit.stopped.add(broker_id)

    def _set(self, fields: "Fields") -> None:
        kind, resource, name, value = fields.number(1), fields.text(), fields.text(), fields.text()
        if name == UNCLEAN and value == "true":
            self._is_unclean = True
        elif name == MIN_ISR and value:
            self._minimums[kind, resource] = int(value)
        elif name == MIN_ISR:
            self._minimums.pop((kind, resource), None)

    def _clear(self, topic: str) -> None:
        """The record changes the partitions of a topic, or of all, that have one of the lists (KIP-966), like a
        PartitionChangeRecord. E-8: not where the ISR is empty."""
        for key, state in self._partitions.items():
            if state.isr and (state.elr or state.last_known_elr) and topic in ("", self._names.get(key[0])):
                self._put(key, state._replace(partition_epoch=state.partition_epoch + 1, elr=(), last_known_elr=()))

    # Rules

    def _judge(self, at_us: int, unit: _Unit, batch: BatchIdentity) -> None:
        self._explain(at_us, unit, batch.epoch)
        for key, before, after, elects in unit.changes:
            self.evidence += 1
            name = self._names.get(key[0], key[0].hex())
            where = f"{name}-{key[1]}, partition epoch {after.partition_epoch} in {batch.named}"
            for explanation in (
                *self._sets(unit, key, before, after),
                *(self._election(unit, before, after) if elects else ()),
            ):
                self.violated(at_us, f"{where}: {explanation}; before {before[:7]}, now {after[:7]}")
            if unit.dropped - unit.registered:
                explanation = (
                    f"{where}: {sorted(unit.dropped)} are eligible (E-1); before {before[:7]}, now {after[:7]}"
                )
                self._unexplained.append((at_us, batch.epoch, unit.dropped, explanation))
                unit.dropped = set()
        if unit.stopped and self._features.get(ELR_FEATURE, 0) > 0:
            for key, state in self._partitions.items():
                for broker_id in unit.stopped.intersection((*state.isr, state.leader)):
                    known = self._brokers.get(broker_id)
                    if known is None or known.fenced:
                        self.violated(
                            at_us,
                            f"{self._names.get(key[0])}-{key[1]}: broker {broker_id} is fenced in {batch.named}, and "
                            f"leader {state.leader} with in-sync replicas {state.isr} stay (E-4)",
                        )

    def _explain(self, at_us: int, unit: _Unit, epoch: int) -> None:
        """Judge replicas that are not eligible any more by the registrations since then. A controller that lost its
        leadership may have left one unfinished."""
        for each in tuple(self._unexplained):
            since_us, written_in, replicas, explanation = each
            replicas -= unit.registered
            if not replicas or epoch != written_in:
                self._unexplained.remove(each)
            elif at_us - since_us > REGISTERED_WITHIN_US:
                self._unexplained.remove(each)
                self.violated(since_us, explanation)

    def end(self, history: History) -> None:  # noqa: ARG002
        for since_us, _, _, explanation in self._unexplained:
            self.violated(since_us, explanation)

    def _sets(self, unit: _Unit, key: PartitionKey, before: PartitionState, after: PartitionState) -> Iterable[str]:
        isr, elr = set(after.isr), set(after.elr)
        if not isr | elr <= set(after.replicas) or isr & elr or len(isr) < len(after.isr):
            yield "in-sync and eligible replicas must be different replicas"
        for joined in isr.difference(before.isr):
            if not self._is_live(joined):
                yield f"{joined} joins the ISR, and is fenced or leaves (KIP-903)"
        if self._features.get(ELR_FEATURE, 0) < 1:
            if not isr:
                yield "the ISR is empty, and there are no eligible replicas (E-8)"
            return
        topic = self._names.get(key[0], "")
        minimum = self._minimums.get((TOPIC_RESOURCE, topic), self._minimums.get((BROKER_RESOURCE, ""), 0))
        if not minimum:
            return
        minimum = min(minimum, len(after.replicas))
        may_be = set() if len(isr) >= minimum else (set(before.isr) | set(before.elr)) & set(after.replicas) - isr
        if not elr <= may_be:
            yield f"the eligible replicas of {len(isr)} in sync, at a minimum of {minimum}, are {sorted(may_be)} (E-1)"
        unit.dropped = may_be - elr
        if isr and after.last_known_elr:
            yield f"{after.last_known_elr} are kept as last leader although some are in sync (E-5)"
        if before.isr and not isr and before.leader >= 0 and after.last_known_elr != (before.leader,):
            yield f"the last leader {before.leader} is not kept, but {after.last_known_elr} (E-5)"

    def _election(self, unit: _Unit, before: PartitionState, after: PartitionState) -> Iterable[str]:
        leader = after.leader
        eligible = set(before.elr) - unit.dropped  # Those that have restarted uncleanly are omitted first (E-4).
        broker = self._brokers.get(leader)
        if leader not in after.isr:
            yield f"leader {leader} is not in sync (E-3)"
        if broker is None or not self._is_live(leader):
            yield f"leader {leader} is fenced or leaves (E-3)"
        elif not after.has_directory(leader, broker.log_dirs):
            yield f"leader {leader} does not have its directory (E-6)"
        if leader in before.isr or self._is_unclean:
            return
        if leader in before.elr:
            live = [
                each
                for each in before.isr
                if self._is_live(each) and each in after.isr and after.has_directory(each, self._brokers[each].log_dirs)
            ]
            if live:
                yield f"eligible leader {leader} is elected although {live} are in sync and live (E-3)"
        elif before.isr or eligible or before.last_known_elr != (leader,):
            yield f"leader {leader} was neither in sync nor eligible, nor the last leader (E-3, E-5)"
        elif after.isr != (leader,) or after.recovery != RECOVERING:
            yield f"the last leader {leader} leads without recovering alone (E-5)"

    def _is_live(self, broker_id: int) -> bool:
        known = self._brokers.get(broker_id)
        return known is not None and not known.fenced and not known.leaving

    # Images

    def metadata_changed(self, at_us: int, partition: Replicated, before: PartitionImage, now: PartitionImage) -> None:  # noqa: ARG002
        if self._is_known:
            self._published.append((at_us, partition.name, partition.key, PartitionState.of(now)))
            self._compare()

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[BatchIdentity, bytes]]) -> None:
        super().committed(at_us, member, batches)
        if self._published:
            self._compare()

    def _compare(self) -> None:
        """Compare what was published with the records, once these are read."""
        published, self._published = self._published, []
        for each in published:
            at_us, name, key, state = each
            newest = self._partitions.get(key)
            known = self._history.get(key, {}).get(state.partition_epoch)
            if known is None:
                if newest is not None and newest.partition_epoch > state.partition_epoch:
                    self.violated(at_us, f"{name}: no record leads to the published {state[:8]}")
                elif newest is not None:
                    self._published.append(each)
                continue
            self.evidence += 1
            if state != known:
                self.violated(at_us, f"{name}: {state[:8]} is published, and the records lead to {known[:8]}")


def read_partition(fields: "Fields") -> tuple[PartitionKey, PartitionState]:
    """Return the partition of a PartitionRecord, and its state."""
    index, topic_id = fields.number(4), fields.take(16)
    replicas, isr, _, _ = (fields.numbers() for _ in range(4))
    leader, leader_epoch, partition_epoch = (fields.number(4) for _ in range(3))
    directories = fields.ids() if fields.version > 0 else ()
    tags = fields.tags()
    recovery = tags[0].number(1) if 0 in tags else 0
    elr, last_known = _numbers(tags.get(1), ()), _numbers(tags.get(2), ())
    state = PartitionState(replicas, isr, leader, leader_epoch, partition_epoch, recovery, elr, last_known, directories)
    return (topic_id, index), state


def changed_state(before: PartitionState, tags: "dict[int, Fields]") -> tuple[int, PartitionState]:
    """Return the leader that a PartitionChangeRecord with these tagged fields names, and the state that it leads to."""
    leader = tags[LEADER].number(4) if LEADER in tags else NO_LEADER_CHANGE
    after = PartitionState(
        _numbers(tags.get(REPLICAS), before.replicas),
        _numbers(tags.get(ISR), before.isr),
        before.leader if leader == NO_LEADER_CHANGE else leader,
        before.leader_epoch + (leader != NO_LEADER_CHANGE),
        before.partition_epoch + 1,
        tags[RECOVERY].number(1) if RECOVERY in tags else before.recovery,
        _numbers(tags.get(ELR), before.elr),
        _numbers(tags.get(LAST_KNOWN), before.last_known_elr),
        before.directories if DIRECTORIES not in tags else tags[DIRECTORIES].ids(),
    )
    return leader, after


def _numbers(tagged: "Fields | None", otherwise: tuple[int, ...]) -> tuple[int, ...]:
    return otherwise if tagged is None else tagged.numbers()


class Fields:
    """The fields of a record of the metadata log: frame version, API key, record version, and the message (all are
    flexible versions, KIP-482)."""

    def __init__(self, value: bytes, at: int = 0, version: int = 0) -> None:
        self._value = value
        self._at = at
        self.version = version
        if not at:
            for _ in range(3):
                self.version = self.varint()

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._value[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def take(self, count: int) -> bytes:
        self._at += count
        return self._value[self._at - count : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), signed=True)

    def size(self) -> int:
        """Return the size of a compact array or string, 0 for null."""
        return max(self.varint() - 1, 0)

    def text(self) -> str:
        return self.take(self.size()).decode()

    def nullable_text(self) -> str | None:
        size = self.varint()
        return None if size == 0 else self.take(size - 1).decode()

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number(4) for _ in range(self.size()))

    def ids(self) -> tuple[bytes, ...]:
        return tuple(self.take(16) for _ in range(self.size()))

    def tags(self) -> "dict[int, Fields]":
        """Return the tagged fields, which end the message."""
        tags = {}
        for _ in range(self.varint()):
            tag, size = self.varint(), self.varint()
            tags[tag] = Fields(self._value, self._at, self.version)
            self._at += size
        return tags
