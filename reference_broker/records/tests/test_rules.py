"""Checks of a client's batches by their headers."""

from dataclasses import replace

import pytest

from reference_broker.records.batch import BatchHeader, InvalidRecords, read_header
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.records.validation import MIN_RECORD_BYTES, Rules, check_client_batch, check_records
from reference_broker.wire.errors import Error, ErrorCode

NOW_MS = 1_700_000_000_000
RULES = Rules(
    max_message_bytes=1000, before_max_ms=2**63 - 1, after_max_ms=3_600_000, create_time=True, keys_needed=False
)
GOOD = read_header(build([Record(timestamp_ms=NOW_MS, value=b"v")] * 3))
IDEMPOTENT = read_header(
    build([Record(timestamp_ms=NOW_MS, value=b"v")] * 3, producer_id=4, producer_epoch=0, base_sequence=0)
)


def refusal(header: BatchHeader, rules: Rules = RULES) -> Error:
    with pytest.raises(InvalidRecords) as refused:
        check_client_batch(header, rules, NOW_MS)
    return refused.value.error


@pytest.mark.clause("LogValidatorTest.testRecordBatchWithCountOverrides")
def test_good_batches_pass() -> None:
    for header in (GOOD, IDEMPOTENT, IDEMPOTENT._replace(attributes=0x10), GOOD._replace(max_timestamp_ms=-1)):
        check_client_batch(header, RULES, NOW_MS)


def test_size_limit_counts_the_whole_batch() -> None:
    check_client_batch(GOOD, replace(RULES, max_message_bytes=GOOD.size_bytes), NOW_MS)
    assert refusal(GOOD, replace(RULES, max_message_bytes=GOOD.size_bytes - 1)) == ErrorCode.message_too_large


def test_base_offset_is_not_the_clients_to_choose() -> None:
    for offset in (1, -1, 2**62):
        assert refusal(GOOD._replace(base_offset=offset)) == ErrorCode.invalid_record
    tight = replace(RULES, max_message_bytes=1)
    assert refusal(GOOD._replace(base_offset=1), tight) == ErrorCode.invalid_record, "it is looked at before the size"


@pytest.mark.clause(
    "LogValidatorTest.testBatchWithoutRecordsNotAllowed",
    "LogValidatorTest.testInconsistentCountAndOffset",
)
@pytest.mark.parametrize(
    "change",
    [
        {"record_count": 0, "last_offset_delta": -1},
        {"record_count": 2},
        {"record_count": -1},
        {"last_offset_delta": 3},
        {"record_count": 1000, "last_offset_delta": 999},
        {"attributes": 0x20},
        {"attributes": 0x40},
        {"attributes": -1},
        {"attributes": 0x10},
        {"producer_id": 3},
    ],
)
def test_invalid_record_shape_returns_invalid_record(change: dict[str, int]) -> None:
    assert refusal(GOOD._replace(**change)) == ErrorCode.invalid_record


@pytest.mark.clause("LogValidatorTest.checkInvalidSequence")
@pytest.mark.parametrize("change", [{"producer_epoch": -1}, {"base_sequence": -1}, {"base_sequence": -2}])
def test_producer_id_needs_epoch_and_sequence(change: dict[str, int]) -> None:
    assert refusal(IDEMPOTENT._replace(**change)) == ErrorCode.invalid_record


@pytest.mark.parametrize(
    "left_there",
    [
        {"base_sequence": 0},
        {"producer_epoch": 0, "base_sequence": 0},
        {"producer_epoch": 3, "base_sequence": 7},
        {"producer_epoch": -2, "base_sequence": -2},
        {"producer_id": -2},
    ],
)
def test_without_a_producer_id_epoch_and_sequence_mean_nothing(left_there: dict[str, int]) -> None:
    check_client_batch(GOOD._replace(**left_there), RULES, NOW_MS)


@pytest.mark.parametrize("attributes", [0x80, 0x100, 0x1000, -0x8000])
def test_unknown_attributes_are_kept(attributes: int) -> None:
    check_client_batch(GOOD._replace(attributes=attributes), RULES, NOW_MS)


def test_unknown_codec() -> None:
    assert refusal(GOOD._replace(attributes=5)) == ErrorCode.unsupported_compression_type


def test_append_time_is_not_the_clients_to_set() -> None:
    assert refusal(GOOD._replace(attributes=0x08)) == ErrorCode.invalid_timestamp


@pytest.mark.clause(
    "LogValidatorTest.testInvalidCreateTimeNonCompressedV2",
    "LogValidatorTest.testInvalidCreateTimeCompressedV2",
    "LogValidatorTest.testRecordWithPastTimestampIsRejected",
    "LogValidatorTest.testRecordWithFutureTimestampIsRejected",
)
@pytest.mark.parametrize("codec", list(Compression))
def test_timestamps_too_far_from_the_clock(codec: Compression) -> None:
    good = GOOD._replace(attributes=int(codec))
    edge = good._replace(max_timestamp_ms=NOW_MS + 3_600_000)
    check_client_batch(edge, RULES, NOW_MS)
    assert refusal(edge._replace(max_timestamp_ms=NOW_MS + 3_600_001)) == ErrorCode.invalid_timestamp
    assert refusal(good._replace(base_timestamp_ms=NOW_MS + 3_600_001)) == ErrorCode.invalid_timestamp
    day = replace(RULES, before_max_ms=86_400_000)
    old = good._replace(base_timestamp_ms=NOW_MS - 86_400_000)
    check_client_batch(old, day, NOW_MS)
    assert refusal(old._replace(base_timestamp_ms=NOW_MS - 86_400_001), day) == ErrorCode.invalid_timestamp
    assert refusal(good._replace(max_timestamp_ms=-2)) == ErrorCode.invalid_timestamp
    check_client_batch(old._replace(base_timestamp_ms=0), replace(day, create_time=False), NOW_MS)


def look_into(batch: bytes, rules: Rules = RULES) -> None:
    for _ in check_records(memoryview(batch), rules, NOW_MS):
        pass


def refused_records(batch: bytes, rules: Rules = RULES) -> tuple[Error, list[int]]:
    with pytest.raises(InvalidRecords) as refused:
        look_into(batch, rules)
    return refused.value.error, [index for index, _ in refused.value.record_errors]


@pytest.mark.clause(
    "LogValidatorTest.checkNoKeyCompactedTopic",
    "LogValidatorTest.testInvalidRecordExceptionHasBatchIndex",
    "UnifiedLogTest.testCompactedTopicConstraints",
)
@pytest.mark.parametrize("codec", list(Compression))
def test_compacted_topics_name_each_record_without_a_key(codec: Compression) -> None:
    keyed, bare = Record(key=b"k", value=b"v"), Record(value=b"v")
    look_into(build([keyed, keyed], compression=codec))
    assert refused_records(build([bare, keyed, bare], compression=codec)) == (ErrorCode.invalid_record, [0, 2])


def test_compacted_topics_look_at_the_time_of_each_record() -> None:
    records = [Record(key=b"k", timestamp_ms=NOW_MS + at * 3_600_000) for at in (0, 1, 2)]
    look_into(build(records[:2]))
    assert refused_records(build(records)) == (ErrorCode.invalid_timestamp, [2])
    look_into(build(records), replace(RULES, create_time=False))


@pytest.mark.clause("LogValidatorTest.testBatchWithInvalidRecordsAndInvalidTimestamp")
def test_wrong_time_is_reported_before_a_missing_key_and_all_wrong_records_are_named() -> None:
    late = Record(key=b"k", timestamp_ms=NOW_MS + 3_600_001)
    bare = Record(value=b"v", timestamp_ms=NOW_MS)
    assert refused_records(build([bare, late, bare])) == (ErrorCode.invalid_timestamp, [0, 1, 2])


def test_batch_of_very_many_wrong_records_names_the_first_thousand() -> None:
    error, named = refused_records(build([Record(value=b"v")] * 3000))
    assert (error, named) == (ErrorCode.invalid_record, list(range(1000)))


@pytest.mark.parametrize("codec", [each for each in Compression if each])
def test_compressed_batch_may_not_claim_more_records_than_its_bytes_can_hold(codec: Compression) -> None:
    """Nothing packs tighter than the same byte again and again, and its claim passes."""
    plain_bytes = 4 * 2**20
    packed = build([Record(value=bytes(plain_bytes))], compression=codec)
    held = plain_bytes // MIN_RECORD_BYTES
    header = read_header(packed)._replace(record_count=held, last_offset_delta=held - 1)
    check_client_batch(header, replace(RULES, max_message_bytes=2**30, create_time=False), NOW_MS)
    small = GOOD._replace(attributes=int(codec), record_count=2**31 - 1, last_offset_delta=2**31 - 2)
    assert refusal(small) == ErrorCode.invalid_record
