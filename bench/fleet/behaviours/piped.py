"""A reader and a writer as one behaviour: a member of a group, a pipe, and the writer of what comes out of the pipe.

The pipe is the member's sink. Channels of the writer have numbers from WRITER_CHANNELS on.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from bench.fleet.behaviours import protocol
from bench.fleet.behaviours.group_member import GroupMember
from bench.fleet.behaviours.protocol import (
    Finished,
    FleetAction,
    FleetEvent,
    HistoryRow,
    Leaving,
    Now,
    Started,
    Stopping,
    TopicPartition,
)
from reference_broker.client.consumer_partitions import ConsumerRecord

WRITER_SUFFIX: Final = "-writer"
WRITER_CHANNELS: Final = 1_000
Item = TypeVar("Item")


@dataclass(slots=True)
class Pipe(ABC, Generic[Item]):
    """A sink that passes records on to a writer."""

    MOST: ClassVar[int]  # a partition with as many waiting records is read no further

    waiting: dict[TopicPartition, deque[Item]] = field(default_factory=dict)
    """Items that were read and are not processed yet, by partition."""
    ended: bool = False  # the reader brings no more

    @abstractmethod
    def piece(self, record: ConsumerRecord) -> Item:
        """Return what is kept of a record."""

    def put(self, records: Sequence[ConsumerRecord]) -> None:
        for record in records:
            self.waiting.setdefault(TopicPartition(record.topic, record.partition), deque()).append(self.piece(record))

    def is_full(self, partition: TopicPartition) -> bool:
        return len(self.waiting.get(partition, ())) >= self.MOST

    def holds(self, partitions: Iterable[TopicPartition]) -> bool:
        return any(self.waiting.get(partition) for partition in partitions)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.waiting.pop(partition, None)


class PipeWriter(Protocol):
    """Take what comes out of the pipe. It ends once the pipe has ended and is empty, or time is over."""

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]: ...

    def close(self, now: Now) -> list[HistoryRow]: ...


class Piped(Generic[Item]):
    """Stopping goes to the reader, and to a writer that ``writer_hears_of_stopping``. Once the reader has ended, the
    writer finishes what is in the pipe."""

    writer_hears_of_stopping: ClassVar[bool] = False

    def __init__(self, reader: GroupMember, writer: PipeWriter, pipe: Pipe[Item]) -> None:
        self.reader = reader
        self.writer = writer
        self.pipe = pipe
        self._open = 2

    @property
    def process(self) -> str:
        return self.reader.process

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        if isinstance(event, Started) or (isinstance(event, Stopping | Leaving) and self.writer_hears_of_stopping):
            return self._merged(self.reader.step(now, event), self.writer.step(now, event))
        if not isinstance(event, Stopping | Leaving) and event.channel >= WRITER_CHANNELS:
            return self._merged([], self.writer.step(now, replace(event, channel=event.channel - WRITER_CHANNELS)))
        return self._merged(self.reader.step(now, event), [])

    def _merged(self, read: list[FleetAction], wrote: list[FleetAction]) -> list[FleetAction]:
        """Merge the actions of both. The whole is finished when both are."""
        both = [*read, *(_shifted(action) for action in wrote)]
        left: list[FleetAction] = [action for action in both if not isinstance(action, Finished)]
        self._open -= len(both) - len(left)
        self.pipe.ended = self.pipe.ended or any(isinstance(action, Finished) for action in read)
        return left if self._open or len(left) == len(both) else [*left, Finished()]

    def close(self, now: Now) -> list[HistoryRow]:
        return [*self.reader.close(now), *self.writer.close(now)]


def _shifted(action: FleetAction) -> FleetAction:
    if isinstance(action, protocol.Record | Finished):
        return action
    return replace(action, channel=action.channel + WRITER_CHANNELS)
