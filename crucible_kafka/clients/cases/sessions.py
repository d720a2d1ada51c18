"""Fetch sessions (KIP-227): what is lost, refused, declined or evicted in the middle of one.

A client that opens no sessions does not support these cases. The wire shows that: all its fetches have the epoch -1.
"""

from dataclasses import replace
from typing import Any, Final

from crucible_kafka.clients.application import Consumer
from crucible_kafka.clients.case import MUST, case
from crucible_kafka.clients.play import Play, one_of, session_of

KIP_227: Final = "KIP-227; FetchSessionHandler.java"
FULL: Final = one_of(0, -1)
"""The epochs of a full fetch: 0 begins a session, -1 has none."""
NO_SESSION: Final = -1
"""The epoch of a Fetch that neither is in a session nor begins one."""


def _in_session(at: Play, partitions: int = 2) -> tuple[Consumer, str]:
    """Return a consumer that reads all partitions of a topic in a fetch session, and the topic."""
    topic = at.topic(partitions)
    consumer = at.consumer()
    consumer.assign(topic, *range(partitions))
    at.reads(consumer, [value for index in range(partitions) for value in at.write(topic, 5, index)])
    consumer.poll_until(lambda: len(consumer.exchanges("Fetch")) > 1, consumer.bound_s())
    fetches = consumer.exchanges("Fetch")
    at.supported(
        any(each.body["session_epoch"] != NO_SESSION for each in fetches), "The client opens no fetch sessions"
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
        return None if any(each.records for one in body.responses for each in one.partitions) else body

    lost = at.kafka.on("Fetch", session="incremental").change_response(lose_records, times=1)
    _reads_on(at, consumer, topic)
    after = consumer.exchanges("Fetch", after=lost)
    at.shown(after, "The client fetched no more after the lost response")
    at.wire("session epoch of the first Fetch afterwards", after[0].body["session_epoch"], FULL)


@case("sessions/epoch-refused", MUST, f"{KIP_227}, handleResponse; redpanda#27749")
def epoch_refused(at: Play) -> None:
    """The broker refuses the session epoch once (INVALID_FETCH_SESSION_EPOCH): the next Fetch is full, and nothing is
    lost or read twice."""
    consumer, topic = _in_session(at)
    refused = at.kafka.on("Fetch", session="incremental").respond_error("INVALID_FETCH_SESSION_EPOCH", times=1)
    _reads_on(at, consumer, topic)
    after = consumer.exchanges("Fetch", after=refused)
    at.shown(after, "The client fetched no more after the error")
    at.wire("session epoch of the next Fetch", after[0].body["session_epoch"], FULL)
    at.wire("partitions of the next Fetch", _partitions(after[0].body), {0, 1})


@case("sessions/not-found", MUST, f"{KIP_227}, handleResponse")
def not_found(at: Play) -> None:
    """The broker has forgotten the session (FETCH_SESSION_ID_NOT_FOUND): the next Fetch is full and begins a new
    session, and nothing is lost or read twice."""
    consumer, topic = _in_session(at)
    refused = at.kafka.on("Fetch", session="incremental").respond_error("FETCH_SESSION_ID_NOT_FOUND", times=1)
    _reads_on(at, consumer, topic)
    after = consumer.exchanges("Fetch", after=refused)
    at.shown(after, "The client fetched no more after the error")
    at.wire("session ID of the next Fetch", after[0].body["session_id"], 0)
    at.wire("session epoch of the next Fetch", after[0].body["session_epoch"], FULL)


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
    at.supported(any(each.body["session_epoch"] == 0 for each in fetches), "The client opens no fetch sessions")
    at.wire("fetches in a session", sum(each.body["session_epoch"] > 0 for each in fetches), 0)
    at.wire("partitions of the last Fetch", _partitions(fetches[-1].body), {0, 1})


def _partitions(body: dict[str, Any]) -> set[int]:
    return {each["partition"] for topic in body["topics"] for each in topic["partitions"]}
