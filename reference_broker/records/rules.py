"""The rules that a leader checks before it appends a client's batches. All but one look at batch headers only. The
exception is ``check_keys``: each record of a compacted topic must have a key, so its batches are decoded."""

from collections.abc import Sequence
from dataclasses import dataclass

from reference_broker.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    KNOWN_ATTRIBUTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    InvalidRecords,
    read_header,
)
from reference_broker.records.compression import Compression
from reference_broker.records.reader import read_records
from reference_broker.wire.errors import ErrorCode

LAST_CODEC = int(max(Compression))
MIN_RECORD_BYTES = 7
"""The size of the smallest record. Its seven fields take one byte each: length, attributes, two deltas, key length,
value length, header count."""


@dataclass(slots=True, frozen=True)
class Rules:
    """The settings of a topic that the rules depend on.

    ``create_time`` is False for LogAppendTime. A CreateTime timestamp may lie ``before_max_ms`` behind the clock and
    ``after_max_ms`` ahead of it. ``keys_needed`` is True for a compacted topic.
    """

    max_message_bytes: int
    before_max_ms: int
    after_max_ms: int
    create_time: bool
    keys_needed: bool


def check_client_batch(header: BatchHeader, rules: Rules, now_ms: int) -> None:
    """Judges a client's batch by its header. Raises InvalidRecords with Kafka's error code.

    Timestamps are judged by the header's first and largest one (Kafka looks at each record).
    """
    size = header.batch_length + LENGTH_OVERHEAD_BYTES
    if size > rules.max_message_bytes:
        raise InvalidRecords(
            ErrorCode.message_too_large, f"the batch has {size} bytes, but {rules.max_message_bytes} are allowed"
        )
    _check_shape(header, size)
    _check_producer(header)
    if rules.create_time:
        _check_timestamps(header, rules, now_ms)


def _check_shape(header: BatchHeader, size: int) -> None:
    attributes, count = header.attributes, header.record_count
    if attributes & ~KNOWN_ATTRIBUTES:
        raise InvalidRecords(ErrorCode.invalid_record, f"batch attributes {attributes:#06x} have unknown bits")
    if attributes & (CONTROL | DELETE_HORIZON):
        raise InvalidRecords(ErrorCode.invalid_record, "clients may not send control batches or delete horizons")
    if attributes & LOG_APPEND_TIME:
        raise InvalidRecords(ErrorCode.invalid_timestamp, "clients may not set append times")
    codec = attributes & COMPRESSION_MASK
    if codec > LAST_CODEC:
        raise InvalidRecords(ErrorCode.unsupported_compression_type, f"compression codec {codec} does not exist")
    if count < 1 or count != header.last_offset_delta + 1:
        raise InvalidRecords(
            ErrorCode.invalid_record, f"a batch of {count} records has the last offset delta {header.last_offset_delta}"
        )
    if codec == 0 and count * MIN_RECORD_BYTES > size - HEADER_BYTES:
        raise InvalidRecords(ErrorCode.invalid_record, f"{count} records do not fit {size - HEADER_BYTES} bytes")


def _check_producer(header: BatchHeader) -> None:
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecords(
                ErrorCode.invalid_record,
                f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}, of which none may be negative",
            )
    elif header.producer_id != -1 or header.producer_epoch != -1 or header.base_sequence != -1:
        raise InvalidRecords(ErrorCode.invalid_record, "a batch without a producer ID has an epoch or a sequence")
    elif header.is_transactional:
        raise InvalidRecords(ErrorCode.invalid_record, "a transactional batch has no producer ID")


def _check_timestamps(header: BatchHeader, rules: Rules, now_ms: int) -> None:
    latest, first = header.max_timestamp_ms, header.base_timestamp_ms
    if latest < NO_TIMESTAMP or first < NO_TIMESTAMP:
        raise InvalidRecords(ErrorCode.invalid_timestamp, f"one of the timestamps {first} and {latest} is below -1")
    if latest != NO_TIMESTAMP and latest - now_ms > rules.after_max_ms:
        raise InvalidRecords(
            ErrorCode.invalid_timestamp,
            f"timestamp {latest} is {latest - now_ms} ms ahead, but {rules.after_max_ms} are allowed",
        )
    if first != NO_TIMESTAMP and now_ms - first > rules.before_max_ms:
        raise InvalidRecords(
            ErrorCode.invalid_timestamp,
            f"timestamp {first} is {now_ms - first} ms old, but {rules.before_max_ms} are allowed",
        )


def check_keys(batches: Sequence[Buffer]) -> None:
    """Checks batches for a compacted topic. Compaction could not tell which record of a key is newest if a record had
    no key, or an offset that is not the next in its batch. Raises InvalidRecords (INVALID_RECORD) with each such
    record."""
    for batch in batches:
        first_offset = read_header(batch).base_offset
        wrong = tuple(
            (index, "a compacted topic needs keys" if record.key is None else "it is not at the batch's next offset")
            for index, record in enumerate(read_records(batch))
            if record.key is None or record.offset != first_offset + index
        )
        if wrong:
            raise InvalidRecords(
                ErrorCode.invalid_record,
                f"{len(wrong)} records have no key or not the next offset of their batch",
                wrong,
            )
