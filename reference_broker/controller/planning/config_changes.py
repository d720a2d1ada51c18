"""Changes settings of topics, all at once (AlterConfigs, KIP-133) or one by one (KIP-339)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from reference_broker.configuration.broker_config import BROKER_SYNONYMS, BrokerConfig
from reference_broker.configuration.setting import ConfigError, Kind
from reference_broker.configuration.topic_config import TOPIC_KEYS, normalised
from reference_broker.controller.operations import Planning
from reference_broker.controller.planning.change import UNITS_PER_ENTRY, Change, Situation
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord
from reference_broker.metadata.topic_names import name_problem
from reference_broker.wire.errors import ErrorCode

Resource: TypeAlias = tuple[int, str]
"""(type, name)."""

DUPLICATE = Refusal(ErrorCode.invalid_request, "Each resource must appear at most once.")

SET, DELETE, APPEND, SUBTRACT = range(4)
"""AlterConfigOp.OpType of Kafka."""


@dataclass(frozen=True, slots=True)
class WantedConfigs:
    """``steps`` holds (setting, operation, value). Settings without a step stay as they are, or are removed if
    ``replaces_all``."""

    resource: Resource
    steps: tuple[tuple[str, int, str | None], ...]
    replaces_all: bool = False

    def after(self, before: Mapping[str, str], config: BrokerConfig) -> dict[str, str] | Refusal:
        """Returns the settings after the change of ``before``, or the reason why it is not possible."""
        after = {} if self.replaces_all else dict(before)
        seen: dict[str, None] = {}
        for name, operation, value in self.steps:
            if name in seen:
                return Refusal(ErrorCode.invalid_request, f"Setting {name} is given twice.")
            seen[name] = None
            problem = _apply(config, name, operation, value, after)
            if problem is not None:
                return problem
        return after


ConfigOutcomes: TypeAlias = Sequence[Refusal | None]
"""For each entry of the request why it was not done, or None if it was."""


@dataclass(slots=True)
class ConfigChange(Change[ConfigOutcomes]):
    """All good resources of one request are changed at once, or none."""

    name = "alter configs"

    wanted: Sequence[WantedConfigs]
    validate_only: bool
    found: list[list[ConfigRecord] | Refusal] = field(default_factory=list)

    def plan(self, situation: Situation) -> Planning:
        times = Counter(one.resource for one in self.wanted)
        for one in self.wanted:
            found = DUPLICATE if times[one.resource] > 1 else _records(situation, one)
            self.found.append(found)
            if situation.spend(UNITS_PER_ENTRY if isinstance(found, Refusal) else 2 + 2 * len(found)):
                yield
        good = [each for each in self.found if not isinstance(each, Refusal)]
        return () if self.validate_only else chain.from_iterable(good)

    def outcome(self, refused: Refusal | None) -> ConfigOutcomes:
        if refused is not None:
            return [refused] * len(self.wanted)
        return [each if isinstance(each, Refusal) else None for each in self.found]


def _records(situation: Situation, wanted: WantedConfigs) -> list[ConfigRecord] | Refusal:
    problem = _resource_problem(situation.latest, wanted.resource)
    if problem is not None:
        return problem
    before = situation.latest.topic_configs(wanted.resource[1])
    after = wanted.after(before, situation.config)
    if isinstance(after, Refusal):
        return after
    try:
        return _difference(wanted.resource, before, normalised(after))
    except ConfigError as error:
        return Refusal(ErrorCode.invalid_config, str(error))


def _difference(resource: Resource, before: Mapping[str, str], after: Mapping[str, str]) -> list[ConfigRecord]:
    """The records for settings that differ."""
    kind, name = resource
    records = [
        ConfigRecord(resource_type=kind, resource_name=name, name=key, value=None) for key in before if key not in after
    ]
    records += (
        ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        for key, value in after.items()
        if before.get(key) != value
    )
    return records


def _resource_problem(latest: MetadataImage, resource: Resource) -> Refusal | None:
    kind, name = resource
    if kind == BROKER_RESOURCE:
        return Refusal(
            ErrorCode.invalid_request, "The settings of brokers are fixed at their start: change their configuration."
        )
    if kind != TOPIC_RESOURCE:
        return Refusal(ErrorCode.invalid_request, f"Unsupported resource type: {kind}")
    problem = name_problem(name)
    if problem is not None:
        return Refusal(ErrorCode.invalid_topic_exception, problem)
    if name not in latest.topics:
        return Refusal(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    return None


def _apply(
    config: BrokerConfig, name: str, operation: int, value: str | None, settings: dict[str, str]
) -> Refusal | None:
    """Changes ``settings``, or returns why that is not possible."""
    if operation == DELETE:
        settings.pop(name, None)
        return None
    if value is None:
        return Refusal(ErrorCode.invalid_config, f"Null value not supported for : {name}")
    if operation == SET:
        settings[name] = value
        return None
    if operation not in (APPEND, SUBTRACT):
        return Refusal(ErrorCode.invalid_request, f"Unknown operation type {operation} for setting {name}.")
    key = TOPIC_KEYS.get(name)
    if key is None or key.kind is not Kind.LIST:
        return Refusal(ErrorCode.invalid_config, f"Setting {name} is no list: it can only be set or deleted.")
    current = settings.get(name, key.text(config.value(BROKER_SYNONYMS[name])))
    settings[name] = ",".join(_combined(current, value, operation))
    return None


def _combined(current: str, value: str, operation: int) -> list[str]:
    parts = dict.fromkeys(part.strip() for part in current.split(",") if part.strip())
    for part in value.split(","):
        if operation == APPEND:
            parts[part.strip()] = None
        else:
            parts.pop(part.strip(), None)
    return list(parts)
