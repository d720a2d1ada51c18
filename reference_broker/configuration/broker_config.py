"""A node's configuration: Kafka's own names where Kafka has the setting, ``crucible.`` before ours.

One frozen value; ``BrokerConfig.parse`` refuses unknown keys and bad values in one sentence. Where a default
differs from Kafka's, DIFFERENT_DEFAULTS says why. Field = key with dots as underscores; the unit is in the name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from reference_broker.configuration.broker_keys import BROKER_KEYS, OTHER_UNITS
from reference_broker.configuration.setting import INT_MAX, LONG_MAX, ConfigError, ConfigKey, Value, parse_all
from reference_broker.configuration.topic_config import BROKER_SYNONYMS, TOPIC_KEYS, parse_topic_configs
from reference_broker.log.config import LogConfig

__all__ = ["DIFFERENT_DEFAULTS", "BrokerConfig", "ConfigError"]

DIFFERENT_DEFAULTS: Mapping[str, str] = {
    "max.connections": "Kafka has no limit; everything here has one, and 10,000 sockets fit a usual file limit.",
    "log.flush.interval.ms": "Kafka says null for never; here never is the largest number, so that the type stays.",
    "log.retention.ms": "Kafka says null and falls back to hours; here the hours are converted: the same week.",
    "log.roll.ms": "Kafka says null and falls back to hours; here the hours are converted: the same week.",
}


_TOPIC_FIELDS = tuple((name, BROKER_SYNONYMS[name].replace(".", "_")) for name in TOPIC_KEYS)
"""Each topic setting with the field that holds this node's value for it."""

_LOG_FIELDS = tuple(
    (name, name.replace(".", "_"))
    for name in TOPIC_KEYS
    if name.replace(".", "_") in {field.name for field in fields(LogConfig)}
)
"""Those that a log is opened with, each with its field there."""


@dataclass(frozen=True, slots=True)
class Voter:
    """A controller, and where this node reaches it (the real address, or a proxy on the link between the two)."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Checked settings of one node. ``given``: names of the keys that were set, the rest are defaults."""

    advertised_listeners: str = ""
    auto_create_topics_enable: bool = True
    auto_leader_rebalance_enable: bool = True
    broker_heartbeat_interval_ms: int = 2000
    broker_rack: str = ""
    broker_session_timeout_ms: int = 9000
    compression_type: str = "producer"
    connections_max_idle_ms: int = 600_000
    controller_quorum_election_backoff_max_ms: int = 1000
    controller_quorum_election_timeout_ms: int = 1000
    controller_quorum_fetch_timeout_ms: int = 2000
    controller_quorum_request_timeout_ms: int = 2000
    controller_quorum_voters: str = ""
    crucible_bootstrap_metadata_epoch: int = 0
    crucible_bootstrap_metadata_version: int = 25
    crucible_cluster_id: str = ""
    crucible_max_open_files: int = 0
    crucible_max_parked_requests: int = 100_000
    crucible_metadata_batch_max_bytes: int = 8192
    crucible_metadata_epoch_enable: bool = True
    crucible_metadata_snapshot_fetch_draft: bool = False
    crucible_metadata_snapshot_fetch_max_bytes: int = 1_048_576
    crucible_metadata_snapshot_keep_ms: int = 60_000
    crucible_peers: str = ""
    crucible_request_log_enable: bool = False
    crucible_unknown_producer_id_policy: str = "reject"
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    fetch_max_bytes: int = 57_671_680
    fetch_session_revision: str = "final"
    group_initial_rebalance_delay_ms: int = 3000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = INT_MAX
    group_min_session_timeout_ms: int = 6000
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    log_cleaner_delete_retention_ms: int = 86_400_000
    log_cleaner_enable: bool = True
    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308
    log_cleaner_max_compaction_lag_ms: int = LONG_MAX
    log_cleaner_min_cleanable_ratio: float = 0.5
    log_cleaner_min_compaction_lag_ms: int = 0
    log_cleanup_policy: str = "delete"
    log_flush_interval_messages: int = LONG_MAX
    log_flush_interval_ms: int = LONG_MAX
    log_index_interval_bytes: int = 4096
    log_index_size_max_bytes: int = 10_485_760
    log_message_timestamp_after_max_ms: int = 3_600_000
    log_message_timestamp_before_max_ms: int = LONG_MAX
    log_message_timestamp_type: str = "CreateTime"
    log_preallocate: bool = False
    log_retention_bytes: int = -1
    log_retention_check_interval_ms: int = 300_000
    log_retention_ms: int = 604_800_000
    log_roll_jitter_ms: int = 0
    log_roll_ms: int = 604_800_000
    log_segment_bytes: int = 1_073_741_824
    log_segment_delete_delay_ms: int = 60_000
    max_connections: int = 10_000
    max_incremental_fetch_session_cache_slots: int = 1000
    max_request_partition_size_limit: int = 2000
    message_max_bytes: int = 1_048_588
    metadata_log_max_record_bytes_between_snapshots: int = 20_971_520
    metadata_log_max_snapshot_interval_ms: int = 3_600_000
    metadata_log_segment_bytes: int = 1_073_741_824
    metadata_log_segment_ms: int = 604_800_000
    metadata_max_retention_bytes: int = 104_857_600
    metadata_max_retention_ms: int = 604_800_000
    min_incremental_fetch_session_eviction_ms: int = 120_000
    min_insync_replicas: int = 1
    num_partitions: int = 1
    offset_metadata_max_bytes: int = 4096
    offsets_commit_timeout_ms: int = 5000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_retention_minutes: int = 10_080
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 104_857_600
    producer_id_expiration_check_interval_ms: int = 600_000
    producer_id_expiration_ms: int = 86_400_000
    replica_fetch_backoff_ms: int = 1000
    replica_fetch_max_bytes: int = 1_048_576
    replica_fetch_min_bytes: int = 1
    replica_fetch_response_max_bytes: int = 10_485_760
    replica_fetch_wait_max_ms: int = 500
    replica_high_watermark_checkpoint_interval_ms: int = 5000
    replica_lag_time_max_ms: int = 30_000
    replica_socket_timeout_ms: int = 30_000
    socket_request_max_bytes: int = 104_857_600
    unclean_leader_election_enable: bool = False
    given: tuple[str, ...] = ()

    @staticmethod
    def parse(pairs: Mapping[str, str]) -> "BrokerConfig":
        """From key=value text. Raises ConfigError with one sentence."""
        known = {**BROKER_KEYS, **{name: unit.key for name, unit in OTHER_UNITS.items()}}
        values = parse_all(known, pairs, "broker")
        for name, unit in OTHER_UNITS.items():
            value = values.pop(name, None)
            if value is not None and unit.stands_for not in values and not _finer_given(name, values):
                values[unit.stands_for] = -1 if value == -1 else int(value) * unit.factor
        return _built(values)

    def voters(self, node_id: int) -> tuple[Voter, ...]:
        """All voters, ascending; this node alone where none are configured (its own address is never dialled)."""
        if not self.controller_quorum_voters:
            return (Voter(node_id, "", 0),)
        return _voters(self.controller_quorum_voters)

    def peers(self) -> tuple[Voter, ...]:
        """How this node reaches brokers that do not vote, ascending; others as they are registered."""
        return _voters(self.crucible_peers)

    def value(self, name: str) -> Value:
        """By Kafka's name, for example ``log.segment.bytes``."""
        found: Value = getattr(self, name.replace(".", "_"))
        return found

    def topic_values(self, topic_configs: Mapping[str, str]) -> dict[str, Value]:
        """All settings of a topic by topic config name: its own where set, else this node's."""
        values: dict[str, Value] = {name: getattr(self, field) for name, field in _TOPIC_FIELDS}
        if topic_configs:
            values.update(parse_topic_configs(topic_configs))
        return values

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        """What the log of a topic with these configs is opened with."""
        topic_values = self.topic_values(topic_configs)
        values = {field: topic_values[name] for name, field in _LOG_FIELDS}
        values["producer_id_expiration_ms"] = self.producer_id_expiration_ms
        values["producer_id_expiration_check_interval_ms"] = self.producer_id_expiration_check_interval_ms
        values["unknown_producer_id_policy"] = self.crucible_unknown_producer_id_policy
        chosen: dict[str, Any] = values
        return LogConfig(**chosen)

    def topic_defaults(self) -> LogConfig:
        """The log settings of a topic that sets nothing."""
        return self.log_config({})

    def describe(self) -> tuple[tuple[ConfigKey, Value, bool], ...]:
        """(key, value, was it given) of every setting, by name."""
        return tuple((key, self.value(name), name in self.given) for name, key in BROKER_KEYS.items())

    def advertised(self) -> tuple[str, int] | None:
        """(host, port) told to clients instead of the listen address; None where not configured."""
        if not self.advertised_listeners:
            return None
        host, _, port = self.advertised_listeners.rpartition("://")[2].rpartition(":")
        return host.strip("[]"), int(port)


def _voters(text: str) -> tuple[Voter, ...]:
    found = [_voter(each) for each in text.split(",")]
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.node_id))


def _voter(text: str) -> Voter | None:
    number, separator, address = text.strip().partition("@")
    host, colon, port = address.rpartition(":")
    if not (separator and colon and host and all(each.isascii() and each.isdigit() for each in (number, port))):
        return None
    return Voter(int(number), host.strip("[]"), int(port)) if 0 < int(port) < 65536 else None


def _finer_given(name: str, values: Mapping[str, Value]) -> bool:
    """Milliseconds win over minutes, minutes over hours, as in Kafka."""
    return name.endswith(".hours") and name.removesuffix(".hours") + ".minutes" in values


def _built(values: dict[str, Value]) -> BrokerConfig:
    given = tuple(name for name in BROKER_KEYS if name in values)
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in values.items()}
    config = BrokerConfig(given=given, **settings)
    _check_listener(config)
    _check_voters(config)
    _check_together(config)
    return config


def _check_listener(config: BrokerConfig) -> None:
    text = config.advertised_listeners
    if not text:
        return
    scheme, separator, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    good = bool(host) and bool(colon) and port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not good or (separator and scheme != "PLAINTEXT"):
        raise ConfigError(f"advertised.listeners is {text!r}: give one PLAINTEXT://HOST:PORT.")


def _check_voters(config: BrokerConfig) -> None:
    for name, text in (
        ("controller.quorum.voters", config.controller_quorum_voters),
        ("crucible.peers", config.crucible_peers),
    ):
        numbers = [each.node_id for each in _voters(text)]
        if text and (len(numbers) != text.count(",") + 1 or len(dict.fromkeys(numbers)) != len(numbers)):
            raise ConfigError(f"{name} is {text!r}: give ID@HOST:PORT,... with each ID once.")
    if config.controller_quorum_voters and not config.crucible_cluster_id:
        raise ConfigError("controller.quorum.voters needs crucible.cluster.id, the same on every node: give one.")


def _check_together(config: BrokerConfig) -> None:
    if config.log_cleaner_min_compaction_lag_ms > config.log_cleaner_max_compaction_lag_ms:
        raise ConfigError(
            f"log.cleaner.min.compaction.lag.ms is {config.log_cleaner_min_compaction_lag_ms}, above "
            f"log.cleaner.max.compaction.lag.ms {config.log_cleaner_max_compaction_lag_ms}: lower it."
        )
    if config.message_max_bytes > config.socket_request_max_bytes:
        raise ConfigError(
            f"message.max.bytes is {config.message_max_bytes}, above socket.request.max.bytes "
            f"{config.socket_request_max_bytes}: no request could carry such a batch; lower it."
        )
    if config.default_replication_factor < config.min_insync_replicas:
        raise ConfigError(
            f"min.insync.replicas is {config.min_insync_replicas}, above default.replication.factor "
            f"{config.default_replication_factor}: no write with acks=all could succeed; lower it."
        )


assert [field.name for field in fields(BrokerConfig)] == [
    *(name.replace(".", "_") for name in BROKER_KEYS),
    "given",
], "each field of BrokerConfig needs its key in broker_keys, in order"
assert all(BrokerConfig().value(name) == key.default for name, key in BROKER_KEYS.items())
