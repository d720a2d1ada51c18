"""Draft versions of APIs: the layout of their frames, and how clients find them."""

from collections.abc import Mapping, Sequence
from operator import is_
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeAlias

from kio.schema.api_versions.v4.response import ApiVersionsResponse

from chaos.checks.check import Check, CheckContext
from reference_broker.core.events import Effect, Event, Reply, Request
from reference_broker.wire.messages import encode_request, encode_response

if TYPE_CHECKING:
    from reference_broker.core.node import Node


VERSION = 1000
AT_FIRST, THEN_EACH = 5, 16
Layout: TypeAlias = "str | list[Any] | tuple[tuple[str, Any], ...]"
"""A primitive type of Kafka's protocol, a list of the items' layout for an array, or the fields of a struct."""

_NUMBERS = {"INT8": Struct(">b"), "INT16": Struct(">h"), "INT32": Struct(">i"), "INT64": Struct(">q")}
_NUMBERS["BOOLEAN"] = Struct(">?")
_LENGTHS = {"STRING": _NUMBERS["INT16"], "BYTES": _NUMBERS["INT32"]}
"""Strings and bytes follow their length, which is -1 for null."""

_FETCHED = (
    *(("partition", "INT32"), ("error_code", "INT16"), ("high_watermark", "INT64"), ("last_stable_offset", "INT64")),
    ("log_start_offset", "INT64"),
    ("aborted_transactions", [(("producer_id", "INT64"), ("first_offset", "INT64"))]),
    ("records", "BYTES"),
)
_REQUESTED = (("partition", "INT32"), ("fetch_offset", "INT64"), ("log_start_offset", "INT64"))
_SNAPSHOT = (("end_offset", "INT64"), ("epoch", "INT32"))
_PIECE = (("partition_index", "INT32"), ("error_code", "INT16"), ("media_type", "STRING"), ("more", "BOOLEAN"))
_COMMIT = (("partition_index", "INT32"), ("committed_offset", "INT64"), ("metadata_epoch", "INT64"))
_DESCRIBED = (
    *(("error_code", "INT16"), ("partition_index", "INT32"), ("leader_id", "INT32")),
    *(("replica_nodes", ["INT32"]), ("isr_nodes", ["INT32"]), ("offline_replicas", ["INT32"])),
)

REQUESTS: Mapping[int, Layout] = {
    1: (
        *(("replica_id", "INT32"), ("max_wait_ms", "INT32"), ("min_bytes", "INT32"), ("max_bytes", "INT32")),
        *(("isolation_level", "INT8"), ("fetch_type", "INT8"), ("session_id", "INT64"), ("session_epoch", "INT64")),
        ("topics", [(("topic", "STRING"), ("partitions", [(*_REQUESTED, ("partition_max_bytes", "INT32"))]))]),
    ),
    8: (
        *(("group_id", "STRING"), ("generation_id_or_member_epoch", "INT32"), ("member_id", "STRING")),
        ("retention_time_ms", "INT64"),
        ("topics", [(("name", "STRING"), ("partitions", [(*_COMMIT, ("committed_metadata", "STRING"))]))]),
    ),
    59: (
        *(("replica_id", "INT32"), ("max_bytes", "INT32")),
        (
            "topics",
            [
                (
                    ("name", "STRING"),
                    (
                        "partitions",
                        [
                            (
                                *(("partition", "INT32"), ("current_leader_epoch", "INT32")),
                                *(("snapshot_id", _SNAPSHOT), ("position", "INT64")),
                            )
                        ],
                    ),
                )
            ],
        ),
    ),
}
RESPONSES: Mapping[int, Layout] = {
    1: (
        *(("throttle_time_ms", "INT32"), ("error_code", "INT16"), ("error_string", "STRING")),
        *(("session_id", "INT64"), ("response_flags", "INT8")),
        ("responses", [(("topic", "STRING"), ("partitions", [_FETCHED]))]),
    ),
    3: (
        ("throttle_time_ms", "INT32"),
        ("brokers", [(("node_id", "INT32"), ("host", "STRING"), ("port", "INT32"), ("rack", "STRING"))]),
        *(("cluster_id", "STRING"), ("controller_id", "INT32"), ("metadata_epoch", "INT64")),
        (
            "topics",
            [
                (
                    *(("error_code", "INT16"), ("name", "STRING"), ("is_internal", "BOOLEAN")),
                    ("partitions", [_DESCRIBED]),
                )
            ],
        ),
    ),
    8: (
        ("throttle_time_ms", "INT32"),
        (
            "topics",
            [(("name", "STRING"), ("partitions", [(("partition_index", "INT32"), ("error_code", "INT16"))]))],
        ),
    ),
    9: (
        ("throttle_time_ms", "INT32"),
        (
            "topics",
            [(("name", "STRING"), ("partitions", [(*_COMMIT, ("metadata", "STRING"), ("error_code", "INT16"))]))],
        ),
        ("error_code", "INT16"),
    ),
    59: (
        *(("throttle_time_ms", "INT32"), ("error_code", "INT16")),
        (
            "topics",
            [(("name", "STRING"), ("partitions", [(*_PIECE, ("position", "INT64"), ("data", "BYTES"))]))],
        ),
    ),
}
"""By API key: Fetch, Metadata, OffsetCommit, OffsetFetch, FetchSnapshot."""


HEADERS: Mapping[str, Layout] = {
    "request": (("api_key", "INT16"), ("api_version", "INT16"), ("correlation_id", "INT32"), ("client_id", "STRING")),
    "response": (("correlation_id", "INT32"),),
}
"""Request header version 1, and response header version 0."""


class DraftLayout(Check):
    """draft-layout-exact: frames of draft versions have the layout of their pages, and are not flexible (D-1).

    Sources: KIP-227's first schema on the layout of Fetch 6 (G-12), KIP-630's earlier FetchSnapshot (S-17), KIP-232's
    OffsetCommit and OffsetFetch on version 3 and Metadata on version 5. A request begins with header version 1, and a
    response with header version 0: neither has tagged fields. Version 1000 is judged, whose layout is on a page.

    A node encodes messages with its own codec. Here the bytes are decoded by the tables below, without the codec's own
    reading, and must contain the message, to the last byte. Of each kind of message the first few are read, and then
    one in ``THEN_EACH``.
    """

    guarantee = "draft-layout-exact"
    acts_on = (*RESPONSES,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._seen: dict[tuple[str, int], int] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        if type(event) is Request and event.api_version == VERSION and self._is_read("request", event.api_key):
            parts = encode_request(event.api_key, VERSION, event.correlation_id, event.client_id, event.body)
            header = (event.api_key, VERSION, event.correlation_id, event.client_id)
            self._judge(at_us, "request", event.api_key, parts, header, event.body)
        for effect in effects:
            if type(effect) is Reply and effect.api_version == VERSION and self._is_read("response", effect.api_key):
                parts = encode_response(effect.api_key, VERSION, effect.correlation_id, effect.body)
                self._judge(at_us, "response", effect.api_key, parts, (effect.correlation_id,), effect.body)

    def _is_read(self, kind: str, api_key: int) -> bool:
        if api_key not in (REQUESTS if kind == "request" else RESPONSES):
            return False
        seen = self._seen[kind, api_key] = self._seen.get((kind, api_key), 0) + 1
        return seen <= AT_FIRST or seen % THEN_EACH == 0

    def _judge(
        self, at_us: int, kind: str, api_key: int, parts: Sequence[Any], header: tuple[Any, ...], body: Any
    ) -> None:
        frame = b"".join(bytes(part) for part in parts)[4:]
        start, layout = HEADERS[kind], (REQUESTS if kind == "request" else RESPONSES)[api_key]
        try:
            decoded_header, at = read(start, frame, 0)
            wrong = (
                "" if tuple(decoded_header.values()) == header else f"the header says {decoded_header}, not {header}"
            )
            decoded, end = read(layout, frame, at)
        except (ValueError, IndexError) as error:
            self.violated(at_us, f"{kind} of API {api_key}: {error} in the page's layout")
            return
        if end != len(frame):
            wrong = wrong or f"{len(frame) - end} bytes are left in the page's layout"
        wrong = wrong or difference(decoded, body, kind)
        if wrong:
            self.violated(at_us, f"{kind} of API {api_key}: {wrong}")


def read(layout: Any, frame: bytes, at: int) -> tuple[Any, int]:
    """Read data by its layout. Return dictionaries for structs, lists for arrays, and the place behind it. Raise
    ValueError if the frame ends before."""
    if isinstance(layout, tuple):
        fields = {}
        for name, kind in layout:
            fields[name], at = read(kind, frame, at)
        return fields, at
    if isinstance(layout, list):
        count, at = _number(_NUMBERS["INT32"], frame, at)
        if count > len(frame):
            raise ValueError(f"an array of {count} items at byte {at}")
        items = []
        for _ in range(count):
            item, at = read(layout[0], frame, at)
            items.append(item)
        return (None if count < 0 else items), at
    if layout in _NUMBERS:
        return _number(_NUMBERS[layout], frame, at)
    size, at = _number(_LENGTHS[layout], frame, at)
    if size < 0:
        return None, at
    if at + size > len(frame):
        raise ValueError(f"{layout} of {size} bytes at byte {at}")
    data = frame[at : at + size]
    return (data if layout == "BYTES" else data.decode(errors="replace")), at + size


def _number(kind: Struct, frame: bytes, at: int) -> tuple[Any, int]:
    if at + kind.size > len(frame):
        raise ValueError(f"the frame ends at byte {len(frame)}, before a number at {at}")
    return kind.unpack_from(frame, at)[0], at + kind.size


def difference(decoded: Any, meant: Any, place: str) -> str:
    """Return where the bytes differ from the value, or nothing. A field that the value does not have by that name is
    not compared: the class of another version may name it differently."""
    if isinstance(decoded, dict):
        pairs = [
            (f"{place}.{name}", each, getattr(meant, name)) for name, each in decoded.items() if hasattr(meant, name)
        ]
    elif isinstance(decoded, list):
        if len(decoded) != len(meant):
            return f"{place} has {len(decoded)} items, not {len(meant)}"
        pairs = [(place, each, other) for each, other in zip(decoded, meant, strict=True)]
    else:
        plain = bytes(meant) if isinstance(decoded, bytes) else meant
        return "" if decoded == plain or (decoded is None and not meant) else f"{place} is {decoded!r}, not {meant!r}"
    return next((explanation for where, each, other in pairs if (explanation := difference(each, other, where))), "")


API_VERSIONS = 18
FEATURES_SINCE = 3
"""The version of ApiVersions from which responses have features (KIP-584)."""
FIRST_DRAFT = 1000
EVERYWHERE = {"Fetch.1000": 1, "FetchSnapshot.1000": 59}
OF_METADATA_EPOCH = {
    f"{name}.{version}": key
    for name, key in {"Metadata": 3, "UpdateMetadata": 6, "OffsetCommit": 8, "OffsetFetch": 9}.items()
    for version in (1000, 1001)
}
"""The names of drafts end so. Each has the key of its API. Those of KIP-232 are served where its switch allows it."""
ONLY_DRAFTS = 6
"""UpdateMetadata: Kafka 4 has removed it."""


class DraftsUnnoticed(Check):
    """drafts-unnoticed: ApiVersions has no draft in its ranges, and has each served one as a supported feature (D-3).

    A client that knows no drafts takes the highest version that it and the node have. So the ranges must hold only what
    Apache Kafka has shipped, and an API that exists only as a draft must not be among them. A client that knows drafts
    finds each of them among the supported features, which others ignore, with one name each (D-1 lists the drafts).
    Each is finalized at its one level, because administrators upgrade the features whose finalized level is below the
    highest supported one, and drafts cannot be switched.

    A listener that does not take an API sends neither its range nor its drafts. UpdateMetadata has no range that would
    show whether it is taken, so its draft may be omitted.
    """

    guarantee = "drafts-unnoticed"
    needs_one_node = True
    acts_on = (API_VERSIONS,)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._right: dict[tuple[int, bool], tuple[object, ...]] = {}
        """by version, and whether the node keeps metadata epochs: the parts of the last response that was right. Each
        new connection requests them, and nodes send the same objects until a feature changes"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        for effect in effects:
            if type(effect) is Reply and isinstance(effect.body, ApiVersionsResponse) and not effect.body.error_code:
                self._judge(at_us, node, effect, effect.body)

    def _judge(self, at_us: int, node: "Node", reply: Reply, body: ApiVersionsResponse) -> None:
        keeps_metadata_epoch = node.broker.config.crucible_metadata_epoch_enable
        judged_by = reply.api_version, keeps_metadata_epoch
        parts = body.api_keys, body.supported_features, body.finalized_features
        if all(map(is_, parts, self._right.get(judged_by, (None,)))):
            return
        wrong = _wrong(body, reply.api_version, keeps_metadata_epoch)
        if not wrong:
            self._right[judged_by] = parts
        for each in wrong:
            self.violated(at_us, f"node-{node.broker.node_id} sent {reply.tag.client_id} {each}")


def _wrong(body: ApiVersionsResponse, version: int, keeps_metadata_epoch: bool) -> list[str]:
    wrong = []
    for each in body.api_keys:
        if each.max_version >= FIRST_DRAFT or each.min_version >= FIRST_DRAFT:
            wrong.append(f"API {each.api_key} in versions {each.min_version} to {each.max_version}, a draft among them")
        elif each.api_key == ONLY_DRAFTS:
            wrong.append(f"API {each.api_key}, which has drafts only")
    if version >= FEATURES_SINCE:
        names, taken = (
            [str(feature.name) for feature in body.supported_features],
            {each.api_key for each in body.api_keys},
        )
        finalized = {str(feature.name): int(feature.max_version_level) for feature in body.finalized_features}
        for draft, api_key in {**EVERYWHERE, **(OF_METADATA_EPOCH if keeps_metadata_epoch else {})}.items():
            found = sum(name.endswith(f".{draft}") for name in names)
            if found > 1 or (found == 0 and api_key in taken):
                wrong.append(f"{found} features for the draft {draft}")
            if any(level != 1 for level in (finalized.get(name) for name in names if name.endswith(f".{draft}"))):
                wrong.append(f"the draft {draft} as a feature to upgrade")
    return wrong
