"""Validation of a client's batches (Kafka's LogValidator): also their recompression, before a leader appends them.

All rules but one read batch headers only. The exception is ``check_records``: each record of a compacted topic must
have a key, so its batches are decoded. ``repacked`` compresses a batch with another codec, for topics whose
``compression.type`` is not ``producer``.
"""

from dataclasses import dataclass

from reference_broker.ports.slicing import VALIDATED_RECORDS_PER_SLICE, Sliced
from reference_broker.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    InvalidRecords,
    read_header,
    sealed,
)
from reference_broker.records.compression import MAX_EXPANSION, Compression, compressed_pieces
from reference_broker.records.record import MAX_PLAIN_BYTES, MAX_RECORDS, decoded, plain_records
from reference_broker.wire.errors import ErrorCode

LAST_CODEC = int(max(Compression))
MIN_RECORD_BYTES = 7
"""The size of the smallest record. Its seven fields take one byte each: length, attributes, two deltas, key length,
value length, header count."""

MAX_RECORD_ERRORS = 1000
"""Maximal number of invalid records of a batch that a response names."""


@dataclass(slots=True, frozen=True)
class Rules:
    """The settings of a topic that the rules depend on."""

    max_message_bytes: int
    before_max_ms: int
    """Limit of the distance of a CreateTime timestamp behind the clock."""
    after_max_ms: int
    """Limit of its distance ahead of the clock."""
    create_time: bool
    """False for LogAppendTime."""
    keys_needed: bool
    """True for a compacted topic."""
    codec: Compression | None = None
    """The codec of the topic, or None if batches stay as the producer compressed them."""
    level: int | None = None
    """The codec's level, by Kafka's numbers. None is the default of the codec."""


def check_client_batch(header: BatchHeader, rules: Rules, now_ms: int) -> None:
    """Judge a client's batch by its header. Raise InvalidRecords with Kafka's error code.

    The leader gives the offsets, so a client's batch begins at 0 (Kafka's UnifiedLog, for magic 2 and above).
    Timestamps are checked by the header's first and largest one (Kafka checks each record).
    """
    if header.base_offset:
        raise InvalidRecords(
            ErrorCode.invalid_record, f"the base offset of a client's batch must be 0, but it is {header.base_offset}"
        )
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
    if count * MIN_RECORD_BYTES > (size - HEADER_BYTES) * MAX_EXPANSION[codec]:
        raise InvalidRecords(ErrorCode.invalid_record, f"{count} records do not fit {size - HEADER_BYTES} bytes")


def _check_producer(header: BatchHeader) -> None:
    """Judge epoch and sequence only beside a producer ID, as Kafka's LogValidator does.

    Clients that are not idempotent leave anything there: sarama and aiokafka send epoch -1 and sequence 0, KafkaJS
    sends both as 0.
    """
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecords(
                ErrorCode.invalid_record,
                f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence "
                f"{header.base_sequence}, of which none may be negative",
            )
    elif header.is_transactional:
        raise InvalidRecords(ErrorCode.invalid_record, "a transactional batch has no producer ID")


def _check_timestamps(header: BatchHeader, rules: Rules, now_ms: int) -> None:
    latest, first = header.max_timestamp_ms, header.base_timestamp_ms
    if latest < NO_TIMESTAMP or first < NO_TIMESTAMP:
        raise InvalidRecords(ErrorCode.invalid_timestamp, f"one of the timestamps {first} and {latest} is below -1")
    ahead_ms = max(latest, first) - now_ms
    if ahead_ms > rules.after_max_ms:
        raise InvalidRecords(
            ErrorCode.invalid_timestamp,
            f"timestamp {now_ms + ahead_ms} is {ahead_ms} ms ahead, but {rules.after_max_ms} are allowed",
        )
    if first != NO_TIMESTAMP and now_ms - first > rules.before_max_ms:
        raise InvalidRecords(
            ErrorCode.invalid_timestamp,
            f"timestamp {first} is {now_ms - first} ms old, but {rules.before_max_ms} are allowed",
        )


def check_records(batch: memoryview, rules: Rules, now_ms: int) -> Sliced[None]:
    """Look into a batch for a compacted topic. Raise InvalidRecords.

    MESSAGE_TOO_LARGE means that it has too many records or bytes to be decoded, then and by the cleaner.
    INVALID_RECORD and INVALID_TIMESTAMP name the first records that have no key, that are not at the next offset of the
    batch (which record is newest would not be known), or whose time is not allowed.
    """
    header = read_header(batch)
    plain = yield from plain_records(header, batch)
    if plain is None:
        raise InvalidRecords(
            ErrorCode.message_too_large,
            f"a batch for a compacted topic may hold {MAX_RECORDS} records and {MAX_PLAIN_BYTES} bytes, uncompressed",
        )
    error: ErrorCode | None = None
    wrong: list[tuple[int, str]] = []
    for index, record in enumerate(decoded(plain, header)):
        if index % VALIDATED_RECORDS_PER_SLICE == VALIDATED_RECORDS_PER_SLICE - 1:
            yield
        if record.key is None:
            problem = "a compacted topic needs keys"
        elif record.offset != header.base_offset + index:
            problem = "it is not at the batch's next offset"
        elif rules.create_time and not _is_timely(record.timestamp_ms, rules, now_ms):
            problem, error = f"timestamp {record.timestamp_ms} is not allowed", ErrorCode.invalid_timestamp
        else:
            continue
        if len(wrong) < MAX_RECORD_ERRORS:
            wrong.append((index, problem))
    if wrong:
        raise InvalidRecords(
            error or ErrorCode.invalid_record, "records have no key, a wrong offset or a wrong time", tuple(wrong)
        )


def _is_timely(timestamp_ms: int, rules: Rules, now_ms: int) -> bool:
    return timestamp_ms == NO_TIMESTAMP or -rules.after_max_ms <= now_ms - timestamp_ms <= rules.before_max_ms


CODECS = {"uncompressed": Compression.NONE, **{codec.name.lower(): codec for codec in Compression if codec}}
"""The codecs by their names in ``compression.type``. ``producer`` is none of them."""


def repacked(header: BatchHeader, batch: memoryview, codec: Compression, level: int | None = None) -> Sliced[bytes]:
    """Return the batch with the same records and another codec of this level. The records are not decoded.

    Raise InvalidRecords: MESSAGE_TOO_LARGE for too many records or plain bytes, CORRUPT_MESSAGE for bytes that the
    batch's own codec cannot read.
    """
    plain = yield from plain_records(header, batch)
    if plain is None:
        raise InvalidRecords(
            ErrorCode.message_too_large,
            f"a batch that is recompressed may have {MAX_RECORDS} records and {MAX_PLAIN_BYTES} bytes, uncompressed",
        )
    pieces: list[bytes] = []
    for piece in compressed_pieces(codec, plain, level):
        if pieces:
            yield
        pieces.append(piece)
    body = b"".join(pieces)
    return sealed(header._replace(attributes=(header.attributes & ~COMPRESSION_MASK) | codec), body)
