"""The committed offsets of one partition of ``__consumer_offsets``: those that are replicated, and those on their way.

The log decides. A commit is visible once the high watermark has passed its record, whether or not its client was told
in time. So a client that comes back finds the same offset here as with a coordinator that loads the log anew.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

NO_METADATA_EPOCH = -1
"""No metadata epoch was recorded: the value is older, or the client knows of none (M-11)."""
NO_EPOCH = -1
NO_TIMESTAMP = -1


class OffsetKey(NamedTuple):
    """Whose offset it is: that of one group, for one partition. It is a tuple, since each commit looks it up often."""

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
    """Clients of long ago set it. It replaces the broker's retention; -1 stands for none."""

    def due_ms(self, retention_ms: int) -> int:
        """Returns the earliest Unix time at which it may expire, if the broker's retention is ``retention_ms``."""
        given_ms = self.expire_timestamp_ms
        return self.commit_timestamp_ms + retention_ms if given_ms == NO_TIMESTAMP else given_ms


Change: TypeAlias = tuple[OffsetKey, CommitOffset | None]
"""None means that the offset is removed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A commit that is visible."""

    commit: CommitOffset
    end_offset: int
    """One past the last record of the batch with which the commit came."""


@dataclass(slots=True)
class CommittedOffsets:
    """A commit costs O(1). A method that looks at all offsets on their way says so."""

    count: int = 0
    """The number of visible offsets."""
    _by_group: dict[str, dict[str, dict[int, Stored]]] = field(default_factory=dict)
    _by_topic: dict[str, dict[str, None]] = field(default_factory=dict)
    _waiting: deque[tuple[int, Sequence[Change]]] = field(default_factory=deque)
    """One past the last record, and what it changes, in the order of the log."""
    _newest: dict[OffsetKey, tuple[int, CommitOffset | None]] = field(default_factory=dict)
    """What the last record on its way makes of a key."""

    # --- changes ----------------------------------------------------------------------------------------------------

    def appended(self, end_offset: int, changes: Sequence[Change]) -> None:
        """The changes are in the log, up to ``end_offset``."""
        last = self._waiting[-1][0] if self._waiting else 0
        assert end_offset >= last, f"commits up to offset {end_offset} follow those up to {last}"
        self._waiting.append((end_offset, changes))
        for key, commit in changes:
            self._newest[key] = (end_offset, commit)

    def replicated(self, high_watermark: int) -> Iterator[Change]:
        """Makes visible what lies below the high watermark. Yields each change, in the order of the log."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            end_offset, changes = waiting.popleft()
            for key, commit in changes:
                newest = self._newest.get(key)
                if newest is not None and newest[0] == end_offset:
                    del self._newest[key]
                self._apply(key, commit, end_offset)
                yield key, commit
        assert waiting or not self._newest, f"{len(self._newest)} offsets are on their way in no record"

    def _apply(self, key: OffsetKey, commit: CommitOffset | None, end_offset: int) -> None:
        if commit is None:
            self._remove(key)
            return
        partitions = self._by_group.setdefault(key.group, {}).setdefault(key.topic, {})
        if not partitions:
            self._by_topic.setdefault(key.topic, {})[key.group] = None
        if key.partition not in partitions:
            self.count += 1
        partitions[key.partition] = Stored(commit, end_offset)

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

    # --- one offset -------------------------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Some records are not replicated yet."""
        return bool(self._waiting)

    def latest(self, key: OffsetKey) -> CommitOffset | None:
        """Returns the last commit that was written, visible or not."""
        newest = self._newest.get(key)
        return self.find(key) if newest is None else newest[1]

    def find(self, key: OffsetKey) -> CommitOffset | None:
        """Returns the visible commit."""
        stored = self._stored(key)
        return None if stored is None else stored.commit

    def is_older(self, key: OffsetKey, end_offset: int, *, counts_waiting: bool = False) -> bool:
        """Says whether the offset is visible, was written below ``end_offset``, and was not written since. With
        ``counts_waiting`` an offset on its way is as good as a visible one."""
        newest = self._newest.get(key)
        if newest is not None:
            return counts_waiting and newest[1] is not None and newest[0] <= end_offset
        stored = self._stored(key)
        return stored is not None and stored.end_offset <= end_offset

    def _stored(self, key: OffsetKey) -> Stored | None:
        return self._by_group.get(key.group, {}).get(key.topic, {}).get(key.partition)

    # --- the offsets of a group -------------------------------------------------------------------------------------

    def of(self, group: str) -> Mapping[str, Mapping[int, Stored]]:
        """Returns all visible offsets of a group, by topic and partition."""
        return self._by_group.get(group, {})

    def keys_of(self, group: str) -> list[OffsetKey]:
        """Returns the keys of all offsets of a group, with those on their way. Looks at all that are on their way."""
        visible = (OffsetKey(group, topic, index) for topic, found in self.of(group).items() for index in found)
        return list(dict.fromkeys([*visible, *self._waiting_of_group(group)]))

    def has_any(self, group: str) -> bool:
        """Says whether the group has an offset that is on its way, or visible and not about to be removed."""
        for topic, partitions in self._by_group.get(group, {}).items():
            for index in partitions:
                newest = self._newest.get(OffsetKey(group, topic, index))
                if newest is None or newest[1] is not None:
                    return True
        return bool(self._newest) and bool(self._waiting_of_group(group))

    def all_groups(self) -> tuple[str, ...]:
        """Returns the groups with offsets, visible or on their way. Looks at all that are on their way."""
        return tuple(dict.fromkeys([*self._by_group, *(key.group for key in self._newest)]))

    def _waiting_of_group(self, group: str) -> list[OffsetKey]:
        return [key for key, (_, commit) in self._newest.items() if key.group == group and commit is not None]

    # --- the offsets of a topic -------------------------------------------------------------------------------------

    def topics(self) -> tuple[str, ...]:
        """Returns the topics with offsets, visible or on their way. Looks at all that are on their way."""
        waiting = (key.topic for key, (_, commit) in self._newest.items() if commit is not None)
        return tuple(dict.fromkeys([*self._by_topic, *waiting]))

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """Returns the groups with visible offsets of a topic."""
        return tuple(self._by_topic.get(topic, ()))

    def waiting_of(self, topics: Collection[str]) -> list[OffsetKey]:
        """Returns the keys of these topics whose commits are on their way. Looks at all that are."""
        return [key for key, (_, commit) in self._newest.items() if commit is not None and key.topic in topics]

    # --- invariants -------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Asserts what is always true. It looks at every offset, so only tests and the simulator ask."""
        ends = [end_offset for end_offset, _ in self._waiting]
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
        newest = {key: (end_offset, commit) for end_offset, changes in self._waiting for key, commit in changes}
        assert self._newest == newest, "the newest changes are not those of the records on their way"
