"""What a log holds of each key, read from its bytes."""

from chaos.checks.batches import read_batches
from chaos.checks.records import records_in
from reference_broker.log.log_view import LogView


def left_of_keys(log: LogView, end_offset: int) -> dict[bytes | None, int]:
    """Returns the newest offset below ``end_offset`` at which the log has each key. Tombstones count."""
    return {
        record.key: record.offset
        for batch, data in read_batches(log, log.log_start_offset, end_offset)
        if not batch.control
        for record in records_in(data)
    }
