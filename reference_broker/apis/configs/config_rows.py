"""Settings as DescribeConfigs and CreateTopics show them: the value, its source, and its synonyms."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from reference_broker.configuration.broker_config import BROKER_KEYS, BROKER_SYNONYMS, BrokerConfig
from reference_broker.configuration.setting import ConfigKey, Kind
from reference_broker.configuration.topic_config import TOPIC_KEYS
from reference_broker.metadata.broker_settings import DYNAMIC, NONE_SET, Layers, is_custom


class Source(IntEnum):
    """Kafka's ConfigEntry.ConfigSource numbers, in the order in which places win, but for the topic's own."""

    TOPIC = 1
    BROKER = 2
    """DYNAMIC_BROKER_CONFIG: set for one broker in the metadata."""
    CLUSTER = 3
    """DYNAMIC_DEFAULT_BROKER_CONFIG: set for all brokers in the metadata."""
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str | None
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One setting of a resource, as DescribeConfigs shows it."""

    key: ConfigKey
    synonyms: tuple[Synonym, ...]
    """All places that set the value. The first one wins, and gives value and source. There are none for the default of
    a setting that only topics have."""
    read_only: bool
    is_sensitive: bool = False
    """Then its values are None."""

    @property
    def value(self) -> str | None:
        return self.synonyms[0].value if self.synonyms else self.key.text(self.key.default)

    @property
    def source(self) -> Source:
        return self.synonyms[0].source if self.synonyms else Source.DEFAULT


def topic_rows(
    config: BrokerConfig, topic_configs: Mapping[str, str], names: Collection[str] | None, layers: Layers
) -> list[ConfigRow]:
    """All settings of a topic, or those in ``names``. ``layers`` are what the metadata sets for this broker."""
    rows = []
    for name, key in _chosen(TOPIC_KEYS, names):
        if key.is_internal and name not in topic_configs:
            continue
        own = (Synonym(name, _plain(key, topic_configs[name]), Source.TOPIC),) if name in topic_configs else ()
        broker_name = BROKER_SYNONYMS.get(name)
        others = () if broker_name is None else _broker_synonyms(config, broker_name, layers)
        rows.append(ConfigRow(key, (*own, *others), read_only=False))
    return rows


def _plain(key: ConfigKey, text: str) -> str:
    """The value of a setting in its plain form. The metadata may have it from a release that kept texts as they came,
    with any number of blanks around them."""
    return key.text(key.parse(text))


def broker_rows(config: BrokerConfig, names: Collection[str] | None, layers: Layers) -> list[ConfigRow]:
    """All settings of this node, or those in ``names``."""
    rows = [
        ConfigRow(key, _broker_synonyms(config, name, layers), read_only=name not in DYNAMIC)
        for name, key in _chosen(BROKER_KEYS, names)
    ]
    return rows + _custom_rows(layers, names)


def cluster_rows(cluster: Mapping[str, str], names: Collection[str] | None) -> list[ConfigRow]:
    """The settings that the metadata sets for all brokers."""
    rows = [
        ConfigRow(key, (Synonym(name, cluster[name], Source.CLUSTER),), read_only=name not in DYNAMIC)
        for name, key in _chosen(BROKER_KEYS, names)
        if name in cluster
    ]
    return rows + _custom_rows(Layers(NONE_SET, cluster), names)


def _custom_rows(layers: Layers, names: Collection[str] | None) -> list[ConfigRow]:
    """Settings whose names Kafka does not know. They may be secrets, so nobody sees their values."""
    custom = {
        name: ConfigKey(name, Kind.UNKNOWN, "", "") for name in {**layers.own, **layers.cluster} if is_custom(name)
    }
    return [
        ConfigRow(key, tuple(_dynamic_synonyms(name, layers, is_secret=True)), read_only=True, is_sensitive=True)
        for name, key in _chosen(custom, names)
    ]


def _chosen(keys: Mapping[str, ConfigKey], names: Collection[str] | None) -> Iterator[tuple[str, ConfigKey]]:
    """All settings if ``names`` is empty or None."""
    names = frozenset(names or ())
    return ((name, key) for name, key in keys.items() if not names or name in names)


def _broker_synonyms(config: BrokerConfig, name: str, layers: Layers) -> tuple[Synonym, ...]:
    key, static = BROKER_KEYS[name], config.static or config
    synonyms = _dynamic_synonyms(name, layers)
    if name in static.given:
        synonyms.append(Synonym(name, key.text(static.value(name)), Source.STATIC_BROKER))
    return (*synonyms, Synonym(name, key.text(key.default), Source.DEFAULT))


def _dynamic_synonyms(name: str, layers: Layers, is_secret: bool = False) -> list[Synonym]:
    return [
        Synonym(name, None if is_secret else layer[name], source)
        for layer, source in ((layers.own, Source.BROKER), (layers.cluster, Source.CLUSTER))
        if name in layer
    ]
