"""Settings as DescribeConfigs and CreateTopics show them: the value, its source, and its synonyms."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from reference_broker.configuration.broker_config import BROKER_KEYS, BROKER_SYNONYMS, BrokerConfig
from reference_broker.configuration.setting import ConfigKey
from reference_broker.configuration.topic_config import TOPIC_KEYS


class Source(IntEnum):
    """Kafka's ConfigEntry.ConfigSource numbers."""

    TOPIC = 1
    CLUSTER = 3
    """DYNAMIC_DEFAULT_BROKER_CONFIG: set for all brokers in the metadata."""
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """``synonyms`` holds all places that set the value. The first one wins, and gives value and source."""

    key: ConfigKey
    synonyms: tuple[Synonym, ...]
    read_only: bool

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> Source:
        return self.synonyms[0].source


NONE_SET: Mapping[str, str] = {}


def topic_rows(
    config: BrokerConfig,
    topic_configs: Mapping[str, str],
    asked: Collection[str] | None = None,
    cluster: Mapping[str, str] = NONE_SET,
) -> list[ConfigRow]:
    """All settings of a topic, or those named in ``asked``. ``cluster`` holds those that the metadata sets for all
    brokers."""
    rows = []
    for name, key in _chosen(TOPIC_KEYS, asked):
        if key.is_internal and name not in topic_configs:
            continue
        own = (Synonym(name, _told(key, topic_configs[name]), Source.TOPIC),) if name in topic_configs else ()
        broker_name = BROKER_SYNONYMS.get(name)
        default = () if key.is_internal else (Synonym(name, key.text(key.default), Source.DEFAULT),)
        others = default if broker_name is None else _broker_synonyms(config, broker_name, cluster)
        rows.append(ConfigRow(key, (*own, *others), read_only=False))
    return rows


def _told(key: ConfigKey, text: str) -> str:
    """The value of a setting in its plain form. The metadata may have it from a release that kept texts as they came,
    with any number of blanks around them."""
    return key.text(key.parse(text))


def broker_rows(
    config: BrokerConfig, asked: Collection[str] | None = None, cluster: Mapping[str, str] = NONE_SET
) -> list[ConfigRow]:
    """All settings of this node, or those named in ``asked``. Those that are not the cluster's are fixed at its
    start."""
    return [
        ConfigRow(key, _broker_synonyms(config, name, cluster), read_only=True)
        for name, key in _chosen(BROKER_KEYS, asked)
    ]


def cluster_rows(cluster: Mapping[str, str], asked: Collection[str] | None = None) -> list[ConfigRow]:
    """The settings that the metadata sets for all brokers."""
    return [
        ConfigRow(key, (Synonym(name, cluster[name], Source.CLUSTER),), read_only=False)
        for name, key in _chosen(BROKER_KEYS, asked)
        if name in cluster
    ]


def _chosen(keys: Mapping[str, ConfigKey], asked: Collection[str] | None) -> Iterator[tuple[str, ConfigKey]]:
    """All settings if ``asked`` is empty or None."""
    return ((name, key) for name, key in keys.items() if not asked or name in asked)


def _broker_synonyms(config: BrokerConfig, name: str, cluster: Mapping[str, str]) -> tuple[Synonym, ...]:
    key = BROKER_KEYS[name]
    synonyms = [Synonym(name, cluster[name], Source.CLUSTER)] if name in cluster else []
    if name in config.given:
        synonyms.append(Synonym(name, key.text(config.value(name)), Source.STATIC_BROKER))
    return (*synonyms, Synonym(name, key.text(key.default), Source.DEFAULT))
