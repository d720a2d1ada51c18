"""Fetch without sessions: how long a fetch waits, and how much it returns."""

import time
from collections.abc import Mapping

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.data import (
    FETCH,
    PLENTY,
    PRODUCE,
    batch,
    fetch,
    fetch_one,
    headers,
    produce,
    rows,
    send_fetch,
    values,
    wanted,
    write,
)
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import PartitionData





def _took_s(at: ProbeContext, topic: Topic, *partitions: object, **fields: object) -> float:
    """How long the answer to a fetch takes."""
    began = time.monotonic()
    fetch(at, topic, *partitions, **fields)  # type: ignore[arg-type]
    return time.monotonic() - began


# Waiting


@case("fetch/waiting/until-max-wait", SCHEMA, NEEDS, since="0.8")
def until_max_wait(at: ProbeContext) -> None:
    """Where there is nothing to read, the answer comes when max_wait_ms is over, and is no error."""
    topic = at.topic()
    took_s = _took_s(at, topic, max_wait_ms=WAIT_MS)
    at.expect("max_wait_ms was waited", took_s >= 0.9 * WAIT_MS / 1000, True)
    at.expect("the answer came soon after", took_s < WAIT_MS / 1000 + SOON_S, True)


@case("fetch/waiting/no-wait", SCHEMA, NEEDS, since="0.8")
def no_wait(at: ProbeContext) -> None:
    """With max_wait_ms 0 the answer comes at once."""
    at.expect("at once", _took_s(at, at.topic(), max_wait_ms=0) < SOON_S, True)


@case("fetch/waiting/no-min-bytes", SCHEMA, NEEDS, since="0.8")
def no_min_bytes(at: ProbeContext) -> None:
    """With min_bytes 0 the answer comes at once, even if there is nothing."""
    at.expect("at once", _took_s(at, at.topic(), max_wait_ms=LONG_MS, min_bytes=0) < SOON_S, True)


@case("fetch/waiting/enough", SCHEMA, NEEDS, since="0.8")
def enough(at: ProbeContext) -> None:
    """Where min_bytes are there, the answer comes at once."""
    topic, _ = _log(at)
    at.expect("at once", _took_s(at, topic, max_wait_ms=LONG_MS, min_bytes=1) < SOON_S, True)


@case("fetch/waiting/woken", SCHEMA, NEEDS, since="0.8")
def woken(at: ProbeContext) -> None:
    """A fetch that waits is answered when records arrive."""
    topic = at.topic()
    asked = send_fetch(at, topic, max_wait_ms=LONG_MS)
    began = time.monotonic()
    time.sleep(0.1)
    produce(at, topic, batch(b"wake"), on=at.connect())
    data = single(at.main.receive(asked), "responses", "partitions")
    at.expect("values", values(data), [b"wake"])
    at.expect("before max_wait_ms", time.monotonic() - began < LONG_MS / 1000 - 1, True)


@case("fetch/waiting/too-few", SCHEMA, NEEDS, since="0.8")
def too_few(at: ProbeContext) -> None:
    """With fewer bytes than min_bytes the broker waits for max_wait_ms, and then returns what is there."""
    topic, _ = _log(at)
    began = time.monotonic()
    data = fetch_one(at, topic, max_wait_ms=WAIT_MS, min_bytes=PLENTY)
    took_s = time.monotonic() - began
    at.expect("max_wait_ms was waited", took_s >= 0.9 * WAIT_MS / 1000, True)
    at.expect("number of batches", len(headers(data)), 3)


@case("fetch/waiting/adds-up", SCHEMA, NEEDS, since="0.8")
def adds_up(at: ProbeContext) -> None:
    """min_bytes counts the bytes of all partitions together."""
    topic, data = _log(at, 1, partitions=2)
    both = (wanted(0), wanted(1))
    took_s = _took_s(at, topic, *both, max_wait_ms=LONG_MS, min_bytes=len(data) + 1)
    at.expect("at once", took_s < SOON_S, True)


@case("fetch/waiting/error", SCHEMA, NEEDS, since="0.8")
def error_ends_wait(at: ProbeContext) -> None:
    """An offset that is out of range is answered at once, whatever the other partitions wait for."""
    topic = at.topic(2)
    took_s = _took_s(at, topic, wanted(0), wanted(1, offset=7), max_wait_ms=LONG_MS)
    at.expect("at once", took_s < SOON_S, True)


@case("fetch/waiting/unknown-partition", SCHEMA, NEEDS, since="0.8", level=SHOULD)
def unknown_ends_wait(at: ProbeContext) -> None:
    """A partition that does not exist is answered at once, too, since the client needs new metadata."""
    topic = at.topic()
    took_s = _took_s(at, topic, wanted(0), wanted(9), max_wait_ms=LONG_MS // 5)
    at.expect("at once", took_s < LONG_MS / 5 / 1000, True)


# Limits


@case("fetch/limits/first-batch", KIP_74, NEEDS, since="0.10.1")
def first_batch(at: ProbeContext) -> None:
    """The first batch is returned whole, even if it is larger than the limit of its partition."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(max_bytes=1))
    at.expect("base offsets of the batches", [each.base_offset for each in headers(data)], [0])


@case("fetch/limits/first-batch-of-answer", KIP_74, NEEDS, since="0.10.1")
def first_batch_of_answer(at: ProbeContext) -> None:
    """The same holds for the limit of the whole answer."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, max_bytes=1)
    at.expect("base offsets of the batches", [each.base_offset for each in headers(data)], [0])


@case("fetch/limits/one-partition-beyond", KIP_74, NEEDS, since="0.10.1")
def one_partition_beyond(at: ProbeContext) -> None:
    """Only the first partition with records may exceed the limit of the answer. The others return none."""
    topic, _ = _log(at, partitions=2)
    told = rows(fetch(at, topic, wanted(0), wanted(1), max_bytes=1))
    at.expect("batches of the first partition", len(headers(told[0])), 1)
    at.expect("batches of the second partition", _batches(told, 1), 0)


@case("fetch/limits/all-told", "KIP-227; Apache Kafka's FetchSessionHandler", NEEDS, since="1.1", level=SHOULD)
def all_told(at: ProbeContext) -> None:
    """A full fetch tells of each partition, also where the limit left no room for records. Apache Kafka's consumer
    throws away an answer that does not."""
    topic, _ = _log(at, partitions=2)
    told = rows(fetch(at, topic, wanted(0), wanted(1), max_bytes=1))
    at.expect("partitions in the answer", sorted(told), [0, 1])


@case("fetch/limits/partition", SCHEMA, NEEDS, since="0.8")
def of_partition(at: ProbeContext) -> None:
    """A partition returns as many batches as fit its limit, and no more bytes than that."""
    topic, data = _log(at, 4)
    told = fetch_one(at, topic, wanted(max_bytes=2 * len(data)))
    at.expect("base offsets of the batches", [each.base_offset for each in headers(told)], [0, 2])
    at.expect("bytes within the limit", len(told.records or b"") <= 2 * len(data), True)


@case("fetch/limits/answer", KIP_74, NEEDS, since="0.10.1")
def of_answer(at: ProbeContext) -> None:
    """The limit of the answer holds for all partitions together."""
    topic, data = _log(at, partitions=3)
    told = rows(fetch(at, topic, *(wanted(each) for each in range(3)), max_bytes=4 * len(data)))
    total = sum(len(each.records or b"") for each in told.values())
    at.expect("batches of all partitions", sum(len(headers(each)) for each in told.values()), 4)
    at.expect("bytes within the limit", total <= 4 * len(data), True)


@case("fetch/limits/order", KIP_74, NEEDS, since="0.10.1")
def order_of_request(at: ProbeContext) -> None:
    """The limit is spent in the order of the request, so that a client can let no partition starve."""
    topic, data = _log(at, partitions=3)
    told = rows(fetch(at, topic, wanted(2), wanted(0), wanted(1), max_bytes=3 * len(data)))
    at.expect("batches of partitions 0, 1, 2", [_batches(told, each) for each in range(3)], [0, 0, 3])


def _batches(told: Mapping[int, PartitionData], partition: int) -> int:
    """The number of batches of a partition, which an answer without them may leave out."""
    return len(headers(told[partition])) if partition in told else 0


@case("fetch/limits/partition-zero", KIP_74, NEEDS, since="0.10.1", level=SHOULD)
def zero_of_partition(at: ProbeContext) -> None:
    """A limit of 0 for the only partition returns its first batch all the same."""
    topic, _ = _log(at)
    at.expect("number of batches", len(headers(fetch_one(at, topic, wanted(max_bytes=0)))), 1)


@case("fetch/limits/whole-batches", SCHEMA, NEEDS, since="0.8", level=SHOULD)
def whole_batches(at: ProbeContext) -> None:
    """Where the limit falls inside a batch, the answer ends before that batch, so that no bytes are sent in vain."""
    topic, data = _log(at)
    told = fetch_one(at, topic, wanted(max_bytes=len(data) + len(data) // 2))
    at.expect("bytes are those of one batch", len(told.records or b"") == len(data), True)
