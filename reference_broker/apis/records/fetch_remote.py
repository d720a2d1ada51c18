"""What one fetch reads from the remote tier: records before the place where a log's local ones begin (KIP-405).

A fetch that meets such an offset waits for the tier, up to ``remote.fetch.max.wait.ms``, whatever else it could answer
(Kafka's DelayedRemoteFetch). Each of its partitions is read. What the tier says is kept until the answer, which may
take it or not. What has not come by then is asked for again by the next fetch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.apis.records.fetch_reading import Look, failed
from reference_broker.log.partition_log import PartitionLog
from reference_broker.remote_log.reading.reader import Abandon, RemoteReader
from reference_broker.remote_log.reading.remote_records import RemoteRecords
from reference_broker.sessions.cached_partition import CachedPartition
from reference_broker.wire.errors import Error


@dataclass(slots=True, eq=False)
class _Part:
    """The reading of one partition from one offset. ``found`` is None until it is over."""

    log: PartitionLog
    offset: int
    abandon: Abandon
    found: RemoteRecords | Error | None = None


@dataclass(slots=True, eq=False)
class RemoteReads:
    """``arrived`` is told of each partition of which the tier has said something."""

    reader: RemoteReader
    is_committed: bool
    max_bytes: int
    arrived: Callable[[CachedPartition], None]
    parts: dict[CachedPartition, _Part] = field(default_factory=dict)

    @property
    def is_pending(self) -> bool:
        return any(part.found is None for part in self.parts.values())

    def look(self, cached: CachedPartition, found: Look, log: PartitionLog) -> Look:
        """What a look at a partition found, with what the tier said. Begins to read if the offset is a new one."""
        part = self.parts.get(cached)
        if part is None or part.log is not log or part.offset != cached.fetch_offset:
            self.drop(cached)
            self._begin(cached, log)
            return found
        if part.found is None:
            return found
        if not isinstance(part.found, RemoteRecords):
            return failed(cached.index, part.found)
        available = len(part.found.records)
        return Look(None, found.offsets, available, found.end_offset, available, part.found)

    def _begin(self, cached: CachedPartition, log: PartitionLog) -> None:
        def done(found: RemoteRecords | Error) -> None:
            if self.parts.get(cached) is part:
                part.found = found
                part.abandon = _nothing  # Else the part would hold its reading, which holds the part.
                self.arrived(cached)

        part = self.parts[cached] = _Part(log, cached.fetch_offset, _nothing)
        part.abandon = self.reader.read(
            log,
            cached.index,
            cached.fetch_offset,
            min(max(cached.max_bytes, 1), self.max_bytes),
            done,
            is_committed=self.is_committed,
        )

    def drop(self, cached: CachedPartition) -> None:
        """Nobody waits for this partition any more."""
        part = self.parts.pop(cached, None)
        if part is not None and part.found is None:
            part.abandon()
            part.abandon = _nothing

    def end(self) -> None:
        """Nobody waits any more."""
        for cached in list(self.parts):
            self.drop(cached)


def _nothing() -> None:
    """There is no reading to abandon: it is about to begin, or over."""
