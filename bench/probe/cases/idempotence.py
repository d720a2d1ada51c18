"""Producers with an ID: sequences, duplicates, epochs."""

import time
from typing import Any

from bench.probe.case import ANY, NotAdvertised, case, since_version
from bench.probe.context import AGAIN_AFTER_S, NOT_SERVED_YET, ProbeContext, Topic, single
from bench.probe.data import FETCH, PRODUCE, batch, log_end, produce, produce_request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.produce import ProducePartitionResponse

INIT = int(ApiKey.INIT_PRODUCER_ID)
NEEDS = {INIT: ANY, PRODUCE: since_version(3), FETCH: since_version(4), ApiKey.CREATE_TOPICS: ANY}
KIP_98 = "KIP-98"
NEW_PRODUCER = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
LAST, LAST_EPOCH = 0x7FFFFFFF, 0x7FFF
EXPIRATION, CHECK_INTERVAL = "producer.id.expiration.ms", "producer.id.expiration.check.interval.ms"
SOON_MS = 2_000
OF_BROKERS = 4
"""The type of a resource whose settings are those of brokers."""
EMPTIED = {**NEEDS, ApiKey.DELETE_RECORDS: ANY}
EXPIRES = {
    **NEEDS,
    ApiKey.DESCRIBE_PRODUCERS: ANY,
    ApiKey.DESCRIBE_CONFIGS: since_version(1),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ANY,
}
WINDOW = 5
OF_KAFKA_4_1 = 13
"""The version of Produce that came with Kafka 4.1. Which release a broker claims to be shows in its versions only."""
STALE = (ErrorCode.out_of_order_sequence_number, ErrorCode.duplicate_sequence_number)


def new_producer(at: ProbeContext) -> int:
    """A new producer ID."""
    result = _initialized(at)
    at.expect("error code of InitProducerId", result.error_code, ErrorCode.none)
    return int(result.producer_id)


def _initialized(at: ProbeContext) -> Any:
    """The response to InitProducerId. Apache Kafka gives out no ID yet in the first moments after its start."""
    while (response := at.call(INIT, NEW_PRODUCER)).error_code in NOT_SERVED_YET and at.left_s() > 1:
        time.sleep(AGAIN_AFTER_S)
    return response


def send(
    at: ProbeContext, topic: Topic, producer: int, sequence: int, count: int = 1, epoch: int = 0, partition: int = 0
) -> ProducePartitionResponse:
    """Write one batch with this sequence."""
    values = [b"%d" % (sequence + number) for number in range(count)]
    data = batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence)
    return produce(at, topic, data, partition)


def expect_taken(at: ProbeContext, response: ProducePartitionResponse, offset: int) -> None:
    at.expect_no_error(response)
    at.expect("base offset", response.base_offset, offset)


def expect_known(at: ProbeContext, response: ProducePartitionResponse, offset: int) -> None:
    """A batch that is sent again is acknowledged with its offset, or it is named a duplicate, which clients take for an
    acknowledgement (KIP-98)."""
    at.expect("error code of a duplicate", response.error_code, ErrorCode.none, ErrorCode.duplicate_sequence_number)
    if response.error_code == ErrorCode.none:
        at.expect("base offset", response.base_offset, offset)


@case("produce/idempotence/new-id", KIP_98, {INIT: ANY}, since="0.11")
def new_id(at: ProbeContext) -> None:
    """InitProducerId without a transactional ID gives a producer ID and epoch 0."""
    result = _initialized(at)
    at.expect_no_error(result)
    at.expect("the ID is 0 or more", result.producer_id >= 0, True)
    at.expect("epoch", result.producer_epoch, 0)


@case("produce/idempotence/ids-differ", KIP_98, {INIT: ANY}, since="0.11")
def ids_differ(at: ProbeContext) -> None:
    """No two producers get the same ID."""
    ids = [new_producer(at) for _ in range(20)]
    at.expect("number of different IDs", len(set(ids)), 20)


@case("produce/idempotence/in-order", KIP_98, NEEDS, since="0.11")
def in_order(at: ProbeContext) -> None:
    """Sequences begin at 0, and each record takes one."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, 3), 0)
    expect_taken(at, send(at, topic, producer, 3, 2), 3)
    expect_taken(at, send(at, topic, producer, 5), 5)


@case("produce/idempotence/duplicate", KIP_98, NEEDS, since="0.11")
def duplicate(at: ProbeContext) -> None:
    """A batch that is sent again is acknowledged with its offset or named a duplicate, and not written again."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, 2), 0)
    expect_known(at, send(at, topic, producer, 0, 2), 0)
    at.expect("log end", log_end(at, topic), 2)


@case("produce/idempotence/window-of-five", "KAFKA-5494", NEEDS, since="1.0")
def window_of_five(at: ProbeContext) -> None:
    """Each of the last five batches is known again, in any order."""
    topic, producer = at.topic(), new_producer(at)
    for sequence in range(WINDOW):
        expect_taken(at, send(at, topic, producer, sequence), sequence)
    for sequence in (0, 3, 1, 4, 2):
        expect_known(at, send(at, topic, producer, sequence), sequence)
    at.expect("log end", log_end(at, topic), WINDOW)


@case("produce/idempotence/before-window", "KAFKA-5494", NEEDS, since="1.0")
def before_window(at: ProbeContext) -> None:
    """A batch older than those is not written again: DUPLICATE_SEQUENCE_NUMBER or OUT_OF_ORDER_SEQUENCE_NUMBER."""
    topic, producer = at.topic(), new_producer(at)
    for sequence in range(WINDOW + 2):
        expect_taken(at, send(at, topic, producer, sequence), sequence)
    at.expect("error code", send(at, topic, producer, 0).error_code, *STALE)
    at.expect("log end", log_end(at, topic), WINDOW + 2)


@case("produce/idempotence/gap", KIP_98, NEEDS, since="0.11")
def gap(at: ProbeContext) -> None:
    """A gap in the sequence is refused with OUT_OF_ORDER_SEQUENCE_NUMBER, and what fills it is taken afterwards."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0), 0)
    code = send(at, topic, producer, 2).error_code
    at.expect("error code behind the gap", code, ErrorCode.out_of_order_sequence_number)
    at.expect("log end", log_end(at, topic), 1)
    expect_taken(at, send(at, topic, producer, 1), 1)
    expect_taken(at, send(at, topic, producer, 2), 2)


@case("produce/idempotence/overlap", KIP_98, NEEDS, since="0.11")
def overlap(at: ProbeContext) -> None:
    """A batch that begins like a known one and is longer is not taken for it."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, 2), 0)
    at.expect("error code", send(at, topic, producer, 0, 3).error_code, *STALE)
    at.expect("log end", log_end(at, topic), 2)


@case("produce/idempotence/pipelined", "KAFKA-5494", NEEDS, since="1.0")
def pipelined(at: ProbeContext) -> None:
    """Five batches may be on their way at once."""
    topic, producer, version = at.topic(), new_producer(at), at.version(PRODUCE)
    sent = []
    for sequence in range(WINDOW):
        data = batch(producer_id=producer, producer_epoch=0, base_sequence=sequence)
        sent.append(at.send(PRODUCE, produce_request(topic, version, {0: data})))
    found = [single(at.main.receive(each), "responses", "partitions") for each in sent]
    at.expect("error codes", [each.error_code for each in found], [0] * WINDOW)
    at.expect("base offsets", [each.base_offset for each in found], list(range(WINDOW)))


@case("produce/idempotence/other-connection", KIP_98, NEEDS, since="0.11")
def other_connection(at: ProbeContext) -> None:
    """A duplicate is known on another connection, too."""
    topic, producer = at.topic(), new_producer(at)
    data = batch(producer_id=producer, producer_epoch=0, base_sequence=0)
    expect_taken(at, produce(at, topic, data), 0)
    expect_known(at, produce(at, topic, data, on=at.connect()), 0)
    at.expect("log end", log_end(at, topic), 1)


@case("produce/idempotence/other-producer", KIP_98, NEEDS, since="0.11")
def other_producer(at: ProbeContext) -> None:
    """Each producer has a sequence of its own. A duplicate gets its own offset, though others wrote meanwhile."""
    topic, one, two = at.topic(), new_producer(at), new_producer(at)
    expect_taken(at, send(at, topic, one, 0), 0)
    expect_taken(at, send(at, topic, two, 0), 1)
    expect_taken(at, send(at, topic, one, 1), 2)
    expect_known(at, send(at, topic, two, 0), 1)
    at.expect("log end", log_end(at, topic), 3)


@case("produce/idempotence/other-partition", KIP_98, NEEDS, since="0.11")
def other_partition(at: ProbeContext) -> None:
    """Each partition has a sequence of its own."""
    topic, producer = at.topic(2), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, 3), 0)
    expect_taken(at, send(at, topic, producer, 0, partition=1), 0)
    expect_taken(at, send(at, topic, producer, 1, partition=1), 1)
    expect_taken(at, send(at, topic, producer, 3), 3)


@case("produce/idempotence/without-id", KIP_98, NEEDS, since="0.8")
def without_id(at: ProbeContext) -> None:
    """A batch without a producer ID is written as often as it is sent."""
    topic, data = at.topic(), batch()
    expect_taken(at, produce(at, topic, data), 0)
    expect_taken(at, produce(at, topic, data), 1)


@case("produce/idempotence/new-epoch", "KIP-360", NEEDS, since="2.5")
def new_epoch(at: ProbeContext) -> None:
    """A producer may go on in a higher epoch, where its sequence begins at 0 again."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, 2), 0)
    expect_taken(at, send(at, topic, producer, 0, 2, epoch=1), 2)
    expect_taken(at, send(at, topic, producer, 2, epoch=1), 4)


@case("produce/idempotence/new-epoch-not-from-0", "KIP-360", NEEDS, since="2.5")
def new_epoch_not_from_0(at: ProbeContext) -> None:
    """A new epoch that does not begin at 0 is refused with OUT_OF_ORDER_SEQUENCE_NUMBER."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0), 0)
    code = send(at, topic, producer, 1, epoch=1).error_code
    at.expect("error code", code, ErrorCode.out_of_order_sequence_number)
    at.expect("log end", log_end(at, topic), 1)


@case("produce/idempotence/old-epoch", KIP_98, NEEDS, since="0.11")
def old_epoch(at: ProbeContext) -> None:
    """A batch of an older epoch is refused with INVALID_PRODUCER_EPOCH."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, epoch=1), 0)
    code = send(at, topic, producer, 0, epoch=0).error_code
    at.expect("error code", code, ErrorCode.invalid_producer_epoch)
    at.expect("log end", log_end(at, topic), 1)


@case("produce/idempotence/unknown-id", "KIP-360", NEEDS, since="2.5")
def unknown_id(at: ProbeContext) -> None:
    """A producer that the partition does not know and that does not begin at 0 is taken, if the broker is as Kafka 4.1.
    An older one may refuse it with UNKNOWN_PRODUCER_ID. The log agrees with the response."""
    topic, producer, other = at.topic(), new_producer(at), new_producer(at)
    expect_taken(at, send(at, topic, other, 0), 0)
    code = send(at, topic, producer, 7).error_code
    at.expect("error code", code, ErrorCode.none, *_refusals(at))
    at.expect("the log has the record exactly if it was taken", log_end(at, topic) == 1 + (code == 0), True)


def _refusals(at: ProbeContext) -> tuple[ErrorCode, ...]:
    """Return the errors with which an unknown producer may be refused: none if the broker is as Kafka 4.1."""
    return () if at.version(PRODUCE) >= OF_KAFKA_4_1 else (ErrorCode.unknown_producer_id,)


def _at_the_end(at: ProbeContext, topic: Topic, sequence: int, count: int = 1) -> int:
    """Write a batch of a new producer near the end of the sequence, and return the producer's ID."""
    producer = new_producer(at)
    result = send(at, topic, producer, sequence, count)
    if result.error_code in (ErrorCode.unknown_producer_id, ErrorCode.out_of_order_sequence_number):
        raise NotAdvertised("an unknown producer may not begin at that sequence, and 2^31 records take too long")
    expect_taken(at, result, 0)
    return producer


@case("produce/idempotence/wrap", "KAFKA-7692", NEEDS, since="2.2")
def wrap(at: ProbeContext) -> None:
    """After sequence 2^31-1 comes 0."""
    topic = at.topic()
    producer = _at_the_end(at, topic, LAST)
    expect_taken(at, send(at, topic, producer, 0), 1)
    expect_taken(at, send(at, topic, producer, 1), 2)


@case("produce/idempotence/wrap-in-batch", "KAFKA-7692", NEEDS, since="2.2")
def wrap_in_batch(at: ProbeContext) -> None:
    """A batch may hold the end of the sequence in its midst, and is known again."""
    topic = at.topic()
    producer = _at_the_end(at, topic, LAST - 1, 4)
    expect_taken(at, send(at, topic, producer, 2), 4)
    expect_taken(at, send(at, topic, producer, LAST - 1, 4), 0)
    at.expect("log end", log_end(at, topic), 5)


@case("produce/idempotence/wrap-gap", "KAFKA-7692", NEEDS, since="2.2")
def wrap_gap(at: ProbeContext) -> None:
    """A gap behind the end of the sequence is refused like any other."""
    topic = at.topic()
    producer = _at_the_end(at, topic, LAST)
    code = send(at, topic, producer, 1).error_code
    at.expect("error code", code, ErrorCode.out_of_order_sequence_number)


# Logs without records, the last epoch, and producers that were forgotten


@case("produce/idempotence/emptied-log", "KIP-360", EMPTIED, since="2.5")
def emptied_log(at: ProbeContext) -> None:
    """A producer whose records were all deleted goes on: its next sequence is taken, a gap is refused, and a duplicate
    is known."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, 3), 0)
    partitions = [{"partition_index": 0, "offset": -1}]
    request = {"topics": [{"name": topic.name, "partitions": partitions}], "timeout": 5_000}
    result = single(at.call(ApiKey.DELETE_RECORDS, request), "topics", "partitions")
    at.expect("error code of DeleteRecords", result.error_code, ErrorCode.none)
    expect_known(at, send(at, topic, producer, 0, 3), 0)
    code = send(at, topic, producer, 5).error_code
    at.expect("error code behind a gap", code, ErrorCode.out_of_order_sequence_number)
    expect_taken(at, send(at, topic, producer, 3), 3)


@case("produce/idempotence/last-epoch", "KIP-360", NEEDS, since="2.5")
def last_epoch(at: ProbeContext) -> None:
    """The highest epoch, 32,767, works like any other: the one below is refused after it."""
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, epoch=LAST_EPOCH - 1), 0)
    expect_taken(at, send(at, topic, producer, 0, epoch=LAST_EPOCH), 1)
    expect_taken(at, send(at, topic, producer, 1, epoch=LAST_EPOCH), 2)
    code = send(at, topic, producer, 1, epoch=LAST_EPOCH - 1).error_code
    at.expect("error code", code, ErrorCode.invalid_producer_epoch)
    at.expect("log end", log_end(at, topic), 3)


@case("produce/idempotence/expired", "KIP-360, producer.id.expiration.ms", EXPIRES, since="3.6", alone=True)
def expired(at: ProbeContext) -> None:
    """A producer that was idle for longer than producer.id.expiration.ms is forgotten. It goes on as an unknown one."""
    check = _broker_setting(at, CHECK_INTERVAL)
    if check is None or int(check) > SOON_MS:
        raise NotAdvertised(f"{CHECK_INTERVAL} is above {SOON_MS} (--config)")
    is_short = int(_broker_setting(at, EXPIRATION) or SOON_MS + 1) <= SOON_MS
    if not is_short:
        _alter_expiration(at, "1000")
    try:
        _expire(at)
    finally:
        if not is_short:
            _alter_expiration(at, None)


def _expire(at: ProbeContext) -> None:
    topic, producer = at.topic(), new_producer(at)
    expect_taken(at, send(at, topic, producer, 0, 2), 0)
    while single(_producers(at, topic), "topics", "partitions").active_producers and at.left_s() > 3:
        time.sleep(0.1)
    left = single(_producers(at, topic), "topics", "partitions").active_producers
    at.expect("number of producers that are left", len(left), 0)
    code = send(at, topic, producer, 2).error_code
    at.expect("error code", code, ErrorCode.none, *_refusals(at))
    at.expect("the log has the record exactly if it was taken", log_end(at, topic) == (3 if code == 0 else 2), True)


def _producers(at: ProbeContext, topic: Topic) -> Any:
    request = {"topics": [{"name": topic.name, "partition_indexes": [0]}]}
    return at.call_unseen(ApiKey.DESCRIBE_PRODUCERS, request, at.main)


def _broker_setting(at: ProbeContext, key: str) -> str | None:
    resource = {"resource_type": OF_BROKERS, "resource_name": str(at.broker.node_id), "configuration_keys": [key]}
    result = single(at.call(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]}), "results")
    return next((config.value for config in result.configs if config.name == key), None)


def _alter_expiration(at: ProbeContext, value: str | None) -> None:
    """Set it for all brokers; None takes the setting away. Raise NotAdvertised if that is not possible."""
    change = {"name": EXPIRATION, "config_operation": 0 if value else 1, "value": value}
    resource = {"resource_type": OF_BROKERS, "resource_name": "", "configs": [change]}
    result = single(at.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]}), "responses")
    if result.error_code:
        raise NotAdvertised(f"{EXPIRATION} cannot be changed while the broker runs")
