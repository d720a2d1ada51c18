"""The broker's settings: types, ranges, defaults. Names and ranges are Kafka's (KafkaConfig 4.1) where it has them."""

from collections.abc import Mapping
from dataclasses import dataclass

from reference_broker.model.config_key import INT_MAX, LONG_MAX, ConfigKey, Kind
from reference_broker.model.topic_config import BROKER_SYNONYMS, TOPIC_KEYS

MIN_METADATA_SEGMENT_BYTES = 8 * 2**20
"""Kafka's least size: one batch of metadata records must fit."""


def _from_topic(topic_name: str, broker_name: str) -> ConfigKey:
    key = TOPIC_KEYS[topic_name]
    return ConfigKey(broker_name, key.kind, key.default, key.doc, key.at_least, key.at_most, key.choices)


_OWN = (
    ConfigKey("advertised.listeners", Kind.STRING, "", "PLAINTEXT://HOST:PORT told to clients; empty: as listened."),
    ConfigKey("auto.create.topics.enable", Kind.BOOLEAN, True, "Whether asking for a topic's metadata creates it."),
    ConfigKey("connections.max.idle.ms", Kind.LONG, 600_000, "Idle time before a connection is closed, ms."),
    ConfigKey(
        "crucible.max.open.files", Kind.INT, 0, "Segment files open at once; 0: a quarter of the limit.", at_least=0
    ),
    ConfigKey("crucible.max.parked.requests", Kind.INT, 100_000, "Requests that may wait at once.", at_least=1),
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
        "log.retention.check.interval.ms", Kind.LONG, 300_000, "How often retention is enforced, ms.", at_least=1
    ),
    ConfigKey("max.connections", Kind.INT, 10_000, "Connections that may be open at once.", at_least=0),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots", Kind.INT, 1000, "Fetch sessions kept at once.", at_least=0
    ),
    ConfigKey(
        "max.request.partition.size.limit", Kind.INT, 2000, "Partitions in one description of topics.", at_least=1
    ),
    ConfigKey(
        "metadata.log.segment.bytes",
        Kind.INT,
        2**30,
        "Segment size of the metadata log, bytes.",
        at_least=MIN_METADATA_SEGMENT_BYTES,
    ),
    ConfigKey("metadata.log.segment.ms", Kind.LONG, 604_800_000, "Segment age of the metadata log, ms.", at_least=1),
    ConfigKey("num.partitions", Kind.INT, 1, "Partitions of a topic that names none.", at_least=1, at_most=10_000),
    ConfigKey(
        "producer.id.expiration.check.interval.ms", Kind.INT, 600_000, "How often idle producers go, ms.", at_least=1
    ),
    ConfigKey("producer.id.expiration.ms", Kind.INT, 86_400_000, "Idle time of a producer ID, ms.", at_least=1),
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
