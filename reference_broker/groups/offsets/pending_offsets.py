"""Offsets that were committed inside transactions that have not ended (KIP-98): nobody sees them yet.

A commit marker of the producer makes them visible, and an abort marker drops them. A tombstone drops the pending
commits of its key, whoever made them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from reference_broker.groups.offsets.values import OffsetKey, Stored

NOWHERE = -1
"""No pending commit is in the log."""


@dataclass(slots=True)
class PendingOffsets:
    """What the markers will decide on. A producer has one commit for each key, its last. All costs O(1), unless a
    method says otherwise."""

    _by_group: dict[str, dict[OffsetKey, dict[int, Stored]]] = field(default_factory=dict)
    """The commits by producer ID, for each key of each group."""
    _by_producer: dict[int, dict[OffsetKey, None]] = field(default_factory=dict)

    def put(self, producer_id: int, key: OffsetKey, stored: Stored) -> None:
        self._by_group.setdefault(key.group, {}).setdefault(key, {})[producer_id] = stored
        self._by_producer.setdefault(producer_id, {})[key] = None

    def take(self, producer_id: int, most: int) -> Iterator[tuple[OffsetKey, Stored]]:
        """Removes up to ``most`` commits of a producer, in the order in which their keys came, and yields them."""
        keys = self._by_producer.get(producer_id, {})
        for key in [key for key, _ in zip(keys, range(most), strict=False)]:
            yield key, self._remove(key, producer_id)

    def forget(self, key: OffsetKey) -> None:
        """Drops the commits of all producers for this key. It costs O(producers)."""
        for producer_id in tuple(self._by_group.get(key.group, {}).get(key, ())):
            self._remove(key, producer_id)

    def _remove(self, key: OffsetKey, producer_id: int) -> Stored:
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

    # --- what is asked ----------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def is_open(self, producer_id: int) -> bool:
        """Says whether the producer has pending commits."""
        return producer_id in self._by_producer

    def of(self, group: str) -> Mapping[OffsetKey, Mapping[int, Stored]]:
        """Returns the pending commits of a group, by key and producer ID."""
        return self._by_group.get(group, {})

    def end_offset(self, key: OffsetKey) -> int:
        """Returns one past the newest pending commit of the key, or NOWHERE. It costs O(producers)."""
        commits = self._by_group.get(key.group, {}).get(key)
        return NOWHERE if commits is None else max(stored.end_offset for stored in commits.values())

    def groups(self) -> tuple[str, ...]:
        return tuple(self._by_group)

    def keys(self) -> Iterator[OffsetKey]:
        """Yields the keys of all pending commits."""
        for commits in self._by_group.values():
            yield from commits

    def validate(self) -> None:
        """Asserts what is always true. It looks at every commit, so only tests and the simulator ask."""
        by_group = {(each, key) for found in self._by_group.values() for key, of in found.items() for each in of}
        by_producer = {(each, key) for each, keys in self._by_producer.items() for key in keys}
        assert by_group == by_producer, f"pending commits by group and by producer differ in {by_group ^ by_producer}"
        assert all(key.group == group for group, found in self._by_group.items() for key in found), (
            "a pending commit stands under another group"
        )
        empty = [key for found in self._by_group.values() for key, of in found.items() if not of]
        assert not empty, f"no producer has the pending commits of {empty}"
        assert all(self._by_group.values()), "a group without pending commits is kept"
        assert all(self._by_producer.values()), "a producer without pending commits is kept"
