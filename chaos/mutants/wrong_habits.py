"""Brokers with one wrong habit each in their requests and responses.

``crucible probe`` must detect them. They are no mutants of scenarios, because they lack no mechanism that faults could
show.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from chaos.mutants import wrong_habits_of_coordinators
from chaos.mutants.changing import REQUESTS, RESPONSES, Change, fixed, on_request, on_response
from chaos.mutants.mutant import Function, Mutant, mutant
from chaos.mutants.registry import by_name
from reference_broker.serve.connection import IN_FLIGHT
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import encode_request

PLENTY = 1 << 20
NO_TIME = b"\xff" * 8
"""A batch's base timestamp, at byte 27, if its first record has none."""
WITH_OFFSETS = frozenset(
    (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DELETE_RECORDS)
)
OFFSETS = frozenset(
    (
        *("base_offset", "high_watermark", "last_stable_offset", "log_start_offset"),
        *("offset", "end_offset", "low_watermark"),
    )
)


@mutant(RESPONSES)
def errors_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """No response contains an error."""
    shown = ErrorCode.none

    def hide(name: str, value: Any) -> Any:
        return (shown if isinstance(value, ErrorCode) else 0) if name == "error_code" else value

    return on_response(original, api_key, version, correlation_id, body, hide)


@mutant(RESPONSES)
def features_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """ApiVersions 3 returns features from version 0 on, and newer versions return none."""

    def garble(name: str, value: Any) -> Any:
        if name != "supported_features":
            return value
        return tuple(replace(each, min_version=type(each.min_version)(0)) for each in value) if version == 3 else ()

    change: Change = garble if api_key == ApiKey.API_VERSIONS else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def offsets_shifted(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """All offsets in responses are one too high."""
    if api_key not in WITH_OFFSETS:
        return original(api_key, version, correlation_id, body)

    def shift(name: str, value: Any) -> Any:
        return type(value)(value + 1) if name in OFFSETS else value

    return on_response(original, api_key, version, correlation_id, body, shift)


@mutant(RESPONSES)
def records_dropped(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Fetch responses never have records."""
    return on_response(original, api_key, version, correlation_id, body, fixed(records=b""))


@mutant(RESPONSES)
def fetch_fields_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Fetch responses send clients to a replica that does not exist, and never contain a session or a divergence."""
    change = fixed(preferred_read_replica=7, session_id=0, diverging_epoch=None)
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def epochs_lost(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Metadata has no leader epochs, and other responses have epoch 7."""
    change = fixed(leader_epoch=-1 if api_key == ApiKey.METADATA else 7)
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def times_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Append times are always 5, and producer IDs -1."""
    return on_response(original, api_key, version, correlation_id, body, fixed(log_append_time_ms=5, producer_id=-1))


@mutant(RESPONSES)
def metadata_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Metadata has no ports, a wrong controller and empty ISRs."""
    change = fixed(
        port=0,
        controller_id=77,
        cluster_id=None,
        isr_nodes=(),
        offline_replicas=(0,),
        is_internal=True,
        topic_authorized_operations=0,
    )
    of_metadata = api_key in (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER)
    return on_response(
        original, api_key, version, correlation_id, body, change if of_metadata else lambda _, same: same
    )


@mutant(RESPONSES)
def ids_made_up(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Metadata has another topic ID each time."""

    def made_up(name: str, value: Any) -> Any:
        return uuid4() if name == "topic_id" and api_key == ApiKey.METADATA else value

    return on_response(original, api_key, version, correlation_id, body, made_up)


@mutant(RESPONSES)
def described_by_halves(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """DescribeTopicPartitions returns the topics backwards, without their last partition, and never a cursor."""

    def halve(name: str, value: Any) -> Any:
        if name == "next_cursor":
            return None
        return value[::-1] if name == "topics" else value[:-1] if name == "partitions" else value

    change: Change = halve if api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def oldest_version_cut(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """The responses of an API's oldest version lack a byte. For ApiVersions it is version 2, because clients begin with
    0."""
    cut = 2 if api_key == ApiKey.API_VERSIONS else VERSIONS[api_key][0]
    frame = b"".join(original(api_key, version, correlation_id, body))
    if version != cut:
        return [frame]
    return [(len(frame) - 5).to_bytes(4, "big") + frame[4:-1]]


@mutant(RESPONSES)
def correlation_ids_cut(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Correlation IDs have only their lowest two bytes."""
    return original(api_key, version, correlation_id & 0xFFFF, body)


@mutant(RESPONSES)
def versions_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """ApiVersions responses with an error have no ranges, and those from version 1 on contain each API twice, with
    empty ranges and unsupported features."""
    if api_key != ApiKey.API_VERSIONS:
        return original(api_key, version, correlation_id, body)
    if body.error_code:
        return original(api_key, 0, correlation_id, replace(body, api_keys=()))
    if version == 0:
        return original(api_key, version, correlation_id, body)
    wrong = [replace(key, min_version=9, max_version=1) for key in body.api_keys if key.api_key > 1]
    keys = tuple(wrong) * 2
    features = tuple(replace(feature, max_version=-1) for feature in body.supported_features)
    return original(api_key, version, correlation_id, replace(body, api_keys=keys, supported_features=features))


# Requests


@mutant(REQUESTS)
def fetches_never_wait(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch gets its response at once."""
    return on_request(original(api_key, version, frame, offset), api_key, ApiKey.FETCH, fixed(max_wait_ms=0))


@mutant(REQUESTS)
def long_fetches_slow(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch with a maximum wait of a second or more takes longer than two, whatever data or errors exist."""
    body = original(api_key, version, frame, offset)
    if api_key == ApiKey.FETCH and body.max_wait_ms >= 1_000:
        time.sleep(2.2)
    return body


@mutant(REQUESTS)
def fetches_wait_long(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch waits for at least three seconds, unless enough data exists."""
    body = original(api_key, version, frame, offset)
    return on_request(
        body, api_key, ApiKey.FETCH, lambda name, value: max(value, 3_000) if name == "max_wait_ms" else value
    )


@mutant(REQUESTS)
def limits_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch returns all existing records."""
    body = original(api_key, version, frame, offset)
    return on_request(body, api_key, ApiKey.FETCH, fixed(partition_max_bytes=PLENTY, max_bytes=PLENTY))


@mutant(REQUESTS)
def all_and_none_confused(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Metadata treats an empty list of topics as all, and null as none. It finds no topic by its ID."""
    body = original(api_key, version, frame, offset)
    if api_key != ApiKey.METADATA:
        return body
    if body.topics is None:
        return replace(body, topics=())
    named = tuple(replace(topic, topic_id=uuid4()) if topic.name is None else topic for topic in body.topics)
    return replace(body, topics=named or None)


@mutant(REQUESTS)
def acks_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Each produce is treated as acks=all, and gets a response."""
    return on_request(original(api_key, version, frame, offset), api_key, ApiKey.PRODUCE, fixed(acks=-1))


@mutant(REQUESTS)
def sessions_never_closed(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch that requests no session opens one, and one that closes a session continues it."""
    body = original(api_key, version, frame, offset)
    if api_key != ApiKey.FETCH or body.session_epoch != -1:
        return body
    return replace(body, session_epoch=1 if body.session_id else 0)


@mutant(REQUESTS)
def sizes_misread(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A topic accepts a byte less than its max.message.bytes, and no records without a timestamp."""
    body = original(api_key, version, frame, offset)

    def less(name: str, value: Any) -> Any:
        return str(int(value) - 1) if name == "value" and value.isdigit() else value

    def timed(name: str, value: Any) -> Any:
        return b"" if name == "records" and bytes(value[27:35]) == NO_TIME else value

    return on_request(on_request(body, api_key, ApiKey.CREATE_TOPICS, less), api_key, ApiKey.PRODUCE, timed)


@mutant("reference_broker.serve.request_decoder:decode")
def strange_headers_refused(original: Function, connection: int, frame: memoryview, versions: Any) -> Any:
    """A connection is closed for a client ID that is null, empty or not ASCII, and for unknown tags."""
    header, _ = read_request_header(frame)
    if not (header.client_id and header.client_id.isascii()):
        raise ProtocolError("what a client ID")
    request = original(connection, frame, versions)
    key, version = header.api_key, header.api_version
    if key == ApiKey.API_VERSIONS and request.body is not None:
        again = b"".join(encode_request(key, version, header.correlation_id, header.client_id, request.body))
        if len(again) != len(frame) + 4:
            raise ProtocolError("unknown tags")
    return request


@mutant("reference_broker.wire.frames:FrameReader.feed")
def small_pieces_refused(original: Function, self: Any, data: bytes) -> None:
    """A connection is closed when a frame arrives in small pieces."""
    if len(data) < 4:
        raise ProtocolError("too small a piece")
    original(self, data)


@mutant(RESPONSES)
def responses_swapped(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Two consecutive responses are swapped, from the second one of a connection on, and so are the responses to a
    fetch and to ApiVersions behind it."""
    swapped = {(ApiKey.FETCH, 1): 2, (ApiKey.API_VERSIONS, 2): 1}.get((ApiKey(api_key), correlation_id))
    if swapped is None:
        swapped = ((correlation_id - 1) ^ 1) + 1 if correlation_id > 2 else correlation_id
    return original(api_key, version, swapped, body)


# Administration, and connections with malformed bytes

BLOCKED_S = 6.0
"""Longer than the limit of a hostile case for the wait of others."""
LARGE_BYTES = 16 << 10
CHANGES = frozenset(
    (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS)
)


@mutant(RESPONSES)
def creations_not_returned(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """CreateTopics returns no sizes and no settings of a topic, and another ID."""

    def hide(name: str, value: Any) -> Any:
        hidden = {"num_partitions": -1, "replication_factor": -1, "configs": ()}
        return uuid4() if name == "topic_id" else hidden.get(name, value)

    change: Change = hide if api_key == ApiKey.CREATE_TOPICS else lambda _, same: same
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def replicas_doubled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Each replica is returned twice, and an eligible one that does not exist."""

    def double(name: str, value: Any) -> Any:
        if name == "eligible_leader_replicas":
            return (7,)
        return tuple(value) * 2 if name == "replica_nodes" else value

    return on_response(original, api_key, version, correlation_id, body, double)


@mutant(RESPONSES)
def settings_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """DescribeConfigs returns no settings."""
    change = fixed(configs=()) if api_key == ApiKey.DESCRIBE_CONFIGS else fixed()
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(RESPONSES)
def names_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """DeleteTopics returns neither names nor IDs."""
    change = fixed(name="", topic_id=None) if api_key == ApiKey.DELETE_TOPICS else fixed()
    return on_response(original, api_key, version, correlation_id, body, change)


@mutant(REQUESTS)
def validation_changes(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A request that only validates is carried out."""
    body = original(api_key, version, frame, offset)
    return on_request(body, api_key, api_key, fixed(validate_only=False)) if api_key in CHANGES else body


@mutant(REQUESTS)
def changes_only_validated(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Changes of existing topics are validated, acknowledged and dropped."""
    body = original(api_key, version, frame, offset)
    forgets = api_key in CHANGES and api_key != ApiKey.CREATE_TOPICS
    return on_request(body, api_key, api_key, fixed(validate_only=True)) if forgets else body


@mutant(REQUESTS)
def no_defaults(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """CreateTopics rejects -1 as a default, and truncates names after 200 characters."""
    body = original(api_key, version, frame, offset)

    def strict(name: str, value: Any) -> Any:
        if name in ("num_partitions", "replication_factor"):
            return type(value)(max(0, value))
        return type(value)(value[:200]) if name == "name" else value

    return on_request(body, api_key, ApiKey.CREATE_TOPICS, strict)


@mutant(REQUESTS)
def all_configs_returned(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """DescribeConfigs returns all settings with their synonyms and documentation, whatever was requested."""
    body = original(api_key, version, frame, offset)
    change = fixed(configuration_keys=None, include_synonyms=True, include_documentation=True)
    return on_request(body, api_key, ApiKey.DESCRIBE_CONFIGS, change)


@mutant("reference_broker.quorum.snapshots.messages:read_requests")
def several_snapshots_refused(original: Function, body: Any) -> Any:
    """FetchSnapshot rejects a request for several partitions as a whole (S-1)."""
    found = original(body)
    return found if len(found) == 1 else []


@mutant("reference_broker.serve.driver:Driver.close")
def bad_bytes_swallowed(original: Function, self: Any, connection: Any, reason: str) -> None:  # noqa: ARG001
    """A connection that sends malformed bytes stays open without a response."""
    connection.closing = True


@mutant("reference_broker.wire.frames:FrameReader.feed", remembers=True)
def large_pieces_block(original: Function, memory: dict[str, list[object]], self: Any, data: bytes) -> None:
    """Nothing else is served for six seconds when many bytes arrive at once on a connection for the first time."""
    known = memory.setdefault("readers", [])
    if len(data) > LARGE_BYTES and not any(each is self for each in known):
        known.append(self)
        time.sleep(BLOCKED_S)
    original(self, data)


@mutant("reference_broker.wire.frames:FrameReader.feed", remembers=True)
def claims_block(original: Function, memory: dict[str, float], self: Any, data: bytes) -> None:
    """Nothing else is served for six seconds when a frame claims a length of a mebibyte."""
    if int.from_bytes(data[:4], "big") == 1 << 20:
        _block(memory)
    original(self, data)


def _block(memory: dict[str, float]) -> None:
    """Block the broker, unless it was blocked a moment ago: requests that waited then arrive all at once."""
    if time.monotonic() - memory.get("until", 0.0) > 0.1:
        time.sleep(BLOCKED_S)
        memory["until"] = time.monotonic()


@mutant("reference_broker.serve.driver:Driver.closed", remembers=True)
def unserved_ends_block(original: Function, memory: dict[str, float], self: Any, connection: Any) -> None:
    """Nothing else is served for six seconds when a connection ends without having been served."""
    if connection._history.is_empty:
        _block(memory)
    original(self, connection)


@mutant("reference_broker.serve.driver:Driver.closed", remembers=True)
def busy_ends_block(original: Function, memory: dict[str, float], self: Any, connection: Any) -> None:
    """Nothing else is served for six seconds when a connection ends with a pending request."""
    if connection.request_state is IN_FLIGHT:
        _block(memory)
    original(self, connection)


@mutant("reference_broker.serve.driver:Driver.opened")
def few_connections(original: Function, self: Any, connection: Any) -> bool:
    """The broker accepts fifty connections."""
    return len(self.connections) < 50 and bool(original(self, connection))


PLAYED: Mapping[str, tuple[str, ...]] = {
    "errors_hidden": (),
    "features_garbled": ("handshake/api-versions",),
    "offsets_shifted": ("produce", "fetch", "offsets"),
    "records_dropped": ("produce", "fetch", "transactions"),
    "fetch_fields_garbled": ("fetch",),
    "epochs_lost": ("metadata", "fetch/epochs", "offsets"),
    "times_garbled": ("produce",),
    "metadata_garbled": ("metadata",),
    "ids_made_up": ("metadata/ids",),
    "described_by_halves": ("metadata/described",),
    "oldest_version_cut": ("handshake", "metadata/topics", "fetch/versions"),
    "correlation_ids_cut": ("handshake",),
    "versions_garbled": ("handshake",),
    "fetches_never_wait": ("fetch/waiting", "fetch/session"),
    "fetches_wait_long": ("fetch/waiting",),
    "long_fetches_slow": ("fetch/waiting", "fetch/unknown"),
    "sessions_never_closed": ("fetch/session",),
    "sizes_misread": ("produce/batch", "produce/timestamps"),
    "strange_headers_refused": ("handshake",),
    "small_pieces_refused": ("handshake/frames", "hostile/frames"),
    "responses_swapped": ("handshake/pipelining",),
    "limits_ignored": ("fetch/limits", "fetch/session"),
    "all_and_none_confused": ("metadata",),
    "acks_ignored": ("produce/acks",),
    "returns_every_partition": ("fetch/session",),
    "no_epoch_comparison": ("fetch/session",),
    "session_closed_on_wrong_epoch": ("fetch/session",),
    "session_outlives_its_farewell": ("fetch/session",),
    "counted_session_ids": ("fetch/session",),
    "forgotten_list_ignored": ("fetch/session",),
    "change_mark_cleared_when_sent": ("fetch/session",),
    "no_rotation": ("fetch/session",),
    "no_batch_beyond_the_limit": ("fetch/limits",),
    "leader_epoch_not_checked": ("fetch/epochs",),
    "retries_appended_again": ("produce/idempotence", "transactions/produce"),
    "batch_crc_unchecked": ("produce/batch",),
    "creations_not_returned": ("admin/create",),
    "replicas_doubled": ("admin/create", "admin/described"),
    "settings_hidden": ("admin/configs",),
    "names_hidden": ("admin/delete",),
    "validation_changes": ("admin",),
    "changes_only_validated": ("admin",),
    "no_defaults": ("admin/create",),
    "all_configs_returned": ("admin/configs",),
    "several_snapshots_refused": ("metadata/snapshots",),
    "bad_bytes_swallowed": ("hostile/frames", "hostile/headers", "hostile/tags", "hostile/bodies"),
    "large_pieces_block": ("hostile/tags", "hostile/many", "hostile/records", "hostile/connections"),
    "claims_block": ("hostile/frames",),
    "unserved_ends_block": ("hostile/connections", "hostile/resets"),
    "busy_ends_block": ("hostile/resets",),
    "few_connections": ("hostile/connections",),
    **wrong_habits_of_coordinators.PLAYED_OF_GROUPS,
    **wrong_habits_of_coordinators.PLAYED_OF_TRANSACTIONS,
}
"""The brokers that the probe is proven on: those above and mutants of scenarios, each with the sections that it is
played in (none: all)."""


def found(name: str) -> Mutant:
    """Return the wrong habit or the mutant of this name. Raise MutantError."""
    habit = globals().get(name, getattr(wrong_habits_of_coordinators, name, None))
    return habit if isinstance(habit, Mutant) else by_name(name)
