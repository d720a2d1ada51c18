"""Changes settings of topics and of brokers (KIP-226), all at once (AlterConfigs, KIP-133) or one by one (KIP-339).

The errors and their order are those of Kafka's ConfigAdminManager and ControllerConfigurationValidator: a bad value is
INVALID_REQUEST for a broker and INVALID_CONFIG for a topic.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from reference_broker.configuration.broker_config import BROKER_KEYS, BROKER_SYNONYMS, BrokerConfig
from reference_broker.configuration.consistency import check_topic
from reference_broker.configuration.setting import ConfigError, Kind
from reference_broker.configuration.topic_config import TOPIC_KEYS, normalised
from reference_broker.controller.write_operations import (
    UNITS_PER_ENTRY,
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
)
from reference_broker.metadata.broker_settings import (
    CLUSTER,
    MIN_ISR_KEY,
    Layers,
    check_together,
    normalised_broker_settings,
)
from reference_broker.metadata.features import keeps_eligible_leaders
from reference_broker.metadata.identifiers import name_problem
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import ClearElrRecord, ConfigRecord
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

Resource: TypeAlias = tuple[int, str]
"""(type, name)."""

DUPLICATE = ApiError(ErrorCode.invalid_request, "Each resource must appear at most once.")

MIN_ISR_STAYS = ApiError(
    ErrorCode.invalid_config, "The cluster's min.insync.replicas cannot be removed while ELR is enabled."
)
MIN_ISR_OF_BROKER = ApiError(
    ErrorCode.invalid_config, "A broker's own min.insync.replicas cannot be altered while ELR is enabled."
)
RESOURCE_NAMES = {8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
"""Kafka's ConfigResource.Type, as far as this broker has no settings of it."""

SET, DELETE, APPEND, SUBTRACT = range(4)
"""AlterConfigOp.OpType of Kafka."""


@dataclass(frozen=True, slots=True)
class RequestedConfigs:
    """Changes of the settings of one resource."""

    resource: Resource
    steps: tuple[tuple[str, int, str | None], ...]
    """(setting, operation, value). Settings without a step stay as they are."""
    replaces_all: bool = False
    """Whether settings without a step are removed instead."""

    def after(self, before: Mapping[str, str], config: BrokerConfig) -> dict[str, str] | ApiError:
        """Return the settings after the change of ``before``, or the reason why it is not possible."""
        after = {} if self.replaces_all else dict(before)
        for name, operation, value in self.steps:
            problem = _apply(config, self.resource[0], name, operation, value or "", after)
            if problem is not None:
                return problem
        return after

    def form_problem(self) -> ApiError | None:
        """Return the error of the steps, whatever the resource is."""
        names = [name for name, _, _ in self.steps]
        if len(dict.fromkeys(names)) < len(names):
            return ApiError(ErrorCode.invalid_request, "Error due to duplicate config keys")
        without = [name for name, operation, value in self.steps if value is None and operation != DELETE]
        if without:
            return ApiError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(without)}")
        return None


ConfigOutcomes: TypeAlias = Sequence[ApiError | None]
"""For each entry of the request why the resource was not changed, or None if it was."""


@dataclass(slots=True)
class ConfigChange(ControllerWriteOperation[ConfigOutcomes]):
    """All good resources of one request are changed at once, or none."""

    name = "alter configs"

    requested: Sequence[RequestedConfigs]
    validate_only: bool
    results: list[list[ConfigRecord | ClearElrRecord] | ApiError] = field(default_factory=list)

    def plan(self, context: PlanContext) -> Sliced[Records]:
        times = Counter(requested.resource for requested in self.requested)
        for requested in self.requested:
            result = DUPLICATE if times[requested.resource] > 1 else _records(context, requested)
            self.results.append(result)
            if context.spend(UNITS_PER_ENTRY if isinstance(result, ApiError) else 2 + 2 * len(result)):
                yield
        good = [each for each in self.results if not isinstance(each, ApiError)]
        return () if self.validate_only else chain.from_iterable(good)

    def outcome(self, refused: ApiError | None) -> ConfigOutcomes:
        if refused is not None:
            return [refused] * len(self.requested)
        return [result if isinstance(result, ApiError) else None for result in self.results]


def _records(context: PlanContext, requested: RequestedConfigs) -> list[ConfigRecord | ClearElrRecord] | ApiError:
    """A new min.insync.replicas clears the eligible leader replicas that were kept by the old one (E-8)."""
    latest = context.latest
    problem = requested.form_problem() or unknown_kind(*requested.resource) or _name_problem(*requested.resource)
    if problem is not None:
        return problem
    before = latest.configs.get(requested.resource, {})
    after = requested.after(before, context.config)
    if isinstance(after, ApiError):
        return after
    is_topic = requested.resource[0] == TOPIC_RESOURCE
    try:
        if is_topic:
            after = normalised(after)
            check_topic(context.config, before, after)
        else:
            name = requested.resource[1]
            after = normalised_broker_settings(after, of_one_broker=bool(name))
            changed = {key for key in (*before, *after) if before.get(key) != after.get(key)}
            for layers in _layers(latest, name, after):
                check_together(context.config, layers, changed)
    except ConfigError as error:
        return ApiError(ErrorCode.invalid_config if is_topic else ErrorCode.invalid_request, str(error))
    problem = (
        _existence_problem(latest, requested.resource[1]) if is_topic else _min_isr_problem(latest, requested, after)
    )
    if problem is not None:
        return problem
    records: list[ConfigRecord | ClearElrRecord] = [*_difference(requested.resource, before, after)]
    is_of_one_broker = not is_topic and requested.resource != CLUSTER
    if keeps_eligible_leaders(latest) and not is_of_one_broker and before.get(MIN_ISR_KEY) != after.get(MIN_ISR_KEY):
        records.append(ClearElrRecord(topic_name=requested.resource[1]))
    return records


def _layers(latest: MetadataImage, broker: str, after: Mapping[str, str]) -> Iterator[Layers]:
    """The settings of each broker after a change of one's own, or of those of all, with ``broker`` empty."""
    if broker:
        yield Layers(after, latest.configs.get(CLUSTER, {}))
        return
    yield Layers({}, after)
    for each in latest.brokers:
        own = latest.configs.get((BROKER_RESOURCE, str(each)))
        if own:
            yield Layers(own, after)


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


def unknown_kind(kind: int, name: str) -> ApiError | None:
    """Return the reason why resources of this kind have no settings here."""
    if kind in (TOPIC_RESOURCE, BROKER_RESOURCE):
        return None
    known = RESOURCE_NAMES.get(kind)
    what = f"Unknown resource type {kind}" if known is None else f"Unsupported resource type {known} of '{name}'"
    return ApiError(ErrorCode.invalid_request, f"{what}: this broker has settings of topics and brokers only.")


def _name_problem(kind: int, name: str) -> ApiError | None:
    if kind == BROKER_RESOURCE:
        if not name or (name.isascii() and name.isdecimal()):
            return None
        return ApiError(ErrorCode.invalid_request, f"Node id must be an integer of at least 0, but it is: {name}")
    if not name:
        return ApiError(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    problem = name_problem(name)
    return None if problem is None else ApiError(ErrorCode.invalid_topic_exception, problem)


def _existence_problem(latest: MetadataImage, topic: str) -> ApiError | None:
    if topic in latest.topics:
        return None
    return ApiError(ErrorCode.unknown_topic_or_partition, f"The topic '{topic}' does not exist.")


def _min_isr_problem(latest: MetadataImage, requested: RequestedConfigs, after: Mapping[str, str]) -> ApiError | None:
    """Where eligible leader replicas are kept, the whole cluster must have one min.insync.replicas (E-8)."""
    if not keeps_eligible_leaders(latest):
        return None
    if requested.resource == CLUSTER:
        return None if MIN_ISR_KEY in after else MIN_ISR_STAYS
    return MIN_ISR_OF_BROKER if any(name == MIN_ISR_KEY for name, _, _ in requested.steps) else None


def _apply(
    config: BrokerConfig, kind: int, name: str, operation: int, value: str, settings: dict[str, str]
) -> ApiError | None:
    """Change ``settings``, or return why that is not possible."""
    if operation == DELETE:
        settings.pop(name, None)
        return None
    if operation == SET:
        settings[name] = value
        return None
    if operation not in (APPEND, SUBTRACT):
        return ApiError(ErrorCode.invalid_request, f"Unknown operation type {operation} for setting {name}.")
    key = (TOPIC_KEYS if kind == TOPIC_RESOURCE else BROKER_KEYS).get(name)
    if key is None or key.kind is not Kind.LIST:
        return ApiError(ErrorCode.invalid_config, f"Setting {name} is no list: it can only be set or deleted.")
    of_broker = BROKER_SYNONYMS.get(name, "") if kind == TOPIC_RESOURCE else name
    current = settings.get(name, key.text(config.value(of_broker) if of_broker else key.default))
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
