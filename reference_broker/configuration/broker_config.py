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

from reference_broker.configuration.listeners import ListenerPlan, listener_plan
from reference_broker.configuration.setting import (
    INT_MAX,
    TOPIC,
    ConfigError,
    ConfigKey,
    Kind,
    Value,
    key_of,
    parse_all,
    setting,
)
from reference_broker.configuration.together import check_limits, check_voters
from reference_broker.configuration.topic_config import TOPIC_KEYS, default_of, parse_topic_configs
from reference_broker.configuration.units import OTHER_UNITS
from reference_broker.configuration.voters import Voter, voters_of
from reference_broker.log.config import LogConfig

__all__ = ["DIFFERENT_DEFAULTS", "BrokerConfig", "ConfigError"]

DIFFERENT_DEFAULTS: Mapping[str, str] = {
    "max.connections": "Kafka has no limit; everything here has one, and 10,000 sockets fit a usual file limit.",
    "fetch.max.bytes": "Kafka reads 55 MiB; a node here reads an answer in one piece, for which everybody else waits.",
    "log.flush.interval.ms": "Kafka says null for never; here never is the largest number, so that the type stays.",
    "log.retention.ms": "Kafka says null and falls back to hours; here the hours are converted: the same week.",
    "queued.max.request.bytes": "Kafka has no limit and counts requests only; here answers count, too.",
    "log.roll.ms": "Kafka says null and falls back to hours; here the hours are converted: the same week.",
}


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The only selector that Kafka brings (``apis.records.preferred_replica``). Others would be Java classes."""


_LOG_FIELDS = tuple(
    (name, name.replace(".", "_"))
    for name in TOPIC_KEYS
    if name.replace(".", "_") in {field.name for field in fields(LogConfig)}
)
"""The topic settings that a log is opened with, each with its field of LogConfig."""


MIN_METADATA_SEGMENT_BYTES = 1024
"""Kafka's minimum is 8 MiB, the size of its largest batch. Our batches are small, and a batch that is larger makes its
segment larger."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The checked settings of one node. ``given`` holds the names of the keys that were set; the others have their
    defaults."""

    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        100, "A leader asks a busy transaction coordinator again for at most so many ms.", at_least=0
    )
    add_partitions_to_txn_retry_backoff_ms: int = setting(
        20, "A leader asks a busy transaction coordinator again after so many ms.", at_least=1
    )
    advertised_listeners: str = setting(
        "", "Clients and brokers are told these NAME://HOST:PORT; empty: those of listeners."
    )
    auto_create_topics_enable: bool = setting(
        True, "A topic whose metadata is asked for is created if it does not exist."
    )
    auto_leader_rebalance_enable: bool = setting(True, "Partitions go back to their preferred leaders by and by.")
    broker_heartbeat_interval_ms: int = setting(
        2000, "A broker tells the controller that it lives every so many ms.", at_least=1
    )
    broker_rack: str = setting("", "This broker stands in this rack; replicas are spread over racks.")
    broker_session_timeout_ms: int = setting(9000, "A broker is fenced once it was silent for so many ms.", at_least=1)
    compression_type: str = default_of("compression.type")
    connections_max_idle_ms: int = setting(
        600_000, "A connection is closed once it was idle for so many ms.", kind=Kind.LONG
    )
    controller_listener_names: str = setting(
        "", "Listeners with these names take only what nodes ask of controllers; empty: none is separate."
    )
    controller_quorum_election_backoff_max_ms: int = setting(
        1000, "After an election without a winner the next one begins within so many ms.", at_least=1
    )
    controller_quorum_election_timeout_ms: int = setting(1000, "An election is given up after so many ms.", at_least=1)
    controller_quorum_fetch_timeout_ms: int = setting(
        2000, "A new leader is sought once the old one, or a majority of voters, was silent for so many ms.", at_least=1
    )
    controller_quorum_request_timeout_ms: int = setting(
        2000, "A request to a voter is given up after so many ms.", at_least=1
    )
    controller_quorum_voters: str = setting(
        "", "The quorum's voters are these ID@HOST:PORT, as this node reaches them; empty: this node alone."
    )
    crucible_bootstrap_eligible_leader_replicas: int = setting(
        1,
        "A new cluster has this level of eligible.leader.replicas.version, if its metadata.version is 23 or higher.",
        at_least=0,
        at_most=1,
    )
    crucible_bootstrap_metadata_epoch: int = setting(
        0,
        "A new cluster has this level of the feature crucible.metadata.epoch; 1 carries KIP-232's metadata epoch.",
        at_least=0,
        at_most=1,
    )
    crucible_bootstrap_metadata_version: int = setting(
        25, "A new cluster has this metadata.version.", at_least=1, at_most=25
    )
    crucible_bootstrap_transaction_version: int = setting(
        2,
        "A new cluster has this level of transaction.version, if its metadata.version is 24 or higher.",
        at_least=0,
        at_most=2,
    )
    crucible_cluster_id: str = setting("", "The cluster has this ID; it must be given where there are several voters.")
    crucible_fetch_session_cache_partitions: int = setting(
        2_000_000,
        "All fetch sessions together may cache so many partitions; a million takes about half a gigabyte.",
        at_least=0,
    )
    crucible_max_open_files: int = setting(
        0, "So many segment files are open at once; 0: a quarter of the process's limit.", at_least=0
    )
    crucible_metadata_batch_max_bytes: int = setting(
        8192,
        "A batch of metadata records has at most so many bytes; a larger set is written as a transaction.",
        at_least=256,
        at_most=8 * 2**20,
    )
    crucible_metadata_epoch_enable: bool = setting(
        True, "This node knows the metadata epoch; false: it is like code from before KIP-232."
    )
    crucible_metadata_snapshot_fetch_draft: bool = setting(
        False, "This node fetches snapshots in the layout of KIP-630's earlier page, which all nodes must know."
    )
    crucible_metadata_snapshot_fetch_max_bytes: int = setting(
        1_048_576, "A request for a piece of a snapshot asks for so many bytes.", at_least=1
    )
    crucible_metadata_snapshot_keep_ms: int = setting(
        60_000, "A superseded snapshot is kept for so many ms.", kind=Kind.LONG, at_least=0
    )
    crucible_peers: str = setting(
        "", "This node reaches brokers that do not vote at these ID@HOST:PORT; empty: as they are advertised."
    )
    crucible_request_log_enable: bool = setting(False, "Each request is logged.")
    crucible_unknown_producer_id_policy: str = setting(
        "reject",
        "A batch of an unknown producer ID with a sequence other than 0 is rejected or accepted.",
        choices=("reject", "accept"),
    )
    default_replication_factor: int = setting(
        1, "A topic that names no replication factor gets so many replicas.", at_least=1
    )
    delete_topic_enable: bool = setting(True, "Topics can be deleted.")
    fetch_max_bytes: int = setting(
        4_194_304, "The answer to a consumer's fetch has at most so many bytes of records.", at_least=1024
    )
    fetch_session_revision: str = setting(
        "final", "This node's followers use the fetch sessions of this revision of KIP-227.", choices=("final", "first")
    )
    group_initial_rebalance_delay_ms: int = setting(
        3000, "The first rebalance of an empty group waits so many ms for more members.", at_least=0
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "A member may ask for a session timeout of at most so many ms.", at_least=1
    )
    group_max_size: int = setting(INT_MAX, "A group has at most so many members.", at_least=1)
    group_min_session_timeout_ms: int = setting(
        6000, "A member may ask for a session timeout of at least so many ms.", at_least=1
    )
    inter_broker_listener_name: str = setting(
        "", "Brokers reach each other at the listener of this name; empty: PLAINTEXT, or the first one of brokers."
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300, "The controller looks every so many seconds whether preferred leaders lead.", kind=Kind.LONG, at_least=1
    )
    listener_security_protocol_map: str = setting(
        "", "Listeners use these protocols, given as NAME:PLAINTEXT; empty: PLAINTEXT."
    )
    listeners: str = setting(
        "", "This node listens at these NAME://HOST:PORT; empty: at one address that is given elsewhere."
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "Compaction pauses so many ms when there is nothing to compact.", kind=Kind.LONG, at_least=0
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        134_217_728,
        "One compaction may use so many bytes of memory for the newest offset of each key.",
        kind=Kind.LONG,
        at_least=1,
    )
    log_cleaner_delete_retention_ms: int = default_of("delete.retention.ms")
    log_cleaner_enable: bool = setting(True, "Compacted topics are compacted.")
    log_cleaner_io_max_bytes_per_second: float = setting(
        1.7976931348623157e308, "Compaction reads and writes at most so many bytes in a second.", at_least=1
    )
    log_cleaner_max_compaction_lag_ms: int = default_of("max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = default_of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = default_of("min.compaction.lag.ms")
    log_cleanup_policy: str = default_of("cleanup.policy")
    log_flush_interval_messages: int = default_of("flush.messages")
    log_flush_interval_ms: int = default_of("flush.ms")
    log_index_interval_bytes: int = default_of("index.interval.bytes")
    log_index_size_max_bytes: int = default_of("segment.index.bytes")
    log_message_timestamp_after_max_ms: int = default_of("message.timestamp.after.max.ms")
    log_message_timestamp_before_max_ms: int = default_of("message.timestamp.before.max.ms")
    log_message_timestamp_type: str = default_of("message.timestamp.type")
    log_retention_bytes: int = default_of("retention.bytes")
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "The node keeps on disk, every so many ms, how far its logs were synced.", at_least=1
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "Old segments are looked for every so many ms.", kind=Kind.LONG, at_least=1
    )
    log_retention_ms: int = default_of("retention.ms")
    log_roll_ms: int = default_of("segment.ms")
    log_segment_bytes: int = default_of("segment.bytes")
    max_connections: int = setting(10_000, "So many connections may be open at once.", at_least=0)
    max_incremental_fetch_session_cache_slots: int = setting(
        1000, "The broker keeps so many fetch sessions at once.", at_least=0
    )
    max_request_partition_size_limit: int = setting(
        2000, "The answer to DescribeTopicPartitions has at most so many partitions.", at_least=1
    )
    message_max_bytes: int = default_of("max.message.bytes")
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        20_971_520, "A snapshot of the metadata is made after so many bytes of records.", kind=Kind.LONG, at_least=1
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        3_600_000,
        "A snapshot of the metadata is made after so many ms; 0: time does not count.",
        kind=Kind.LONG,
        at_least=0,
    )
    metadata_log_segment_bytes: int = setting(
        2**30, "A segment of the metadata log is closed once it has so many bytes.", at_least=MIN_METADATA_SEGMENT_BYTES
    )
    metadata_log_segment_ms: int = setting(
        604_800_000, "A segment of the metadata log is closed once it is so many ms old.", kind=Kind.LONG, at_least=1
    )
    metadata_max_retention_bytes: int = setting(
        104_857_600,
        "Old segments and snapshots of the metadata go once all have more bytes than this; -1 is no limit.",
        kind=Kind.LONG,
        at_least=-1,
    )
    metadata_max_retention_ms: int = setting(
        604_800_000,
        "A snapshot of the metadata goes once it is so many ms old; -1 is no limit.",
        kind=Kind.LONG,
        at_least=-1,
    )
    min_incremental_fetch_session_eviction_ms: int = setting(
        120_000,
        "A fetch session may be evicted once it was idle, or is old, for so many ms.",
        kind=Kind.LONG,
        at_least=0,
    )
    min_insync_replicas: int = default_of("min.insync.replicas")
    num_partitions: int = setting(
        1, "A topic that names no number of partitions gets so many.", at_least=1, at_most=10_000
    )
    offset_metadata_max_bytes: int = setting(4096, "The text of a committed offset may have so many bytes.", at_least=0)
    offsets_commit_timeout_ms: int = setting(5000, "A commit of offsets waits so many ms to be replicated.", at_least=1)
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Committed offsets that are too old are looked for every so many ms.", kind=Kind.LONG, at_least=1
    )
    offsets_retention_minutes: int = setting(
        10_080, "Committed offsets of an empty group are kept for so many minutes.", at_least=1
    )
    offsets_topic_num_partitions: int = setting(
        50, "The topic __consumer_offsets has so many partitions.", at_least=1, at_most=10_000
    )
    offsets_topic_replication_factor: int = setting(
        3, "The topic __consumer_offsets has so many replicas, at most one on each registered broker.", at_least=1
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "A segment of __consumer_offsets is closed once it has so many bytes.", at_least=1
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "Idle producers are looked for every so many ms.", at_least=1
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "A producer ID is forgotten once it was idle for so many ms.", at_least=1
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "All connections together hold so many bytes of requests and unread answers; -1: no bound.",
        kind=Kind.LONG,
        at_least=-1,
    )
    replica_fetch_backoff_ms: int = setting(
        1000, "A follower waits so many ms after a fetch from a leader, or of a partition, failed.", at_least=0
    )
    replica_fetch_max_bytes: int = setting(1_048_576, "A follower asks for so many bytes of one partition.", at_least=0)
    replica_fetch_min_bytes: int = setting(1, "A follower's fetch waits for so many bytes.", at_least=0)
    replica_fetch_response_max_bytes: int = setting(
        10_485_760, "A follower's fetch asks for so many bytes in all, and is answered with no more.", at_least=0
    )
    replica_fetch_wait_max_ms: int = setting(500, "A follower's fetch waits for data for so many ms.", at_least=0)
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000, "High watermarks are written to the disk every so many ms.", kind=Kind.LONG, at_least=1
    )
    replica_lag_time_max_ms: int = setting(
        30_000, "A replica is out of sync once it was behind the leader for so many ms.", kind=Kind.LONG, at_least=1
    )
    replica_selector_class: str = setting(
        "",
        "A consumer that names its rack is sent to a follower there; empty: consumers read from leaders.",
        choices=("", RACK_AWARE),
    )
    replica_socket_timeout_ms: int = setting(30_000, "A follower gives up a request after so many ms.", at_least=1)
    socket_request_max_bytes: int = setting(104_857_600, "A request may have so many bytes.", at_least=1)
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "Transactions that are open for too long are looked for every so many ms.", at_least=1
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "A producer may ask for transactions of at most so many ms.", at_least=1
    )
    transaction_partition_verification_enable: bool = setting(
        True, "A transaction's first records in a partition are taken once its coordinator knows the partition."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "Transactional IDs that are idle for too long are looked for every so many ms.", at_least=1
    )
    transaction_state_log_min_isr: int = setting(
        2, "The topic __transaction_state has this min.insync.replicas, at most as many as replicas.", at_least=1
    )
    transaction_state_log_num_partitions: int = setting(
        50, "The topic __transaction_state has so many partitions.", at_least=1, at_most=10_000
    )
    transaction_state_log_replication_factor: int = setting(
        3,
        "The topic __transaction_state has so many replicas, at most one on each registered broker.",
        kind=Kind.SHORT,
        at_least=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "A segment of __transaction_state is closed once it has so many bytes.", at_least=1
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "A transactional ID is forgotten once it was idle for so many ms.", at_least=1
    )
    unclean_leader_election_enable: bool = default_of("unclean.leader.election.enable")
    given: tuple[str, ...] = ()

    @staticmethod
    def parse(pairs: Mapping[str, str]) -> "BrokerConfig":
        """Makes a configuration from pairs of key and text. Raises ConfigError with one sentence."""
        known = {**BROKER_KEYS, **{name: unit.key for name, unit in OTHER_UNITS.items()}}
        values = parse_all(known, pairs, "broker")
        for name, unit in OTHER_UNITS.items():
            value = values.pop(name, None)
            if value is not None and unit.stands_for not in values and not _finer_given(name, values):
                values[unit.stands_for] = -1 if value == -1 else int(value) * unit.factor
        return _built(values)

    def voters(self, node_id: int) -> tuple[Voter, ...]:
        """Returns all voters in ascending order. If none are configured, this node is the only voter. Its address is
        then empty, because nobody connects to it."""
        if not self.controller_quorum_voters:
            return (Voter(node_id, "", 0),)
        return voters_of(self.controller_quorum_voters)

    def peers(self) -> tuple[Voter, ...]:
        """Returns the configured addresses of brokers that do not vote, in ascending order. This node reaches any other
        broker at its registered address."""
        return voters_of(self.crucible_peers)

    def value(self, name: str) -> Value:
        """Returns the value of a setting by its name, for example ``log.segment.bytes``."""
        found: Value = getattr(self, name.replace(".", "_"))
        return found

    def topic_values(self, topic_configs: Mapping[str, str]) -> dict[str, Value]:
        """Returns all settings of a topic by their names. Where the topic sets none, this node's value counts."""
        values: dict[str, Value] = {name: getattr(self, field) for name, field in _TOPIC_FIELDS}
        if topic_configs:
            values.update(parse_topic_configs(topic_configs))
        return values

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        """Returns the settings for the logs of a topic with these configs."""
        topic_values = self.topic_values(topic_configs)
        values = {field: topic_values[name] for name, field in _LOG_FIELDS}
        values["producer_id_expiration_ms"] = self.producer_id_expiration_ms
        values["producer_id_expiration_check_interval_ms"] = self.producer_id_expiration_check_interval_ms
        values["unknown_producer_id_policy"] = self.crucible_unknown_producer_id_policy
        values["transaction_verification_enable"] = self.transaction_partition_verification_enable
        chosen: dict[str, Any] = values
        return LogConfig(**chosen)

    def topic_defaults(self) -> LogConfig:
        """Returns the settings for the logs of a topic that sets none."""
        return self.log_config({})

    def describe(self) -> tuple[tuple[ConfigKey, Value, bool], ...]:
        """Returns (key, value, whether it was given) of every setting, in the order of their names."""
        return tuple((key, self.value(name), name in self.given) for name, key in BROKER_KEYS.items())

    def listener_plan(self) -> ListenerPlan:
        """Where this node listens, what it takes there, and what it tells others."""
        return listener_plan(
            self.listeners,
            self.listener_security_protocol_map,
            self.controller_listener_names,
            self.inter_broker_listener_name,
            self.advertised_listeners,
        )


def _finer_given(name: str, values: Mapping[str, Value]) -> bool:
    """Whether ``name`` is a setting in hours that was also given in minutes. As in Kafka, milliseconds win over
    minutes, and minutes over hours."""
    return name.endswith(".hours") and name.removesuffix(".hours") + ".minutes" in values


def _built(values: dict[str, Value]) -> BrokerConfig:
    given = tuple(name for name in BROKER_KEYS if name in values)
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in values.items()}
    config = BrokerConfig(given=given, **settings)
    config.listener_plan()
    check_voters(config)
    check_limits(config)
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
_TOPIC_FIELDS = tuple((name, BROKER_SYNONYMS[name].replace(".", "_")) for name in TOPIC_KEYS)
"""Each topic setting, with the field of ``BrokerConfig`` that holds this node's value for it."""
