"""The committed offsets of a log of commits, by clause X-8 and KIP-98: the log is read from its start each time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from reference_broker.groups.committed_offsets import OffsetKey


class Commit(NamedTuple):
    """``producer`` is None outside of transactions."""

    end: int
    key: OffsetKey
    offset: int
    producer: int | None = None


class Removal(NamedTuple):
    end: int
    key: OffsetKey


class Ending(NamedTuple):
    """A marker."""

    end: int
    producer: int
    is_commit: bool


Event: TypeAlias = Commit | Removal | Ending


@dataclass
class NaiveOffsets:
    """``visible`` and ``pending``: the end of the record and its offset. ``pending`` is by producer, too."""

    visible: dict[OffsetKey, tuple[int, int]] = field(default_factory=dict)
    pending: dict[tuple[int, OffsetKey], tuple[int, int]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        if isinstance(event, Removal):
            self.visible.pop(event.key, None)
            for producer, key in list(self.pending):
                if key == event.key:
                    del self.pending[producer, key]
        elif isinstance(event, Ending):
            for producer, key in list(self.pending):
                if producer == event.producer:
                    found = self.pending.pop((producer, key))
                    if event.is_commit and found > self.visible.get(key, (-1, 0)):
                        self.visible[key] = found
        elif event.producer is None:
            self.visible[event.key] = event.end, event.offset
        else:
            self.pending[event.producer, event.key] = event.end, event.offset

    def unstable(self) -> set[OffsetKey]:
        return {key for _, key in self.pending}


def read_below(high_watermark: int, log: Iterable[Event]) -> NaiveOffsets:
    """Return the offsets of the replicated part of the log."""
    found = NaiveOffsets()
    for event in log:
        if event.end <= high_watermark:
            found.take(event)
    return found
