"""Published metadata compared with a replay (KIP-631): of the committed records, from their bytes.

Nodes with the same bug agree with each other, so only the records reveal it. ``partition_changes`` does the same for
the states of partitions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from chaos.checks.check import CheckContext
from chaos.checks.history import History
from chaos.checks.log.batches import BatchIdentity, batches_of, is_intact, records_in
from chaos.checks.metadata.metadata_transactions import ABORT, MARKERS, NO_OP, PUBLICATION, TransactionCheck
from chaos.checks.metadata.partition_changes import (
    CHANGE,
    CLEAR_ELR,
    FEATURE,
    PARTITION,
    REGISTER,
    REGISTRATION_CHANGE,
    REMOVE_TOPIC,
    SETTING,
    TOPIC,
    UNREGISTER,
    Fields,
    PartitionState,
    changed_state,
    read_partition,
)
from chaos.checks.quorum.quorum_view import Member
from chaos.checks.replication.replica_view import PartitionKey
from chaos.interceptor.watched_disk import WatchedDisk
from chaos.sim.disk import damaged_paths
from reference_broker.core.events import Effect, Event, Note
from reference_broker.metadata.image import TOPIC_RESOURCE, BrokerImage, MetadataImage

if TYPE_CHECKING:
    from reference_broker.core.node import Node

PRODUCER_IDS = 15
"""API key of a ProducerIdsRecord."""
EPOCH_TAG = 10_000
"""Tag of the metadata epoch in a NoOpRecord (M-1)."""
_FENCED, _LEAVING, _DIRECTORIES = range(3)
"""Tags of a BrokerRegistrationChangeRecord."""
Entity: TypeAlias = tuple[str, object]
"""Kind and key of a broker, topic, set of settings, or feature, or of a number that an image has once."""


class Broker(NamedTuple):
    """A registered broker, by its records."""

    broker_epoch: int
    incarnation_id: bytes
    endpoints: tuple[tuple[str, str, int], ...]
    features: tuple[tuple[str, int, int], ...]
    rack: str
    """empty if it has none"""
    fenced: bool
    leaving: bool
    log_dirs: tuple[bytes, ...]


def _of_image(image: BrokerImage) -> Broker:
    return Broker(
        image.broker_epoch,
        image.incarnation_id,
        tuple(image.endpoints),
        tuple(image.features),
        image.rack or "",
        image.fenced,
        image.in_controlled_shutdown,
        tuple(image.log_dirs),
    )


@dataclass(slots=True)
class Replayed:
    """The metadata that the records lead to."""

    entities: dict[Entity, object] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)
    """names of topics by their IDs"""

    def apply(self, api_key: int, value: bytes) -> list[Entity]:
        """Apply one record and return what it touched. Records of partitions only count those of a topic."""
        fields = Fields(value)
        if api_key == REGISTER:
            broker_id = fields.number(4)
            return [self._put(("broker", broker_id), _registered(fields))]
        if api_key == UNREGISTER:
            return [self._put(("broker", fields.number(4)), None)]
        if api_key == REGISTRATION_CHANGE:
            return [self._change(fields)]
        if api_key == TOPIC:
            name = fields.text()
            topic_id = fields.take(16)
            self.names[topic_id] = name
            return [self._put(("topic", name), (topic_id, 0))]
        if api_key == PARTITION:
            return self._add_partition(fields)
        if api_key == REMOVE_TOPIC:
            name = self.names.pop(fields.take(16), "")
            # S-16, KIP-631: the settings of a topic are gone with it.
            return [self._put(("topic", name), None), self._put(("settings of", (TOPIC_RESOURCE, name)), None)]
        if api_key == SETTING:
            return [self._set(fields)]
        if api_key == FEATURE:
            name = fields.text()
            return [self._put(("feature", name), fields.number(2) or None)]
        if api_key == PRODUCER_IDS:
            fields.take(4 + 8)
            return [self._put(("next producer ID", None), fields.number(8))]
        tags = fields.tags() if api_key == NO_OP else {}
        if EPOCH_TAG in tags:
            epoch = tags[EPOCH_TAG]
            epoch.take(4)  # The version of the content.
            return [self._put(("metadata epoch", None), epoch.number(8))]
        return []

    def copy(self) -> "Replayed":
        return Replayed(dict(self.entities), dict(self.names))

    def _put(self, entity: Entity, value: object) -> Entity:
        if value is None:
            self.entities.pop(entity, None)
        else:
            self.entities[entity] = value
        return entity

    def _change(self, fields: Fields) -> Entity:
        entity = "broker", fields.number(4)
        known = self.entities.get(entity)
        fields.take(8)
        tags = fields.tags()
        if isinstance(known, Broker):
            fenced = tags[_FENCED].number(1) if _FENCED in tags else 0
            known = known._replace(
                fenced=known.fenced if fenced == 0 else fenced > 0,
                leaving=known.leaving or (_LEAVING in tags and tags[_LEAVING].number(1) > 0),
            )
            log_dirs = tags[_DIRECTORIES].ids() if _DIRECTORIES in tags else ()
            self.entities[entity] = known._replace(log_dirs=log_dirs) if log_dirs else known
        return entity

    def _add_partition(self, fields: Fields) -> list[Entity]:
        index, topic_id = fields.number(4), fields.take(16)
        entity = "topic", self.names.get(topic_id, "")
        known = self.entities.get(entity)
        if isinstance(known, tuple):
            self.entities[entity] = topic_id, max(known[1], index + 1)
        return [entity]

    def _set(self, fields: Fields) -> Entity:
        kind, resource, name, value = fields.number(1), fields.text(), fields.text(), fields.nullable_text()
        entity = "settings of", (kind, resource)
        known = self.entities.get(entity, {})
        assert isinstance(known, Mapping)
        settings = {key: each for key, each in known.items() if key != name}
        if value is not None:
            settings[name] = value
        return self._put(entity, settings or None)


def _registered(fields: Fields) -> Broker:
    fields.take(fields.version >= 2)
    incarnation_id, broker_epoch = fields.take(16), fields.number(8)
    endpoints = []
    for _ in range(fields.size()):
        name, host = fields.text(), fields.text()
        endpoints.append((name, host, int.from_bytes(fields.take(2))))
        fields.take(2)
        fields.tags()
    features = []
    for _ in range(fields.size()):
        features.append((fields.text(), fields.number(2), fields.number(2)))
        fields.tags()
    rack, fenced = fields.text(), fields.number(1) != 0
    leaving = fields.version >= 1 and fields.number(1) != 0
    tags = fields.tags()
    log_dirs = tags[0].ids() if 0 in tags else ()
    return Broker(
        broker_epoch, incarnation_id, tuple(endpoints), tuple(features), rack, fenced, leaving, tuple(log_dirs)
    )


def published_of(image: MetadataImage, entity: Entity) -> object:
    """Return what an image has of the entity, in the form of ``Replayed``. None means nothing."""
    kind, key = entity
    if kind == "broker":
        broker = image.brokers.get(key)  # type: ignore[call-overload]
        return None if broker is None else _of_image(broker)
    if kind == "topic":
        topic = image.topics.get(key)  # type: ignore[call-overload]
        return None if topic is None else (topic.topic_id, len(topic.partitions))
    if kind == "settings of":
        return dict(image.configs.get(key, {})) or None  # type: ignore[call-overload]
    if kind == "feature":
        return image.features.get(key) or None  # type: ignore[call-overload]
    return (image.next_producer_id if kind == "next producer ID" else image.metadata_epoch) or None


class ImagesFollowRecords(TransactionCheck):
    """snapshot-equals-replay: published metadata is the replay of the committed records (KIP-631, T-8).

    The records of a transaction count once its End is committed, and never after an Abort. A deleted topic's settings
    are gone with it. torn-metadata and the digests compare nodes with each other, so this check compares only one node
    for each change: the first that publishes an offset beyond it.
    """

    guarantee = "snapshot-equals-replay"
    acts_on = (PUBLICATION,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._replayed: Replayed | None = Replayed()
        """None once a snapshot replaced records"""
        self._unit: list[tuple[int, bytes]] = []
        """API key and bytes of each record of the batch or of the open transaction"""
        self._is_aborted = False
        self._touched: dict[Entity, None] = {}
        """what changed since the last comparison"""
        self._changed_to = 0
        """offset behind the last record that changed something"""

    def skipped(self) -> None:
        self._replayed = None
        self._touched.clear()

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:  # noqa: ARG002
        if api_key == ABORT:
            self._is_aborted = True
        elif api_key not in MARKERS:
            self._unit.append((api_key, value))

    def _records(self, at_us: int, batch: BatchIdentity, data: bytes) -> None:
        if self._replayed is None:
            return
        super()._records(at_us, batch, data)
        if self.open_at < 0 and (self._unit or self._is_aborted):
            unit, self._unit = self._unit, []
            # Of an aborted transaction nothing counts, but all that it would have changed is compared.
            known = self._replayed.copy() if self._is_aborted else self._replayed
            self._is_aborted = False
            for api_key, value in unit:
                touched = known.apply(api_key, value)
                self._touched.update(dict.fromkeys(touched))
                if api_key == SETTING and known is self._replayed:
                    self._judge_setting(at_us, batch, known, *touched)
            self._changed_to = batch.last_offset + 1

    def _judge_setting(self, at_us: int, batch: BatchIdentity, known: Replayed, settings: Entity) -> None:
        """KIP-631: the controller refuses settings of a topic that does not exist."""
        assert isinstance(settings[1], tuple)
        kind, name = settings[1]
        if kind == TOPIC_RESOURCE and settings in known.entities and ("topic", name) not in known.entities:
            self.violated(at_us, f"{batch.named} has settings of topic {name}, which does not exist (KIP-631)")

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[BatchIdentity, bytes]]) -> None:
        if self._replayed is None:
            return
        super().committed(at_us, member, batches)
        for node in self.quorum.nodes:
            self._compare(at_us, node)

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if self._touched:
            self._compare(at_us, self.quorum.nodes[node.broker.node_id])

    def end(self, history: History) -> None:
        for node in self.quorum.nodes:
            self._compare(history.end_us, node)

    def _compare(self, at_us: int, member: Member) -> None:
        """Compare what changed, if the node's image ends where the records do."""
        if not self._touched or member.replica is None or self._replayed is None:
            return
        image: MetadataImage = member.replica.loader.image
        offset = image.provenance.offset
        if not self._changed_to <= offset + 1 <= self.quorum.committed_end:
            return
        touched, self._touched = self._touched, {}
        self.evidence += len(touched)
        for entity in touched:
            wanted, published = self._replayed.entities.get(entity), published_of(image, entity)
            if published != wanted:
                kind, key = entity
                what = kind if key is None else f"{kind} {key}"
                self.violated(
                    at_us,
                    f"node {member.node_id} publishes offset {offset} with {what}: {published}, and the committed "
                    f"records lead to {wanted}",
                )


@dataclass(slots=True)
class ReplayedWhole(Replayed):
    """The metadata that the records lead to, with the states of partitions."""

    def apply(self, api_key: int, value: bytes) -> list[Entity]:
        fields = Fields(value)
        if api_key == PARTITION:
            key, state = read_partition(fields)
            return [*Replayed.apply(self, api_key, value), self._put(("partition", key), state)]
        if api_key == CHANGE:
            index, topic_id = fields.number(4), fields.take(16)
            known = self.entities.get(("partition", (topic_id, index)))
            if not isinstance(known, PartitionState):
                return []
            return [self._put(("partition", (topic_id, index)), changed_state(known, fields.tags())[1])]
        if api_key == REMOVE_TOPIC:
            topic_id = fields.take(16)
            gone = [("partition", key) for key in self._partitions() if key[0] == topic_id]
            return [*Replayed.apply(self, api_key, value), *(self._put(each, None) for each in gone)]
        if api_key == CLEAR_ELR:
            return self._clear(fields.text())
        return Replayed.apply(self, api_key, value)

    def _partitions(self) -> dict[PartitionKey, PartitionState]:
        return {
            key: state  # type: ignore[misc]
            for (kind, key), state in self.entities.items()
            if kind == "partition" and isinstance(state, PartitionState)
        }

    def _clear(self, topic: str) -> list[Entity]:
        """E-8: eligible replicas of a topic, or of all, are cleared, but not where the ISR is empty."""
        return [
            self._put(
                ("partition", key),
                state._replace(partition_epoch=state.partition_epoch + 1, elr=(), last_known_elr=()),
            )
            for key, state in self._partitions().items()
            if state.isr and (state.elr or state.last_known_elr) and topic in ("", self.names.get(key[0]))
        ]


RENAMED = "snapshot_renamed"


@dataclass(slots=True)
class _Snapshot:
    """A snapshot file that a node has made."""

    at_us: int
    node_id: int
    end_offset: int
    data: bytes
    is_damaged: bool
    """whether a fault has flipped a bit of it on the disk"""


def _is_damaged(disk: object, path: str) -> bool:
    """Return whether a fault has flipped a bit of the file, perhaps while it had an earlier name."""
    stem = path.removesuffix(".checkpoint")
    return any(
        damaged_path in (path, f"{path}.part", f"{stem}-made.checkpoint.part") for damaged_path in damaged_paths(disk)
    )


class SnapshotsAreWhole(TransactionCheck):
    """snapshot-equals-replay: a snapshot has one record for each entity that exists after the records before its end,
    and no other record (S-15, S-16, T-9).

    The file may never be loaded, so its bytes are compared when it gets its final name. S-9: no node loads or serves a
    file that a fault has damaged on the disk, as its CRC shows.
    """

    guarantee = "snapshot-equals-replay"
    acts_on = (RENAMED,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._replayed: ReplayedWhole | None = ReplayedWhole()
        """None once a snapshot replaced records"""
        self._history: dict[Entity, list[tuple[int, object]]] = {}
        """by entity: its values, each with the offset behind the record that led to it"""
        self._unit: list[tuple[int, bytes]] = []
        """API key and bytes of each record of the batch or of the open transaction"""
        self._made: list[_Snapshot] = []
        """snapshots whose end the view has not read yet"""
        self._seen: dict[int, bytes] = {}
        """by end offset: the bytes that were compared last; nodes mostly write the same"""

    def skipped(self) -> None:
        self._replayed = None

    def record(self, at_us: int, batch: BatchIdentity, api_key: int, value: bytes) -> None:  # noqa: ARG002
        if api_key == ABORT:
            self._unit.clear()
        elif api_key not in MARKERS:
            self._unit.append((api_key, value))

    def _records(self, at_us: int, batch: BatchIdentity, data: bytes) -> None:
        if self._replayed is None:
            return
        super()._records(at_us, batch, data)
        if self.open_at < 0 and self._unit:
            unit, self._unit = self._unit, []
            for api_key, value in unit:
                for entity in self._replayed.apply(api_key, value):
                    state_at_end = batch.last_offset + 1, self._replayed.entities.get(entity)
                    self._history.setdefault(entity, []).append(state_at_end)

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[BatchIdentity, bytes]]) -> None:
        if self._replayed is not None:
            super().committed(at_us, member, batches)
            self._compare()

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if self._replayed is None:
            return
        disk = node.broker.disk
        for effect in effects:
            if type(effect) is not Note or effect.what != RENAMED:
                continue
            end_offset, epoch = int(dict(effect.fields)["end_offset"]), int(dict(effect.fields)["epoch"])
            path = f"__cluster_metadata-0/{end_offset:020d}-{epoch:010d}.checkpoint"
            with WatchedDisk.unwatched():
                data = bytes(disk.read(path, 0, disk.size(path))) if disk.exists(path) else b""
            if data and self._seen.get(end_offset) != data:
                self._made.append(_Snapshot(at_us, node.broker.node_id, end_offset, data, _is_damaged(disk, path)))
        if self._made:
            self._compare()

    def _compare(self) -> None:
        made, self._made = self._made, []
        for each in made:
            if each.end_offset > self.quorum.committed_end:
                self._made.append(each)
            elif self._replayed is not None:
                self._seen[each.end_offset] = each.data
                if is_intact(each.data):
                    self.evidence += 1
                    self._judge(each)
                elif not each.is_damaged:
                    self.violated(
                        each.at_us,
                        f"node {each.node_id}: the snapshot that ends at {each.end_offset} has a wrong CRC or length, "
                        "and no fault has damaged it on its disk (S-9)",
                    )

    def _judge(self, snapshot: _Snapshot) -> None:
        replayed, count = ReplayedWhole(), 0
        for batch, data in batches_of(snapshot.data):
            for record in () if batch.control else records_in(data):
                assert record.value is not None, "a snapshot holds a record without a value"
                count += 1
                replayed.apply(record.value[1], record.value)
        wanted: dict[Entity, object] = {}
        for entity, values in self._history.items():
            value = next((value for offset, value in reversed(values) if offset <= snapshot.end_offset), None)
            if value is not None:
                wanted[entity] = value
        who = f"node {snapshot.node_id}: the snapshot that ends at {snapshot.end_offset}"
        for entity in dict.fromkeys((*wanted, *replayed.entities)):
            has, must = replayed.entities.get(entity), wanted.get(entity)
            if has != must:
                self.violated(snapshot.at_us, f"{who} has {entity}: {has}, and the records lead to {must} (S-15)")
        live = sum(len(each) if isinstance(each, dict) else 1 for each in wanted.values())
        if count != live and replayed.entities == wanted:
            self.violated(snapshot.at_us, f"{who} has {count} records for {live} things (S-16)")
