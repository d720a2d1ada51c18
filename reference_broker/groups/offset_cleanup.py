"""Removes expired offsets (KIP-211): also offsets of deleted topics, and empty groups without offsets.

A removal that cannot be written now is retried later, for instance where too few replicas
are in sync.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.committed_offsets import NO_TIMESTAMP, CommitOffset, OffsetKey
from reference_broker.groups.group import Group
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard
from reference_broker.groups.group_metadata_manager import GroupMetadataManager
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.ports.coroutines import Future, pause, run_coroutine
from reference_broker.ports.node_ports import Ports, later
from reference_broker.ports.slicing import EXPIRED_OFFSETS_PER_SLICE, EXPIRY_TOPICS_PER_SLICE, Sliced, SliceQueue
from reference_broker.wire.errors import Error

RETRY_US = 1_000_000
CHECKS_PER_RETENTION = 8
"""How often in a retention time a group is checked whose offsets cannot expire, because its members subscribe to the
topics."""


@dataclass(slots=True)
class OffsetCleanup:
    """Every ``offsets.retention.check.interval.ms`` checks the groups that are due, and no others. ``active`` is
    ``GroupCoordinator.active``."""

    _ports: Ports
    _config: BrokerConfig
    _active: Callable[[], Iterable[GroupCoordinatorShard]]
    _groups: GroupMetadataManager
    _metrics: GroupMetrics
    _work: SliceQueue = field(init=False)

    def __post_init__(self) -> None:
        self._work = SliceQueue(self._ports)

    def start(self) -> None:
        """The first check comes after one interval."""
        later(self._ports, self._config.offsets_retention_check_interval_ms * 1000, self._check)

    # --- offsets that are too old -------------------------------------------------------------------------------------

    def _check(self) -> None:
        now_ms = self._ports.now().wall_ms
        for shard in self._active():
            if shard.retention.is_due(now_ms):  # Decision offsets-check-due
                self._work.add(self._expire(shard, now_ms))
        self.start()

    def _expire(self, shard: GroupCoordinatorShard, now_ms: int) -> Sliced[None]:
        while shard.is_led:
            group_id = shard.retention.pop(now_ms)
            if group_id is None:
                return
            yield from self._expire_group(shard, group_id)
            yield

    def _expire_group(self, shard: GroupCoordinatorShard, group_id: str) -> Sliced[None]:
        group = shard.groups.get(group_id)
        if group is None:
            return
        now_ms = self._ports.now().wall_ms
        expired, next_ms = _expired(shard, group, now_ms)
        if expired:
            boundary = shard.led.log.log_end_offset
            self._metrics.expirations.value += len(expired)
            yield from self._remove(shard, expired, boundary)
            if not shard.is_led:
                return
            next_ms = now_ms + 1  # The next check sees whether they are gone, and the group with them.
        if shard.offsets.has_pending(group_id):  # Decision group-in-transaction
            shard.retention.schedule(group_id, now_ms + 1)  # Its transaction ends soon, as a rule.
        elif shard.offsets.has_any(group_id):
            shard.retention.schedule(group_id, next_ms)
        elif not self._groups.delete_unused(shard, group) and not group.members:  # Decision group-without-offsets
            shard.retention.schedule(group_id, now_ms + 1)  # A client has a member ID and may still join.

    # --- offsets of deleted topics ------------------------------------------------------------------------------------

    def forget_topics(self, topics: Sequence[str]) -> None:
        """Remove the offsets of deleted topics. Later commits belong to new topics of these names, and stay."""
        for shard in self._active():
            self._work.add(self._forget(shard, topics, shard.led.log.log_end_offset))
            hidden = shard.offsets.hidden_of(frozenset(topics))
            if hidden:
                self._work.add(self._remove(shard, hidden, shard.led.log.log_end_offset, of_topics=True))

    def _forget(self, shard: GroupCoordinatorShard, topics: Sequence[str], boundary: int) -> Sliced[None]:
        for number, topic in enumerate(topics, 1):
            for group_id in shard.offsets.groups_of(topic):
                keys = [OffsetKey(group_id, topic, index) for index in shard.offsets.of(group_id).get(topic, ())]
                shard.retention.schedule(group_id, self._ports.now().wall_ms)
                self._metrics.deletions.value += len(keys)
                yield from self._remove(shard, keys, boundary, of_topics=True)
                if not shard.is_led:
                    return
            if number % EXPIRY_TOPICS_PER_SLICE == 0:
                yield

    # --- removing -----------------------------------------------------------------------------------------------------

    def _remove(
        self, shard: GroupCoordinatorShard, keys: Sequence[OffsetKey], boundary: int, *, of_topics: bool = False
    ) -> Sliced[None]:
        """Remove the offsets that were written below ``boundary`` and not again since then. With ``of_topics``, commits
        that are unreplicated or pending are removed, too."""
        for at in range(0, len(keys), EXPIRED_OFFSETS_PER_SLICE):
            old_keys = [
                key
                for key in keys[at : at + EXPIRED_OFFSETS_PER_SLICE]
                if shard.offsets.is_older(key, boundary, counts_waiting=of_topics)  # Decision removed-offset-older
            ]
            if old_keys:
                removal = partial(self._remove, shard, old_keys, boundary, of_topics=of_topics)
                run_coroutine(self._retry_unless_removed(shard, shard.remove_offsets(old_keys).error, removal))
            yield
            if not shard.is_led:
                return

    async def _retry_unless_removed(
        self, shard: GroupCoordinatorShard, result: Future[Error], removal: Callable[[], Sliced[None]]
    ) -> None:
        """Retry after an error, which may come before the tombstones are written or after. What is written is not
        written again."""
        error = await result
        if not error or not shard.is_led:  # Decision offset-removal
            return
        await pause(self._ports, RETRY_US)
        if shard.is_led:
            self._work.add(removal())


def _expired(shard: GroupCoordinatorShard, group: Group, now_ms: int) -> tuple[list[OffsetKey], int]:
    """Return the offsets of the group that are too old, and the Unix time of the next check if there are none. An
    offset that an open transaction commits again does not expire."""
    retention_ms = shard.retention.retention_ms
    expired: list[OffsetKey] = []
    next_ms, kept_ms = now_ms + retention_ms, now_ms + retention_ms // CHECKS_PER_RETENTION
    for topic, partitions in shard.offsets.of(group.group_id).items():
        if group.is_subscribed_to(topic):  # Decision expiry-of-subscribed
            next_ms = min(next_ms, kept_ms)
            continue
        for index, stored in partitions.items():
            expires_ms, key = _expires_ms(group, stored.commit, retention_ms), OffsetKey(group.group_id, topic, index)
            if expires_ms is None:
                next_ms = min(next_ms, kept_ms)
            elif expires_ms <= now_ms:  # Decision offset-expired
                if not shard.offsets.is_pending(key):
                    expired.append(key)
            else:
                next_ms = min(next_ms, expires_ms)
    return expired, next_ms


def _expires_ms(group: Group, commit: CommitOffset, retention_ms: int) -> int | None:
    """Return a Unix time. None means that the offset does not expire while the group is as it is."""
    base_ms = group.expires_from_ms(commit.commit_timestamp_ms)
    if base_ms is None:
        return None
    return base_ms + retention_ms if commit.expire_timestamp_ms == NO_TIMESTAMP else commit.expire_timestamp_ms
