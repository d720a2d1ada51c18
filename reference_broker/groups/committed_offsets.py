"""The committed offsets of one partition of ``__consumer_offsets``: visible, pending in a transaction, or unreplicated.

A commit is visible once the high watermark has passed its record, whether or not its client got the response in time.
So a client that fetches it gets the same offset here as from a coordinator that loads the log again.

Offsets that a transaction commits (KIP-98) are pending until the high watermark has passed its marker: a commit marker
makes them visible, an abort marker drops them. A tombstone drops the pending commits of its key, whichever producer
made them. Of two commits of one partition the later record wins, whenever its marker comes (KAFKA-5247).
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from reference_broker.ports.slicing import DECIDED_OFFSETS_PER_SLICE
from reference_broker.records.batch import NO_PRODUCER_ID

NO_METADATA_EPOCH = -1
"""No metadata epoch was recorded: the value is older, or the client knows of none (M-11)."""
NO_EPOCH = -1
NO_TIMESTAMP = -1
MAX_TIMESTAMP_MS = 2**63 - 1


class OffsetKey(NamedTuple):
    """The key of a committed offset: group, topic and partition. It is a tuple, since each commit looks it up often."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """The committed offset of one partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    """The leader epoch of the last record before the offset, -1 if it is unknown."""
    metadata: str
    """A text of the client."""
    commit_timestamp_ms: int
    metadata_epoch: int = NO_METADATA_EPOCH
    """The epoch of the last metadata that the client had accepted (M-6, M-11)."""
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Old clients set it. It replaces the broker's retention; -1 means none."""

    def due_ms(self, retention_ms: int) -> int:
        """Return the earliest Unix time at which it may expire, if the broker's retention is ``retention_ms``."""
        given_ms = self.expire_timestamp_ms
        return self.commit_timestamp_ms + retention_ms if given_ms == NO_TIMESTAMP else given_ms


Change: TypeAlias = tuple[OffsetKey, CommitOffset | None]
"""A new commit of a key. None means that the offset is removed."""


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A commit that is visible or pending."""

    commit: CommitOffset
    end_offset: int
    """One past the last record of the batch with which the commit came."""


NOWHERE = -1
"""No pending commit is in the log."""


@dataclass(slots=True)
class PendingOffsets:
    """Offsets of open transactions (KIP-98). A producer has one commit for each key, its last. A method costs O(1),
    unless it says otherwise."""

    _by_group: dict[str, dict[OffsetKey, dict[int, StoredOffset]]] = field(default_factory=dict)
    """The commits by producer ID, for each key of each group."""
    _by_producer: dict[int, dict[OffsetKey, None]] = field(default_factory=dict)

    def put(self, producer_id: int, key: OffsetKey, stored: StoredOffset) -> None:
        self._by_group.setdefault(key.group, {}).setdefault(key, {})[producer_id] = stored
        self._by_producer.setdefault(producer_id, {})[key] = None

    def take(self, producer_id: int, most: int) -> Iterator[tuple[OffsetKey, StoredOffset]]:
        """Remove up to ``most`` commits of a producer, in the order in which their keys came, and yield them."""
        keys = self._by_producer.get(producer_id, {})
        for key in [key for key, _ in zip(keys, range(most), strict=False)]:
            yield key, self._remove(key, producer_id)

    def forget(self, key: OffsetKey) -> None:
        """Drop the commits of all producers for this key. It costs O(producers)."""
        for producer_id in tuple(self._by_group.get(key.group, {}).get(key, ())):
            self._remove(key, producer_id)

    def _remove(self, key: OffsetKey, producer_id: int) -> StoredOffset:
        keys = self._by_producer[producer_id]
        del keys[key]
        if not keys:
            del self._by_producer[producer_id]
        commits = self._by_group[key.group]
        stored = commits[key].pop(producer_id)
        if not commits[key]:
            del commits[key]
        if not commits:
            del self._by_group[key.group]
        return stored

    # --- queries ------------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def is_open(self, producer_id: int) -> bool:
        """Return whether the producer has pending commits."""
        return producer_id in self._by_producer

    def of(self, group: str) -> Mapping[OffsetKey, Mapping[int, StoredOffset]]:
        """Return the pending commits of a group, by key and producer ID."""
        return self._by_group.get(group, {})

    def end_offset(self, key: OffsetKey) -> int:
        """Return one past the newest pending commit of the key, or NOWHERE. It costs O(producers)."""
        commits = self._by_group.get(key.group, {}).get(key)
        return NOWHERE if commits is None else max(stored.end_offset for stored in commits.values())

    def keys(self) -> Iterator[OffsetKey]:
        """Yield the keys of all pending commits."""
        for commits in self._by_group.values():
            yield from commits

    def validate(self) -> None:
        """Assert the invariants. It looks at every commit, so only tests and the simulator call it."""
        by_group = {
            (producer_id, key)
            for commits in self._by_group.values()
            for key, producers in commits.items()
            for producer_id in producers
        }
        by_producer = {(producer_id, key) for producer_id, keys in self._by_producer.items() for key in keys}
        assert by_group == by_producer, f"pending commits by group and by producer differ in {by_group ^ by_producer}"
        assert all(key.group == group for group, commits in self._by_group.items() for key in commits), (
            "a pending commit is listed under another group"
        )
        empty = [key for commits in self._by_group.values() for key, producers in commits.items() if not producers]
        assert not empty, f"no producer has the pending commits of {empty}"
        assert all(self._by_group.values()), "a group without pending commits is kept"
        assert all(self._by_producer.values()), "a producer without pending commits is kept"


class OffsetsBatch(NamedTuple):
    """Commits that are in the log and not visible yet."""

    end_offset: int
    changes: Sequence[Change]
    producer_id: int
    """NO_PRODUCER_ID outside of transactions."""


class Marker(NamedTuple):
    """The end of a producer's transaction. The marker is in the log and not replicated yet."""

    end_offset: int
    producer_id: int
    is_commit: bool


@dataclass(slots=True)
class CommittedOffsets:
    """The offsets of all groups of one partition. A commit costs O(1). A method that looks at all unreplicated offsets
    says so."""

    count: int = 0
    """The number of visible offsets."""
    _by_group: dict[str, dict[str, dict[int, StoredOffset]]] = field(default_factory=dict)
    _by_topic: dict[str, dict[str, None]] = field(default_factory=dict)
    _waiting: deque[OffsetsBatch | Marker] = field(default_factory=deque)
    """What is unreplicated, in the order of the log."""
    _newest: dict[OffsetKey, tuple[int, CommitOffset | None]] = field(default_factory=dict)
    """The last unreplicated change of a key outside of transactions, with one past its record."""
    _pending: PendingOffsets = field(default_factory=PendingOffsets)
    """The replicated commits of transactions whose marker is not replicated."""
    _newest_pending: dict[OffsetKey, int] = field(default_factory=dict)
    """One past the last unreplicated commit of a transaction, by key."""

    # --- changes ------------------------------------------------------------------------------------------------------

    def add_unreplicated(self, end_offset: int, changes: Sequence[Change], producer_id: int = NO_PRODUCER_ID) -> None:
        """Add changes that are in the log, up to ``end_offset``. With a producer ID they belong to its transaction, and
        are no removals."""
        self._append(OffsetsBatch(end_offset, changes, producer_id))
        for key, commit in changes:
            if producer_id == NO_PRODUCER_ID:
                self._newest[key] = (end_offset, commit)
            else:
                assert commit is not None, f"a transaction removes {key}"
                self._newest_pending[key] = end_offset

    def add_end_transaction_marker(self, end_offset: int, producer_id: int, *, is_commit: bool) -> None:
        """Add a marker of the producer that is in the log, just before ``end_offset``."""
        self._append(Marker(end_offset, producer_id, is_commit))

    def _append(self, entry: OffsetsBatch | Marker) -> None:
        last = self._waiting[-1].end_offset if self._waiting else 0
        assert entry.end_offset >= last, f"commits up to offset {entry.end_offset} follow those up to {last}"
        self._waiting.append(entry)

    def advance_high_watermark(self, high_watermark: int, most: int = DECIDED_OFFSETS_PER_SLICE) -> Iterator[Change]:
        """Make visible what is below the high watermark. Yield each visible change, in the order of the log.

        Stop after ``most`` commits of transactions. The next call goes on with a long one, and with everything after it
        (``is_behind``)."""
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= high_watermark and most > 0:
            entry = waiting[0]
            if isinstance(entry, Marker):
                for key, stored in self._pending.take(entry.producer_id, most):
                    most -= 1
                    if entry.is_commit and self._is_newer(key, stored):  # Decision pending-offset-decided
                        self._apply(key, stored.commit, stored.end_offset)
                        yield key, stored.commit
                if not self._pending.is_open(entry.producer_id):
                    waiting.popleft()
                continue
            waiting.popleft()
            if entry.producer_id == NO_PRODUCER_ID:
                yield from self._replicated_plainly(entry)
            else:
                self._replicated_pending(entry)
        assert waiting or not (self._newest or self._newest_pending), (
            f"{len(self._newest) + len(self._newest_pending)} offsets are unreplicated in no record"
        )

    def _replicated_plainly(self, batch: OffsetsBatch) -> Iterator[Change]:
        end_offset = batch.end_offset
        for key, commit in batch.changes:
            newest = self._newest.get(key)
            if newest is not None and newest[0] == end_offset:
                del self._newest[key]
            if commit is None and self._pending:  # Decision tombstone-over-pending
                self._pending.forget(key)
            self._apply(key, commit, end_offset)
            yield key, commit

    def _replicated_pending(self, batch: OffsetsBatch) -> None:
        for key, commit in batch.changes:
            if self._newest_pending.get(key) == batch.end_offset:
                del self._newest_pending[key]
            if commit is not None:
                self._pending.put(batch.producer_id, key, StoredOffset(commit, batch.end_offset))

    def _is_newer(self, key: OffsetKey, pending: StoredOffset) -> bool:
        """Return whether there is no later commit of the key. Otherwise a reader would go back."""
        visible = self._stored(key)
        return visible is None or visible.end_offset < pending.end_offset

    def _apply(self, key: OffsetKey, commit: CommitOffset | None, end_offset: int) -> None:
        if commit is None:
            self._remove(key)
            return
        partitions = self._by_group.setdefault(key.group, {}).setdefault(key.topic, {})
        if not partitions:
            self._by_topic.setdefault(key.topic, {})[key.group] = None
        if key.partition not in partitions:
            self.count += 1
        partitions[key.partition] = StoredOffset(commit, end_offset)

    def _remove(self, key: OffsetKey) -> None:
        topics = self._by_group.get(key.group)
        partitions = None if topics is None else topics.get(key.topic)
        if topics is None or partitions is None or partitions.pop(key.partition, None) is None:
            return
        self.count -= 1
        if partitions:
            return
        del topics[key.topic], self._by_topic[key.topic][key.group]
        if not topics:
            del self._by_group[key.group]
        if not self._by_topic[key.topic]:
            del self._by_topic[key.topic]

    # --- one offset ---------------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether some records are not replicated yet."""
        return bool(self._waiting)

    def is_behind(self, high_watermark: int) -> bool:
        """Return whether something below the high watermark is not decided yet (``replicated``)."""
        return bool(self._waiting) and self._waiting[0].end_offset <= high_watermark

    def latest(self, key: OffsetKey) -> CommitOffset | None:
        """Return the last commit that was written, visible or not. Pending ones do not count."""
        newest = self._newest.get(key)
        return self.find(key) if newest is None else newest[1]

    def find(self, key: OffsetKey) -> CommitOffset | None:
        """Return the visible commit."""
        stored = self._stored(key)
        return None if stored is None else stored.commit

    def is_pending(self, key: OffsetKey) -> bool:
        """Return whether an open transaction has committed the key, replicated or not."""
        return key in self._newest_pending or key in self._pending.of(key.group)

    def has_commit(self, key: OffsetKey) -> bool:
        """Return whether there is something to remove: visible, unreplicated or pending."""
        return self.latest(key) is not None or self.is_pending(key)

    def is_older(self, key: OffsetKey, end_offset: int, *, counts_waiting: bool = False) -> bool:
        """Return whether the offset is visible, was written below ``end_offset``, and was not written since. It is not
        while an open transaction has committed it.

        With ``counts_waiting`` an unreplicated or pending offset counts like a visible one."""
        pending_end = max(self._newest_pending.get(key, NOWHERE), self._pending.end_offset(key))
        newest, stored = self._newest.get(key), self._stored(key)
        if not counts_waiting and (newest is not None or pending_end != NOWHERE):
            return False
        if newest is not None:
            written_end, commit = newest
            is_there = commit is not None or pending_end > written_end
        else:
            written_end = NOWHERE if stored is None else stored.end_offset
            is_there = stored is not None or pending_end != NOWHERE
        return is_there and max(written_end, pending_end) <= end_offset

    def _stored(self, key: OffsetKey) -> StoredOffset | None:
        return self._by_group.get(key.group, {}).get(key.topic, {}).get(key.partition)

    # --- the offsets of a group ---------------------------------------------------------------------------------------

    def of(self, group: str) -> Mapping[str, Mapping[int, StoredOffset]]:
        """Return all visible offsets of a group, by topic and partition."""
        return self._by_group.get(group, {})

    def pending_of(self, group: str) -> Collection[OffsetKey]:
        """Return the replicated keys that open transactions have committed for a group."""
        return self._pending.of(group).keys()

    def has_pending(self, group: str) -> bool:
        """Return whether an open transaction has committed for the group. Walks over all unreplicated offsets."""
        return bool(self._pending.of(group)) or any(key.group == group for key in self._newest_pending)

    def keys_of(self, group: str) -> list[OffsetKey]:
        """Return the keys of all offsets of a group, with those that are unreplicated or pending. Looks at all
        unreplicated ones."""
        visible = (
            OffsetKey(group, topic, index) for topic, partitions in self.of(group).items() for index in partitions
        )
        return list(dict.fromkeys([*visible, *self._waiting_of_group(group), *self._pending.of(group)]))

    def has_any(self, group: str) -> bool:
        """Return whether the group has an unreplicated, pending or visible offset that is not being removed."""
        for topic, partitions in self._by_group.get(group, {}).items():
            for index in partitions:
                newest = self._newest.get(OffsetKey(group, topic, index))
                if newest is None or newest[1] is not None:
                    return True
        return bool(self._pending.of(group)) or bool(self._waiting_of_group(group))

    def all_groups(self) -> tuple[str, ...]:
        """Return the groups with offsets, visible, pending or unreplicated. Those whose removal is unreplicated do
        not count. Walks over all unreplicated and pending offsets, and over the visible ones that are being removed."""
        removed = {key: end_offset for key, (end_offset, commit) in self._newest.items() if commit is None}
        visible = (
            group
            for group, topics in self._by_group.items()
            if any(OffsetKey(group, topic, index) not in removed for topic in topics for index in topics[topic])
        )
        waiting = (key.group for key, (_, commit) in self._newest.items() if commit is not None)
        undecided = {**dict.fromkeys(self._pending.keys(), 0), **self._newest_pending}
        pending = (key.group for key, end_offset in undecided.items() if end_offset > removed.get(key, NOWHERE))
        return tuple(dict.fromkeys([*visible, *waiting, *pending]))

    def _waiting_of_group(self, group: str) -> list[OffsetKey]:
        return [key for key in self._waiting_keys() if key.group == group]

    def _waiting_keys(self) -> Iterator[OffsetKey]:
        """Yield the keys of the unreplicated commits, pending or not. A key may come twice."""
        yield from (key for key, (_, commit) in self._newest.items() if commit is not None)
        yield from self._newest_pending

    # --- the offsets of a topic ---------------------------------------------------------------------------------------

    def topics(self) -> tuple[str, ...]:
        """Return the topics with offsets, visible, pending or unreplicated. Looks at all that are not visible."""
        hidden = (key.topic for keys in (self._waiting_keys(), self._pending.keys()) for key in keys)
        return tuple(dict.fromkeys([*self._by_topic, *hidden]))

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """Return the groups with visible offsets of a topic."""
        return tuple(self._by_topic.get(topic, ()))

    def hidden_of(self, topics: Collection[str]) -> list[OffsetKey]:
        """Return the keys of these topics whose commits are unreplicated or pending. Looks at all that are."""
        hidden = (key for keys in (self._waiting_keys(), self._pending.keys()) for key in keys)
        return list(dict.fromkeys(key for key in hidden if key.topic in topics))

    # --- invariants ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert the invariants. It looks at every offset, so only tests and the simulator call it."""
        ends = [entry.end_offset for entry in self._waiting]
        assert ends == sorted(ends), f"commits wait out of the log's order: {ends}"
        visible = [
            OffsetKey(group, topic, index)
            for group, topics in self._by_group.items()
            for topic, partitions in topics.items()
            for index in partitions
        ]
        assert self.count == len(visible), f"{self.count} offsets are counted, {len(visible)} are visible"
        pairs = {(key.topic, key.group) for key in visible}
        by_topic = {(topic, group) for topic, groups in self._by_topic.items() for group in groups}
        assert pairs == by_topic, f"the offsets by topic and by group differ in {pairs ^ by_topic}"
        batches = [entry for entry in self._waiting if isinstance(entry, OffsetsBatch)]
        plain = [each for each in batches if each.producer_id == NO_PRODUCER_ID]
        newest = {key: (each.end_offset, commit) for each in plain for key, commit in each.changes}
        assert self._newest == newest, "the newest changes are not those of the unreplicated records"
        pending = {key: each.end_offset for each in batches if each not in plain for key, _ in each.changes}
        assert self._newest_pending == pending, "the newest pending commits are not those of the unreplicated records"
        self._pending.validate()
