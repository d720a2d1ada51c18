"""The committed offsets of one partition of ``__consumer_offsets``: those that are replicated, and those on their way.

What is in the log counts: a commit is visible once the high watermark has passed its record, whether or not its client
has been told in time, and a client that comes back finds the same offset as the coordinator that reloads the log.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.groups.offsets.group_records import CommitOffset, OffsetKey

Change: TypeAlias = tuple[OffsetKey, CommitOffset | None]
"""None: the offset is removed."""

_NONE: Mapping[int, "Stored"] = {}


@dataclass(frozen=True, slots=True)
class Stored:
    """A commit, and one past the last record of the batch with which it came."""

    commit: CommitOffset
    end_offset: int


class CommittedOffsets:
    """Every operation costs what it names; a commit O(1)."""

    __slots__ = ("_by_group", "_by_topic", "_newest", "_waiting", "count")

    def __init__(self) -> None:
        self.count = 0
        """Visible offsets."""
        self._by_group: dict[str, dict[str, dict[int, Stored]]] = {}
        self._by_topic: dict[str, dict[str, None]] = {}
        self._waiting: deque[tuple[int, Sequence[Change]]] = deque()
        """In the order of the log: one past the last record, and what it changes."""
        self._newest: dict[OffsetKey, tuple[int, CommitOffset | None]] = {}
        """What the last record on its way makes of a key."""

    @property
    def is_waiting(self) -> bool:
        """Some records are not replicated yet."""
        return bool(self._waiting)

    def appended(self, end_offset: int, changes: Sequence[Change]) -> None:
        """They are in the log, up to ``end_offset``."""
        self._waiting.append((end_offset, changes))
        for key, commit in changes:
            self._newest[key] = (end_offset, commit)

    def replicated(self, high_watermark: int) -> Iterator[Change]:
        """Makes visible what is below the high watermark; gives each change that is made, in the log's order."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            end_offset, changes = waiting.popleft()
            for key, commit in changes:
                newest = self._newest.get(key)
                if newest is not None and newest[0] == end_offset:
                    del self._newest[key]
                self._apply(key, commit, end_offset)
                yield key, commit

    def latest(self, key: OffsetKey) -> CommitOffset | None:
        """The last one written, visible or not."""
        newest = self._newest.get(key)
        return self.find(key) if newest is None else newest[1]

    def find(self, key: OffsetKey) -> CommitOffset | None:
        """The visible one."""
        stored = self._by_group.get(key.group, {}).get(key.topic, _NONE).get(key.partition)
        return None if stored is None else stored.commit

    def waiting_keys(self, group: str) -> list[OffsetKey]:
        """Of a group's commits that are on their way. Costs all that is."""
        return [key for key, (_, commit) in self._newest.items() if key.group == group and commit is not None]

    def has_any(self, group: str) -> bool:
        """Offsets that are visible and not being removed, or on their way. Costs those that are being removed."""
        for topic, partitions in self._by_group.get(group, {}).items():
            for index in partitions:
                newest = self._newest.get(OffsetKey(group, topic, index))
                if newest is None or newest[1] is not None:
                    return True
        return bool(self._newest) and bool(self.waiting_keys(group))

    def is_older(self, key: OffsetKey, end_offset: int, *, counts_waiting: bool = False) -> bool:
        """It is there, was written up to ``end_offset``, and nothing was since. ``counts_waiting``: it is there also
        while it is on its way."""
        newest = self._newest.get(key)
        if newest is not None:
            return counts_waiting and newest[1] is not None and newest[0] <= end_offset
        stored = self._by_group.get(key.group, {}).get(key.topic, _NONE).get(key.partition)
        return stored is not None and stored.end_offset <= end_offset

    def of(self, group: str) -> Mapping[str, Mapping[int, Stored]]:
        """All visible offsets of a group, by topic and partition."""
        return self._by_group.get(group, {})

    def all_groups(self) -> tuple[str, ...]:
        """Those with offsets, visible or on their way. Costs all that is on its way, too."""
        return tuple(dict.fromkeys([*self._by_group, *(key.group for key in self._newest)]))

    def topics(self) -> tuple[str, ...]:
        """Those with offsets, visible or on their way. Costs all that is on its way, too."""
        waiting = (key.topic for key, (_, commit) in self._newest.items() if commit is not None)
        return tuple(dict.fromkeys([*self._by_topic, *waiting]))

    def groups_of(self, topic: str) -> tuple[str, ...]:
        """Those with visible offsets of a topic."""
        return tuple(self._by_topic.get(topic, ()))

    def waiting_of(self, topics: Collection[str]) -> list[OffsetKey]:
        """Commits of these topics that are on their way. Costs all that is."""
        return [key for key, (_, commit) in self._newest.items() if commit is not None and key.topic in topics]

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
