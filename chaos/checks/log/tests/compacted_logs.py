"""Logs of a compacted partition, for the tests of checks."""

from dataclasses import dataclass, field

from chaos.checks.replication.tests.replicated import Log
from reference_broker.log.config import LogConfig
from reference_broker.records.record import Record, build

COMPACTED = LogConfig(cleanup_policy="compact", delete_retention_ms=1000)


def keyed(offset: int, key: bytes, value: bytes | None = b"v") -> bytes:
    made = bytes(build([Record(timestamp_ms=0, key=key, value=value)], leader_epoch=0))
    return offset.to_bytes(8, "big") + made[8:]


@dataclass
class CompactedLog(Log):
    """Cleaned where ``gone`` says so. Its last record is in the active segment."""

    config: LogConfig = COMPACTED
    gone: dict[int, None] = field(default_factory=dict)

    def read(self, offset: int, max_bytes: int, end: int) -> bytes:  # noqa: ARG002
        return b"".join(self.held[each] for each in range(offset, end) if each not in self.gone)

    def clean(self, *gone: int) -> None:
        self.gone.update(dict.fromkeys(gone))
        self.cleaned_offset = self.bases[-1]
