"""Producing: responses that are lost, refusals, leaders that move, limits, and what the application gets.

An idempotent producer (KIP-98) writes each record once and in order whatever happens on the way. A plain one may write
a record twice, but it loses none that it has acknowledged.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from crucible_kafka.clients.application import Exchange, Producer, SentRecord
from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.play import Play, at_least, at_most

KIP_98: Final = "KIP-98"
SENDER: Final = "Sender.java, completeBatch and canRetry"
IDEMPOTENT: Final = ("producer", "idempotence")
NO_SETTING: Final = "The client has no such setting"
WINDOW: Final = 5
"""Number of batches of a producer whose sequences a broker remembers for each partition (KIP-98)."""


def _numbers(word: str, count: int = 10) -> list[str]:
    return [f"{word}-{number}" for number in range(count)]


def _idempotent(at: Play) -> tuple[Producer, str]:
    """Return an idempotent producer that has written to partition 0 of a topic of two partitions, and the topic."""
    topic = at.topic(2)
    producer = at.producer(idempotence=True)
    producer.send(topic, *_numbers("before", 3))
    at.writes(producer)
    return producer, topic


def _goes_on(at: Play, producer: Producer, topic: str, word: str = "during", once: bool = True) -> list[SentRecord]:
    """Send some records, judge that each is acknowledged and what the log has of them, and return them."""
    sent = producer.send(topic, *_numbers(word))
    at.writes(producer, once=once)
    at.data("records without an acknowledgement", _failed(sent), [])
    return sent


def _failed(sent: Sequence[SentRecord]) -> list[str]:
    return [f"{record.value} {record.failure.name}" for record in sent if record.failure is not None]


def _outcomes(at: Play, sent: Sequence[SentRecord], names: Sequence[str]) -> None:
    """Judge that all these records failed with an error of one of these names."""
    at.error(
        "acknowledged records that the broker refused", [record.value for record in sent if record.acknowledged], []
    )
    seen = sorted({record.failure.name for record in sent if record.failure is not None})
    at.error("errors of the records", [each for each in seen if each not in names], [])


# Lost responses


@case("producing/response-lost", MUST, f"{KIP_98}; librdkafka INTRODUCTION.md, Idempotent Producer", needs=IDEMPOTENT)
def response_lost(at: Play) -> None:
    """The broker writes a batch, and its response is lost with the connection: the batch is sent again with the same
    sequence, and each record is in the log once."""
    producer, topic = _idempotent(at)
    lost = at.kafka.on("Produce").drop_response(times=1)
    _goes_on(at, producer, topic)
    at.wire("Produce requests after the lost response", len(producer.exchanges("Produce", after=lost)), at_least(1))


@case("producing/responses-lost-in-a-row", MUST, KIP_98, needs=IDEMPOTENT)
def responses_lost_in_a_row(at: Play) -> None:
    """Three responses in a row are lost with their connections: each record is in the log once and in order."""
    producer, topic = _idempotent(at)
    at.kafka.on("Produce").drop_response(times=3)
    _goes_on(at, producer, topic)


@case("producing/request-lost", MUST, KIP_98, needs=IDEMPOTENT)
def request_lost(at: Play) -> None:
    """A request is lost before the broker sees it: the batch is sent again."""
    producer, topic = _idempotent(at)
    at.kafka.on("Produce").drop_request(times=1)
    _goes_on(at, producer, topic)


@case("producing/no-response", MUST, f"{KIP_98}; NetworkClient.java, handleTimedOutRequests", needs=IDEMPOTENT)
def no_response(at: Play) -> None:
    """The broker writes a batch and never responds, while the connection stays: after request_timeout_ms the batch is
    sent again, and each record is in the log once."""
    topic = at.topic()
    producer = at.producer(idempotence=True, request_timeout_ms=1000)
    producer.send(topic, "before")
    at.writes(producer)
    at.kafka.on("Produce").hang(handled=True, times=1)
    _goes_on(at, producer, topic)


@case("producing/plain-response-lost", MUST, "Kafka's documentation, Message Delivery Semantics", needs=("producer",))
def plain_response_lost(at: Play) -> None:
    """A producer without idempotence loses a response: the records are in the log at least once."""
    topic = at.topic()
    producer = at.producer(idempotence=False, in_flight=1)
    producer.send(topic, "before")
    at.writes(producer)
    at.kafka.on("Produce").drop_response(times=1)
    _goes_on(at, producer, topic, once=False)


@case("producing/id-response-lost", MUST, KIP_98, needs=IDEMPOTENT)
def id_response_lost(at: Play) -> None:
    """The response with the producer ID is lost: the client gets another ID, and writes each record once."""
    topic = at.topic()
    at.kafka.on("InitProducerId").drop_response(times=1)
    producer = at.producer(idempotence=True)
    _goes_on(at, producer, topic)


@case("producing/id-refused", MUST, f"{KIP_98}; TransactionManager.java, InitProducerIdHandler", needs=IDEMPOTENT)
def id_refused(at: Play) -> None:
    """The broker has no producer IDs for now (COORDINATOR_LOAD_IN_PROGRESS): the client tries again."""
    topic = at.topic()
    at.kafka.on("InitProducerId").respond_error("COORDINATOR_LOAD_IN_PROGRESS", times=2)
    producer = at.producer(idempotence=True)
    _goes_on(at, producer, topic)


# Refusals after which the producer tries again


def _refused_once(at: Play, error: str, handled: bool = False) -> None:
    producer, topic = _idempotent(at)
    at.kafka.on("Produce").respond_error(error, partition=0, handled=handled, times=1)
    _goes_on(at, producer, topic)
    at.error("errors that the application received", [str(each) for each in producer.errors], [])


@case("producing/timed-out", MUST, f"ProduceResponse.json; {SENDER}", needs=IDEMPOTENT)
def timed_out(at: Play) -> None:
    """The followers are late (REQUEST_TIMED_OUT), and the batch is in the log: it is sent again, and written once."""
    _refused_once(at, "REQUEST_TIMED_OUT", handled=True)


@case("producing/not-enough-replicas-after-append", MUST, f"ProduceResponse.json; {SENDER}", needs=IDEMPOTENT)
def not_enough_replicas_after_append(at: Play) -> None:
    """Too few replicas are in sync once the batch is in the log (NOT_ENOUGH_REPLICAS_AFTER_APPEND): it is sent again,
    and written once."""
    _refused_once(at, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", handled=True)


@case("producing/not-enough-replicas", MUST, f"ProduceResponse.json; {SENDER}", needs=IDEMPOTENT)
def not_enough_replicas(at: Play) -> None:
    """Too few replicas are in sync (NOT_ENOUGH_REPLICAS): the batch is sent again."""
    _refused_once(at, "NOT_ENOUGH_REPLICAS")


@case("producing/storage-error", MUST, f"KIP-112; {SENDER}", needs=IDEMPOTENT)
def storage_error(at: Play) -> None:
    """The leader's disk fails (KAFKA_STORAGE_ERROR): the batch is sent again."""
    _refused_once(at, "KAFKA_STORAGE_ERROR")


@case("producing/corrupt", SHOULD, f"Errors.java, CORRUPT_MESSAGE is retriable; {SENDER}", needs=IDEMPOTENT)
def corrupt(at: Play) -> None:
    """The batch was damaged on its way (CORRUPT_MESSAGE): it is sent again."""
    _refused_once(at, "CORRUPT_MESSAGE")


@case("producing/unknown-topic", MUST, f"{SENDER}; Errors.java", needs=IDEMPOTENT)
def unknown_topic(at: Play) -> None:
    """The leader does not know the partition yet (UNKNOWN_TOPIC_OR_PARTITION): the batch is sent again."""
    _refused_once(at, "UNKNOWN_TOPIC_OR_PARTITION")


@case("producing/not-leader", MUST, f"ProduceResponse.json; {SENDER}", needs=IDEMPOTENT)
def not_leader(at: Play) -> None:
    """The node is not the leader (NOT_LEADER_OR_FOLLOWER): the client refreshes its metadata and sends again."""
    producer, topic = _idempotent(at)
    refused = at.kafka.on("Produce").respond_error("NOT_LEADER_OR_FOLLOWER", partition=0, times=1)
    _goes_on(at, producer, topic)
    at.wire("Metadata requests after the error", len(producer.exchanges("Metadata", after=refused)), at_least(1))


@case("producing/refused-in-flight", MUST, f"{KIP_98}; KAFKA-5494", needs=IDEMPOTENT)
def refused_in_flight(at: Play) -> None:
    """Of several batches in flight the first is refused (NOT_ENOUGH_REPLICAS), so the next ones are out of order for
    the broker: all are sent again, and the order of sending is kept."""
    topic = at.topic()
    producer = at.producer(idempotence=True, in_flight=WINDOW)
    producer.send(topic, "before")
    at.writes(producer)
    at.kafka.on("Produce").respond_error("NOT_ENOUGH_REPLICAS", partition=0, times=1)
    for value in _numbers("during", 2 * WINDOW):
        producer.send(topic, value)
    at.writes(producer)
    at.data("records without an acknowledgement", _failed(producer.sent), [])


# Producer IDs and sequences


@case("producing/out-of-order", MUST, f"KIP-360; {KIP_98}; librdkafka#4953", needs=IDEMPOTENT)
def out_of_order(at: Play) -> None:
    """The broker says of one of two partitions that a sequence is missing (OUT_OF_ORDER_SEQUENCE_NUMBER), while the
    response for the other one is lost: whatever the producer does about its epoch, no record is written twice."""
    producer, topic = _idempotent(at)
    producer.send(topic, *_numbers("second", 3), partition=1)
    at.writes(producer)
    at.kafka.on("Produce", partition=1).drop_response(times=1)
    at.kafka.on("Produce", partition=0).respond_error("OUT_OF_ORDER_SEQUENCE_NUMBER", partition=0, times=1)
    for first, second in zip(_numbers("first"), _numbers("other"), strict=True):
        producer.send(topic, first)
        producer.send(topic, second, partition=1)
    at.writes(producer)


@case("producing/unknown-producer-id", MUST, "KIP-360", needs=IDEMPOTENT)
def unknown_producer_id(at: Play) -> None:
    """The broker has forgotten the producer (UNKNOWN_PRODUCER_ID): nothing that was acknowledged is lost, and nothing
    is written twice."""
    producer, topic = _idempotent(at)
    at.kafka.on("Produce").respond_error("UNKNOWN_PRODUCER_ID", partition=0, times=1)
    producer.send(topic, *_numbers("during"))
    at.writes(producer)


@case("producing/epoch-refused", MUST, "KIP-360; KIP-588", needs=IDEMPOTENT)
def epoch_refused(at: Play) -> None:
    """The broker refuses the producer epoch (INVALID_PRODUCER_EPOCH): nothing that was acknowledged is lost, nothing is
    written twice, and a new producer works."""
    producer, topic = _idempotent(at)
    at.kafka.on("Produce", client_id=producer.name).respond_error("INVALID_PRODUCER_EPOCH", partition=0, times=1)
    producer.send(topic, *_numbers("during"))
    at.writes(producer)
    other = at.producer(idempotence=True)
    _goes_on(at, other, topic, "after")


@case("producing/duplicate-sequence", SHOULD, f"{SENDER}: DUPLICATE_SEQUENCE_NUMBER is a success", needs=IDEMPOTENT)
def duplicate_sequence(at: Play) -> None:
    """The broker has the batch already and does not know its offset any more (DUPLICATE_SEQUENCE_NUMBER): the records
    are acknowledged."""
    _refused_once(at, "DUPLICATE_SEQUENCE_NUMBER", handled=True)


# Leaders


@case("producing/leader-moves", MUST, "KIP-951; ProduceResponse.json", needs=IDEMPOTENT)
def leader_moves(at: Play) -> None:
    """The partition's leader moves to another node while the producer writes: it follows, and each record is written
    once and in order."""
    kafka = at.cluster(3)
    kafka.create_topic("moving", replicas=3)
    producer = at.producer(idempotence=True, delivery_timeout_ms=20_000)
    for number in range(3):
        if number:
            kafka.move_leader("moving", 0)
        _goes_on(at, producer, "moving", f"leader-{number}")
    nodes = {exchange.request.node for exchange in producer.exchanges("Produce")}
    at.wire("nodes that got Produce requests", len(nodes), at_least(2))


@case("producing/leader-killed", MUST, "Kafka's documentation, Replication", needs=IDEMPOTENT)
def leader_killed(at: Play) -> None:
    """The partition's leader dies: the producer goes on at the next one, and each record is written once."""
    kafka = at.cluster(3)
    kafka.create_topic("orders", replicas=3)
    producer = at.producer(idempotence=True, request_timeout_ms=2000, delivery_timeout_ms=20_000)
    producer.send("orders", *_numbers("before"))
    at.writes(producer)
    kafka.node(kafka.leader("orders", 0)).kill()
    _goes_on(at, producer, "orders")


# Errors for the application


@case("producing/too-large", MUST, "ProduceResponse.json; Errors.java, MESSAGE_TOO_LARGE", needs=("producer",))
def too_large(at: Play) -> None:
    """A record exceeds max.message.bytes of the topic (MESSAGE_TOO_LARGE): it fails with an error that says so, and
    other records are written."""
    topic = at.topic(max_message_bytes=2000)
    producer = at.producer(compression="none")
    large = producer.send(topic, "x" * 5000)
    producer.flush()
    _outcomes(at, large, ("MESSAGE_TOO_LARGE", "RECORD_TOO_LARGE", "MESSAGE_SIZE_TOO_LARGE"))
    _goes_on(at, producer, topic, "small")


@case("producing/batch-too-large", SHOULD, "KIP-126: large batches are split; KAFKA-8350", needs=("producer",))
def batch_too_large(at: Play) -> None:
    """A batch exceeds max.message.bytes, and no record of it does (MESSAGE_TOO_LARGE): the producer splits the batch,
    and all records are written."""
    topic = at.topic(max_message_bytes=2000)
    producer = at.producer(linger_ms=300, batch_bytes=100_000, compression="none")
    sent = producer.send(topic, *(f"{number}".ljust(500, "x") for number in range(20)))
    at.writes(producer)
    refused = [exchange for exchange in producer.exchanges("Produce") if "MESSAGE_TOO_LARGE" in _errors(exchange)]
    at.require(refused, "The client sent no batch above the limit")
    at.error("records that failed", len(_failed(sent)), 0)


@case("producing/delivery-timeout", MUST, "KIP-91", needs=("producer",))
def delivery_timeout(at: Play) -> None:
    """The leader never responds: the record fails within delivery_timeout_ms, and the application gets an error."""
    topic = at.topic()
    producer = at.producer(request_timeout_ms=1000, delivery_timeout_ms=3000)
    at.supported("delivery_timeout_ms" not in producer.ignored, NO_SETTING)
    at.kafka.on("Produce").hang()
    began_s = time.monotonic()
    (sent,) = producer.send(topic, "late")
    settled = producer.flush()
    took_s = time.monotonic() - began_s
    bound_s = producer.bound_s(2, also_ms=3000)
    at.progress("the record has its outcome", settled, bound_s, "delivery_timeout_ms 3000")
    at.progress("the outcome came", took_s < bound_s, bound_s, "delivery_timeout_ms 3000")
    at.error("the record failed", sent.failure is not None, True)


@case("producing/invalid-record", MUST, "KIP-467; compacted topics demand keys", needs=("producer",))
def invalid_record(at: Play) -> None:
    """A record without a key for a compacted topic is refused (INVALID_RECORD): it fails and is not sent without end,
    and records with keys are written."""
    topic = at.topic(cleanup_policy="compact")
    producer = at.producer()
    refused = producer.send(topic, "no-key")
    producer.flush()
    at.error("acknowledged records without a key", [each.value for each in refused if each.acknowledged], [])
    at.error("the record failed", refused[0].failure is not None, True)
    sent = producer.send(topic, "with-key", key="k")
    producer.flush()
    at.data("records with a key that failed", _failed(sent), [])
    requests = [exchange for exchange in producer.exchanges("Produce") if "INVALID_RECORD" in _errors(exchange)]
    at.require(requests, "The broker has not refused a record")
    at.wire("Produce requests that the broker refused", len(requests), at_most(2))


@case("producing/not-authorized", MUST, "Errors.java: TOPIC_AUTHORIZATION_FAILED is not retriable", needs=("producer",))
def not_authorized(at: Play) -> None:
    """The topic may not be written (TOPIC_AUTHORIZATION_FAILED): its records fail with this error, and the producer
    still writes to another topic."""
    secret, public = at.topic(), at.topic()
    producer = at.producer(idempotence=False)
    producer.send(public, "before")
    at.writes(producer)
    at.kafka.on("Produce", topic=secret).respond_error("TOPIC_AUTHORIZATION_FAILED", partition=0)
    refused = producer.send(secret, "forbidden")
    producer.flush()
    _outcomes(at, refused, ("TOPIC_AUTHORIZATION_FAILED",))
    _goes_on(at, producer, public, "allowed")


# Batches


def _compressed(at: Play, codec: str) -> None:
    topic = at.topic()
    producer = at.producer(compression=codec, linger_ms=100)
    values = [f"{number}".ljust(200, "c") for number in range(50)]
    producer.send(topic, *values)
    at.writes(producer)
    at.data("values in the log", [(record.value or b"").decode() for record in at.kafka.records(topic)] == values, True)


@case("producing/compression/gzip", MUST, "Kafka's documentation, Record Batch", needs=("producer", "gzip"))
def compression_gzip(at: Play) -> None:
    """Nothing fails: batches that are compressed with gzip have the records that were sent."""
    _compressed(at, "gzip")


@case("producing/compression/snappy", MUST, "Kafka's documentation, Record Batch", needs=("producer", "snappy"))
def compression_snappy(at: Play) -> None:
    """Nothing fails: batches that are compressed with snappy have the records that were sent."""
    _compressed(at, "snappy")


@case("producing/compression/lz4", MUST, "Kafka's documentation, Record Batch", needs=("producer", "lz4"))
def compression_lz4(at: Play) -> None:
    """Nothing fails: batches that are compressed with lz4 have the records that were sent."""
    _compressed(at, "lz4")


@case("producing/compression/zstd", MUST, "KIP-110", needs=("producer", "zstd"))
def compression_zstd(at: Play) -> None:
    """Nothing fails: batches that are compressed with zstd have the records that were sent, and are sent with a version
    of Produce that allows zstd (7)."""
    _compressed(at, "zstd")


@case("producing/in-flight", MUST, "Kafka's documentation, max.in.flight.requests.per.connection", needs=IDEMPOTENT)
def in_flight(at: Play) -> None:
    """Responses come late: no more requests are in flight than the setting allows."""
    topic = at.topic()
    producer = at.producer(idempotence=True, in_flight=2)
    producer.send(topic, "before")
    at.writes(producer)
    at.kafka.on("Produce").delay_response(0.1, times=6, optional=True)
    for value in _numbers("during", 12):
        producer.send(topic, value)
        time.sleep(0.01)  # So that not all are in one batch.
    at.writes(producer)
    at.supported("in_flight" not in producer.ignored, NO_SETTING)
    at.wire("requests in flight at once", _most_in_flight(producer.exchanges("Produce")), at_most(2))


@case("producing/throttled", SHOULD, "KIP-219", needs=("producer",))
def throttled(at: Play) -> None:
    """The broker says that the client was throttled for 800 ms: the client waits so long before its next Produce."""
    topic = at.topic()
    producer = at.producer(in_flight=1)  # So that none is on its way when the response comes.
    producer.send(topic, "before")
    at.writes(producer)
    throttle = at.kafka.on("Produce").throttle(800, times=1)
    _goes_on(at, producer, topic)
    hit_s = throttle.hits[0].at_s
    producer.send(topic, "after")
    at.writes(producer)
    later = producer.exchanges("Produce", after=throttle)
    at.require(later, "The client sent nothing after it was throttled")
    waited_ms = round((later[0].request.at_s - hit_s) * 1000)
    at.wire("milliseconds until the next Produce", waited_ms, at_least(700))


def _errors(exchange: Exchange) -> set[str]:
    """Return the names of the errors in the response to a Produce."""
    body: dict[str, Any] = dict(exchange.response.body or {}) if exchange.response is not None else {}
    return {partition["error_code"] for topic in body.get("responses", []) for partition in topic["partitions"]}


def _most_in_flight(exchanges: Sequence[Exchange]) -> int:
    """Return how many requests of one connection were in flight at once, by the times at the broker."""
    most = 0
    for exchange in exchanges:
        at_s, connection = exchange.request.at_s, (exchange.request.node, exchange.request.connection)
        open_ones = [
            other
            for other in exchanges
            if (other.request.node, other.request.connection) == connection
            and other.request.at_s <= at_s
            and (other.response is None or other.response.at_s > at_s)
        ]
        most = max(most, len(open_ones))
    return most
