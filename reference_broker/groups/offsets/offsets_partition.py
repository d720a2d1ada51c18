"""One partition of ``__consumer_offsets`` that this node leads: its groups, their offsets, and what is written of both.

Implements ``group_store.Coordinated``. What is committed becomes visible as the high watermark moves, which the led
partition tells (``Partition.watch``).
"""

from collections.abc import Callable, Sequence

from reference_broker.groups.group_metrics import GroupMetrics
from reference_broker.groups.membership.group import Group
from reference_broker.groups.membership.group_store import Written
from reference_broker.groups.offsets.group_record_codec import group_key, group_value, offset_key, offset_value
from reference_broker.groups.offsets.group_records import CommitOffset, OffsetKey
from reference_broker.groups.offsets.group_values import recorded
from reference_broker.groups.offsets.offsets import Change, CommittedOffsets
from reference_broker.groups.offsets.offsets_log import KeyAndValue, OffsetsLog, told_as
from reference_broker.groups.offsets.record_fields import TextTooLong
from reference_broker.groups.offsets.retention import Retention
from reference_broker.groups.offsets.slices import SliceQueue, Slices
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error

REMOVED_A_SLICE = 500
"""Offsets of a deleted group that go in one event, some 2 ms."""


class Groups(dict[str, Group]):
    """By ID. Tells of each one that is added."""

    __slots__ = ("_added",)

    def __init__(self, added: Callable[[str], None]) -> None:
        super().__init__()
        self._added = added

    def __setitem__(self, group_id: str, group: Group) -> None:
        super().__setitem__(group_id, group)
        self._added(group_id)


class OffsetsPartition:
    """``is_loaded``: its groups are served. ``is_led``: no other node has taken over, as far as this one knows.

    ``loaded_end``: the log's end when it was loaded. What lies below may have been acknowledged by the former
    coordinator, so nobody is told of offsets before the high watermark has passed it.
    """

    __slots__ = (
        "_is_watching",
        "_metrics",
        "_ports",
        "_slices",
        "groups",
        "is_led",
        "is_loaded",
        "led",
        "loaded_end",
        "log",
        "offsets",
        "partition",
        "retention",
    )

    def __init__(self, ports: Ports, log: OffsetsLog, retention: Retention, metrics: GroupMetrics) -> None:
        self.led: Partition = log.led
        self.partition = log.led.index
        self.log = log
        self.groups: dict[str, Group] = Groups(self._planned)
        self.offsets = CommittedOffsets()
        self.retention = retention
        self.is_loaded = False
        self.is_led = True
        self.loaded_end = 0
        self._is_watching = False
        self._ports = ports
        self._slices = SliceQueue(ports)
        self._metrics = metrics

    def _planned(self, group_id: str) -> None:
        """A group that nobody uses in the end goes at the next look for offsets that are too old."""
        if self.is_loaded:
            self.retention.look_at(group_id, self._ports.now().wall_ms)

    # --- writing ----------------------------------------------------------------------------------------------------

    def write_group(self, group: Group, written: Written) -> None:
        """As ``group_store.Coordinated`` says."""
        if not group.members:
            self.retention.look_at(group.group_id, self._ports.now().wall_ms)
        try:
            value = group_value(recorded(group))
        except TextTooLong:
            written(Error.UNKNOWN_SERVER_ERROR)
            return
        self._append([(group_key(group.group_id), value)], (), lambda error: written(told_as(error)))

    def remove_group(self, group_id: str, written: Written) -> bool:
        """As ``group_store.Coordinated`` says. Of many offsets the later ones go in slices; a group of that name may be
        there anew by then, whose commits stay."""
        keys, boundary = self.keys_of(group_id), self.led.log.log_end_offset
        slices = [keys[at : at + REMOVED_A_SLICE] for at in range(0, len(keys), REMOVED_A_SLICE)] or [[]]
        told: list[Error] = []

        def removed(error: Error) -> None:
            told.append(error)
            if len(told) == len(slices):
                written(told_as(next((one for one in told if one is not Error.NONE), Error.NONE)))

        records: list[KeyAndValue] = [(offset_key(*key), None) for key in slices[0]]
        records.append((group_key(group_id), None))
        if not self._append(records, [(key, None) for key in slices[0]], removed):
            if len(slices) > 1:
                written(told_as(told[0]))
            return False
        if len(slices) > 1:
            self._slices.add(self._remove_rest(group_id, slices[1:], boundary, removed))
        return True

    def _remove_rest(self, group_id: str, slices: Sequence[list[OffsetKey]], boundary: int, removed: Written) -> Slices:
        for some in slices:
            if not self.is_led:
                removed(Error.NOT_LEADER_OR_FOLLOWER)
                continue
            old = [key for key in some if self.offsets.is_older(key, boundary, counts_waiting=True)]
            if not self.remove_offsets(old, removed) and group_id not in self.groups:
                self.groups[group_id] = Group(group_id, self._ports.now().wall_ms)  # So that it can be deleted again.
            yield

    def commit(self, group_id: str, commits: Sequence[CommitOffset], value_version: int, written: Written) -> None:
        """``value_version``: of their records' schema (``group_record_codec``). ``written`` gets the log's own error.
        A group that is not there, of consumers that assign themselves, is there once something is written."""
        keys = [OffsetKey(group_id, one.topic, one.partition) for one in commits]
        records = [(offset_key(*key), offset_value(one, value_version)) for key, one in zip(keys, commits, strict=True)]
        changes: list[Change] = list(zip(keys, commits, strict=True))
        self._append(records, changes, written)

    def remove_offsets(self, keys: Sequence[OffsetKey], written: Written) -> bool:
        """Tombstones; whether they are in the log. ``written`` gets the log's own error; nothing to remove is written
        at once."""
        if not keys:
            written(Error.NONE)
            return True
        records: list[KeyAndValue] = [(offset_key(*key), None) for key in keys]
        return self._append(records, [(key, None) for key in keys], written)

    def keys_of(self, group_id: str) -> list[OffsetKey]:
        """Of all its offsets, also those on their way."""
        found = {
            OffsetKey(group_id, topic, partition): None
            for topic, partitions in self.offsets.of(group_id).items()
            for partition in partitions
        }
        found.update(dict.fromkeys(self.offsets.waiting_keys(group_id)))
        return list(found)

    def earliest_ms(self, group_id: str, now_ms: int) -> int:
        """When it could lose its oldest offset, at the earliest; now if it has none."""
        times = [
            stored.commit.commit_timestamp_ms + self.retention.retention_ms
            if stored.commit.expire_timestamp_ms < 0
            else stored.commit.expire_timestamp_ms
            for partitions in self.offsets.of(group_id).values()
            for stored in partitions.values()
        ]
        return min(times, default=now_ms)

    def _append(self, records: Sequence[KeyAndValue], changes: Sequence[Change], written: Written) -> bool:
        """Whether they are in the log."""
        is_taken = False

        def taken(end_offset: int) -> None:
            nonlocal is_taken
            is_taken = True
            if changes:
                self.offsets.appended(end_offset, changes)
                group_id = changes[0][0].group
                if group_id not in self.groups and changes[0][1] is not None:
                    self.groups[group_id] = Group(group_id, self._ports.now().wall_ms)

        def acknowledged(error: Error) -> None:
            self.make_visible()  # First: whoever is told may ask at once.
            written(error)

        self.log.append(records, taken, acknowledged)
        self.make_visible()
        return is_taken

    # --- what is replicated -----------------------------------------------------------------------------------------

    def settled(self, requires_stable: bool, told: Written) -> None:
        """Tells (the log's own error) when offsets may be read: what was loaded is replicated, and, if
        ``requires_stable``, all that is on its way now. Mostly at once."""

        def replicated(error: Error) -> None:
            self.make_visible()
            told(error)

        is_waiting = requires_stable and self.offsets.is_waiting
        self.log.replicated(self.led.log.log_end_offset if is_waiting else self.loaded_end, replicated)

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002 - the watcher's form
        """The led partition's log, or its high watermark, moved."""
        self._is_watching = False
        self.make_visible()

    def make_visible(self) -> None:
        """What the high watermark has passed; then waits for the rest."""
        if not self.is_led:
            return
        offsets = self.offsets
        if offsets.is_waiting:
            before = offsets.count
            for key, commit in offsets.replicated(self.led.log.high_watermark):
                if self.is_loaded:
                    self._note(key, commit)
            self._metrics.offsets.value += offsets.count - before
        if offsets.is_waiting and not self._is_watching:
            self._is_watching = True
            self.led.watch(self)

    def _note(self, key: OffsetKey, commit: CommitOffset | None) -> None:
        if commit is None:
            return
        group = self.groups.get(key.group)
        self.retention.look_at(key.group, commit.commit_timestamp_ms + self.retention.retention_ms)
        self._ports.note(
            "offset_committed",
            ("group", key.group),
            ("partition", f"{key.topic}-{key.partition}"),
            ("offset", commit.offset),
            ("metadata_epoch", commit.metadata_epoch),
            ("generation", -1 if group is None else group.generation),
        )

    def close(self) -> None:
        """Led by another node now: nothing here is true any more."""
        self.is_led = self.is_loaded = False
        self.led.unwatch(self)
        self._metrics.offsets.value -= self.offsets.count
