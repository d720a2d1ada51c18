"""Brokers with one wrong habit each, in what administrators ask for and in how they bear bad bytes. See
``wrong_habits``.
"""

import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from chaos.mutants.changing import ANSWERS, REQUESTS, Change, answered, asked, fixed
from chaos.mutants.mutant import Function, mutant
from reference_broker.wire.apis import ApiKey

BLOCKED_S = 6.0
"""Longer than a hostile case lets others wait."""
LARGE_BYTES = 16 << 10
CHANGES = frozenset(
    (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS)
)


# Answers


@mutant(ANSWERS)
def creations_untold(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """CreateTopics tells no sizes and no settings of a topic, and another ID."""

    def hide(name: str, value: Any) -> Any:
        hidden = {"num_partitions": -1, "replication_factor": -1, "configs": ()}
        return uuid4() if name == "topic_id" else hidden.get(name, value)

    change: Change = hide if api_key == ApiKey.CREATE_TOPICS else lambda _, same: same
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def replicas_doubled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each replica is told twice, and an eligible one that does not exist."""

    def double(name: str, value: Any) -> Any:
        if name == "eligible_leader_replicas":
            return (7,)
        return tuple(value) * 2 if name == "replica_nodes" else value

    return answered(original, api_key, version, correlation_id, body, double)


@mutant(ANSWERS)
def settings_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """DescribeConfigs tells no settings."""
    change = fixed(configs=()) if api_key == ApiKey.DESCRIBE_CONFIGS else fixed()
    return answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def names_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """DeleteTopics tells neither names nor IDs."""
    change = fixed(name="", topic_id=None) if api_key == ApiKey.DELETE_TOPICS else fixed()
    return answered(original, api_key, version, correlation_id, body, change)


# Requests


@mutant(REQUESTS)
def validation_changes(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A request that only validates is carried out."""
    body = original(api_key, version, frame, offset)
    return asked(body, api_key, api_key, fixed(validate_only=False)) if api_key in CHANGES else body


@mutant(REQUESTS)
def changes_only_validated(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Changes of topics that are there are validated, acknowledged and forgotten."""
    body = original(api_key, version, frame, offset)
    forgets = api_key in CHANGES and api_key != ApiKey.CREATE_TOPICS
    return asked(body, api_key, api_key, fixed(validate_only=True)) if forgets else body


@mutant(REQUESTS)
def no_defaults(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """CreateTopics knows no -1 as a default, and cuts names after 200 characters."""
    body = original(api_key, version, frame, offset)

    def strict(name: str, value: Any) -> Any:
        if name in ("num_partitions", "replication_factor"):
            return type(value)(max(0, value))
        return type(value)(value[:200]) if name == "name" else value

    return asked(body, api_key, ApiKey.CREATE_TOPICS, strict)


@mutant(REQUESTS)
def always_all_told(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """DescribeConfigs tells all settings with their synonyms and documentation, whatever is asked for."""
    body = original(api_key, version, frame, offset)
    change = fixed(configuration_keys=None, include_synonyms=True, include_documentation=True)
    return asked(body, api_key, ApiKey.DESCRIBE_CONFIGS, change)


@mutant("reference_broker.quorum.snapshots.messages:read_requests")
def several_snapshots_refused(original: Function, body: Any) -> Any:
    """FetchSnapshot refuses a request for several partitions as a whole (S-1)."""
    found = original(body)
    return found if len(found) == 1 else []


# Connections


@mutant("reference_broker.serve.driver:Driver.close")
def bad_bytes_swallowed(original: Function, self: Any, connection: Any, reason: str) -> None:  # noqa: ARG001
    """A connection that sends what cannot be understood stays open, and nothing is answered."""
    connection.closing = True


@mutant("reference_broker.wire.frames:FrameReader.feed", remembers=True)
def large_pieces_block(original: Function, memory: dict[str, list[object]], self: Any, data: bytes) -> None:
    """Nothing else is served for six seconds when much comes at once on a connection for the first time."""
    known = memory.setdefault("readers", [])
    if len(data) > LARGE_BYTES and not any(each is self for each in known):
        known.append(self)
        time.sleep(BLOCKED_S)
    original(self, data)


@mutant("reference_broker.wire.frames:FrameReader.feed", remembers=True)
def claims_block(original: Function, memory: dict[str, float], self: Any, data: bytes) -> None:
    """Nothing else is served for six seconds when a frame claims a mebibyte."""
    if int.from_bytes(data[:4], "big") == 1 << 20:
        _block(memory)
    original(self, data)


def _block(memory: dict[str, float]) -> None:
    """Blocks the broker, unless it was blocked a moment ago: what waited then comes all at once."""
    if time.monotonic() - memory.get("until", 0.0) > 0.1:
        time.sleep(BLOCKED_S)
        memory["until"] = time.monotonic()


@mutant("reference_broker.serve.driver:Driver.closed", remembers=True)
def unserved_ends_block(original: Function, memory: dict[str, float], self: Any, connection: Any) -> None:
    """Nothing else is served for six seconds when a connection ends that was never served."""
    if not connection._was_served:
        _block(memory)
    original(self, connection)


@mutant("reference_broker.serve.driver:Driver.closed", remembers=True)
def busy_ends_block(original: Function, memory: dict[str, float], self: Any, connection: Any) -> None:
    """Nothing else is served for six seconds when a connection ends whose request waits."""
    if connection.busy:
        _block(memory)
    original(self, connection)


@mutant("reference_broker.serve.driver:Driver.opened")
def few_connections(original: Function, self: Any, connection: Any) -> bool:
    """The broker takes fifty connections."""
    return len(self.connections) < 50 and bool(original(self, connection))


PLAYED: Mapping[str, tuple[str, ...]] = {
    "creations_untold": ("admin/create",),
    "replicas_doubled": ("admin/create", "admin/described"),
    "settings_hidden": ("admin/configs",),
    "names_hidden": ("admin/delete",),
    "validation_changes": ("admin",),
    "changes_only_validated": ("admin",),
    "no_defaults": ("admin/create",),
    "always_all_told": ("admin/configs",),
    "several_snapshots_refused": ("metadata/snapshots",),
    "bad_bytes_swallowed": ("hostile/frames", "hostile/headers", "hostile/tags", "hostile/bodies"),
    "large_pieces_block": ("hostile/tags", "hostile/many", "hostile/records", "hostile/connections"),
    "claims_block": ("hostile/frames",),
    "unserved_ends_block": ("hostile/connections", "hostile/resets"),
    "busy_ends_block": ("hostile/resets",),
    "few_connections": ("hostile/connections",),
}
"""As the table of ``wrong_habits``."""
