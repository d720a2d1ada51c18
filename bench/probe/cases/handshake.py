"""ApiVersions, headers, frames, the order of responses, and each version of an API that the broker advertises."""

import struct
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.probe.case import ANY, SHOULD, ProbeCase, Unsupported, case, since_version
from bench.probe.context import ProbeContext, Topic
from bench.probe.conversation import Broken
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

API_VERSIONS = int(ApiKey.API_VERSIONS)
METADATA = int(ApiKey.METADATA)
KIP_511 = "KIP-511"
HIDDEN = "ApiVersionsResponse.json, KAFKA-17011"
GUIDE = "Kafka protocol guide"
PAUSE_S = 0.005
"""After this the broker has probably taken what was sent."""
_FRAME = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")


def _frame(api_key: int, version: int, correlation_id: int, rest: bytes = b"", client_id: bytes = b"probe") -> bytes:
    """A request with its length, made by hand. ``rest`` follows the client ID."""
    header = _HEADER.pack(api_key, version, correlation_id, len(client_id)) + client_id
    return _FRAME.pack(len(header) + len(rest)) + header + rest


def _software(name: str = "crucible", version: str = "1") -> dict[str, object]:
    return {"client_software_name": name, "client_software_version": version}


@case("handshake/api-versions/version-0", GUIDE, {API_VERSIONS: (0, 0)}, since="0.10.0")
def version_0(at: ProbeContext) -> None:
    """ApiVersions 0 has an empty body and gets a response without an error."""
    response = at.call(API_VERSIONS, {})
    at.expect_no_error(response)
    at.expect_that("number of APIs", len(response.api_keys), len(response.api_keys) > 0, "at least one")


@case("handshake/api-versions/every-version", GUIDE, {API_VERSIONS: ANY}, since="0.10.0")
def every_version(at: ProbeContext) -> None:
    """Each advertised version of ApiVersions returns the same APIs."""
    seen = {}
    for version in at.broker.common_versions(API_VERSIONS):
        response = at.call(API_VERSIONS, _software(), version)
        at.expect(f"error code in version {version}", response.error_code, ErrorCode.none)
        seen[version] = {int(key.api_key): (key.min_version, key.max_version) for key in response.api_keys}
    keys = [sorted(each) for each in seen.values()]
    at.expect("the APIs are the same in all versions", all(key == keys[0] for key in keys), True)


@case("handshake/api-versions/ranges", GUIDE, {API_VERSIONS: ANY}, since="0.10.0")
def ranges(at: ProbeContext) -> None:
    """No API is listed twice, and no range of versions is empty or begins below 0."""
    response = at.call(API_VERSIONS, _software())
    keys = [int(key.api_key) for key in response.api_keys]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    at.expect_that("APIs that are listed twice", twice, not twice, "none")
    wrong = [int(key.api_key) for key in response.api_keys if not 0 <= key.min_version <= key.max_version]
    at.expect_that("APIs with an empty range", wrong, not wrong, "none")


@case("handshake/api-versions/itself", KIP_511, {API_VERSIONS: ANY}, since="0.10.0")
def itself(at: ProbeContext) -> None:
    """ApiVersions is among the APIs that it lists, and so is version 0 of it."""
    response = at.call(API_VERSIONS, _software())
    own = [key.min_version for key in response.api_keys if key.api_key == API_VERSIONS]
    at.expect("lowest version of ApiVersions", own, [0])


@case("handshake/api-versions/core-apis", GUIDE, {API_VERSIONS: ANY}, since="0.10.0")
def core_apis(at: ProbeContext) -> None:
    """Produce, Fetch, ListOffsets and Metadata are advertised, without which no client can work."""
    wanted = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA)
    keys = {int(key.api_key) for key in at.call(API_VERSIONS, _software()).api_keys}
    missing = [each.name for each in wanted if int(each) not in keys]
    at.expect_that("APIs that are missing", missing, not missing, "none")


@case(
    "handshake/api-versions/produce-from-0",
    "KAFKA-18659; librdkafka before 2.8 takes its features from this range",
    {API_VERSIONS: ANY},
    since="4.0",
    level=SHOULD,
)
def produce_from_0(at: ProbeContext) -> None:
    """Produce is advertised from version 0 on, even where versions before 3 are not served."""
    response = at.call(API_VERSIONS, _software())
    lowest = [key.min_version for key in response.api_keys if key.api_key == ApiKey.PRODUCE]
    at.expect("lowest version of Produce", lowest, [0])


def _beyond(at: ProbeContext, version: int) -> memoryview:
    """Send ApiVersions in a version that the broker does not have, and return the frame of the response."""
    frame = _frame(API_VERSIONS, version, 77, b"\x00\x09crucible\x021\x00")
    at.main.send_bytes(frame, f"ApiVersions {version}")
    return at.main.receive_frame(5, f"ApiVersions {version}")


def _highest(at: ProbeContext) -> int:
    return at.broker.versions[API_VERSIONS][1]


@case("handshake/api-versions/beyond-range", KIP_511, {API_VERSIONS: ANY}, since="2.4")
def beyond_range(at: ProbeContext) -> None:
    """An ApiVersions request of a version just beyond the range gets UNSUPPORTED_VERSION, in a response of version
    0."""
    response = _beyond(at, _highest(at) + 1)
    at.expect("correlation ID", int.from_bytes(response[:4], "big"), 77)
    at.expect(
        "error code behind the correlation ID",
        int.from_bytes(response[4:6], "big", signed=True),
        ErrorCode.unsupported_version,
    )
    (count,) = struct.unpack_from(">i", response, 6)
    at.expect("bytes of the response in version 0", len(response), 10 + 6 * count)


@case("handshake/api-versions/far-beyond-range", KIP_511, {API_VERSIONS: ANY}, since="2.4")
def far_beyond_range(at: ProbeContext) -> None:
    """The same holds for the highest version that a request can have."""
    response = _beyond(at, 0x7FFF)
    at.expect("correlation ID", int.from_bytes(response[:4], "big"), 77)
    at.expect(
        "error code behind the correlation ID",
        int.from_bytes(response[4:6], "big", signed=True),
        ErrorCode.unsupported_version,
    )


@case("handshake/api-versions/beyond-range-returns-range", KIP_511, {API_VERSIONS: ANY}, since="2.4")
def beyond_range_has_range(at: ProbeContext) -> None:
    """That response has the range of ApiVersions itself, so that the client can retry in a version of both."""
    response = _beyond(at, _highest(at) + 1)
    (count,) = struct.unpack_from(">i", response, 6)
    rows = [
        struct.unpack_from(">hhh", response, 10 + 6 * number) for number in range(min(count, (len(response) - 10) // 6))
    ]
    own = [(low, high) for key, low, high in rows if key == API_VERSIONS]
    at.expect("range of ApiVersions", own, [at.broker.versions[API_VERSIONS]])


@case("handshake/api-versions/beyond-range-goes-on", KIP_511, {API_VERSIONS: ANY}, since="2.4")
def beyond_range_goes_on(at: ProbeContext) -> None:
    """The connection stays open, and a request of a version within the range succeeds on it."""
    _beyond(at, _highest(at) + 1)
    at.expect("error code of version 0 afterwards", at.call(API_VERSIONS, {}, 0).error_code, ErrorCode.none)


@case("handshake/api-versions/response-header-0", KIP_511, {API_VERSIONS: since_version(3)}, since="2.4")
def response_header_0(at: ProbeContext) -> None:
    """The response to a flexible ApiVersions request has response header 0, without tagged fields."""
    request = at.send(API_VERSIONS, _software())
    response = at.main.receive_frame(5, str(request))
    at.expect("error code right behind the correlation ID", int.from_bytes(response[4:6], "big"), ErrorCode.none)
    count = response[6] if response[6] < 0x80 else (response[6] & 0x7F) | response[7] << 7
    at.expect("length of the compact array that follows", count, len(at.broker.versions) + 1)


@case("handshake/api-versions/software-name", KIP_511, {API_VERSIONS: since_version(3)}, since="2.4")
def software_name(at: ProbeContext) -> None:
    """A client's software name with characters that are not allowed is refused with INVALID_REQUEST."""
    response = at.call(API_VERSIONS, _software("not a name!"))
    at.expect_error(response, ErrorCode.invalid_request)


@case("handshake/api-versions/software-version", KIP_511, {API_VERSIONS: since_version(3)}, since="2.4")
def software_version(at: ProbeContext) -> None:
    """An empty software version is refused with INVALID_REQUEST."""
    response = at.call(API_VERSIONS, _software(version=""))
    at.expect_error(response, ErrorCode.invalid_request)


@case("handshake/api-versions/features", "KIP-584", {API_VERSIONS: since_version(3)}, since="2.7")
def features(at: ProbeContext) -> None:
    """Supported features have ranges that are not empty, and finalized ones lie at or below the supported maximum."""
    response = at.call(API_VERSIONS, _software())
    supported = {
        str(feature.name): (feature.min_version, feature.max_version) for feature in response.supported_features
    }
    empty = sorted(name for name, (low, high) in supported.items() if not 0 <= low <= high)
    at.expect_that("features with an empty range", empty, not empty, "none")
    finalized = {str(feature.name): feature.max_version_level for feature in response.finalized_features}
    beyond = sorted(name for name, level in finalized.items() if level > supported.get(name, (0, 0))[1])
    at.expect_that("finalized features beyond what is supported", beyond, not beyond, "none")


@case("handshake/api-versions/features-from-0", HIDDEN, {API_VERSIONS: (3, 3)}, since="4.0")
def features_from_0(at: ProbeContext) -> None:
    """Version 3 omits supported features whose lowest version is 0, which older clients take for an error."""
    response = at.call(API_VERSIONS, _software())
    at.expect_no_error(response)
    shown = sorted(str(feature.name) for feature in response.supported_features if feature.min_version <= 0)
    at.expect_that("features from version 0 on", shown, not shown, "none")


@case("handshake/api-versions/features-shown", HIDDEN, {API_VERSIONS: since_version(4)}, since="4.0")
def features_shown(at: ProbeContext) -> None:
    """Version 4 has all features of version 3, and those whose lowest version is 0 besides."""
    older, newer = (
        {str(feature.name) for feature in at.call(API_VERSIONS, _software(), version).supported_features}
        for version in (3, 4)
    )
    missing = sorted(older - newer)
    at.expect_that("features that version 4 lacks", missing, not missing, "none")
    finalized = {str(feature.name) for feature in at.call(API_VERSIONS, _software(), 4).finalized_features}
    unsupported = sorted(finalized - newer)
    at.expect_that("finalized features that are not among the supported ones", unsupported, not unsupported, "none")


@case("handshake/correlation/echoed", GUIDE, {API_VERSIONS: ANY}, since="0.8")
def echoed(at: ProbeContext) -> None:
    """A response has the correlation ID of its request, whatever 32-bit number that is."""
    for wanted in (0, 1, 0x7FFFFFFF, -1, -(2**31)):
        at.main.send_bytes(_frame(API_VERSIONS, 0, wanted), f"ApiVersions 0 with correlation ID {wanted}")
        response = at.main.receive_frame(5, "ApiVersions 0")
        at.expect("correlation ID", int.from_bytes(response[:4], "big", signed=True), wanted)


@case("handshake/client-id/null", "RequestHeader.json", {API_VERSIONS: ANY}, since="0.8")
def null_client_id(at: ProbeContext) -> None:
    """A request may have no client ID."""
    nameless = at.connect(client_id=None)
    at.expect_no_error(at.call(API_VERSIONS, {}, 0, nameless))


@case("handshake/client-id/empty", "RequestHeader.json", {API_VERSIONS: ANY}, since="0.8")
def empty_client_id(at: ProbeContext) -> None:
    """A client ID may be empty."""
    nameless = at.connect(client_id="")
    at.expect_no_error(at.call(API_VERSIONS, {}, 0, nameless))


@case("handshake/client-id/utf-8", "RequestHeader.json", {API_VERSIONS: ANY}, since="0.8")
def utf_8_client_id(at: ProbeContext) -> None:
    """A client ID may hold any characters of UTF-8."""
    named = at.connect(client_id="prüfer-探针")
    at.expect_no_error(at.call(API_VERSIONS, {}, 0, named))


@case("handshake/pipelining/order", GUIDE, {API_VERSIONS: ANY, METADATA: since_version(1)}, since="0.8")
def order(at: ProbeContext) -> None:
    """Requests that are pipelined on one connection get their responses in order."""
    requests = [(API_VERSIONS, 0, {}), (METADATA, at.version(METADATA), {"topics": ()})] * 10
    encoded = [at.main.encoded(*request)[0] for request in requests]
    at.main.send_bytes(b"".join(each.frame for each in encoded), "20 requests, ApiVersions and Metadata in turn")
    received = [int.from_bytes(at.main.receive_frame(5, str(each))[:4], "big") for each in encoded]
    at.expect("correlation IDs", received, [each.correlation_id for each in encoded])


@case("handshake/pipelining/slow-first", GUIDE, {ApiKey.FETCH: (4, 12)}, since="0.8")
def slow_first(at: ProbeContext) -> None:
    """A parked fetch gets its response before the request that was sent after it."""
    topic = at.topic()
    wanted = FetchTopic(topic.name, bytes(16), [FetchPartition(0, 0, 1024)])
    slow = at.send(ApiKey.FETCH, FetchRequest(max_wait_ms=400, min_bytes=1, topics=[wanted]))
    fast = at.send(API_VERSIONS, {}, 0)
    found = [int.from_bytes(at.main.receive_frame(5, "a request")[:4], "big") for _ in range(2)]
    at.expect("correlation IDs", found, [slow.correlation_id, fast.correlation_id])


@case("handshake/frames/byte-by-byte", GUIDE, {API_VERSIONS: ANY}, since="0.8")
def byte_by_byte(at: ProbeContext) -> None:
    """A request may arrive in any pieces."""
    for each in _frame(API_VERSIONS, 0, 5):
        at.main.send_bytes(bytes([each]), "one byte of ApiVersions 0")
        time.sleep(PAUSE_S)
    response = at.main.receive_frame(5, "ApiVersions 0")
    at.expect("correlation ID", int.from_bytes(response[:4], "big"), 5)


@case("handshake/frames/half-closed", GUIDE, {API_VERSIONS: ANY}, since="0.8", level=SHOULD)
def half_closed(at: ProbeContext) -> None:
    """The connection is closed when the client has closed its half of it."""
    at.call(API_VERSIONS, {}, 0)
    at.main.end_sending()
    closed = at.main.is_closed()
    at.expect("closed", closed, True)


@case("handshake/tags/of-header", "KIP-482", {API_VERSIONS: since_version(3)}, since="2.4")
def tags_of_header(at: ProbeContext) -> None:
    """Tagged fields of a request header that the broker does not know are skipped."""
    tags = b"\x01\x63\x03abc"
    at.main.send_bytes(_frame(API_VERSIONS, 3, 9, tags + b"\x06probe\x021\x00"), "ApiVersions 3, tag 99 in its header")
    response = at.main.receive_frame(5, "ApiVersions 3")
    at.expect("error code", int.from_bytes(response[4:6], "big", signed=True), ErrorCode.none)


@case("handshake/tags/of-body", "KIP-482", {API_VERSIONS: since_version(3)}, since="2.4")
def tags_of_body(at: ProbeContext) -> None:
    """Tagged fields of a request body that the broker does not know are skipped."""
    tags = b"\x02\x63\x03abc\xe7\x07\x00"
    at.main.send_bytes(_frame(API_VERSIONS, 3, 9, b"\x00\x06probe\x021" + tags), "ApiVersions 3 with tags 99 and 999")
    response = at.main.receive_frame(5, "ApiVersions 3")
    at.expect("error code", int.from_bytes(response[4:6], "big", signed=True), ErrorCode.none)


@case("handshake/unknown/api", "Apache Kafka's SocketServer", {API_VERSIONS: ANY}, since="0.8", level=SHOULD)
def unknown_api(at: ProbeContext) -> None:
    """A request of an API that does not exist closes the connection without a response."""
    at.main.send_bytes(_frame(9_999, 0, 3), "a request of API 9999")
    at.expect("closed without a response", at.main.is_closed(), True)


@case("handshake/unknown/version", "Apache Kafka's SocketServer", {METADATA: ANY}, since="0.10.0", level=SHOULD)
def unknown_version(at: ProbeContext) -> None:
    """A request of another API than ApiVersions in a version beyond its range closes the connection."""
    version = at.broker.versions[METADATA][1] + 1
    at.main.send_bytes(_frame(METADATA, version, 3, b"\x00\x01\x00\x00\x00"), f"Metadata {version}")
    at.expect("closed without a response", at.main.is_closed(), True)


@case("handshake/unknown/leaves-others", GUIDE, {METADATA: ANY, API_VERSIONS: ANY}, since="0.8")
def unknown_leaves_others(at: ProbeContext) -> None:
    """A connection that is closed for a bad request takes no other connection with it."""
    other = at.connect()
    at.main.send_bytes(_frame(9_999, 0, 3), "a request of API 9999")
    at.main.is_closed(1.0)
    at.expect("error code on the other connection", at.call(API_VERSIONS, {}, 0, other).error_code, ErrorCode.none)


class Own(NamedTuple):
    """The values from which a request is made."""

    topic: Topic
    group: str
    version: int

    @property
    def named(self) -> tuple[str, bytes]:
        """The topic's name or its ID, whichever Fetch and Produce have in this version."""
        return (self.topic.name, NO_TOPIC_ID) if self.version < 13 else ("", self.topic.id)


Body = Callable[[Own], object]


def _fetch(own: Own) -> object:
    return FetchRequest(max_wait_ms=0, topics=[FetchTopic(*own.named, [FetchPartition(0, 0, 1024)])])


def _produce(own: Own) -> object:
    batch = build([Record(value=b"v")])
    return ProduceRequest(-1, 5_000, [ProduceTopic(*own.named, [ProducePartition(0, batch)])])


def _partitions(field: str, **values: object) -> Body:
    """One partition of the topic, in the fields of an API's request."""
    return lambda own: {
        "topics": [
            {("topic" if field == "partition" else "name"): own.topic.name, "partitions": [{field: 0, **values}]}
        ]
    }


def _nobody(own: Own) -> dict[str, object]:
    """A producer with an unknown transactional ID."""
    return {"transactional_id": own.topic.name, "producer_id": 1, "producer_epoch": 0}


def _all_of(own: Own) -> list[dict[str, object]]:
    return [{"name": own.topic.name, "partitions": [0]}]


BODIES: Sequence[tuple[int, Body]] = (
    (ApiKey.API_VERSIONS, lambda _: {"client_software_name": "crucible", "client_software_version": "1"}),
    (ApiKey.METADATA, lambda own: {"topics": [{"name": own.topic.name}]}),
    (ApiKey.PRODUCE, _produce),
    (ApiKey.FETCH, _fetch),
    (ApiKey.LIST_OFFSETS, _partitions("partition_index", timestamp=-1)),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, _partitions("partition", leader_epoch=0)),
    (ApiKey.FIND_COORDINATOR, lambda own: {"coordinator_keys": [own.group]}),
    (ApiKey.LIST_GROUPS, lambda _: {}),
    (ApiKey.DESCRIBE_GROUPS, lambda own: {"groups": [own.group]}),
    (ApiKey.DESCRIBE_CONFIGS, lambda own: {"resources": [{"resource_type": 2, "resource_name": own.topic.name}]}),
    (ApiKey.DESCRIBE_CLUSTER, lambda _: {"endpoint_type": 1}),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, lambda own: {"topics": [{"name": own.topic.name}]}),
    (ApiKey.INIT_PRODUCER_ID, lambda _: {"transactional_id": None, "producer_id": -1, "producer_epoch": -1}),
    (ApiKey.DELETE_GROUPS, lambda own: {"groups_names": [own.group]}),
    (ApiKey.ADD_PARTITIONS_TO_TXN, lambda own: {"transactions": [{**_nobody(own), "topics": _all_of(own)}]}),
    (ApiKey.ADD_OFFSETS_TO_TXN, lambda own: {**_nobody(own), "group_id": own.group}),
    (ApiKey.TXN_OFFSET_COMMIT, lambda own: {**_nobody(own), "group_id": own.group}),
    (ApiKey.END_TXN, lambda own: {**_nobody(own), "committed": False}),
    (ApiKey.DESCRIBE_PRODUCERS, lambda own: {"topics": [{"name": own.topic.name, "partition_indexes": [0]}]}),
    (ApiKey.DESCRIBE_TRANSACTIONS, lambda own: {"transactional_ids": [own.topic.name]}),
    (ApiKey.LIST_TRANSACTIONS, lambda _: {}),
)
"""APIs with a sensible response to a topic that exists, and to a group and a transactional ID that do not."""


def _every_version(api_key: int, body: Body) -> ProbeCase:
    def play(at: ProbeContext) -> None:
        topic, group = at.topic(), at.group()
        for version in at.broker.common_versions(api_key):
            with at.connect() as connection:
                try:
                    response = connection.call(api_key, version, body(Own(topic, group, version)), 5.0)
                except Broken as error:
                    raise Unsupported(f"version {version} is advertised, but {error}") from None
            code = getattr(response, "error_code", ErrorCode.none)
            if code == ErrorCode.unsupported_version:
                raise Unsupported(f"version {version} is advertised, but the response has UNSUPPORTED_VERSION")
            at.expect_that(f"version {version} gets a response", True, True, "True")

    play.__doc__ = f"Every version of {api_name(api_key)} that is advertised gets a response in its own layout."
    name = api_name(api_key)
    schemas = f"{name}Request.json, {name}Response.json"
    return case(f"handshake/versions/{name}", schemas, {api_key: ANY}, since="0.10.0")(play)


CASES = tuple(_every_version(int(api_key), body) for api_key, body in BODIES)
