"""Topics with a remote tier (KIP-405). The broker needs ``remote.log.storage.system.enable`` (``--config``)."""

from bench.probe.case import ANY, SHOULD, NotAdvertised, Versions, case, since_version
from bench.probe.cases.offsets import (
    BEGAN_MS,
    DELETE,
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    LIST,
    MAX_TIMESTAMP,
    delete_records,
    expect_offset,
    offset_at,
)
from bench.probe.context import ProbeContext, Topic
from bench.probe.data import FETCH, PRODUCE, batch, fetch_one, headers, values, wanted, write
from bench.probe.transactional import until
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

KIP_405, KIP_1005 = "KIP-405", "KIP-1005"
NEEDS: dict[int, Versions] = {
    LIST: since_version(9),
    PRODUCE: since_version(3),
    FETCH: since_version(4),
    ApiKey.CREATE_TOPICS: ANY,
}
SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
FILL = bytes(600_000)
"""Two such batches fill a segment, which is closed before the second one."""
RECORDS = 4
LIMIT_S = 100.0
TIERED_WITHIN_S = 80.0
"""Apache Kafka first looks 30 seconds after its start for what it can delete locally."""


def _tiered(at: ProbeContext) -> Topic:
    """A log of four segments with a record each, at 0, 10, 20 and 30 ms after BEGAN_MS. All but the last are in the
    tier, and nowhere else. Raise NotAdvertised if the broker has no tier, or too slow a one."""
    topic = at.topic(configs=SETTINGS)
    for number in range(RECORDS):
        write(at, topic, batch(b"%d" % number + FILL, timestamp_ms=BEGAN_MS + 10 * number))

    def is_local() -> bool:
        return int(offset_at(at, topic, EARLIEST_LOCAL, seen=False).offset) < RECORDS - 1

    until(at, lambda: not is_local(), TIERED_WITHIN_S, every_s=0.5)
    if is_local():
        raise NotAdvertised("closed segments do not go to a tier, or stay in the local log for too long")
    return topic


@case("tier/offsets/local-start", KIP_405, NEEDS, since="3.6", limit_s=LIMIT_S)
def local_start(at: ProbeContext) -> None:
    """Timestamp -4 gives where the local log starts, and -2 where the log starts, which is in the tier."""
    topic = _tiered(at)
    expect_offset(at, offset_at(at, topic, EARLIEST_LOCAL), RECORDS - 1)
    expect_offset(at, offset_at(at, topic, EARLIEST), 0)
    expect_offset(at, offset_at(at, topic, LATEST), RECORDS)


@case("tier/offsets/latest-tiered", KIP_1005, NEEDS, since="3.9", limit_s=LIMIT_S)
def latest_tiered(at: ProbeContext) -> None:
    """Timestamp -5 gives the last offset in the tier."""
    expect_offset(at, offset_at(at, _tiered(at), LATEST_TIERED), RECORDS - 2)


@case("tier/offsets/by-time", KIP_405, NEEDS, since="3.6", limit_s=LIMIT_S)
def by_time(at: ProbeContext) -> None:
    """A time is found in the tier as in the local log."""
    topic = _tiered(at)
    for late_ms, offset in ((0, 0), (1, 1), (20, 2), (21, 3), (30, 3), (31, -1)):
        expect_offset(at, offset_at(at, topic, BEGAN_MS + late_ms), offset)


@case("tier/offsets/max-timestamp", "Apache Kafka's UnifiedLog", NEEDS, since="3.6", level=SHOULD, limit_s=LIMIT_S)
def max_timestamp(at: ProbeContext) -> None:
    """Timestamp -3 gives the record with the largest timestamp of the local log."""
    expect_offset(at, offset_at(at, _tiered(at), MAX_TIMESTAMP), RECORDS - 1)


@case("tier/fetch/read", KIP_405, NEEDS, since="3.6", limit_s=LIMIT_S)
def read_from_tier(at: ProbeContext) -> None:
    """Consumers read the records of the tier, one after the other, up to the end of the local log."""
    topic, offset, seen = _tiered(at), 0, []
    while offset < RECORDS:
        found = fetch_one(at, topic, wanted(0, offset), max_wait_ms=5_000)
        at.expect_no_error(found)
        at.expect("log start offset", found.log_start_offset, 0)
        batches = headers(found)
        at.expect_that("batches from here on", len(batches), bool(batches), "at least one")
        seen += [value[:1] for value in values(found) if value]
        offset = batches[-1].base_offset + batches[-1].last_offset_delta + 1
    at.expect("records", seen, [b"%d" % number for number in range(RECORDS)])


@case("tier/delete/to-offset", "KIP-405, KIP-107", {**NEEDS, DELETE: ANY}, since="3.6", limit_s=LIMIT_S)
def deleted(at: ProbeContext) -> None:
    """DeleteRecords deletes what is in the tier, too: readers find nothing below the new start."""
    topic = _tiered(at)
    result = delete_records(at, topic, 2)
    at.expect_no_error(result)
    at.expect("low watermark", result.low_watermark, 2)
    expect_offset(at, offset_at(at, topic, EARLIEST), 2)
    expect_offset(at, offset_at(at, topic, BEGAN_MS), 2)
    found = fetch_one(at, topic, wanted(0, 1))
    at.expect("error code of a fetch below the start", found.error_code, ErrorCode.offset_out_of_range)
