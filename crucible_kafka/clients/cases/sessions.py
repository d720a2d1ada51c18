"""Fetch sessions (KIP-227): what is lost, refused, declined or evicted in the middle of one.

A client that opens no sessions does not support these cases. The wire shows that: all its fetches have the epoch -1.
The wrap of the epoch after 2^31 requests cannot be reached from outside of a client.
"""

import time
from dataclasses import replace
from typing import Any, Final

from crucible_kafka.clients.application import Consumer
from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.play import Play, one_of, session_of
from reference_broker.records.record import Record, build
from reference_broker.wire.fetch import FetchTopicResponse, PartitionData

KIP_227: Final = "KIP-227; FetchSessionHandler.java"
FULL: Final = one_of(0, -1)
"""The epochs of a full fetch: 0 begins a session, -1 has none."""
REPEATED: Final = 5
LATE_S: Final = 1.0
LONG_WAIT_MS: Final = 2000
"""A Fetch waits so long at the broker that the case can write while it is there."""
NO_SESSION: Final = -1
"""The epoch of a Fetch that neither is in a session nor begins one."""


def _in_session(at: Play, partitions: int = 2, fetch_max_wait_ms: int = 200) -> tuple[Consumer, str]:
    """Return a consumer that reads all partitions of a topic in a fetch session, and the topic."""
    topic = at.topic(partitions)
    consumer = at.consumer(fetch_max_wait_ms=fetch_max_wait_ms)
    consumer.assign(topic, *range(partitions))
    at.reads(consumer, [value for index in range(partitions) for value in at.write(topic, 5, index)])
    consumer.poll_until(lambda: len(consumer.exchanges("Fetch")) > 1, consumer.bound_s())
    fetches = consumer.exchanges("Fetch")
    at.supported(
        any(fetch.body["session_epoch"] != NO_SESSION for fetch in fetches), "The client opens no fetch sessions"
    )
    opened = consumer.poll_until(lambda: session_of(consumer.exchanges("Fetch")), consumer.bound_s())
    at.progress("a fetch in the session", opened, consumer.bound_s(), "request_timeout_ms")
    return consumer, topic


def _reads_on(at: Play, consumer: Consumer, topic: str, partitions: int = 2) -> None:
    """Write to all partitions, and judge that the consumer reads it all, without an error for the application."""
    before = len(consumer.records)
    written = [value for index in range(partitions) for value in at.write(topic, 5, index)]
    at.reads(consumer, written, from_record=before)
    at.error("errors of the application", consumer.errors, [])


@case("sessions/response-lost", MUST, KIP_227)
def response_lost(at: Play) -> None:
    """A response with records is lost with its connection, after the broker has advanced the session: the client begins
    with a full fetch, and reads these records."""
    consumer, topic = _in_session(at)

    def lose_records(body: Any) -> Any:
        return (
            None if any(partition.records for response in body.responses for partition in response.partitions) else body
        )

    lost = at.kafka.on("Fetch", session="incremental").change_response(lose_records, times=1)
    _reads_on(at, consumer, topic)
    after = consumer.exchanges("Fetch", after=lost)
    at.require(after, "The client fetched no more after the lost response")
    at.wire("session epoch of the first Fetch afterwards", after[0].body["session_epoch"], FULL)


@case("sessions/epoch-refused", MUST, f"{KIP_227}, handleResponse; redpanda#27749")
def epoch_refused(at: Play) -> None:
    """The broker refuses the session epoch once (INVALID_FETCH_SESSION_EPOCH): the next Fetch is full, and nothing is
    lost or read twice."""
    consumer, topic = _in_session(at)
    refused = at.kafka.on("Fetch", session="incremental").respond_error("INVALID_FETCH_SESSION_EPOCH", times=1)
    _reads_on(at, consumer, topic)
    after = consumer.exchanges("Fetch", after=refused)
    at.require(after, "The client fetched no more after the error")
    at.wire("session epoch of the next Fetch", after[0].body["session_epoch"], FULL)
    at.wire("partitions of the next Fetch", _partitions(after[0].body), {0, 1})


@case("sessions/not-found", MUST, f"{KIP_227}, handleResponse")
def not_found(at: Play) -> None:
    """The broker has forgotten the session (FETCH_SESSION_ID_NOT_FOUND): the next Fetch is full and begins a new
    session, and nothing is lost or read twice. A full Fetch may name the old session, which it closes (KIP-227)."""
    consumer, topic = _in_session(at)
    refused = at.kafka.on("Fetch", session="incremental").respond_error("FETCH_SESSION_ID_NOT_FOUND", times=1)
    _reads_on(at, consumer, topic)
    after = consumer.exchanges("Fetch", after=refused)
    at.require(after, "The client fetched no more after the error")
    at.wire("session epoch of the next Fetch", after[0].body["session_epoch"], FULL)
    at.wire("partitions of the next Fetch", _partitions(after[0].body), {0, 1})


@case("sessions/epoch-refused-repeatedly", MUST, f"{KIP_227}, handleResponse")
def epoch_refused_repeatedly(at: Play) -> None:
    """The broker refuses the epoch of five sessions in a row: the client goes on, and the application gets no error."""
    consumer, topic = _in_session(at)
    rule = at.kafka.on("Fetch", session="incremental").respond_error("INVALID_FETCH_SESSION_EPOCH", times=REPEATED)
    consumer.poll_until(lambda: rule.fired == REPEATED)
    at.require(rule.fired == REPEATED, f"The client used {rule.fired} sessions only")
    _reads_on(at, consumer, topic)


@case("sessions/not-found-repeatedly", MUST, f"{KIP_227}, handleResponse")
def not_found_repeatedly(at: Play) -> None:
    """The broker forgets five sessions in a row, as one whose cache is too small: the client goes on, and the
    application gets no error."""
    consumer, topic = _in_session(at)
    rule = at.kafka.on("Fetch", session="incremental").respond_error("FETCH_SESSION_ID_NOT_FOUND", times=REPEATED)
    consumer.poll_until(lambda: rule.fired == REPEATED)
    at.require(rule.fired == REPEATED, f"The client used {rule.fired} sessions only")
    _reads_on(at, consumer, topic)


@case("sessions/topic-ids", MUST, "KIP-516; AbstractFetch.java, FETCH_SESSION_TOPIC_ID_ERROR")
def topic_ids(at: Play) -> None:
    """The broker says FETCH_SESSION_TOPIC_ID_ERROR, as where names and IDs of topics change within a session: the next
    Fetch is full, and nothing is lost or read twice."""
    consumer, topic = _in_session(at)
    refused = at.kafka.on("Fetch", session="incremental").respond_error("FETCH_SESSION_TOPIC_ID_ERROR", times=1)
    _reads_on(at, consumer, topic)
    after = consumer.exchanges("Fetch", after=refused)
    at.require(after, "The client fetched no more after the error")
    at.wire("session epoch of the next Fetch", after[0].body["session_epoch"], FULL)


@case("sessions/evicted", MUST, f"{KIP_227}: sessions are evicted where there are too many")
def evicted(at: Play) -> None:
    """The broker evicts the session from its cache: the client begins a new one, and nothing is lost or read twice."""
    consumer, topic = _in_session(at)
    at.require(at.kafka.evict_sessions(consumer.name), "No session was evicted")
    _reads_on(at, consumer, topic)


@case("sessions/partition-refused", MUST, f"{KIP_227}; FetchCollector.java, handleInitializeErrors")
def partition_refused(at: Play) -> None:
    """One of two partitions of a session gets NOT_LEADER_OR_FOLLOWER once: both are read on, once and in order."""
    consumer, topic = _in_session(at)
    at.kafka.on("Fetch", session="incremental").respond_error("NOT_LEADER_OR_FOLLOWER", partition=1, times=1)
    _reads_on(at, consumer, topic)


@case("sessions/moved-partition", MUST, KIP_227)
def moved_partition(at: Play) -> None:
    """The leader of one partition of a session moves to another node: the client removes the partition from the
    session, and reads it from the new leader."""
    at.cluster(nodes=3)
    consumer, topic = _in_session(at)
    leader = at.kafka.move_leader(topic, 0)
    _reads_on(at, consumer, topic)
    at_new = [exchange for exchange in consumer.exchanges("Fetch") if exchange.request.node == leader]
    at.require(at_new, "The client did not fetch from the new leader")


@case("sessions/seek", MUST, f"{KIP_227}; kafka-python#2575")
def seek(at: Play) -> None:
    """The application seeks to the beginning while a response with newer records is on its way: these are dropped, and
    reading begins where the application wants it."""
    consumer, topic = _in_session(at, partitions=1, fetch_max_wait_ms=LONG_WAIT_MS)
    first = [value for value in consumer.values if value is not None]
    late = at.kafka.on("Fetch", session="incremental").delay_response(LATE_S, times=1)
    planted_s = time.time()
    consumer.poll_until(lambda: consumer.exchanges("Fetch", after=planted_s))
    second = at.write(topic, 5)
    consumer.poll_until(lambda: late.fired)
    at.require(len(consumer.records) == len(first), "The records came before the delay")
    consumer.seek(topic, 0)
    at.reads(consumer, [*first, *second], from_record=len(first))


@case("sessions/forgotten", MUST, f"{KIP_227}, forgotten topics; platformatic#321")
def forgotten(at: Play) -> None:
    """The application reads one of two partitions no longer, and the broker goes on to send records of it: the
    application gets none of them."""
    consumer, topic = _in_session(at)
    before = len(consumer.records)
    consumer.assign(topic, 0)
    began = consumer.exchanges("Fetch")[-1].request.at_s
    without = consumer.poll_until(lambda: _without(consumer, began), consumer.bound_s())
    at.wire("the partition is removed from the fetches", without, True)
    batch = build([Record(timestamp_ms=0, value=b"forgotten")], base_offset=5, leader_epoch=0)
    partition = PartitionData(1, 0, 6, 6, 0, records=batch)
    entry = FetchTopicResponse(topic, at.topic_id(topic).bytes, [partition])
    sent = at.kafka.on("Fetch", session="incremental", client_id=consumer.name).change_response(
        lambda body: replace(body, responses=[*body.responses, entry]), times=REPEATED
    )
    consumer.poll_until(lambda: sent.fired == REPEATED)
    at.require(sent.fired, "The client uses no session any more")
    consumer.seek(topic, 0)
    written = at.write(topic, 5)
    consumer.poll_until(lambda: set(written) <= set(consumer.values))
    at.data(
        "values of the forgotten partition",
        [record.value for record in consumer.records[before:] if record.partition],
        [],
    )
    at.data("the other partition is read", set(written) <= set(consumer.values), True)
    at.error("fatal errors of the application", consumer.fatal, None)


def _without(consumer: Consumer, since_s: float) -> bool:
    """Return whether a Fetch has forgotten partition 1, or was full without it."""
    return any(
        exchange.body["forgotten"] or (exchange.body["session_epoch"] in (0, -1) and _partitions(exchange.body) == {0})
        for exchange in consumer.exchanges("Fetch", after=since_s)
    )


@case("sessions/paused", MUST, KIP_227, needs=("consumer", "pause"))
def paused(at: Play) -> None:
    """The application pauses one of two partitions and resumes it: meanwhile it gets no records of it, and afterwards
    all."""
    consumer, topic = _in_session(at)
    before = len(consumer.records)
    consumer.pause(topic, 1)
    waiting, read = at.write(topic, 5, 1), at.write(topic, 5, 0)
    at.reads(consumer, read, from_record=before)
    consumer.resume(topic, 1)
    at.reads(consumer, [*read, *waiting], from_record=before)
    at.error("errors of the application", consumer.errors, [])


@case("sessions/closed", SHOULD, f"{KIP_227}; FetchSessionHandler.java, notifyClose")
def closed(at: Play) -> None:
    """Nothing fails: a consumer that is closed closes its session, so that it takes no room at the broker."""
    consumer, _ = _in_session(at)
    at.require(
        [session for session in at.kafka.sessions() if session.client_id == consumer.name], "There was no session"
    )
    consumer.close()
    left = [session.session_id for session in at.kafka.sessions() if session.client_id == consumer.name]
    at.wire("sessions that are left", len(left), 0)


@case("sessions/declined", MUST, f"{KIP_227}: a broker without room responds with session ID 0")
def declined(at: Play) -> None:
    """The broker opens no session: each response has the session ID 0. The client goes on with full fetches of all its
    partitions."""
    kafka = at.kafka
    kafka.on("Fetch", session="new", client_id="consumer-*").change_response(lambda body: replace(body, session_id=0))
    topic = at.topic(2)
    consumer = at.consumer()
    consumer.assign(topic, 0, 1)
    at.reads(consumer, [*at.write(topic, 5), *at.write(topic, 5, 1)])
    _reads_on(at, consumer, topic)
    fetches = consumer.exchanges("Fetch")
    at.supported(any(fetch.body["session_epoch"] == 0 for fetch in fetches), "The client opens no fetch sessions")
    at.wire("fetches in a session", sum(fetch.body["session_epoch"] > 0 for fetch in fetches), 0)
    at.wire("partitions of the last Fetch", _partitions(fetches[-1].body), {0, 1})


def _partitions(body: dict[str, Any]) -> set[int]:
    return {partition["partition"] for topic in body["topics"] for partition in topic["partitions"]}
