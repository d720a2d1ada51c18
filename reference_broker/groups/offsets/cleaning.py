"""Offsets that go without anybody asking: too old ones (KIP-211), those of deleted topics; and groups without any.

All in slices. A removal that cannot be written now (too few replicas) is tried again.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.group_metrics import GroupMetrics
from reference_broker.groups.membership.group import Group
from reference_broker.groups.membership.membership import Membership
from reference_broker.groups.offsets.group_records import CommitOffset, OffsetKey
from reference_broker.groups.offsets.offsets_partition import OffsetsPartition
from reference_broker.groups.offsets.slices import SliceQueue, Slices
from reference_broker.ports.node_ports import Ports
from reference_broker.wire.errors import Error

REMOVED_PER_SLICE = 200
"""Tombstones of one event, some 3 ms."""
TOPICS_PER_SLICE = 500
RETRY_US = 1_000_000
LOOKS_PER_RETENTION = 8
"""A group whose offsets cannot expire as it is (its members subscribe to the topics) is looked at so often."""


class _Active(Protocol):
    def active(self) -> Iterable[OffsetsPartition]: ...


class Cleaning:
    """Looks every ``offsets.retention.check.interval.ms`` at the groups that are due, not at the others."""

    __slots__ = ("_config", "_led", "_membership", "_metrics", "_ports", "_work")

    def __init__(
        self, ports: Ports, config: BrokerConfig, led: _Active, membership: Membership, metrics: GroupMetrics
    ) -> None:
        self._ports = ports
        self._config = config
        self._led = led
        self._membership = membership
        self._metrics = metrics
        self._work = SliceQueue(ports)

    def start(self) -> None:
        """The first look comes after one interval."""
        interval_us = self._config.offsets_retention_check_interval_ms * 1000
        self._ports.set_timer(self._ports.now().mono_us + interval_us, self._look)

    def _look(self) -> None:
        now_ms = self._ports.now().wall_ms
        for target in self._led.active():
            if target.retention.is_due(now_ms):
                self._work.add(self._expire(target, now_ms))
        self.start()

    def _expire(self, target: OffsetsPartition, now_ms: int) -> Slices:
        while target.is_led:
            group_id = target.retention.due(now_ms)
            if group_id is None:
                return
            yield from self._expire_group(target, group_id)
            yield

    def _expire_group(self, target: OffsetsPartition, group_id: str) -> Slices:
        now_ms, retention_ms = self._ports.now().wall_ms, target.retention.retention_ms
        group = target.groups.get(group_id)
        if group is None:
            return
        expired: list[OffsetKey] = []
        next_ms = now_ms + retention_ms
        for topic, partitions in target.offsets.of(group_id).items():
            if group.is_subscribed_to(topic):
                next_ms = min(next_ms, now_ms + retention_ms // LOOKS_PER_RETENTION)
                continue
            for index, stored in partitions.items():
                expires_ms = _expires_ms(group, stored.commit, retention_ms)
                if expires_ms is None:
                    next_ms = min(next_ms, now_ms + retention_ms // LOOKS_PER_RETENTION)
                elif expires_ms <= now_ms:
                    expired.append(OffsetKey(group_id, topic, index))
                else:
                    next_ms = min(next_ms, expires_ms)
        if expired:
            boundary = target.led.log.log_end_offset
            self._metrics.expirations.value += len(expired)
            yield from self._remove(target, expired, boundary)
            if not target.is_led:
                return
            next_ms = now_ms + 1  # Whether they are gone, and the group with them.
        if target.offsets.has_any(group_id):
            target.retention.look_at(group_id, next_ms)
        elif not self._membership.delete_unused(target, group) and not group.members:
            target.retention.look_at(group_id, now_ms + 1)  # Somebody was told a member ID and may still join.

    def forget_topics(self, topics: Sequence[str]) -> None:
        """They are deleted. Commits that come from now on are of new topics of these names, and stay."""
        for target in self._led.active():
            self._work.add(self._forget(target, topics, target.led.log.log_end_offset))
            waiting = target.offsets.waiting_of(frozenset(topics))
            if waiting:
                self._work.add(self._remove(target, waiting, target.led.log.log_end_offset, of_topics=True))

    def _forget(self, target: OffsetsPartition, topics: Sequence[str], boundary: int) -> Slices:
        for number, topic in enumerate(topics, 1):
            for group_id in target.offsets.groups_of(topic):
                keys = [OffsetKey(group_id, topic, index) for index in target.offsets.of(group_id).get(topic, ())]
                target.retention.look_at(group_id, self._ports.now().wall_ms)
                self._metrics.deletions.value += len(keys)
                yield from self._remove(target, keys, boundary, of_topics=True)
                if not target.is_led:
                    return
            if number % TOPICS_PER_SLICE == 0:
                yield

    def _remove(
        self, target: OffsetsPartition, keys: Sequence[OffsetKey], boundary: int, *, of_topics: bool = False
    ) -> Slices:
        """Those that were written below ``boundary`` and not anew since then. ``of_topics``: which are gone, so that
        commits on their way are removed, too."""
        for at in range(0, len(keys), REMOVED_PER_SLICE):
            some = [
                key
                for key in keys[at : at + REMOVED_PER_SLICE]
                if target.offsets.is_older(key, boundary, counts_waiting=of_topics)
            ]
            if some:
                again = partial(self._remove, target, some, boundary, of_topics=of_topics)
                target.remove_offsets(some, partial(self._removed, target, again))
            yield
            if not target.is_led:
                return

    def _removed(self, target: OffsetsPartition, again: Callable[[], Slices], error: Error) -> None:
        """An error may come before the records are written or after; what is written already is not written again."""
        if error is Error.NONE or not target.is_led:
            return

        def retry() -> None:
            if target.is_led:
                self._work.add(again())

        self._ports.set_timer(self._ports.now().mono_us + RETRY_US, retry)


def _expires_ms(group: Group, commit: CommitOffset, retention_ms: int) -> int | None:
    """Unix time; None: not while the group is as it is."""
    base_ms = group.expires_from_ms(commit.commit_timestamp_ms)
    if base_ms is None:
        return None
    return base_ms + retention_ms if commit.expire_timestamp_ms < 0 else commit.expire_timestamp_ms
