"""The class of an OffsetCommit request that handlers see and clients fill in, in every version but the drafts."""

from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.offset_commit.v9.request import OffsetCommitRequest as OffsetCommitRequest9
from kio.static.primitive import i64Timedelta

BROKERS_RETENTION = i64Timedelta.parse(timedelta(milliseconds=-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(OffsetCommitRequest9):
    """Version 9, with the time for which versions 2 to 4 keep the offsets. BROKERS_RETENTION leaves that to the
    broker (KIP-211)."""

    retention_time: i64Timedelta = field(default=BROKERS_RETENTION, metadata={"kafka_type": "timedelta_i64"})
