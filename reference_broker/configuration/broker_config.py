"""A node's configuration, as one frozen value. ``BrokerConfig.parse`` refuses unknown keys and bad values with one
sentence.

Each field declares one setting with its default, meaning and range. The setting's name is the field's name with dots
instead of underscores. Names and ranges are Kafka's (KafkaConfig 4.1) where Kafka has the setting. The names of our own
settings begin with ``crucible.``. DIFFERENT_DEFAULTS says why a default differs from Kafka's.

A setting that topics have too is declared once, in ``topic_config``. Its field here is ``default_of(...)``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from reference_broker.configuration.broker_config_fields import (
    ControllerSettings,
    CoordinationSettings,
    IdleSettings,
    TierSettings,
)
from reference_broker.configuration.listeners import ListenerPlan, Voter, listener_plan, voters_of
from reference_broker.configuration.setting import (
    OTHER_UNITS,
    TOPIC,
    ConfigError,
    ConfigKey,
    Kind,
    Value,
    key_of,
    parse_all,
    setting,
)
from reference_broker.configuration.topic_config import (
    INTERNAL_SEGMENT_BYTES,
    TOPIC_KEYS,
    default_of,
    parse_topic_configs,
)
from reference_broker.log.config import LogConfig

__all__ = ["DIFFERENT_DEFAULTS", "BrokerConfig", "ConfigError"]

DIFFERENT_DEFAULTS: Mapping[str, str] = {
    "max.connections": "Kafka has no limit; everything here has one, and 10,000 sockets fit a usual file limit.",
    "fetch.max.bytes": "Kafka reads 55 MiB; a node here reads a response in one piece, and all else waits.",
    "log.flush.interval.ms": "Kafka says null for never; here never is the largest number, so that the type stays.",
    "log.roll.jitter.ms": "Kafka says null and falls back to hours; here the hours are converted: none.",
    "log.retention.ms": "Kafka says null and falls back to hours; here the hours are converted: the same week.",
    "queued.max.request.bytes": "Kafka has no limit and counts requests only; here responses count, too.",
    "log.roll.ms": "Kafka says null and falls back to hours; here the hours are converted: the same week.",
}


_LOG_FIELDS = tuple(
    (name, name.replace(".", "_"))
    for name in TOPIC_KEYS
    if name.replace(".", "_") in {field.name for field in fields(LogConfig)}
)
"""The topic settings that a log is opened with, each with its field of LogConfig."""


@dataclass(frozen=True)
class BrokerConfig(ControllerSettings, CoordinationSettings, TierSettings, IdleSettings):
    """The checked settings of one node. ``given`` holds the names of the keys that were set at its start; the others
    have their defaults. Where the metadata amends the settings (``metadata.broker_settings``), ``static`` are those of
    the start."""

    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        100, "Longest time for which a leader retries requests to a busy transaction coordinator, in ms.", at_least=0
    )
    add_partitions_to_txn_retry_backoff_ms: int = setting(
        20, "Delay before a leader retries a request to a busy transaction coordinator, in ms.", at_least=1
    )
    advertised_listeners: str = setting(
        "", "Clients and brokers get these NAME://HOST:PORT; empty: those of listeners."
    )
    auto_create_topics_enable: bool = setting(
        True, "A topic whose metadata is requested is created if it does not exist."
    )
    auto_leader_rebalance_enable: bool = setting(True, "Partitions go back to their preferred leaders by and by.")
    broker_heartbeat_interval_ms: int = setting(
        2000, "Interval of a broker's heartbeats to the controller, in ms.", at_least=1
    )
    broker_rack: str = setting("", "The rack of this broker; replicas are spread over racks.")
    broker_session_timeout_ms: int = setting(
        9000, "Time without a heartbeat after which a broker is fenced, in ms.", at_least=1
    )
    compression_gzip_level: int = default_of("compression.gzip.level")
    compression_lz4_level: int = default_of("compression.lz4.level")
    compression_type: str = default_of("compression.type")
    compression_zstd_level: int = default_of("compression.zstd.level")
    connections_max_idle_ms: int = setting(
        600_000, "Idle time after which a connection is closed, in ms.", kind=Kind.LONG
    )
    controller_listener_names: str = setting(
        "", "Listeners with these names take only requests of nodes to controllers; empty: none is separate."
    )
    crucible_cluster_id: str = setting("", "The cluster has this ID; it must be given where there are several voters.")
    crucible_fetch_session_cache_partitions: int = setting(
        2_000_000,
        "Most partitions that all fetch sessions cache together; a million takes about half a gigabyte.",
        at_least=0,
    )
    crucible_max_open_files: int = setting(
        0, "Number of segment files that are open at once; 0: a quarter of the process's limit.", at_least=0
    )
    crucible_peers: str = setting(
        "", "This node reaches brokers that do not vote at these ID@HOST:PORT; empty: as they are advertised."
    )
    crucible_request_log_enable: bool = setting(False, "Each request is logged.")
    crucible_tombstone_horizon_enable: bool = setting(
        False,
        "Fetch responses can contain the offset below which tombstones may be gone, and followers use it.",
    )
    crucible_unknown_producer_id_policy: str = setting(
        "accept",
        "A batch of an unknown producer ID with a sequence other than 0 is accepted, as Kafka does, or rejected.",
        choices=("accept", "reject"),
    )
    default_replication_factor: int = setting(
        1, "Number of replicas of a topic whose request has no replication factor.", at_least=1
    )
    delete_topic_enable: bool = setting(True, "Topics can be deleted.")
    fetch_max_bytes: int = setting(
        4_194_304, "Most bytes of records in the response to a consumer's fetch.", at_least=1024
    )
    fetch_session_revision: str = setting(
        "final", "This node's followers use the fetch sessions of this revision of KIP-227.", choices=("final", "first")
    )
    inter_broker_listener_name: str = setting(
        "", "Brokers reach each other at the listener of this name; empty: PLAINTEXT, or the first one of brokers."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300,
        "Interval at which the controller checks that preferred leaders lead, in seconds.",
        kind=Kind.LONG,
        at_least=1,
    )
    listener_security_protocol_map: str = setting(
        "", "Listeners use these protocols, given as NAME:PLAINTEXT; empty: PLAINTEXT."
    )
    listeners: str = setting(
        "", "This node listens at these NAME://HOST:PORT; empty: at one address that is given elsewhere."
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "Pause of the cleaner when there is nothing to compact, in ms.", kind=Kind.LONG, at_least=0
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        134_217_728,
        "Most bytes of memory in which one compaction keeps the newest offset of each key.",
        kind=Kind.LONG,
        at_least=1,
    )
    log_cleaner_delete_retention_ms: int = default_of("delete.retention.ms")
    log_cleaner_enable: bool = setting(True, "Compacted topics are compacted.")
    log_cleaner_io_max_bytes_per_second: float = setting(
        1.7976931348623157e308, "Most bytes that compaction reads and writes in a second.", at_least=1
    )
    log_cleaner_max_compaction_lag_ms: int = default_of("max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = default_of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = default_of("min.compaction.lag.ms")
    log_cleanup_policy: str = default_of("cleanup.policy")
    log_flush_interval_messages: int = default_of("flush.messages")
    log_flush_interval_ms: int = default_of("flush.ms")
    log_index_interval_bytes: int = default_of("index.interval.bytes")
    log_index_size_max_bytes: int = default_of("segment.index.bytes")
    log_local_retention_bytes: int = default_of("local.retention.bytes")
    log_local_retention_ms: int = default_of("local.retention.ms")
    log_message_timestamp_after_max_ms: int = default_of("message.timestamp.after.max.ms")
    log_message_timestamp_before_max_ms: int = default_of("message.timestamp.before.max.ms")
    log_message_timestamp_type: str = default_of("message.timestamp.type")
    log_preallocate: bool = default_of("preallocate")
    log_retention_bytes: int = default_of("retention.bytes")
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "Interval at which the node records on disk how far its logs are synced, in ms.", at_least=1
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "Interval of the checks for old segments, in ms.", kind=Kind.LONG, at_least=1
    )
    log_retention_ms: int = default_of("retention.ms")
    log_roll_jitter_ms: int = default_of("segment.jitter.ms")
    log_roll_ms: int = default_of("segment.ms")
    log_segment_bytes: int = default_of("segment.bytes")
    log_segment_delete_delay_ms: int = default_of("file.delete.delay.ms")
    max_connections: int = setting(10_000, "Most connections that may be open at once.", at_least=0)
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, "Number of fetch sessions that the broker keeps at once.", at_least=0
    )
    max_request_partition_size_limit: int = setting(
        2000, "Most partitions in a response to DescribeTopicPartitions.", at_least=1
    )
    message_max_bytes: int = default_of("max.message.bytes")
    min_incremental_fetch_session_eviction_ms: int = setting(
        120_000,
        "Idle time, or age, from which a fetch session of the first revision may be evicted, in ms; final: 120,000.",
        kind=Kind.LONG,
        at_least=0,
    )
    min_insync_replicas: int = default_of("min.insync.replicas")
    num_partitions: int = setting(
        1, "Number of partitions of a topic whose request has none.", at_least=1, at_most=10_000
    )
    offset_metadata_max_bytes: int = setting(4096, "Largest metadata text of a committed offset, in bytes.", at_least=0)
    queued_max_request_bytes: int = setting(
        268_435_456,
        "Most bytes of requests and unread responses of all connections together; -1: no bound.",
        kind=Kind.LONG,
        at_least=-1,
    )
    socket_request_max_bytes: int = setting(104_857_600, "Largest request, in bytes.", at_least=1)
    unclean_leader_election_enable: bool = default_of("unclean.leader.election.enable")
    given: tuple[str, ...] = ()
    static: "BrokerConfig | None" = None

    @staticmethod
    def parse(pairs: Mapping[str, str]) -> "BrokerConfig":
        """Make a configuration from pairs of key and text. Raise ConfigError with one sentence."""
        known = {**BROKER_KEYS, **{name: unit.key for name, unit in OTHER_UNITS.items()}}
        values = parse_all(known, pairs, "broker")
        for name, unit in OTHER_UNITS.items():
            value = values.pop(name, None)
            if value is not None and unit.stands_for not in values and not _finer_given(name, values):
                values[unit.stands_for] = -1 if value == -1 else int(value) * unit.factor
        return _built(values)

    def voters(self, node_id: int) -> tuple[Voter, ...]:
        """Return all voters in ascending order. If none are configured, this node is the only voter. Its address is
        then empty, because nobody connects to it."""
        if not self.controller_quorum_voters:
            return (Voter(node_id, "", 0),)
        return voters_of(self.controller_quorum_voters)

    def peers(self) -> tuple[Voter, ...]:
        """Return the configured addresses of brokers that do not vote, in ascending order. This node reaches any other
        broker at its registered address."""
        return voters_of(self.crucible_peers)

    def value(self, name: str) -> Value:
        """Return the value of a setting by its name, for example ``log.segment.bytes``."""
        found: Value = getattr(self, name.replace(".", "_"))
        return found

    def topic_values(self, topic_configs: Mapping[str, str]) -> dict[str, Value]:
        """Return all settings of a topic by their names. Where the topic sets none, this node's value counts."""
        values = {**TOPICS_ALONE, **{name: getattr(self, field) for name, field in _TOPIC_FIELDS}}
        if topic_configs:
            values.update(parse_topic_configs(topic_configs))
        return values

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        """Return the settings for the logs of a topic with these configs."""
        topic_values = self.topic_values(topic_configs)
        values = {field: topic_values[name] for name, field in _LOG_FIELDS}
        values["segment_bytes"] = topic_values[INTERNAL_SEGMENT_BYTES] or topic_values["segment.bytes"]
        values["producer_id_expiration_ms"] = self.producer_id_expiration_ms
        values["producer_id_expiration_check_interval_ms"] = self.producer_id_expiration_check_interval_ms
        values["unknown_producer_id_policy"] = self.crucible_unknown_producer_id_policy
        if values["remote_storage_enable"]:
            values["remote_storage_enable"] = self.remote_log_storage_system_enable
        values["transaction_verification_enable"] = self.transaction_partition_verification_enable
        chosen: dict[str, Any] = values
        return LogConfig(**chosen)

    def topic_defaults(self) -> LogConfig:
        """Return the settings for the logs of a topic that sets none."""
        return self.log_config({})

    def describe(self) -> tuple[tuple[ConfigKey, Value, bool], ...]:
        """Return (key, value, whether it was given) of every setting, in the order of their names."""
        return tuple((key, self.value(name), name in self.given) for name, key in BROKER_KEYS.items())

    def listener_plan(self) -> ListenerPlan:
        """The addresses at which this node listens, the requests that it takes there, and the addresses that it
        advertises."""
        return listener_plan(
            self.listeners,
            self.listener_security_protocol_map,
            self.controller_listener_names,
            self.inter_broker_listener_name,
            self.advertised_listeners,
        )


def _finer_given(name: str, values: Mapping[str, Value]) -> bool:
    """Return whether ``name`` is a setting in hours that was also given in minutes. As in Kafka, milliseconds win over
    minutes, and minutes over hours."""
    return name.endswith(".hours") and name.removesuffix(".hours") + ".minutes" in values


def _built(values: dict[str, Value]) -> BrokerConfig:
    given = tuple(name for name in BROKER_KEYS if name in values)
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in values.items()}
    config = BrokerConfig(given=given, **settings)
    config.listener_plan()
    _check_voters(config)
    _check_limits(config)
    return config


_DECLARED = {field.name.replace("_", "."): field for field in fields(BrokerConfig) if field.metadata}
BROKER_KEYS: Mapping[str, ConfigKey] = {
    name: key_of(name, cast(Value, field.default), field.metadata) for name, field in sorted(_DECLARED.items())
}
"""Every setting of a broker, by name."""
BROKER_SYNONYMS: Mapping[str, str] = {
    field.metadata[TOPIC].name: name for name, field in _DECLARED.items() if TOPIC in field.metadata
}
"""Maps each topic setting to the broker setting that gives its value where a topic sets none. Both have the same type,
range and default."""
TOPICS_ALONE: Mapping[str, Value] = {
    name: key.default for name, key in TOPIC_KEYS.items() if name not in BROKER_SYNONYMS
}
"""The topic settings that a broker has no value for, with their defaults."""
_TOPIC_FIELDS = tuple((name, broker_name.replace(".", "_")) for name, broker_name in BROKER_SYNONYMS.items())
"""Each topic setting, with the field of ``BrokerConfig`` that holds this node's value for it."""


def _check_voters(config: BrokerConfig) -> None:
    """Raise ConfigError."""
    for name, text in (
        ("controller.quorum.voters", config.controller_quorum_voters),
        ("crucible.peers", config.crucible_peers),
    ):
        numbers = [voter.node_id for voter in voters_of(text)]
        if text and (len(numbers) != text.count(",") + 1 or len(dict.fromkeys(numbers)) != len(numbers)):
            raise ConfigError(f"{name} is {text!r}: give ID@HOST:PORT,... with each ID once.")
    if config.controller_quorum_voters and not config.crucible_cluster_id:
        raise ConfigError("controller.quorum.voters needs crucible.cluster.id, the same on every node: give one.")


def _check_limits(config: BrokerConfig) -> None:
    """Raise ConfigError."""
    if config.log_cleaner_min_compaction_lag_ms > config.log_cleaner_max_compaction_lag_ms:
        raise ConfigError(
            f"log.cleaner.min.compaction.lag.ms is {config.log_cleaner_min_compaction_lag_ms}, above "
            f"log.cleaner.max.compaction.lag.ms {config.log_cleaner_max_compaction_lag_ms}: lower it."
        )
    if 0 <= config.queued_max_request_bytes < config.socket_request_max_bytes * 4 // 3:
        raise ConfigError(
            f"queued.max.request.bytes is {config.queued_max_request_bytes}, and three quarters of it are less than "
            f"socket.request.max.bytes {config.socket_request_max_bytes}: no such request could arrive; raise it."
        )
