"""Bootstrap and metadata: first addresses that do not work, versions, and where clients believe the leaders are."""

from dataclasses import replace
from typing import Any, Final

from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.play import Play, at_least
from crucible_kafka.clients.raw_servers import RawServer
from reference_broker.wire.errors import ErrorCode

BOOTSTRAP: Final = "Kafka's documentation, bootstrap.servers; NetworkClient.java, DefaultMetadataUpdater"
KIP_511: Final = "KIP-511: UNSUPPORTED_VERSION in version 0"
ATTEMPTS: Final = 5
"""Number of clients that are started until one has tried such an address: some begin with a random one."""
HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
BEYOND: Final = 40
"""Added to the highest version of each API by a broker that is newer than any client."""
UNKNOWN_API: Final = 9_999
LEADERLESS_TIMES: Final = 4


def _reads_beside(at: Play, *servers: RawServer) -> None:
    """Let clients read whose first addresses are these servers, until one has tried any."""
    topic = at.topic()
    written = at.write(topic)
    addresses = [*(each.address for each in servers), at.kafka.bootstrap_servers]
    for _ in range(ATTEMPTS):
        consumer = at.consumer(bootstrap=",".join(addresses), request_timeout_ms=2000)
        consumer.assign(topic)
        at.reads(consumer, written, timeouts=5)
        at.error("fatal errors of the application", consumer.fatal, None)
        if any(each.accepted for each in servers):
            return
        consumer.close()
    at.shown(False, f"Of {ATTEMPTS} clients none tried such an address")


@case("bootstrap/silent", MUST, BOOTSTRAP)
def silent(at: Play) -> None:
    """The first two of three addresses accept connections and never respond: the client goes on to the third."""
    _reads_beside(at, at.silent(), at.silent())


@case("bootstrap/garbled", MUST, BOOTSTRAP)
def garbled(at: Play) -> None:
    """The first two of three addresses are HTTP servers, whose bytes would be a response of 1.2 GB: the client goes on
    to the third."""
    _reads_beside(at, at.garbled(HTTP), at.garbled(HTTP))


@case("bootstrap/versions/unsupported", MUST, KIP_511)
def unsupported(at: Play) -> None:
    """The broker knows ApiVersions in version 0 only, and responds to others with UNSUPPORTED_VERSION in version 0: the
    client goes on with the versions of that response, or of version 0."""
    at.cluster(versions={"ApiVersions": 0})
    topic = at.topic()
    written = at.write(topic)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written)
    refused = [each for each in consumer.exchanges("ApiVersions") if each.request.version > 0]
    at.supported(refused, "The client requests ApiVersions in version 0 only")
    at.error("fatal errors of the application", consumer.fatal, None)


@case("bootstrap/versions/newer", MUST, "KIP-35; ApiVersionsResponse.json")
def newer(at: Play) -> None:
    """The broker announces versions that are far beyond the client's, and an API that no client knows: the client uses
    the highest versions that both have."""

    def announce(body: Any) -> Any:
        keys = [replace(each, max_version=type(each.max_version)(each.max_version + BEYOND)) for each in body.api_keys]
        unknown = replace(keys[-1], api_key=UNKNOWN_API)
        return replace(body, api_keys=(*keys, unknown))

    at.kafka.on("ApiVersions", client_id="consumer-*").change_response(announce)
    topic = at.topic()
    written = at.write(topic)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written)
    at.error("errors of the application", consumer.errors, [])


@case("metadata/leaderless", MUST, "MetadataResponse.json, LEADER_NOT_AVAILABLE; Errors.java (retriable)")
def leaderless(at: Play) -> None:
    """Metadata says several times that the partition has no leader: the client requests it again after its backoff, and
    reads as soon as there is one."""
    topic = at.topic()
    written = at.write(topic)

    def without_leader(body: Any) -> Any:
        if not any(each.name == topic for each in body.topics):
            return body
        return replace(body, topics=tuple(_leaderless(each) if each.name == topic else each for each in body.topics))

    rule = at.kafka.on("Metadata", client_id="consumer-*").change_response(without_leader, times=LEADERLESS_TIMES)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written, timeouts=4)
    at.error("fatal errors of the application", consumer.fatal, None)
    at.shown(rule.fired == LEADERLESS_TIMES, f"Metadata without a leader was sent {rule.fired} times only")


def _leaderless(topic: Any) -> Any:
    partitions = [
        replace(each, leader_id=type(each.leader_id)(-1), error_code=ErrorCode.leader_not_available)
        for each in topic.partitions
    ]
    return replace(topic, partitions=tuple(partitions))


@case("bootstrap/throttled", SHOULD, "KIP-219: the client waits for the throttle time")
def throttled(at: Play) -> None:
    """A Fetch response has a throttle time of one second: the client sends nothing on that connection meanwhile, and
    then goes on."""
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, at.write(topic))
    rule = at.kafka.on("Fetch", client_id="consumer-*").throttle(1000, times=1)
    consumer.poll_until(lambda: rule.fired)
    at.reads(consumer, at.write(topic), from_record=10)
    (hit,) = rule.hits
    after = [each for each in consumer.exchanges("Fetch", after=rule) if each.request.connection == hit.connection]
    at.shown(after, "The client fetched no more on that connection")
    waited_ms = round((after[0].request.at_s - hit.at_s) * 1000)
    at.wire("milliseconds until the next Fetch on that connection", waited_ms, at_least(990))
    at.error("errors of the application", consumer.errors, [])
