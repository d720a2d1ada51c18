"""Settings that must fit each other. Each is right by itself."""

from typing import TYPE_CHECKING

from reference_broker.configuration.setting import ConfigError
from reference_broker.configuration.voters import voters_of

if TYPE_CHECKING:
    from reference_broker.configuration.broker_config import BrokerConfig


def check_voters(config: "BrokerConfig") -> None:
    """Raises ConfigError."""
    for name, text in (
        ("controller.quorum.voters", config.controller_quorum_voters),
        ("crucible.peers", config.crucible_peers),
    ):
        numbers = [each.node_id for each in voters_of(text)]
        if text and (len(numbers) != text.count(",") + 1 or len(dict.fromkeys(numbers)) != len(numbers)):
            raise ConfigError(f"{name} is {text!r}: give ID@HOST:PORT,... with each ID once.")
    if config.controller_quorum_voters and not config.crucible_cluster_id:
        raise ConfigError("controller.quorum.voters needs crucible.cluster.id, the same on every node: give one.")


def check_limits(config: "BrokerConfig") -> None:
    """Raises ConfigError."""
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
    if 0 <= config.queued_max_request_bytes < config.socket_request_max_bytes * 4 // 3:
        raise ConfigError(
            f"queued.max.request.bytes is {config.queued_max_request_bytes}, and three quarters of it are less than "
            f"socket.request.max.bytes {config.socket_request_max_bytes}: no such request could arrive; raise it."
        )
    if config.default_replication_factor < config.min_insync_replicas:
        raise ConfigError(
            f"min.insync.replicas is {config.min_insync_replicas}, above default.replication.factor "
            f"{config.default_replication_factor}: no write with acks=all could succeed; lower it."
        )
