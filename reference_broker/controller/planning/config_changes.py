"""Changes settings of topics, all at once (AlterConfigs, KIP-133) or one by one (KIP-339).

Where eligible leader replicas are kept, the cluster's min.insync.replicas can be changed, too (E-8).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from reference_broker.configuration.broker_config import BROKER_SYNONYMS, BrokerConfig
from reference_broker.configuration.setting import ConfigError, Kind
from reference_broker.configuration.tiering import check_tiering
from reference_broker.configuration.topic_config import TOPIC_KEYS, normalised
from reference_broker.controller.operations import Planning
from reference_broker.controller.planning.change import UNITS_PER_ENTRY, Change, Situation
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.features import keeps_eligible_leaders
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.min_isr import CLUSTER, MIN_ISR_KEY
from reference_broker.metadata.records import ClearElrRecord, ConfigRecord
from reference_broker.metadata.topic_names import name_problem
from reference_broker.wire.errors import ErrorCode

Resource: TypeAlias = tuple[int, str]
"""(type, name)."""

DUPLICATE = Refusal(ErrorCode.invalid_request, "Each resource must appear at most once.")

MIN_ISR_STAYS = Refusal(
    ErrorCode.invalid_config, "The cluster's min.insync.replicas cannot be removed while ELR is enabled."
)
MIN_ISR_OF_BROKER = Refusal(
    ErrorCode.invalid_config, "A broker's own min.insync.replicas cannot be altered while ELR is enabled."
)
ONLY_MIN_ISR = Refusal(
    ErrorCode.invalid_request, "Of the settings of all brokers only min.insync.replicas can be changed while they run."
)

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
    found: list[list[ConfigRecord | ClearElrRecord] | Refusal] = field(default_factory=list)

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


def _records(situation: Situation, wanted: WantedConfigs) -> list[ConfigRecord | ClearElrRecord] | Refusal:
    """A new min.insync.replicas clears the eligible leader replicas that were kept by the old one (E-8)."""
    latest = situation.latest
    problem = _resource_problem(latest, wanted)
    if problem is not None:
        return problem
    before = latest.configs.get(wanted.resource, {})
    after = wanted.after(before, situation.config)
    if isinstance(after, Refusal):
        return after
    if wanted.resource == CLUSTER and [*after] != [MIN_ISR_KEY]:
        return ONLY_MIN_ISR if MIN_ISR_KEY in after else MIN_ISR_STAYS
    try:
        after = normalised(after)
        if wanted.resource[0] == TOPIC_RESOURCE:
            check_tiering(situation.config, before, after)
    except ConfigError as error:
        return Refusal(ErrorCode.invalid_config, str(error))
    records: list[ConfigRecord | ClearElrRecord] = [*_difference(wanted.resource, before, after)]
    if keeps_eligible_leaders(latest) and before.get(MIN_ISR_KEY) != after.get(MIN_ISR_KEY):
        records.append(ClearElrRecord(topic_name=wanted.resource[1]))
    return records


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


def _resource_problem(latest: MetadataImage, wanted: WantedConfigs) -> Refusal | None:
    kind, name = wanted.resource
    if kind == BROKER_RESOURCE and keeps_eligible_leaders(latest):
        if wanted.resource == CLUSTER:
            return None
        if any(setting == MIN_ISR_KEY for setting, _, _ in wanted.steps):
            return MIN_ISR_OF_BROKER
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
