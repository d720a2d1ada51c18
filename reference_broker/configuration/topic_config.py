"""The settings of a topic: Kafka's topic configs that this broker honours.

Names, ranges and defaults are those of Kafka's LogConfig and TopicConfig (4.1).

Unlike Kafka 4.1: ``segment.bytes`` and ``log.segment.bytes`` may be less than 1 MiB, so that tests get many segments
out of few records. ``internal.segment.bytes``, which Kafka has for its own tests, wins over both in either broker.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from reference_broker.configuration.setting import (
    LONG_MAX,
    TOPIC,
    ConfigError,
    ConfigKey,
    Kind,
    Value,
    check_lengths,
    parse_all,
)

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"


def _throttled(role: str) -> ConfigKey:
    return ConfigKey(
        f"{role}.replication.throttled.replicas",
        Kind.LIST,
        "",
        f"Replication to these replicas is throttled on the {role}; it has no effect here.",
        pattern=r"\*|(\d+:\d+\s*(,\s*\d+:\d+\s*)*,?)?",
        expected="* or PARTITION:BROKER,...",
    )


_KEYS = (
    ConfigKey(
        "cleanup.policy",
        Kind.LIST,
        "delete",
        "Old segments are deleted, or compacted to the last record of each key, or both.",
        choices=("delete", "compact"),
    ),
    ConfigKey(
        "compression.gzip.level",
        Kind.INT,
        -1,
        "Batches that the broker packs with gzip get this level, from 1 to 9; -1: the library's own.",
        pattern="-1|[1-9]",
        expected="-1 or a whole number from 1 to 9",
    ),
    ConfigKey(
        "compression.lz4.level", Kind.INT, 9, "Batches that the broker packs with lz4 get this level; 9 is fast.", 1, 17
    ),
    ConfigKey(
        "compression.type",
        Kind.STRING,
        "producer",
        "Batches are stored with this codec; producer: as the producer compressed them.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    ConfigKey(
        "compression.zstd.level",
        Kind.INT,
        3,
        "Batches that the broker packs with zstd get this level.",
        -131_072,
        22,
    ),
    ConfigKey(
        "delete.retention.ms",
        Kind.LONG,
        _DAY_MS,
        "Time for which a compacted topic keeps tombstones, in ms.",
        at_least=0,
    ),
    ConfigKey(
        "file.delete.delay.ms",
        Kind.LONG,
        60_000,
        "Delay between the deletion of a segment and of its file, in ms; it has no effect here.",
        at_least=0,
    ),
    ConfigKey(
        "flush.messages",
        Kind.LONG,
        LONG_MAX,
        "Number of records after which the log is synced to the disk.",
        at_least=1,
    ),
    ConfigKey("flush.ms", Kind.LONG, LONG_MAX, "Time after which the log is synced to the disk, in ms.", at_least=0),
    _throttled("follower"),
    ConfigKey(
        "index.interval.bytes",
        Kind.INT,
        4096,
        "Number of bytes of the log between two entries of an index.",
        at_least=0,
    ),
    ConfigKey(
        INTERNAL_SEGMENT_BYTES,
        Kind.INT,
        0,
        "Size at which a segment is closed whatever segment.bytes is, in bytes.",
        at_least=1,
        is_internal=True,
    ),
    _throttled("leader"),
    ConfigKey(
        "max.compaction.lag.ms",
        Kind.LONG,
        LONG_MAX,
        "Age at which a record is compacted at the latest, in ms.",
        at_least=1,
    ),
    ConfigKey(
        "local.retention.bytes",
        Kind.LONG,
        -2,
        "Segments that are in the remote tier go here once a partition has more bytes here; -2: as retention.bytes.",
        at_least=-2,
    ),
    ConfigKey(
        "local.retention.ms",
        Kind.LONG,
        -2,
        "Age at which segments that are in the remote tier are deleted here, in ms; -2: as retention.ms.",
        at_least=-2,
    ),
    ConfigKey("max.message.bytes", Kind.INT, 1_048_588, "Largest record batch, in bytes.", at_least=0),
    ConfigKey(
        "message.timestamp.after.max.ms",
        Kind.LONG,
        _HOUR_MS,
        "How far a timestamp may be ahead of the broker's clock, in ms.",
        at_least=0,
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        Kind.LONG,
        LONG_MAX,
        "How far a timestamp may be behind the broker's clock, in ms.",
        at_least=0,
    ),
    ConfigKey(
        "message.timestamp.type",
        Kind.STRING,
        "CreateTime",
        "Records carry the time of the producer (CreateTime) or of the broker (LogAppendTime).",
        choices=("CreateTime", "LogAppendTime"),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        Kind.DOUBLE,
        0.5,
        "A log is compacted once this share of it is not compacted.",
        0,
        1,
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        Kind.LONG,
        0,
        "Age at which a record is compacted at the earliest, in ms.",
        at_least=0,
    ),
    ConfigKey(
        "min.insync.replicas",
        Kind.INT,
        1,
        "A produce with acks=all is refused while fewer replicas are in sync.",
        at_least=1,
    ),
    ConfigKey(
        "preallocate",
        Kind.BOOLEAN,
        False,
        "The file of a new segment gets its full size at once; it has no effect here.",
    ),
    ConfigKey(
        "remote.log.copy.disable",
        Kind.BOOLEAN,
        False,
        "What is in the remote tier can be read, and nothing more is copied.",
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        Kind.BOOLEAN,
        False,
        "What is in the remote tier is deleted once remote.storage.enable becomes false.",
    ),
    ConfigKey("remote.storage.enable", Kind.BOOLEAN, False, "Closed segments are copied to the remote tier."),
    ConfigKey(
        "retention.bytes",
        Kind.LONG,
        -1,
        "Size of a partition above which old segments are deleted, in bytes; -1 is no limit.",
    ),
    ConfigKey(
        "retention.ms",
        Kind.LONG,
        7 * _DAY_MS,
        "Age at which segments are deleted, in ms; -1 is no limit.",
        at_least=-1,
    ),
    ConfigKey("segment.bytes", Kind.INT, 2**30, "Size at which a segment is closed, in bytes.", at_least=14),
    ConfigKey(
        "segment.index.bytes",
        Kind.INT,
        10 * 2**20,
        "Largest index, in bytes; a segment whose index is full is closed.",
        at_least=4,
    ),
    ConfigKey(
        "segment.jitter.ms",
        Kind.LONG,
        0,
        "Most by which a segment may be closed before segment.ms, in ms, so that not all are closed at once.",
        at_least=0,
    ),
    ConfigKey(
        "segment.ms",
        Kind.LONG,
        7 * _DAY_MS,
        "Age of the first record at which a segment is closed, in ms.",
        at_least=1,
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        Kind.BOOLEAN,
        False,
        "A replica that is not in sync may become the leader, and lose records, if no other one is left.",
    ),
)

TOPIC_KEYS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}


def default_of(name: str) -> Any:
    """Declare a field of ``BrokerConfig``: the broker's value of the topic setting ``name``, for topics that set
    none."""
    key = TOPIC_KEYS[name]
    return field(default=key.default, metadata={TOPIC: key})


def normalised(pairs: Mapping[str, str]) -> dict[str, str]:
    """The text of each setting as it is kept and reported: without blanks around it, numbers in their plain form.

    Raise ConfigError for what ``check_lengths`` and ``parse_topic_configs`` refuse.
    """
    check_lengths(pairs)
    return {name: TOPIC_KEYS[name].text(value) for name, value in parse_topic_configs(pairs).items()}


def parse_topic_configs(pairs: Mapping[str, str]) -> dict[str, Value]:
    """Return values by topic config name. Raise ConfigError for an unknown key, a bad value, or keys that contradict
    each other."""
    values = parse_all(TOPIC_KEYS, pairs, "topic")
    lag, longest = values.get("min.compaction.lag.ms"), values.get("max.compaction.lag.ms")
    if isinstance(lag, int) and isinstance(longest, int) and lag > longest:
        raise ConfigError(f"min.compaction.lag.ms is {lag}, above max.compaction.lag.ms {longest}: lower it.")
    return values
