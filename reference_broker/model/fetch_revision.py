"""What differs between the revisions of incremental fetch sessions, in one small object each (KIP-227)."""

from typing import Protocol

from reference_broker.wire.fetch import PartitionData


class Told(Protocol):
    """What a fetcher was last told of a partition."""

    @property
    def sent_high_watermark(self) -> int: ...

    @property
    def sent_log_start_offset(self) -> int: ...


class Revision(Protocol):
    def reports(self, cached: Told, data: PartitionData) -> bool:
        """Whether ``data``, what there is to say now, belongs into an incremental answer."""
        ...

    def keeps_mark(self, sent: PartitionData) -> bool:
        """Whether a partition stays marked although ``sent`` was just sent."""
        ...


class FinalRevision:
    """As accepted and shipped: the answer holds news, and an error or divergence for as long as it lasts."""

    __slots__ = ()

    def reports(self, cached: Told, data: PartitionData) -> bool:
        return (
            bool(data.records)
            or data.high_watermark != cached.sent_high_watermark
            or data.log_start_offset != cached.sent_log_start_offset
            or self.keeps_mark(data)
            or data.preferred_read_replica != -1
        )

    def keeps_mark(self, sent: PartitionData) -> bool:
        return sent.error_code != 0 or sent.diverging_epoch is not None


FINAL = FinalRevision()
