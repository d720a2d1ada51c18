"""Brokers with one wrong habit each, at the edge where requests come in and answers go out. ``crucible probe`` must see
them. They are no mutants of scenarios: they lack no mechanism that faults could show.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from chaos.mutants import (
    wrong_habits_in_admin,
    wrong_habits_in_groups,
    wrong_habits_in_transactions,
)
from chaos.mutants.changing import ANSWERS, REQUESTS, Change
from chaos.mutants.changing import answered as _answered
from chaos.mutants.changing import asked as _asked
from chaos.mutants.changing import fixed as _fixed
from chaos.mutants.mutant import Function, Mutant, mutant
from chaos.mutants.registry import by_name
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.headers import read_request_header
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


@mutant(ANSWERS)
def errors_hidden(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """No answer tells an error."""
    shown = ErrorCode.none

    def hide(name: str, value: Any) -> Any:
        return (shown if isinstance(value, ErrorCode) else 0) if name == "error_code" else value

    return _answered(original, api_key, version, correlation_id, body, hide)


@mutant(ANSWERS)
def features_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """ApiVersions 3 tells features from version 0 on, and newer versions tell no features at all."""

    def garble(name: str, value: Any) -> Any:
        if name != "supported_features":
            return value
        return tuple(replace(each, min_version=type(each.min_version)(0)) for each in value) if version == 3 else ()

    change: Change = garble if api_key == ApiKey.API_VERSIONS else lambda _, same: same
    return _answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def offsets_shifted(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """All offsets are told one too high."""
    if api_key not in WITH_OFFSETS:
        return original(api_key, version, correlation_id, body)

    def shift(name: str, value: Any) -> Any:
        return type(value)(value + 1) if name in OFFSETS else value

    return _answered(original, api_key, version, correlation_id, body, shift)


@mutant(ANSWERS)
def records_dropped(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Fetch answers never have records."""
    return _answered(original, api_key, version, correlation_id, body, _fixed(records=b""))


@mutant(ANSWERS)
def fetch_fields_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Fetch answers send clients to a replica that does not exist, and never tell a session or where logs diverge."""
    change = _fixed(preferred_read_replica=7, session_id=0, diverging_epoch=None)
    return _answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def epochs_lost(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Metadata tells no leader epochs, and the other answers tell 7."""
    change = _fixed(leader_epoch=-1 if api_key == ApiKey.METADATA else 7)
    return _answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def times_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Append times are always told as 5, and producer IDs as -1."""
    return _answered(original, api_key, version, correlation_id, body, _fixed(log_append_time_ms=5, producer_id=-1))


@mutant(ANSWERS)
def metadata_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Metadata has no ports, a strange controller and nobody in sync."""
    change = _fixed(
        port=0,
        controller_id=77,
        cluster_id=None,
        isr_nodes=(),
        offline_replicas=(0,),
        is_internal=True,
        topic_authorized_operations=0,
    )
    of_metadata = api_key in (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER)
    return _answered(original, api_key, version, correlation_id, body, change if of_metadata else lambda _, same: same)


@mutant(ANSWERS)
def ids_made_up(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Metadata tells another topic ID each time."""

    def made_up(name: str, value: Any) -> Any:
        return uuid4() if name == "topic_id" and api_key == ApiKey.METADATA else value

    return _answered(original, api_key, version, correlation_id, body, made_up)


@mutant(ANSWERS)
def described_by_halves(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """DescribeTopicPartitions tells the topics backwards, without their last partition, and never a cursor."""

    def halve(name: str, value: Any) -> Any:
        if name == "next_cursor":
            return None
        return value[::-1] if name == "topics" else value[:-1] if name == "partitions" else value

    change: Change = halve if api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS else lambda _, same: same
    return _answered(original, api_key, version, correlation_id, body, change)


@mutant(ANSWERS)
def oldest_version_cut(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """The answers of an API's oldest version lack a byte. Of ApiVersions it is version 2: clients begin with 0."""
    cut = 2 if api_key == ApiKey.API_VERSIONS else VERSIONS[api_key][0]
    frame = b"".join(original(api_key, version, correlation_id, body))
    if version != cut:
        return [frame]
    return [(len(frame) - 5).to_bytes(4, "big") + frame[4:-1]]


@mutant(ANSWERS)
def correlation_ids_cut(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Correlation IDs are told with their lowest two bytes only."""
    return original(api_key, version, correlation_id & 0xFFFF, body)


@mutant(ANSWERS)
def versions_garbled(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """The answers of ApiVersions that tell an error have no ranges, and those from version 1 on tell each API twice,
    in ranges that are empty, with features beyond what is supported."""
    if api_key != ApiKey.API_VERSIONS:
        return original(api_key, version, correlation_id, body)
    if body.error_code:
        return original(api_key, 0, correlation_id, replace(body, api_keys=()))
    if version == 0:
        return original(api_key, version, correlation_id, body)
    wrong = [replace(each, min_version=9, max_version=1) for each in body.api_keys if each.api_key > 1]
    keys = tuple(wrong) * 2
    features = tuple(replace(each, max_version=-1) for each in body.supported_features)
    return original(api_key, version, correlation_id, replace(body, api_keys=keys, supported_features=features))


# Requests


@mutant(REQUESTS)
def fetches_never_wait(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch is answered at once."""
    return _asked(original(api_key, version, frame, offset), api_key, ApiKey.FETCH, _fixed(max_wait_ms=0))


@mutant(REQUESTS)
def long_fetches_slow(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch that may wait for a second or more takes longer than two, whatever is there or wrong."""
    body = original(api_key, version, frame, offset)
    if api_key == ApiKey.FETCH and body.max_wait_ms >= 1_000:
        time.sleep(2.2)
    return body


@mutant(REQUESTS)
def fetches_wait_long(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch waits for three seconds at least, unless enough is there."""
    body = original(api_key, version, frame, offset)
    return _asked(
        body, api_key, ApiKey.FETCH, lambda name, value: max(value, 3_000) if name == "max_wait_ms" else value
    )


@mutant(REQUESTS)
def limits_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch returns all that there is."""
    body = original(api_key, version, frame, offset)
    return _asked(body, api_key, ApiKey.FETCH, _fixed(partition_max_bytes=PLENTY, max_bytes=PLENTY))


@mutant(REQUESTS)
def all_and_none_confused(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Metadata takes an empty list of topics for all, and null for none. It finds no topic by its ID."""
    body = original(api_key, version, frame, offset)
    if api_key != ApiKey.METADATA:
        return body
    if body.topics is None:
        return replace(body, topics=())
    named = tuple(replace(each, topic_id=uuid4()) if each.name is None else each for each in body.topics)
    return replace(body, topics=named or None)


@mutant(REQUESTS)
def acks_ignored(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """Each produce counts as one with acks=all, and is answered."""
    return _asked(original(api_key, version, frame, offset), api_key, ApiKey.PRODUCE, _fixed(acks=-1))


@mutant(REQUESTS)
def sessions_never_left(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A fetch that wants no session opens one, and one that ends a session goes on in it."""
    body = original(api_key, version, frame, offset)
    if api_key != ApiKey.FETCH or body.session_epoch != -1:
        return body
    return replace(body, session_epoch=1 if body.session_id else 0)


@mutant(REQUESTS)
def sizes_misread(original: Function, api_key: int, version: int, frame: Any, offset: int) -> Any:
    """A topic takes a byte less than its max.message.bytes, and no records without a timestamp."""
    body = original(api_key, version, frame, offset)

    def less(name: str, value: Any) -> Any:
        return str(int(value) - 1) if name == "value" and value.isdigit() else value

    def timed(name: str, value: Any) -> Any:
        return b"" if name == "records" and bytes(value[27:35]) == NO_TIME else value

    return _asked(_asked(body, api_key, ApiKey.CREATE_TOPICS, less), api_key, ApiKey.PRODUCE, timed)


@mutant("reference_broker.serve.requests:decode")
def strange_headers_refused(original: Function, connection: int, frame: memoryview, versions: Any) -> Any:
    """A connection is closed for a client ID that is null, empty or not ASCII, and for tags that are not known."""
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
    """A connection is closed when a frame comes in small pieces."""
    if len(data) < 4:
        raise ProtocolError("too small a piece")
    original(self, data)


@mutant(ANSWERS)
def answers_swapped(original: Function, api_key: int, version: int, correlation_id: int, body: Any) -> Any:
    """Two answers that follow one another change their places, from the second one of a connection on, and so do the
    answers to a fetch and to ApiVersions behind it."""
    swapped = {(ApiKey.FETCH, 1): 2, (ApiKey.API_VERSIONS, 2): 1}.get((ApiKey(api_key), correlation_id))
    if swapped is None:
        swapped = ((correlation_id - 1) ^ 1) + 1 if correlation_id > 2 else correlation_id
    return original(api_key, version, swapped, body)


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
    "sessions_never_left": ("fetch/session",),
    "sizes_misread": ("produce/batch", "produce/timestamps"),
    "strange_headers_refused": ("handshake",),
    "small_pieces_refused": ("handshake/frames", "hostile/frames"),
    "answers_swapped": ("handshake/pipelining",),
    "limits_ignored": ("fetch/limits", "fetch/session"),
    "all_and_none_confused": ("metadata",),
    "acks_ignored": ("produce/acks",),
    "answers_everything": ("fetch/session",),
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
    **wrong_habits_in_admin.PLAYED,
    **wrong_habits_in_groups.PLAYED,
    **wrong_habits_in_transactions.PLAYED,
}
"""The brokers that the probe is proven on: those above and mutants of scenarios, each with the sections that it is
played in (none: all)."""


def found(name: str) -> Mutant:
    """Returns the wrong habit or the mutant of this name. Raises MutantError."""
    rooms = (wrong_habits_in_admin, wrong_habits_in_groups, wrong_habits_in_transactions)
    places = (globals(), *map(vars, rooms))
    habit = next((place[name] for place in places if name in place), None)
    return habit if isinstance(habit, Mutant) else by_name(name)
