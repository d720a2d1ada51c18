"""The broker's settings: types, ranges, defaults. Names and ranges are Kafka's (KafkaConfig 4.1) where it has them."""

from collections.abc import Mapping
from dataclasses import dataclass

from reference_broker.configuration.setting import INT_MAX, LONG_MAX, ConfigKey, Kind
from reference_broker.configuration.topic_config import BROKER_SYNONYMS, TOPIC_KEYS

MIN_METADATA_SEGMENT_BYTES = 1024
"""Kafka's least size is 8 MiB, its largest batch; our batches are small, and a larger one makes its segment larger."""


def _from_topic(topic_name: str, broker_name: str) -> ConfigKey:
    key = TOPIC_KEYS[topic_name]
    return ConfigKey(broker_name, key.kind, key.default, key.doc, key.at_least, key.at_most, key.choices)


_OWN = (
    ConfigKey("advertised.listeners", Kind.STRING, "", "PLAINTEXT://HOST:PORT told to clients; empty: as listened."),
    ConfigKey("auto.create.topics.enable", Kind.BOOLEAN, True, "Whether asking for a topic's metadata creates it."),
    ConfigKey("auto.leader.rebalance.enable", Kind.BOOLEAN, True, "Whether preferred leaders are elected by and by."),
    ConfigKey(
        "broker.heartbeat.interval.ms", Kind.INT, 2000, "How often a broker tells that it lives, ms.", at_least=1
    ),
    ConfigKey("broker.rack", Kind.STRING, "", "Where this broker stands: replicas are spread over racks."),
    ConfigKey("broker.session.timeout.ms", Kind.INT, 9000, "Silence after which a broker is fenced, ms.", at_least=1),
    ConfigKey("connections.max.idle.ms", Kind.LONG, 600_000, "Idle time before a connection is closed, ms."),
    ConfigKey(
        "controller.quorum.election.backoff.max.ms",
        Kind.INT,
        1000,
        "Most time between two elections without a winner, ms.",
        at_least=1,
    ),
    ConfigKey(
        "controller.quorum.election.timeout.ms", Kind.INT, 1000, "How long an election may take, ms.", at_least=1
    ),
    ConfigKey(
        "controller.quorum.fetch.timeout.ms",
        Kind.INT,
        2000,
        "Silence of the leader (or of a majority of voters) after which a new one is sought, ms.",
        at_least=1,
    ),
    ConfigKey(
        "controller.quorum.request.timeout.ms",
        Kind.INT,
        2000,
        "How long a request to a voter may take, ms.",
        at_least=1,
    ),
    ConfigKey(
        "controller.quorum.voters",
        Kind.STRING,
        "",
        "ID@HOST:PORT,...: all voters and how this node reaches them; empty: this node alone.",
    ),
    ConfigKey(
        "crucible.bootstrap.metadata.epoch",
        Kind.INT,
        0,
        "Level of the feature crucible.metadata.epoch in a new cluster: 1 carries the metadata epoch of KIP-232.",
        at_least=0,
        at_most=1,
    ),
    ConfigKey(
        "crucible.bootstrap.metadata.version",
        Kind.INT,
        25,
        "metadata.version of a new cluster.",
        at_least=1,
        at_most=25,
    ),
    ConfigKey("crucible.cluster.id", Kind.STRING, "", "The cluster's ID; needed where there are several voters."),
    ConfigKey(
        "crucible.max.open.files", Kind.INT, 0, "Segment files open at once; 0: a quarter of the limit.", at_least=0
    ),
    ConfigKey("crucible.max.parked.requests", Kind.INT, 100_000, "Requests that may wait at once.", at_least=1),
    ConfigKey(
        "crucible.metadata.batch.max.bytes",
        Kind.INT,
        8192,
        "Largest batch of metadata records, bytes; a larger set goes out as a transaction.",
        at_least=256,
        at_most=8 * 2**20,
    ),
    ConfigKey(
        "crucible.metadata.epoch.enable",
        Kind.BOOLEAN,
        True,
        "Whether this node knows the metadata epoch at all; false: as code from before it.",
    ),
    ConfigKey(
        "crucible.metadata.snapshot.fetch.draft",
        Kind.BOOLEAN,
        False,
        "Whether this node fetches snapshots in the layout of KIP-630's earlier page; all nodes must know it.",
    ),
    ConfigKey(
        "crucible.metadata.snapshot.fetch.max.bytes",
        Kind.INT,
        1_048_576,
        "Bytes of a snapshot asked for at once.",
        at_least=1,
    ),
    ConfigKey(
        "crucible.metadata.snapshot.keep.ms",
        Kind.LONG,
        60_000,
        "How long a superseded snapshot is kept, ms.",
        at_least=0,
    ),
    ConfigKey(
        "crucible.peers",
        Kind.STRING,
        "",
        "ID@HOST:PORT,...: how this node reaches brokers that do not vote; empty: as they are advertised.",
    ),
    ConfigKey("crucible.request.log.enable", Kind.BOOLEAN, False, "One log line for each request."),
    ConfigKey(
        "crucible.unknown.producer.id.policy",
        Kind.STRING,
        "reject",
        "What an unknown producer ID with a sequence other than 0 gets.",
        choices=("reject", "accept"),
    ),
    ConfigKey("default.replication.factor", Kind.INT, 1, "Replicas of a topic that names none.", at_least=1),
    ConfigKey("delete.topic.enable", Kind.BOOLEAN, True, "Whether topics can be deleted."),
    ConfigKey("fetch.max.bytes", Kind.INT, 57_671_680, "Most bytes that a fetch is answered with.", at_least=1024),
    ConfigKey(
        "fetch.session.revision",
        Kind.STRING,
        "final",
        "Which revision of KIP-227's sessions this node's followers use.",
        choices=("final", "first"),
    ),
    ConfigKey(
        "group.initial.rebalance.delay.ms",
        Kind.INT,
        3000,
        "How long an empty group waits for more members at its first rebalance, ms.",
        at_least=0,
    ),
    ConfigKey(
        "group.max.session.timeout.ms", Kind.INT, 1_800_000, "Longest session timeout of a member, ms.", at_least=1
    ),
    ConfigKey("group.max.size", Kind.INT, INT_MAX, "Most members of a group.", at_least=1),
    ConfigKey(
        "group.min.session.timeout.ms", Kind.INT, 6000, "Shortest session timeout of a group member, ms.", at_least=1
    ),
    ConfigKey(
        "leader.imbalance.check.interval.seconds",
        Kind.LONG,
        300,
        "How often preferred leaders are looked for, seconds.",
        at_least=1,
    ),
    ConfigKey(
        "leader.imbalance.per.broker.percentage",
        Kind.INT,
        10,
        "Share of partitions led elsewhere that a broker may have, percent.",
        at_least=0,
    ),
    ConfigKey("log.cleaner.backoff.ms", Kind.LONG, 15_000, "Pause when there is nothing to compact, ms.", at_least=0),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        Kind.LONG,
        134_217_728,
        "Memory for the newest offset of each key in one compaction, bytes.",
        at_least=1,
    ),
    ConfigKey("log.cleaner.enable", Kind.BOOLEAN, True, "Whether compacted topics are compacted."),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        Kind.DOUBLE,
        1.7976931348623157e308,
        "Bytes that compaction reads and writes in a second.",
        at_least=1,
    ),
    ConfigKey(
        "log.retention.check.interval.ms", Kind.LONG, 300_000, "How often retention is enforced, ms.", at_least=1
    ),
    ConfigKey("max.connections", Kind.INT, 10_000, "Connections that may be open at once.", at_least=0),
    ConfigKey("max.incremental.fetch.session.cache.slots", Kind.INT, 1000, "Fetch sessions kept at once.", at_least=0),
    ConfigKey(
        "max.request.partition.size.limit", Kind.INT, 2000, "Partitions in one description of topics.", at_least=1
    ),
    ConfigKey(
        "metadata.log.max.record.bytes.between.snapshots",
        Kind.LONG,
        20_971_520,
        "Bytes of metadata records after which a snapshot is made.",
        at_least=1,
    ),
    ConfigKey(
        "metadata.log.max.snapshot.interval.ms",
        Kind.LONG,
        3_600_000,
        "Time after which one is made, ms; 0: never.",
        at_least=0,
    ),
    ConfigKey(
        "metadata.log.segment.bytes",
        Kind.INT,
        2**30,
        "Segment size of the metadata log, bytes.",
        at_least=MIN_METADATA_SEGMENT_BYTES,
    ),
    ConfigKey("metadata.log.segment.ms", Kind.LONG, 604_800_000, "Segment age of the metadata log, ms.", at_least=1),
    ConfigKey(
        "metadata.max.retention.bytes",
        Kind.LONG,
        104_857_600,
        "Size of the metadata log and its snapshots.",
        at_least=-1,
    ),
    ConfigKey("metadata.max.retention.ms", Kind.LONG, 604_800_000, "Age of a metadata snapshot, ms.", at_least=-1),
    ConfigKey(
        "min.incremental.fetch.session.eviction.ms",
        Kind.LONG,
        120_000,
        "Idle time or age from which a session may be evicted, ms.",
        at_least=0,
    ),
    ConfigKey("num.partitions", Kind.INT, 1, "Partitions of a topic that names none.", at_least=1, at_most=10_000),
    ConfigKey("offset.metadata.max.bytes", Kind.INT, 4096, "Longest text that a commit may carry, bytes.", at_least=0),
    ConfigKey("offsets.commit.timeout.ms", Kind.INT, 5000, "How long a commit waits to be replicated, ms.", at_least=1),
    ConfigKey(
        "offsets.retention.check.interval.ms",
        Kind.LONG,
        600_000,
        "How often committed offsets that are too old are looked for, ms.",
        at_least=1,
    ),
    ConfigKey(
        "offsets.retention.minutes",
        Kind.INT,
        10_080,
        "How long committed offsets of an empty group are kept, minutes.",
        at_least=1,
    ),
    ConfigKey(
        "offsets.topic.num.partitions", Kind.INT, 50, "Partitions of __consumer_offsets.", at_least=1, at_most=10_000
    ),
    ConfigKey(
        "offsets.topic.replication.factor",
        Kind.INT,
        3,
        "Replicas of __consumer_offsets, at most one on each registered broker.",
        at_least=1,
    ),
    ConfigKey(
        "offsets.topic.segment.bytes", Kind.INT, 104_857_600, "Segment size of __consumer_offsets, bytes.", at_least=1
    ),
    ConfigKey(
        "producer.id.expiration.check.interval.ms", Kind.INT, 600_000, "How often idle producers go, ms.", at_least=1
    ),
    ConfigKey("producer.id.expiration.ms", Kind.INT, 86_400_000, "Idle time of a producer ID, ms.", at_least=1),
    ConfigKey(
        "replica.fetch.backoff.ms",
        Kind.INT,
        1000,
        "Wait after a partition or a leader could not be fetched from, ms.",
        at_least=0,
    ),
    ConfigKey(
        "replica.fetch.max.bytes",
        Kind.INT,
        1_048_576,
        "Bytes that a follower asks for of one partition.",
        at_least=0,
    ),
    ConfigKey("replica.fetch.min.bytes", Kind.INT, 1, "Bytes that a follower's fetch waits for.", at_least=0),
    ConfigKey(
        "replica.fetch.response.max.bytes",
        Kind.INT,
        10_485_760,
        "Bytes that a follower asks for at once.",
        at_least=0,
    ),
    ConfigKey(
        "replica.fetch.wait.max.ms",
        Kind.INT,
        500,
        "How long a follower's fetch waits for data, ms.",
        at_least=0,
    ),
    ConfigKey(
        "replica.high.watermark.checkpoint.interval.ms",
        Kind.LONG,
        5000,
        "How often high watermarks are written to disk, ms.",
        at_least=1,
    ),
    ConfigKey(
        "replica.lag.time.max.ms",
        Kind.LONG,
        30_000,
        "Time behind the leader after which a replica is out of sync, ms.",
        at_least=1,
    ),
    ConfigKey(
        "replica.socket.timeout.ms",
        Kind.INT,
        30_000,
        "How long a follower waits for an answer, ms.",
        at_least=1,
    ),
    ConfigKey("socket.request.max.bytes", Kind.INT, 104_857_600, "Largest request, bytes.", at_least=1),
)

_ALL = (*_OWN, *(_from_topic(topic, broker) for topic, broker in BROKER_SYNONYMS.items()))

BROKER_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in sorted(_ALL, key=lambda key: key.name)}


@dataclass(frozen=True, slots=True)
class OtherUnit:
    """A key that sets the same thing as ``stands_for`` in another unit; ``factor`` converts to it."""

    key: ConfigKey
    stands_for: str
    factor: int


def _other(name: str, stands_for: str, factor: int) -> tuple[str, OtherUnit]:
    key = ConfigKey(name, Kind.INT, -1, f"{stands_for} in another unit.", at_least=-1, at_most=INT_MAX)
    return name, OtherUnit(key, stands_for, factor)


OTHER_UNITS: Mapping[str, OtherUnit] = dict(
    (
        _other("log.retention.minutes", "log.retention.ms", 60_000),
        _other("log.retention.hours", "log.retention.ms", 3_600_000),
        _other("log.roll.hours", "log.roll.ms", 3_600_000),
    )
)
"""Finer units first: they win."""

assert INT_MAX * 3_600_000 < LONG_MAX
