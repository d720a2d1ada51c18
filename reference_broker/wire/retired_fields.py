"""Bodies with fields that the highest version dropped. Handlers read or fill them in."""

from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.metadata.v13.request import MetadataRequest as MetadataRequest13
from kio.schema.metadata.v13.response import MetadataResponse as MetadataResponse13
from kio.schema.offset_commit.v9.request import OffsetCommitRequest as OffsetCommitRequest9
from kio.static.primitive import i32, i64Timedelta

BROKERS_RETENTION = i64Timedelta.parse(timedelta(milliseconds=-1))
OPERATIONS_NOT_REQUESTED = i32(-(2**31))


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(MetadataRequest13):
    """Version 13, with what versions 8 to 10 want to know of the cluster (KIP-430, until KIP-700)."""

    include_cluster_authorized_operations: bool = field(default=False, metadata={"kafka_type": "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataResponse(MetadataResponse13):
    """Version 13, with what versions 8 to 10 report of the cluster."""

    cluster_authorized_operations: i32 = field(default=OPERATIONS_NOT_REQUESTED, metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest(OffsetCommitRequest9):
    """Version 9, with the time for which versions 2 to 4 keep the offsets. BROKERS_RETENTION leaves that to the
    broker (KIP-211)."""

    retention_time: i64Timedelta = field(default=BROKERS_RETENTION, metadata={"kafka_type": "timedelta_i64"})
