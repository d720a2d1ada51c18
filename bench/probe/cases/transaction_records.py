"""Records in transactions: Produce, and what Fetch and ListOffsets show to readers of each isolation level."""

from bench.probe.case import SHOULD, NotAdvertised, Versions, case
from bench.probe.context import ProbeContext, Topic
from bench.probe.data import PLENTY, PRODUCE, batch, headers, now_ms, records, send_fetch, values, wanted, write
from bench.probe.transactional import (
    COMMITTED,
    FENCED,
    NEEDS,
    NEEDS_2,
    UNCOMMITTED,
    Transactional,
    latest,
    needs_version_2,
    read,
    until,
)
from reference_broker.records.record import Record, build
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse

KIP_98, KIP_890 = "KIP-98", "KIP-890"
CONTROL, TRANSACTIONAL = 0x20, 0x10
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"
"""The keys of markers: version 0 and the type (KIP-98)."""
VERIFIED: dict[int, Versions] = {**NEEDS, PRODUCE: (11, 11)}
WAIT_MS = 8_000
SOON_S = 5.0
MEBIBYTE = 1 << 20
"""No segment of Apache Kafka can be smaller."""
COMPACTED_S = 60.0
"""Apache Kafka's cleaner looks for work every 15 seconds."""


def _open(at: ProbeContext, *written: bytes) -> tuple[Topic, Transactional]:
    """A topic with an open transaction of these records."""
    topic, producer = at.topic(), Transactional(at).take()
    producer.begins(topic, *written)
    return topic, producer


# Produce


@case("transactions/produce/several-partitions", KIP_98, NEEDS, since="0.11")
def several_partitions(at: ProbeContext) -> None:
    """A transaction commits what it wrote to several partitions."""
    one, two, producer = at.topic(), at.topic(), Transactional(at).take()
    producer.begins(one, b"a", b"b")
    producer.begins(two, b"c")
    producer.commits(one, two)
    at.expect("first topic", values(read(at, one, COMMITTED))[:2], [b"a", b"b"])
    at.expect("second topic", values(read(at, two, COMMITTED))[:1], [b"c"])


@case("transactions/produce/not-added", KIP_890, {**NEEDS, PRODUCE: (3, 10)}, since="3.6", alone=True)
def not_added(at: ProbeContext) -> None:
    """A batch for a partition that the transaction does not have is refused with INVALID_TXN_STATE, and not written."""
    topic, producer = at.topic(), Transactional(at).take()
    at.expect_error(producer.send(topic, b"a"), ErrorCode.invalid_txn_state)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 0)


@case("transactions/produce/not-added-abortable", KIP_890, VERIFIED, since="3.8", alone=True)
def not_added_abortable(at: ProbeContext) -> None:
    """Producers of version 11 get TRANSACTION_ABORTABLE instead."""
    topic, producer = at.topic(), Transactional(at).take()
    at.expect_error(producer.send(topic, b"a"), ErrorCode.transaction_abortable)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 0)


@case("transactions/produce/added-by-itself", KIP_890, NEEDS_2, since="4.0")
def added_by_itself(at: ProbeContext) -> None:
    """From version 12 on, Produce adds the partition to the transaction."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    at.expect_no_error(producer.send(topic, b"a"))
    at.expect("what is committed before", values(read(at, topic, COMMITTED)), [])
    producer.commits(topic)
    at.expect("what is committed", values(read(at, topic, COMMITTED))[:1], [b"a"])


@case("transactions/produce/older-epoch", KIP_890, NEEDS_2, since="4.0")
def older_epoch(at: ProbeContext) -> None:
    """What is written with the epoch of a transaction that has ended is fenced: it cannot land in the next one."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    producer.writes(topic, b"a")
    before = producer.epoch
    producer.commits(topic)
    end, producer.epoch = latest(at, topic, UNCOMMITTED), before
    at.expect("error code", producer.send(topic, b"late").error_code, *FENCED)
    at.expect("nothing is written", latest(at, topic, UNCOMMITTED) - end, 0)


@case("transactions/produce/new-epoch-not-from-0", KIP_890, NEEDS_2, since="4.0")
def new_epoch_not_from_0(at: ProbeContext) -> None:
    """The sequence of each epoch begins at 0: a batch of the next transaction that does not is refused with
    OUT_OF_ORDER_SEQUENCE_NUMBER."""
    needs_version_2(at)
    topic, producer = at.topic(), Transactional(at).take()
    producer.writes(topic, b"a")
    producer.commits(topic)
    result = producer.send(topic, b"b", sequence=1)
    at.expect_error(result, ErrorCode.out_of_order_sequence_number)


@case("transactions/produce/fenced", KIP_98, NEEDS, since="0.11")
def fenced(at: ProbeContext) -> None:
    """A producer whose ID another one took can write nothing more."""
    topic, first = _open(at, b"a")
    first.successor().begins(topic, b"b")
    end = latest(at, topic, UNCOMMITTED)
    at.expect("error code", first.send(topic, b"late").error_code, *FENCED)
    at.expect("nothing is written", latest(at, topic, UNCOMMITTED) - end, 0)


@case("transactions/produce/plain-inside", "Apache Kafka's ProducerAppendInfo", NEEDS, since="0.11", level=SHOULD)
def plain_inside(at: ProbeContext) -> None:
    """In an open transaction, a batch of the same producer that is not transactional is refused with
    INVALID_TXN_STATE."""
    topic, producer = _open(at, b"a")
    result = producer.send(topic, b"plain", transactional=False)
    at.expect_error(result, ErrorCode.invalid_txn_state)


@case("transactions/produce/without-id", "Apache Kafka's KafkaApis", NEEDS, since="0.11", level=SHOULD)
def without_id(at: ProbeContext) -> None:
    """A transactional batch in a request without a transactional ID is refused with
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
    topic, producer = _open(at, b"a")
    result = producer.send(topic, b"b", transactional_id=None)
    at.expect_error(result, ErrorCode.transactional_id_authorization_failed)


@case("transactions/produce/duplicate", KIP_98, NEEDS, since="0.11")
def duplicate(at: ProbeContext) -> None:
    """A batch of a transaction that is sent again is not written again."""
    topic, producer = _open(at, b"a")
    end = latest(at, topic, UNCOMMITTED)
    producer.forget_sequences()
    result = producer.send(topic, b"a")
    at.expect_error(result, ErrorCode.none, ErrorCode.duplicate_sequence_number)
    at.expect("nothing is written", latest(at, topic, UNCOMMITTED) - end, 0)


# Markers


def _marker(at: ProbeContext, topic: Topic, producer: Transactional, key: bytes) -> None:
    found = read(at, topic, UNCOMMITTED)
    at.expect("number of batches", len(headers(found)), 2)
    last = headers(found)[-1]
    at.expect("control and transactional bits", last.attributes & (CONTROL | TRANSACTIONAL), CONTROL | TRANSACTIONAL)
    at.expect("records of the marker", last.record_count, 1)
    at.expect("the marker has the producer's ID", last.producer_id == producer.producer_id, True)
    at.expect("keys of the records", [record.key for record in records(found)], [None, key])


@case("transactions/markers/commit", KIP_98, NEEDS, since="0.11")
def commit_marker(at: ProbeContext) -> None:
    """A commit writes a control batch with one record, which takes an offset."""
    topic, producer = _open(at, b"a")
    producer.commits(topic)
    _marker(at, topic, producer, COMMIT)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 2)


@case("transactions/markers/abort", KIP_98, NEEDS, since="0.11")
def abort_marker(at: ProbeContext) -> None:
    """An abort writes one, too."""
    topic, producer = _open(at, b"a")
    producer.aborts(topic)
    _marker(at, topic, producer, ABORT)
    at.expect("log end", latest(at, topic, UNCOMMITTED), 2)


# Fetch


@case("transactions/fetch/open-hidden", KIP_98, NEEDS, since="0.11")
def open_hidden(at: ProbeContext) -> None:
    """A reader of committed records sees nothing of an open transaction, nor what was written after it began."""
    topic = at.topic()
    write(at, topic, batch(b"before"))
    producer = Transactional(at).take()
    producer.begins(topic, b"open")
    write(at, topic, batch(b"after"))
    found = read(at, topic, COMMITTED)
    at.expect("values", values(found), [b"before"])
    at.expect("last stable offset", found.last_stable_offset, 1)
    at.expect("high watermark", found.high_watermark, 3)


@case("transactions/fetch/open-seen", KIP_98, NEEDS, since="0.11")
def open_seen(at: ProbeContext) -> None:
    """A reader of all records sees those of an open transaction."""
    topic, _ = _open(at, b"a", b"b")
    at.expect("values", values(read(at, topic, UNCOMMITTED)), [b"a", b"b"])


@case("transactions/fetch/committed-seen", KIP_98, NEEDS, since="0.11")
def committed_seen(at: ProbeContext) -> None:
    """After the commit, a reader of committed records sees them, and no transaction is returned as aborted."""
    topic, producer = _open(at, b"a", b"b")
    producer.commits(topic)
    found = read(at, topic, COMMITTED)
    at.expect("values before the marker", values(found)[:2], [b"a", b"b"])
    at.expect("last stable offset", found.last_stable_offset, 3)
    at.expect("aborted transactions", list(found.aborted_transactions or ()), [])


@case("transactions/fetch/aborted-returned", KIP_98, NEEDS, since="0.11")
def aborted_returned(at: ProbeContext) -> None:
    """A reader of committed records gets each aborted transaction, by its producer ID and first offset."""
    topic = at.topic()
    write(at, topic, batch(b"before"))
    producer = Transactional(at).take()
    producer.begins(topic, b"a")
    producer.aborts(topic)
    found = read(at, topic, COMMITTED).aborted_transactions or ()
    at.expect("first offsets of aborted transactions", [transaction.first_offset for transaction in found], [1])
    at.expect(
        "the producer ID is returned",
        [transaction.producer_id for transaction in found] == [producer.producer_id],
        True,
    )


@case("transactions/fetch/aborted-elsewhere", KIP_98, NEEDS, since="0.11")
def aborted_elsewhere(at: ProbeContext) -> None:
    """An aborted transaction that ended before what is fetched is not returned."""
    topic, producer = _open(at, b"a")
    producer.aborts(topic)
    write(at, topic, batch(b"after"))
    found = read(at, topic, COMMITTED, offset=2)
    at.expect("values", values(found), [b"after"])
    at.expect("aborted transactions", list(found.aborted_transactions or ()), [])


@case("transactions/fetch/aborted-omitted", "FetchResponse.json", NEEDS, since="0.11", level=SHOULD)
def aborted_omitted(at: ProbeContext) -> None:
    """A reader of all records gets no aborted transactions."""
    topic, producer = _open(at, b"a")
    producer.aborts(topic)
    found = read(at, topic, UNCOMMITTED)
    at.expect("number of records", len(values(found)), 2)
    at.expect("aborted transactions", found.aborted_transactions, None, [])


@case("transactions/fetch/interleaved", KIP_98, NEEDS, since="0.11")
def interleaved(at: ProbeContext) -> None:
    """The last stable offset is where the earliest open transaction begins, whichever commits before."""
    topic, one, two = at.topic(), Transactional(at).take(), Transactional(at).take()
    one.begins(topic, b"a")
    two.begins(topic, b"b")
    two.ends(commits=True)
    at.expect("last stable offset", read(at, topic, COMMITTED).last_stable_offset, 0)
    one.aborts(topic)
    found = read(at, topic, COMMITTED)
    at.expect("last stable offset afterwards", found.last_stable_offset, 4)
    at.expect("number of aborted transactions", len(found.aborted_transactions or ()), 1)


@case("transactions/fetch/woken-by-commit", KIP_98, NEEDS, since="0.11", level=SHOULD)
def woken_by_commit(at: ProbeContext) -> None:
    """A reader that waits for committed records gets its response when they are committed."""
    topic, producer = _open(at, b"a")
    request = send_fetch(at, topic, wanted(0, 0, PLENTY), isolation_level=COMMITTED, max_wait_ms=WAIT_MS, min_bytes=1)
    producer.writes(topic, b"b", on=at.connect())
    producer.ends(commits=True)
    response = at.main.receive(request, SOON_S)
    assert isinstance(response, FetchResponse)
    found = response.responses[0].partitions[0] if response.responses else None
    at.expect("values", values(found)[:2] if found else [], [b"a", b"b"])


# ListOffsets


@case("transactions/offsets/latest", KIP_98, NEEDS, since="0.11")
def latest_offset(at: ProbeContext) -> None:
    """The latest offset is the last stable one for readers of committed records, and the high watermark for others."""
    topic, producer = _open(at, b"a", b"b")
    at.expect("of all records", latest(at, topic, UNCOMMITTED), 2)
    at.expect("of committed records", latest(at, topic, COMMITTED), 0)
    producer.commits(topic)
    at.expect("of committed records afterwards", latest(at, topic, COMMITTED), 3)


@case("transactions/offsets/by-time", "KIP-98, KAFKA-6361", NEEDS, since="1.1", level=SHOULD)
def by_time(at: ProbeContext) -> None:
    """The time of a record in an open transaction is found by readers of all records only."""
    began_ms = now_ms()
    topic, _ = _open(at, b"a")
    at.expect("of all records", latest(at, topic, UNCOMMITTED, began_ms), 0)
    at.expect("of committed records", latest(at, topic, COMMITTED, began_ms), -1)


# Several segments, and compaction


@case("transactions/fetch/aborted-over-segments", KIP_98, NEEDS, since="0.11")
def aborted_over_segments(at: ProbeContext) -> None:
    """An aborted transaction is returned wherever a reader begins between its first record and its marker, also if they
    are in different segments."""
    topic = at.topic(configs={"segment.bytes": str(MEBIBYTE)})
    long_one, short_one = Transactional(at).take(), Transactional(at).take()
    long_one.begins(topic, b"a")
    for number in range(4):
        write(at, topic, batch(b"%d" % number + bytes(600_000)))
    short_one.begins(topic, b"b")
    short_one.ends(commits=False)
    write(at, topic, batch(bytes(600_000)))
    long_one.aborts(topic)
    expected = {long_one.producer_id: 0, short_one.producer_id: 5}
    for offset, wanted_ones in ((0, [long_one]), (2, [long_one]), (4, [long_one])):
        found = read(at, topic, COMMITTED, offset=offset)
        results = {
            int(transaction.producer_id): int(transaction.first_offset)
            for transaction in found.aborted_transactions or ()
        }
        missing = [one for one in wanted_ones if results.get(one.producer_id) != expected[one.producer_id]]
        at.expect(f"the transaction is returned to a reader from {offset}", not missing, True)
        at.expect("nothing else is returned", results.items() <= expected.items(), True)
    found = read(at, topic, COMMITTED, offset=5)
    results = {
        int(transaction.producer_id): int(transaction.first_offset) for transaction in found.aborted_transactions or ()
    }
    at.expect("both are returned to a reader from 5", results == expected, True)


@case("transactions/compaction/aborted", "KIP-98", NEEDS, since="0.11", limit_s=COMPACTED_S)
def aborted_compacted(at: ProbeContext) -> None:
    """Compaction removes the records of aborted transactions, and no aborted record takes the place of a committed one
    with its key."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1000"}
    topic = at.topic(configs=settings)
    producer = Transactional(at).take()
    write(at, topic, _keyed(b"k", b"old"), _keyed(b"k", b"committed"))
    producer.adds(topic)
    data = _keyed(b"k", b"aborted", producer)
    at.expect("error code of the aborted record", producer.send_batch(topic, data).error_code, ErrorCode.none)
    producer.aborts(topic)
    write(at, topic, _keyed(b"other", b"other"))

    def compacted() -> bool:
        write(at, topic, _keyed(b"filler", b"filler"))
        return b"old" not in values(read(at, topic, UNCOMMITTED))

    until(at, compacted, COMPACTED_S, every_s=1.0)
    found = read(at, topic, UNCOMMITTED)
    if b"old" in values(found):
        raise NotAdvertised("the log was not compacted in time")
    kept = [record.value for record in records(found) if record.key == b"k"]
    at.expect("what is left under the key", kept, [b"committed"])
    at.expect("last stable offset", latest(at, topic, COMMITTED) == latest(at, topic, UNCOMMITTED), True)


def _keyed(key: bytes, value: bytes, producer: Transactional | None = None) -> bytes:
    """A batch of one record, which is in the producer's transaction."""
    record = Record(timestamp_ms=now_ms(), key=key, value=value)
    if producer is None:
        return build([record])
    return build(
        [record],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        is_transactional=True,
    )
