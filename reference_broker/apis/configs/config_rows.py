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


def topic_rows(
    config: BrokerConfig, topic_configs: Mapping[str, str], asked: Collection[str] | None = None
) -> list[ConfigRow]:
    """All settings of a topic, or those named in ``asked``."""
    rows = []
    for name, key in _chosen(TOPIC_KEYS, asked):
        own = (Synonym(name, _told(key, topic_configs[name]), Source.TOPIC),) if name in topic_configs else ()
        rows.append(ConfigRow(key, (*own, *_broker_synonyms(config, BROKER_SYNONYMS[name])), read_only=False))
    return rows


def _told(key: ConfigKey, text: str) -> str:
    """The value of a setting in its plain form. The metadata may have it from a release that kept texts as they came,
    with any number of blanks around them."""
    return key.text(key.parse(text))


def broker_rows(config: BrokerConfig, asked: Collection[str] | None = None) -> list[ConfigRow]:
    """All settings of this node, or those named in ``asked``. They are fixed at its start."""
    return [ConfigRow(key, _broker_synonyms(config, name), read_only=True) for name, key in _chosen(BROKER_KEYS, asked)]


def _chosen(keys: Mapping[str, ConfigKey], asked: Collection[str] | None) -> Iterator[tuple[str, ConfigKey]]:
    """All settings if ``asked`` is empty or None."""
    return ((name, key) for name, key in keys.items() if not asked or name in asked)


def _broker_synonyms(config: BrokerConfig, name: str) -> tuple[Synonym, ...]:
    key = BROKER_KEYS[name]
    default = Synonym(name, key.text(key.default), Source.DEFAULT)
    if name in config.given:
        return Synonym(name, key.text(config.value(name)), Source.STATIC_BROKER), default
    return (default,)
