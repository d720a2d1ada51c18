"""Settings that must fit each other. Each is right by itself."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reference_broker.configuration.setting import WITHOUT_EFFECT, ConfigError
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
    if 0 <= config.queued_max_request_bytes < config.socket_request_max_bytes * 4 // 3:
        raise ConfigError(
            f"queued.max.request.bytes is {config.queued_max_request_bytes}, and three quarters of it are less than "
            f"socket.request.max.bytes {config.socket_request_max_bytes}: no such request could arrive; raise it."
        )


def doubtful(config: "BrokerConfig") -> Iterator[tuple[str, str]]:
    """What was given and does not do what it seems to, as (setting, reason). Kafka starts with it, too."""
    for name in config.given:
        if name in WITHOUT_EFFECT:
            yield name, f"it has no effect: {WITHOUT_EFFECT[name]}"
    if config.message_max_bytes > config.socket_request_max_bytes:
        limit = config.socket_request_max_bytes
        yield "message.max.bytes", f"no request can carry such a batch: socket.request.max.bytes is {limit}"
    if config.default_replication_factor < config.min_insync_replicas:
        replicas = config.default_replication_factor
        reason = f"writes with acks=all fail where a topic has default.replication.factor replicas, which is {replicas}"
        yield "min.insync.replicas", reason
