"""Settings of brokers that change while they run (KIP-226).

The metadata has them as configs of the resource type BROKER: those of all brokers under the empty name (``CLUSTER``),
and those of one broker under its ID. A broker's own come first, then those of all brokers, then what it was started
with, then the default. ``LiveConfig.of`` makes one ``BrokerConfig`` of them, from an image.

A name that no setting of Kafka's brokers has is kept, as for a plug-in, and shown without its value (``is_custom``).

Unlike Kafka: ``listeners`` and ``listener.security.protocol.map`` are fixed at the start. A name that begins like a
setting of Kafka that this broker does not have (``ABSENT``) is refused. Numbers of threads have no effect here, so they
may change by any factor. ``log.retention.ms`` may be 0 but not below -1.

The controller and the leader of a partition must mean the same ``min.insync.replicas``, because the high watermark
does not move exactly as long as eligible leader replicas are kept (KIP-966). So the number is in the metadata, for each
topic that sets its own and for the cluster. The settings of single brokers do not count as long as the cluster has one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reference_broker.configuration.broker_config import BROKER_KEYS, BROKER_SYNONYMS, BrokerConfig
from reference_broker.configuration.broker_config_fields import IDLE_KEYS
from reference_broker.configuration.setting import (
    MAX_VALUE_BYTES,
    OTHER_UNITS,
    REMOVED,
    ConfigError,
    check_lengths,
    parse_all,
)
from reference_broker.log.config import AS_RETENTION
from reference_broker.metadata.image import BROKER_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord

PER_BROKER_ONLY = frozenset({"sasl.kerberos.min.time.before.relogin"})
DYNAMIC = frozenset(
    {
        *BROKER_SYNONYMS.values(),
        *IDLE_KEYS,
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "max.connections",
        "producer.id.expiration.ms",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "transaction.partition.verification.enable",
    }
)
"""The settings that an Apache Kafka 4.1.1 describes as not read-only, as far as this broker has them."""

ABSENT = (
    *("alter.", "authorizer.", "broker.", "client.", "connection.", "connections.", "control", "create."),
    *("delegation.", "delete.records.", "early.", "fetch.purgatory.", "group.", "initial.", "kafka.", "listener"),
    *("log.dir", "log.flush.", "max.connections.", "metadata.", "metric", "node.", "num.", "offsets.", "principal."),
    *("process.", "producer.purgatory.", "queued.", "quota.", "remote.log.", "replica", "sasl.", "security."),
    *("share.", "socket.", "ssl.", "telemetry.", "transaction."),
)
"""Prefixes of settings that Apache Kafka 4.1.1 describes and this broker does not have."""

NONE_SET: Mapping[str, str] = {}
MIN_SEGMENT_BYTES = 1 << 20
"""Kafka's minimum of ``log.segment.bytes``. Only a file may give less, which tests need."""
CLEANER_MEMORY = frozenset({"log.cleaner.dedupe.buffer.size", "log.cleaner.threads"})


@dataclass(frozen=True, slots=True)
class Layers:
    """The settings of one broker in the metadata."""

    own: Mapping[str, str]
    """For this one alone. These win."""
    cluster: Mapping[str, str]
    """For all brokers."""


def layers_of(image: MetadataImage, node_id: int) -> Layers:
    configs = image.configs
    return Layers(configs.get((BROKER_RESOURCE, str(node_id)), NONE_SET), configs.get((BROKER_RESOURCE, ""), NONE_SET))


class LiveConfig:
    """A node's settings as its metadata amends them. The last result is remembered: images share what is unchanged."""

    def __init__(self, config: BrokerConfig, node_id: int) -> None:
        self._static = config
        self._node_id = node_id
        self._layers = Layers(NONE_SET, NONE_SET)
        self._live = config

    def of(self, image: MetadataImage) -> BrokerConfig:
        layers = layers_of(image, self._node_id)
        if layers.own is not self._layers.own or layers.cluster is not self._layers.cluster:
            self._layers, self._live = layers, amended(self._static, layers)
        return self._live


def amended(config: BrokerConfig, layers: Layers) -> BrokerConfig:
    """``config`` with what the layers set. What is no dynamic setting, or no value of one, is ignored: it was written
    by another release."""
    values: dict[str, Any] = {}
    for name, text in {**layers.cluster, **layers.own}.items():
        if name in DYNAMIC:
            try:
                value = BROKER_KEYS[name].parse(text)
            except ConfigError:
                continue
            if value != config.value(name):
                values[name.replace(".", "_")] = value
    return replace(config, static=config, **values) if values else config


def check_together(config: BrokerConfig, layers: Layers, changed: Collection[str]) -> None:
    """Check what Kafka demands of a running broker's settings together (KafkaConfig.validateValues,
    DynamicLogConfig.validateReconfiguration). A demand counts where one of its settings is ``changed``.

    ``config`` is the controller's, by which another broker's file is not known. Raise ConfigError.
    """
    static = config.static or config
    live = amended(static, layers)
    for name, kept, kept_here in (
        ("retention.ms", live.log_retention_ms, live.log_local_retention_ms),
        ("retention.bytes", live.log_retention_bytes, live.log_local_retention_bytes),
    ):
        whole, here = f"log.{name}", f"log.local.{name}"
        is_more = kept >= 0 and kept_here != AS_RETENTION and (kept_here < 0 or kept_here > kept)
        if is_more and not {whole, here}.isdisjoint(changed):
            raise ConfigError(f"{here} is {kept_here}, but {whole} is {kept}: give no more than that.")
    buffer_bytes, threads = live.log_cleaner_dedupe_buffer_size, live.log_cleaner_threads
    if buffer_bytes // threads <= 1 << 20 and not CLEANER_MEMORY.isdisjoint(changed):
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size is {buffer_bytes}, and log.cleaner.threads is {threads}: give more than "
            f"1 MiB for each thread."
        )


def is_custom(name: str) -> bool:
    """True for a name that Kafka's brokers give no meaning. Kafka keeps such a setting for a plug-in that may read it
    (KafkaConfig.maybeSensitive)."""
    is_known = name in BROKER_KEYS or name in OTHER_UNITS or name in REMOVED
    return not is_known and not name.startswith(ABSENT)


def normalised_broker_settings(pairs: Mapping[str, str], of_one_broker: bool) -> dict[str, str]:
    """The text of each setting as it is kept and described. Raise ConfigError for what cannot change, or not for all
    brokers at once, and for a bad value."""
    check_lengths(pairs)
    custom = {name: text for name, text in pairs.items() if is_custom(name)}
    if any(len(name.encode()) > MAX_VALUE_BYTES for name in custom):
        raise ConfigError(f"The name of a setting has more than {MAX_VALUE_BYTES} bytes: give a shorter one.")
    pairs = {name: text for name, text in pairs.items() if name not in custom}
    fixed = [name for name in pairs if name in OTHER_UNITS or (name in BROKER_KEYS and name not in DYNAMIC)]
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: {', '.join(fixed)}")
    values = parse_all({name: BROKER_KEYS[name] for name in DYNAMIC}, pairs, "broker")
    for name in ("max.connections", "max.connections.per.ip", "max.connection.creation.rate"):
        if values.get(name) == 0:
            raise ConfigError(f"{name} is 0: nobody could set it to anything else any more.")
    segment_bytes = values.get("log.segment.bytes")
    if isinstance(segment_bytes, int) and segment_bytes < MIN_SEGMENT_BYTES:
        raise ConfigError(f"log.segment.bytes is {segment_bytes}: give a whole number of at least {MIN_SEGMENT_BYTES}.")
    of_each = [name for name in pairs if name in PER_BROKER_ONLY]
    if of_each and not of_one_broker:
        raise ConfigError(
            "Cannot update these configs at default cluster level, broker id must be specified: " + ", ".join(of_each)
        )
    return {**{name: BROKER_KEYS[name].text(value) for name, value in values.items()}, **custom}


MIN_ISR_KEY = "min.insync.replicas"
CLUSTER = (BROKER_RESOURCE, "")
"""The resource of settings that hold for all brokers."""


def min_isr_of(image: MetadataImage, topic: str) -> int:
    """The topic's own value, or else the cluster's, which is 1 if there is none."""
    own = image.topic_configs(topic).get(MIN_ISR_KEY)
    return int(image.configs.get(CLUSTER, {}).get(MIN_ISR_KEY, 1) if own is None else own)


def cluster_min_isr_record(value: int) -> ConfigRecord:
    """The record that sets the cluster's value."""
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_ISR_KEY, value=str(value))
