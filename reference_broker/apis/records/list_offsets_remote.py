"""The part of a ListOffsets request by time that the remote tier answers (Kafka's DelayedRemoteListOffsets).

The tier is asked about each partition with records there, before the local logs are searched. The request waits for all
of them, and so long at most as it says, or as ``remote.list.offsets.request.timeout.ms`` says for older versions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasNow, HasOutside
from reference_broker.log.lookup import FoundOffset
from reference_broker.log.partition_log import PartitionLog
from reference_broker.remote_log.reading.reader import Abandon, RemoteReader
from reference_broker.wire.errors import Error, ErrorCode


class Told(NamedTuple):
    """What the tier has before ``end_offset``: the first record of the time, an error, or nothing."""

    end_offset: int
    found: FoundOffset | Error | None


RemoteAnswers: TypeAlias = Mapping[tuple[str, int], Told]
"""By topic and partition."""


class Question(NamedTuple):
    topic: str
    partition: int
    log: PartitionLog
    timestamp_ms: int


class Needs(HasNow, HasOutside, Protocol):
    """What the questions use of their broker."""


@dataclass(slots=True, eq=False)
class RemoteSearches:
    """Asks the tier, and calls ``done`` once with all that it said."""

    broker: Needs
    call: Call
    done: Callable[[RemoteAnswers], None]
    answers: dict[tuple[str, int], Told] = field(default_factory=dict)
    abandons: list[Abandon] = field(default_factory=list)
    left: int = 0
    timer: int | None = None

    def begin(self, reader: RemoteReader, questions: Sequence[Question], wait_ms: int) -> None:
        self.left = len(questions)
        for one in questions:
            end_offset = one.log.local_log_start_offset
            self.answers[one.topic, one.partition] = Told(end_offset, ErrorCode.request_timed_out)
            told = partial(self._told, (one.topic, one.partition), end_offset)
            self.abandons.append(reader.first_of_time(one.log, one.partition, one.timestamp_ms, told))
        self.timer = self.broker.outside.set_timer(self.broker.now.mono_us + wait_ms * 1000, self._time_is_over)
        self.call.on_closed(self._end)

    def _told(self, where: tuple[str, int], end_offset: int, found: FoundOffset | Error | None) -> None:
        self.answers[where] = Told(end_offset, found)
        self.left -= 1
        if self.left == 0 and self.timer is not None:
            self.broker.outside.cancel_timer(self.timer)
            self._over()

    def _time_is_over(self) -> None:
        for abandon in self.abandons:
            abandon()
        self._over()

    def _over(self) -> None:
        self.timer = None
        self.call.contain(lambda: self.done(self.answers))

    def _end(self) -> None:
        """The connection closed."""
        if self.timer is not None:
            self.broker.outside.cancel_timer(self.timer)
            self.timer = None
            for abandon in self.abandons:
                abandon()
