"""Bootstrap and metadata: first addresses that do not work, versions, and where clients believe the leaders are."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from crucible_kafka.clients.application import Consumer
from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.play import Play, at_least
from crucible_kafka.clients.raw_servers import RawServer
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

BOOTSTRAP: Final = "Kafka's documentation, bootstrap.servers; NetworkClient.java, DefaultMetadataUpdater"
KIP_511: Final = "KIP-511: UNSUPPORTED_VERSION in version 0"
ATTEMPTS: Final = 5
"""Number of clients that are started until one has tried such an address: some begin with a random one."""
HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
BEYOND: Final = 40
"""Added to the highest version of each of ``BOTH`` by a broker that is newer than any client."""
BOTH: Final = (ApiKey.FETCH, ApiKey.METADATA)
UNKNOWN_API: Final = 9_999
LEADERLESS_TIMES: Final = 4
WITHOUT_EPOCH_TIMES: Final = 6
OLDER_TIMES: Final = 3
OLD_RELEASE: Final = "2.8"
FIRST_WITH_REBOOTSTRAP: Final = 13
"""The version of Metadata from which on a response may have REBOOTSTRAP_REQUIRED (KIP-1102)."""
DOWN_POLLS: Final = 5
SHORT_AGE_MS: Final = 500
READING: Final = ("Fetch", "ListOffsets", "OffsetForLeaderEpoch")
KIP_320: Final = "KIP-320; Metadata.java, updateLatestMetadata"


def _reads_beside(at: Play, *servers: RawServer) -> None:
    """Let clients read whose first addresses are these servers, until one has tried any."""
    topic = at.topic()
    written = at.write(topic)
    addresses = [*(server.address for server in servers), at.kafka.bootstrap_servers]
    for _ in range(ATTEMPTS):
        consumer = at.consumer(bootstrap=",".join(addresses), request_timeout_ms=2000)
        consumer.assign(topic)
        at.reads(consumer, written, timeouts=5)
        at.error("fatal errors of the application", consumer.fatal, None)
        if any(server.accepted for server in servers):
            return
        consumer.close()
    at.require(False, f"Of {ATTEMPTS} clients none tried such an address")


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
    refused = [exchange for exchange in consumer.exchanges("ApiVersions") if exchange.request.version > 0]
    at.supported(refused, "The client requests ApiVersions in version 0 only")
    at.error("fatal errors of the application", consumer.fatal, None)


@case("bootstrap/versions/newer", MUST, "KIP-35; ApiVersionsResponse.json")
def newer(at: Play) -> None:
    """The broker announces versions of Fetch and Metadata that are far beyond the client's, and an API that no client
    knows: the client uses the highest versions that both have."""

    def announce(body: Any) -> Any:
        # Of these two the broker serves the newest versions that clients have. Of others a client may have newer ones.
        keys = [
            replace(key, max_version=type(key.max_version)(key.max_version + BEYOND)) if key.api_key in BOTH else key
            for key in body.api_keys
        ]
        unknown = replace(keys[-1], api_key=UNKNOWN_API)
        return replace(body, api_keys=(*keys, unknown))

    at.kafka.on("ApiVersions", client_id="consumer-*").change_response(announce)
    topic = at.topic()
    written = at.write(topic)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written)
    at.error("errors of the application", consumer.errors, [])


@case("bootstrap/refused", MUST, BOOTSTRAP)
def refused(at: Play) -> None:
    """The only address refuses connections for a while, as when the broker starts after the application: the client
    connects as soon as it can, or reports an error after which the application makes a new one."""
    topic = at.topic()
    written = at.write(topic)
    forwarder = at.forwarder()
    consumer = at.consumer(bootstrap=forwarder.address)
    consumer.assign(topic)
    for _ in range(DOWN_POLLS):
        consumer.poll()
    at.require(not consumer.records, "The client read through a port that refuses connections")
    at.error("fatal errors of the application", consumer.fatal, None)
    forwarder.open()
    if consumer.errors:
        consumer = at.consumer(bootstrap=forwarder.address)
        consumer.assign(topic)
    at.reads(consumer, written)
    at.require(forwarder.accepted, "The client did not connect to its only address")


@case("bootstrap/versions/old", MUST, "KIP-35; the schemas of Apache Kafka 2.8", needs=("groups",))
def old(at: Play) -> None:
    """The broker is of Apache Kafka 2.8: a member of a group reads and commits, and no request has a version that the
    broker has not announced."""
    at.cluster(versions=OLD_RELEASE)
    topic = at.topic()
    written = at.write(topic)
    member = at.consumer(group="readers")
    member.subscribe(topic)
    at.reads(member, written)
    at.data("the commit succeeds", member.commit(), True)
    beyond = [f"{frame.api} v{frame.version}" for frame in at.frames(member.name) if "max_versions" in frame.fault]
    at.wire("requests beyond the announced versions", beyond, [])


@case("bootstrap/connection-closed", MUST, "Kafka's documentation, connections.max.idle.ms")
def connection_closed(at: Play) -> None:
    """The broker closes a connection just as a Fetch arrives, as it does with idle ones: the client connects again, and
    the application gets no error."""
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, at.write(topic))
    at.kafka.on("Fetch", client_id="consumer-*").close_before(times=1)
    at.reads(consumer, at.write(topic), from_record=10)
    at.error("errors of the application", consumer.errors, [])


@case("bootstrap/rebootstrap", MUST, "KIP-1102")
def rebootstrap(at: Play) -> None:
    """Metadata says REBOOTSTRAP_REQUIRED: the client begins again at its first addresses, and goes on."""
    topic = at.topic()
    consumer = at.consumer(metadata_max_age_ms=SHORT_AGE_MS)
    consumer.assign(topic)
    at.reads(consumer, at.write(topic))
    newest = max(exchange.request.version for exchange in consumer.exchanges("Metadata"))
    at.supported(newest >= FIRST_WITH_REBOOTSTRAP, f"The client sends Metadata {newest}, which lacks the error")
    rule = at.kafka.on("Metadata", client_id="consumer-*").respond_error("REBOOTSTRAP_REQUIRED", times=1)
    consumer.poll_until(lambda: rule.fired)
    at.reads(consumer, at.write(topic), from_record=10)
    at.error("fatal errors of the application", consumer.fatal, None)


@case("metadata/leaderless", MUST, "Errors.java, LEADER_NOT_AVAILABLE (retriable)")
def leaderless(at: Play) -> None:
    """Metadata says several times that the partition has no leader: the client requests it again after its backoff, and
    reads as soon as there is one."""
    topic = at.topic()
    written = at.write(topic)

    without_leader = _on_metadata(topic, _leaderless)
    rule = at.kafka.on("Metadata", client_id="consumer-*").change_response(without_leader, times=LEADERLESS_TIMES)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written, timeouts=4)
    at.error("fatal errors of the application", consumer.fatal, None)
    at.require(rule.fired == LEADERLESS_TIMES, f"Metadata without a leader was sent {rule.fired} times only")


@case("metadata/moved-node", MUST, "MetadataResponse.json: a node's host and port")
def moved_node(at: Play) -> None:
    """A node has another address after it was restarted, under the same ID: the client follows the metadata, and not
    its old address."""
    kafka = at.cluster(nodes=3)
    topic = at.topic()
    leader = kafka.leader(topic)
    before, after = at.forwarder(leader), at.forwarder(leader)
    before.open()
    kafka.advertise("127.0.0.1", before.port, leader)
    others = ",".join(kafka.node(number).address for number in range(3) if number != leader)
    consumer = at.consumer(bootstrap=others, metadata_max_age_ms=SHORT_AGE_MS)
    consumer.assign(topic)
    at.reads(consumer, at.write(topic))
    at.require(before.accepted, "The client did not use the first address")
    after.open()
    kafka.advertise("127.0.0.1", after.port, leader)
    before.close()
    at.reads(consumer, at.write(topic), from_record=10)
    at.require(after.accepted, "The client did not use the second address")
    at.error("fatal errors of the application", consumer.fatal, None)


def _reads_despite_older(at: Play) -> tuple[Consumer, int, float]:
    """Let a consumer follow a leader that moved, then get older metadata several times. Return it with the ID of the
    old leader, and the time of the first older response."""
    kafka = at.cluster(nodes=3)
    topic = at.topic()
    consumer = at.consumer(metadata_max_age_ms=SHORT_AGE_MS)
    consumer.assign(topic)
    at.reads(consumer, at.write(topic))
    old_leader, old_epoch = kafka.leader(topic), _epoch(at, topic)
    kafka.move_leader(topic)
    at.reads(consumer, at.write(topic), from_record=10)
    older = _on_metadata(topic, lambda each: _led_by(each, old_leader, old_epoch))
    rule = kafka.on("Metadata", client_id="consumer-*").change_response(older, times=OLDER_TIMES)
    consumer.poll_until(lambda: rule.fired == OLDER_TIMES, consumer.bound_s(also_ms=OLDER_TIMES * SHORT_AGE_MS))
    at.require(rule.fired, "The client requested no metadata")
    at.reads(consumer, at.write(topic), from_record=20)
    at.error("fatal errors of the application", consumer.fatal, None)
    return consumer, old_leader, rule.hits[0].at_s


@case("metadata/older", MUST, KIP_320)
def older(at: Play) -> None:
    """After the leader has moved, metadata of before comes several times, with the old leader and its older epoch:
    records are read once and in order all the same."""
    _reads_despite_older(at)


@case("metadata/older-ignored", SHOULD, f"{KIP_320}; librdkafka#4687")
def older_ignored(at: Play) -> None:
    """After the leader has moved, metadata of before comes several times, with the old leader and its older epoch: the
    client ignores it, and fetches nothing from the old leader."""
    consumer, old_leader, since_s = _reads_despite_older(at)
    at_old = [
        exchange for exchange in consumer.exchanges("Fetch", after=since_s) if exchange.request.node == old_leader
    ]
    at.wire("fetches with partitions at the old leader", sum(bool(exchange.body["topics"]) for exchange in at_old), 0)


@case("metadata/equal-epoch", MUST, f"{KIP_320}; librdkafka#4804")
def equal_epoch(at: Play) -> None:
    """Metadata names a wrong leader first, and then the right one with the same leader epoch: the client follows to the
    right one."""
    kafka = at.cluster(nodes=3)
    topic = at.topic()
    written = at.write(topic)
    wrong = (kafka.leader(topic) + 1) % 3
    misled = _on_metadata(topic, lambda each: _led_by(each, wrong, _epoch_of(each)))
    kafka.on("Metadata", client_id="consumer-*").change_response(misled, times=2)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written, timeouts=4)
    came = [exchange for api in READING for exchange in consumer.exchanges(api) if exchange.request.node == wrong]
    at.require(came, "The client did not try to read from the wrong leader")
    at.error("fatal errors of the application", consumer.fatal, None)


@case("metadata/without-epoch", MUST, f"{KIP_320}; franz-go#1331")
def without_epoch(at: Play) -> None:
    """Metadata has the leader epoch -1 six times, as from a broker that knows none, and then the right one: the client
    reads from the beginning on, and goes on after it knows the epoch."""
    topic = at.topic()
    rule = at.kafka.on("Metadata", client_id="consumer-*").change_response(
        _on_metadata(topic, lambda each: _led_by(each, None, -1)), times=WITHOUT_EPOCH_TIMES
    )
    consumer = at.consumer(metadata_max_age_ms=SHORT_AGE_MS)
    consumer.assign(topic)
    at.reads(consumer, at.write(topic))
    bound_s = consumer.bound_s(also_ms=2 * WITHOUT_EPOCH_TIMES * SHORT_AGE_MS)
    consumer.poll_until(lambda: rule.fired == WITHOUT_EPOCH_TIMES, bound_s)
    at.require(rule.fired == WITHOUT_EPOCH_TIMES, f"The client requested metadata {rule.fired} times only")
    at.reads(consumer, at.write(topic), from_record=10)
    at.error("errors of the application", consumer.errors, [])


@case("metadata/recreated", MUST, "KIP-516: topic IDs")
def recreated(at: Play) -> None:
    """The topic is deleted and created again under a new ID, with more records: the client reads the new topic, from
    the position that it has or from where its reset policy says."""
    at.cluster(auto_create_topics_enable=False)  # Or a Metadata request in between would create the topic.
    topic = at.topic()
    consumer = at.consumer(metadata_max_age_ms=SHORT_AGE_MS)
    consumer.assign(topic)
    at.reads(consumer, at.write(topic))
    _delete(at, topic)
    at.kafka.create_topic(topic)
    written = at.write(topic, 15)
    within_s = consumer.bound_s(3, also_ms=SHORT_AGE_MS)
    done = consumer.poll_until(lambda: written[-1] in consumer.values, within_s)
    at.progress(
        "the new topic is read", done, within_s, f"3 x request_timeout_ms and metadata_max_age_ms {SHORT_AGE_MS}"
    )
    read = [value for value in consumer.values[10:] if value in written]
    at.data("order of the values read", read, written[len(written) - len(set(read)) :])
    at.error("fatal errors of the application", consumer.fatal, None)


@case("metadata/partitions-added", MUST, "Kafka's documentation, metadata.max.age.ms", needs=("groups",))
def partitions_added(at: Play) -> None:
    """A partition is added to a topic: the group gets it within the age of metadata, and its records are read from
    their beginning."""
    topic = at.topic()
    member = at.consumer(group="readers", metadata_max_age_ms=SHORT_AGE_MS)
    member.subscribe(topic)
    at.reads(member, at.write(topic))
    at.data("the commit succeeds", member.commit(), True)  # A rebalance would read again what is not committed.
    _add_partition(at, topic)
    at.reads(member, at.write(topic, partition=1), timeouts=4, from_record=10)
    at.error("fatal errors of the application", member.fatal, None)


def _delete(at: Play, topic: str) -> None:
    from kio.schema.delete_topics.v6.request import DeleteTopicState

    state = DeleteTopicState(name=topic, topic_id=None)  # type: ignore[arg-type]
    (deleted,) = at.admin_request(ApiKey.DELETE_TOPICS, topics=(state,), timeout=timedelta(seconds=5)).responses
    assert deleted.error_code is ErrorCode.none, f"the topic was not deleted: {deleted.error_code}"


def _add_partition(at: Play, topic: str) -> None:
    from kio.schema.create_partitions.v3.request import CreatePartitionsTopic

    wanted = CreatePartitionsTopic(name=topic, count=2, assignments=None)  # type: ignore[arg-type]
    (added,) = at.admin_request(
        ApiKey.CREATE_PARTITIONS, topics=(wanted,), timeout=timedelta(seconds=5), validate_only=False
    ).results
    assert added.error_code is ErrorCode.none, f"the partition was not added: {added.error_code}"


def _epoch(at: Play, topic: str) -> int:
    """Return the leader epoch of the topic's first partition."""
    return int(at.kafka.active_controller().command("state")["topics"][topic][0]["leader_epoch"])


def _epoch_of(topic: Any) -> int:
    return int(topic.partitions[0].leader_epoch)


def _on_metadata(topic: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that changes a topic in responses to Metadata. Those without the topic pass."""

    def changed(body: Any) -> Any:
        if not any(each.name == topic and each.partitions for each in body.topics):
            return body
        return replace(body, topics=tuple(change(each) if each.name == topic else each for each in body.topics))

    return changed


def _led_by(topic: Any, leader: int | None, epoch: int) -> Any:
    """Return a topic of Metadata with another leader, or the same with None, and another leader epoch."""
    partitions = [
        replace(
            partition,
            leader_id=partition.leader_id if leader is None else type(partition.leader_id)(leader),
            leader_epoch=type(partition.leader_epoch)(epoch),
        )
        for partition in topic.partitions
    ]
    return replace(topic, partitions=tuple(partitions))


def _leaderless(topic: Any) -> Any:
    partitions = [
        replace(partition, leader_id=type(partition.leader_id)(-1), error_code=ErrorCode.leader_not_available)
        for partition in topic.partitions
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
    after = [
        exchange
        for exchange in consumer.exchanges("Fetch", after=rule)
        if exchange.request.connection == hit.connection
    ]
    at.require(after, "The client fetched no more on that connection")
    waited_ms = round((after[0].request.at_s - hit.at_s) * 1000)
    at.wire("milliseconds until the next Fetch on that connection", waited_ms, at_least(990))
    at.error("errors of the application", consumer.errors, [])
