"""What the remote tier tells a replica whose leader has only later records."""

from collections.abc import Callable

from reference_broker.log.partition_log import PartitionLog
from reference_broker.remote_log.reading.auxiliary import Auxiliary
from reference_broker.remote_log.reading.reader import RemoteReader
from reference_broker.replication.follower.offset_lookups import TierState
from reference_broker.wire.errors import Error


class RemoteStarts:
    """Implements ``replication.follower.tier_starts.Tier``."""

    def __init__(self, reader: RemoteReader) -> None:
        self._reader = reader

    def state_before(
        self,
        log: PartitionLog,
        partition: int,
        leader_epoch: int,
        offset: int,
        done: Callable[[TierState | Error], None],
    ) -> None:
        def told(found: Auxiliary | Error) -> None:
            if isinstance(found, Auxiliary):
                done(TierState(found.offset, found.epochs, found.snapshot, found.producers))
            else:
                done(found)

        self._reader.auxiliary(log, partition, leader_epoch, offset, told)
