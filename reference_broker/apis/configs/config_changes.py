"""How the two APIs that alter configs judge resources and turn changes into records (KIP-133, KIP-339)."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from reference_broker.apis.broker import Broker
from reference_broker.apis.proposing import UNITS_PER_ENTRY, Refusal, chained
from reference_broker.configuration.setting import ConfigError
from reference_broker.configuration.topic_config import parse_topic_configs
from reference_broker.controller.operations import Planning
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage
from reference_broker.metadata.records import ConfigRecord
from reference_broker.metadata.topic_names import name_problem

Resource: TypeAlias = tuple[int, str]
"""(type, name)."""

EntryT = TypeVar("EntryT")

Wanted: TypeAlias = Callable[[EntryT, Mapping[str, str]], "dict[str, str] | Refusal"]
"""(entry, settings before) -> settings after."""

DUPLICATE = Refusal(ErrorCode.invalid_request, "Each resource must appear at most once.")


@dataclass(slots=True)
class ConfigChanges(Generic[EntryT]):
    """One request: its resources in order, then what becomes of each: records, or why nothing."""

    broker: Broker
    entries: Sequence[tuple[Resource, EntryT]]
    wanted: Wanted[EntryT]
    validate_only: bool
    outcomes: list[list[ConfigRecord] | Refusal] = field(default_factory=list)

    def submit(self, name: str, answer: Callable[[Sequence[Refusal | None]], None]) -> None:
        """``answer`` gets, for each entry, why it was not done."""

        def answered(refused: Refusal | None) -> None:
            if refused is not None:
                answer([refused] * len(self.entries))
            else:
                answer([each if isinstance(each, Refusal) else None for each in self.outcomes])

        self.broker.controller.submit(self._plan(), answered, name=name)

    def _plan(self) -> Planning:
        yield from self._judge()
        good = [each for each in self.outcomes if not isinstance(each, Refusal)]
        return () if self.validate_only else chained(good)

    def _judge(self) -> Generator[None, None, None]:
        latest = self.broker.controller.latest
        times: dict[Resource, int] = {}
        for resource, _ in self.entries:
            times[resource] = times.get(resource, 0) + 1
        for resource, entry in self.entries:
            found = DUPLICATE if times[resource] > 1 else self._records(latest, resource, entry)
            self.outcomes.append(found)
            if self.broker.controller.spend(UNITS_PER_ENTRY if isinstance(found, Refusal) else 2 + 2 * len(found)):
                yield

    def _records(self, latest: MetadataImage, resource: Resource, entry: EntryT) -> list[ConfigRecord] | Refusal:
        problem = _resource_problem(latest, resource)
        if problem is not None:
            return problem
        before = latest.topic_configs(resource[1])
        after = self.wanted(entry, before)
        if isinstance(after, Refusal):
            return after
        try:
            parse_topic_configs(after)
        except ConfigError as error:
            return Refusal(ErrorCode.invalid_config, str(error))
        return _difference(resource, before, after)


def _difference(resource: Resource, before: Mapping[str, str], after: Mapping[str, str]) -> list[ConfigRecord]:
    """A setting that stays as it is needs no record."""
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
