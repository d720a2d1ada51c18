"""Manners: a client in trouble does not make it worse for its broker, and says goodbye when it closes.

The bounds of requests per second are several times what the clients' backoffs allow, so that only a loop without a wait
violates them.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from crucible_kafka.clients.application import Client, Consumer
from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.fetch_changes import error_of, next_fetch, on_data
from crucible_kafka.clients.play import Play, at_least, at_most, session_of
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode

WATCHED_S: Final = 2.5
BACKOFF_MS: Final = 200
MAX_PER_S: Final = 30
"""A backoff of 200 ms allows five attempts a second: of each of up to two kinds of requests, over three connections."""
MAX_METADATA_PER_S: Final = 15
"""As MAX_PER_S, for one kind of requests."""
MAX_CPU_SHARE: Final = 0.6
"""Share of a processor that a client may use while it can do nothing."""
NO_LEADER: Final = -1
OLD: Final = "2.8"


def _watch(consumer: Consumer, count: Callable[[], int]) -> float:
    """Let the application poll for a while, and return how many of what is counted came in a second."""
    before, began_s = count(), time.monotonic()
    consumer.poll_until(lambda: time.monotonic() - began_s >= WATCHED_S, WATCHED_S)
    return (count() - before) / (time.monotonic() - began_s)


def _reading(at: Play, partitions: int = 1) -> tuple[Consumer, str]:
    topic = at.topic(partitions)
    consumer = at.consumer(retry_backoff_ms=BACKOFF_MS, reconnect_backoff_ms=BACKOFF_MS)
    consumer.assign(topic, *range(partitions))
    at.reads(consumer, at.write(topic, 5))
    return consumer, topic


def _metadata_per_s(at: Play, consumer: Consumer) -> int:
    """Watch the consumer, and return how many Metadata requests it sent in a second. The conversation gets the number
    for each API."""

    def count() -> Counter[str]:
        return Counter(frame.api for frame in at.frames(consumer.name) if frame.is_request)

    before, began_s = count(), time.monotonic()
    _watch(consumer, lambda: 0)
    seconds = time.monotonic() - began_s
    found = Counter({api: round(number / seconds) for api, number in (count() - before).items()})
    at.note(f"(requests per second: {', '.join(f'{api} {number}' for api, number in found.most_common())})")
    return found["Metadata"]


def _cpu_s(client: Client) -> float:
    """Return the processor time of the client's processes, in seconds; 0 where /proc has none."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == client.process.pid:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@case("manners/broker-down", SHOULD, "reconnect.backoff.ms; ClusterConnectionStates.java")
def broker_down(at: Play) -> None:
    """The only broker is down for a while: the client does not use a whole processor meanwhile, and reads on as soon as
    the broker is back."""
    consumer, topic = _reading(at)
    at.kafka.node(0).kill()
    _watch(consumer, lambda: 0)  # It notices, and loads what it needs for it.
    used_s, began_s = _cpu_s(consumer), time.monotonic()
    _watch(consumer, lambda: 0)
    share = (_cpu_s(consumer) - used_s) / (time.monotonic() - began_s)
    at.wire("share of a processor that it used", round(share, 2), at_most(MAX_CPU_SHARE))
    at.kafka.node(0).restart()
    at.reads(consumer, at.write(topic, 5), timeouts=5, from_record=5)


@case("manners/closed-connections", SHOULD, "reconnect.backoff.ms; ClusterConnectionStates.java")
def closed_connections(at: Play) -> None:
    """The broker closes each connection at its first request: the client waits for its backoff before the next
    attempt, and reads on afterwards."""
    consumer, topic = _reading(at)
    rule = at.kafka.on("*", client_id="consumer-*").close_before()
    per_s = _watch(consumer, lambda: rule.fired)
    at.wire("requests per second", round(per_s), at_most(MAX_PER_S))
    rule.remove()
    at.reads(consumer, at.write(topic, 5), timeouts=5, from_record=5)


@case("manners/leaderless", SHOULD, "retry.backoff.ms; Metadata.java, timeToAllowUpdate")
def leaderless(at: Play) -> None:
    """The partition loses its leader: the client waits for its backoff between Metadata requests, and reads on as soon
    as there is a leader. The rate of Fetch is not judged: Kafka's Java client goes on to fetch from the old leader
    (SubscriptionState.java, maybeValidatePosition), without a backoff."""
    consumer, topic = _reading(at)

    def without_leader(body: Any) -> Any:
        if not any(each.name == topic for each in body.topics):
            return body
        return replace(body, topics=tuple(_leaderless(each) if each.name == topic else each for each in body.topics))

    changes = at.kafka.on("Metadata", client_id="consumer-*").change_response(without_leader)
    refusals = on_data(at, error_of(ErrorCode.not_leader_or_follower), None)
    next_fetch(consumer)
    written = at.write(topic, 5)
    at.wire("Metadata requests per second", _metadata_per_s(at, consumer), at_most(MAX_METADATA_PER_S))
    at.require(changes.fired, "The client has requested no metadata")
    changes.remove()
    refusals.remove()
    at.reads(consumer, written, timeouts=5, from_record=5)


def _leaderless(topic: Any) -> Any:
    partitions = [
        replace(partition, leader_id=type(partition.leader_id)(NO_LEADER), error_code=ErrorCode.leader_not_available)
        for partition in topic.partitions
    ]
    return replace(topic, partitions=tuple(partitions))


@case("manners/fetch-refused", SHOULD, "retry.backoff.ms; Metadata.java, timeToAllowUpdate")
def fetch_refused(at: Play) -> None:
    """Each Fetch of records gets NOT_LEADER_OR_FOLLOWER, and metadata names the same leader: the client waits for its
    backoff between Metadata requests, and reads on afterwards. The rate of Fetch is not judged: Kafka's Java client
    has no backoff there (FetchCollector.java, handleInitializeErrors; AbstractFetch.java, prepareFetchRequests)."""
    consumer, topic = _reading(at)
    rule = on_data(at, error_of(ErrorCode.not_leader_or_follower), None)
    next_fetch(consumer)
    written = at.write(topic, 5)
    per_s = _metadata_per_s(at, consumer)
    at.require(rule.fired, "The client has fetched nothing")
    at.wire("Metadata requests per second", per_s, at_most(MAX_METADATA_PER_S))
    rule.remove()
    at.reads(consumer, written, timeouts=5, from_record=5)


@case(
    "manners/session-closed",
    SHOULD,
    "KIP-227: a Fetch with the epoch -1 closes; Fetcher.java, maybeCloseFetchSessions",
)
def session_closed(at: Play) -> None:
    """The consumer closes: it closes its fetch session at the broker, too."""
    consumer, _ = _reading(at, partitions=2)
    consumer.poll_until(lambda: session_of(consumer.exchanges("Fetch")), consumer.bound_s())
    at.supported(session_of(consumer.exchanges("Fetch")), "The client opens no fetch sessions")
    consumer.close()
    open_now = [session for session in at.kafka.sessions() if session.client_id == consumer.name]
    at.wire("sessions that are left", len(open_now), 0)


@case("manners/group-left", SHOULD, "KIP-62; AbstractCoordinator.java, maybeLeaveGroup", needs=("consumer", "groups"))
def group_left(at: Play) -> None:
    """A member of a group closes: it leaves the group, so that others need not wait for its session timeout."""
    topic = at.topic()
    consumer = at.consumer(group="group-1")
    consumer.subscribe(topic)
    at.reads(consumer, at.write(topic, 5), timeouts=5)
    consumer.close()
    at.wire("LeaveGroup requests", len(consumer.exchanges("LeaveGroup")), at_least(1))


@case("manners/idle", MUST, "connections.max.idle.ms of the broker; NetworkClient.java", needs=("producer",))
def idle(at: Play) -> None:
    """The broker closes a connection in order that has no request in flight, as it does with idle ones: the next record
    is written over a new connection, and the application gets no error."""
    topic = at.topic()
    producer = at.producer()
    closed = at.kafka.on("Produce", client_id=producer.name).close_after(times=1)
    producer.send(topic, "before")
    at.writes(producer)
    closed.wait_fired()
    producer.send(topic, "after")
    at.writes(producer)
    connections = {exchange.request.connection for exchange in producer.exchanges("Produce")}
    at.require(len(connections) > 1, "The client's connection was not closed")
    at.data("values acknowledged", producer.acknowledged, ["before", "after"])
    at.error("errors of the application", producer.errors, [])


@case("manners/versions", MUST, "KIP-35: only versions that ApiVersions has", needs=("consumer", "producer"))
def versions(at: Play) -> None:
    """The broker offers the versions of Kafka 2.8: each request has a version that it offers, and the clients write and
    read."""
    at.cluster(versions=OLD)
    topic = at.topic()
    producer = at.producer()
    producer.send(topic, "a", "b", "c")
    at.writes(producer)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, ["a", "b", "c"])
    offered = _offered(consumer)
    at.require(offered, "The client has requested no ApiVersions")
    frames = [frame for name in (producer.name, consumer.name) for frame in at.frames(name) if frame.is_request]
    above = {
        f"{frame.api} {frame.version}" for frame in frames if frame.version > offered.get(frame.api, frame.version)
    }
    at.wire("requests above what is offered", sorted(above), [])
    at.error("errors of the application", [*producer.errors, *consumer.errors], [])


def _offered(client: Client) -> dict[str, int]:
    """Return the highest version of each API that the client was offered. ApiVersions is left out: its first request
    is a guess."""
    bodies = [
        exchange.response.body
        for exchange in client.exchanges("ApiVersions")
        if exchange.response and exchange.response.body
    ]
    highest = {key["api_key"]: key["max_version"] for body in bodies for key in body["api_keys"]}
    names = {int(key): api_name(key) for key in ApiKey}
    return {names[key]: top for key, top in highest.items() if key in names and key != ApiKey.API_VERSIONS}
