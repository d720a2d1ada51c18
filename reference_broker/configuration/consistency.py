"""Settings that must fit each other. Each is right by itself.

A topic's settings are checked as by LogConfig.validateValues and validateTopicLogConfigValues.
"""

from collections.abc import Iterator, Mapping

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.setting import WITHOUT_EFFECT, ConfigError, Value
from reference_broker.log.config import AS_RETENTION


def doubtful(config: BrokerConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not have the effect that they seem to have, as (setting, reason). Kafka starts with
    them, too."""
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


ENABLE = "remote.storage.enable"
COPY_DISABLE = "remote.log.copy.disable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
RETENTIONS = (("retention.bytes", "local.retention.bytes"), ("retention.ms", "local.retention.ms"))


def check_topic(config: BrokerConfig, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """``before`` and ``after`` are the settings that the topic itself has. Where it has none, the broker's count.
    Raise ConfigError with one sentence."""
    values = config.topic_values(after)
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(shortest, int), "the lag is a number"
    assert isinstance(longest, int), "the lag is a number"
    if shortest > longest:
        raise ConfigError(f"min.compaction.lag.ms is {shortest}, above max.compaction.lag.ms {longest}: lower it.")
    if not values[ENABLE]:
        if before.get(ENABLE) == "true" and not values[DELETE_ON_DISABLE]:
            raise ConfigError(
                f"{ENABLE} can become false only if {DELETE_ON_DISABLE} is true, since the remote records go; to read "
                f"them and copy nothing more, set {COPY_DISABLE} instead."
            )
        return
    if not config.remote_log_storage_system_enable:
        raise ConfigError(f"{ENABLE} is true, but the brokers have no remote tier: remote.log.storage.system.enable.")
    if "compact" in str(values["cleanup.policy"]).split(","):
        raise ConfigError(f"{ENABLE} is true, and a compacted topic cannot have a remote tier.")
    for whole, here in RETENTIONS:
        _check_retention(values, whole, here)


def _check_retention(values: Mapping[str, Value], whole: str, here: str) -> None:
    kept, kept_here = values[whole], values[here]
    assert isinstance(kept, int), f"{whole} is a number"
    assert isinstance(kept_here, int), f"{here} is a number"
    if values[COPY_DISABLE] and kept_here not in (AS_RETENTION, kept):
        raise ConfigError(f"{here} is {kept_here}, but {whole} is {kept}: with {COPY_DISABLE} both must be the same.")
    if kept >= 0 and (kept_here == -1 or kept_here > kept):
        raise ConfigError(f"{here} is {kept_here}, but {whole} is {kept}: give no more than that.")
