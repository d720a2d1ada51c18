"""Elect leaders, delete records, and describe the cluster: log directories, reassignments, quotas and ACLs."""

import struct

from bench.probe.case import ANY, SHOULD, NotAdvertised, ProbeCase, case, since_version
from bench.probe.context import TIMEOUT_MS, ProbeContext, single
from reference_broker.wire.apis import ApiKey, api_name
from reference_broker.wire.errors import ErrorCode

ELECT, CREATE = int(ApiKey.ELECT_LEADERS), int(ApiKey.CREATE_TOPICS)
DELETE, API_VERSIONS = int(ApiKey.DELETE_RECORDS), int(ApiKey.API_VERSIONS)
DESCRIBE = int(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
PREFERRED, UNCLEAN = 0, 1
ELECTS = {ELECT: ANY, CREATE: ANY}


def _elect(at: ProbeContext, wanted: object, **more: object) -> object:
    """The error codes by topic and partition. An error of the whole response is returned alone."""
    address = at.broker.controller
    on = at.main if address == at.broker.leader else at.connect(address)
    response = at.call(ELECT, {"topic_partitions": wanted, "timeout": TIMEOUT_MS, **more}, on=on)
    if response.error_code:
        return response.error_code
    return {
        (str(topic.topic), int(each.partition_id)): int(each.error_code)
        for topic in response.replica_election_results
        for each in topic.partition_result
    }


@case("admin/elect/not-needed", "KIP-183, KIP-460", {**ELECTS, ELECT: since_version(1)}, since="2.4")
def not_needed(at: ProbeContext) -> None:
    """A partition that its preferred replica leads needs no election, and one with a leader needs no unclean one."""
    topic = at.topic(2).name
    found = int(ErrorCode.election_not_needed)
    for kind in (PREFERRED, UNCLEAN):
        seen = _elect(at, [{"topic": topic, "partitions": [0, 1]}], election_type=kind)
        at.expect("error codes", sorted(seen.values()) if isinstance(seen, dict) else seen, [found, found])


@case("admin/elect/unknown", "KIP-183", ELECTS, since="2.2")
def elect_unknown(at: ProbeContext) -> None:
    """A topic or a partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    topic, unknown = at.topic().name, at.topic_name()
    seen = _elect(at, [{"topic": unknown, "partitions": [0]}, {"topic": topic, "partitions": [7]}])
    code = int(ErrorCode.unknown_topic_or_partition)
    at.expect("error codes", sorted(seen.values()) if isinstance(seen, dict) else seen, [code, code])


@case("admin/elect/all", "Apache Kafka's ReplicationControlManager", ELECTS, since="2.2", level=SHOULD)
def elect_all(at: ProbeContext) -> None:
    """A null list means all partitions. The response omits those that need no election."""
    topic = at.topic().name
    seen = _elect(at, None)
    found = [key for key in seen if key[0] == topic] if isinstance(seen, dict) else seen
    at.expect("partitions of the case's topic", found, [])


@case("admin/elect/unknown-kind", "Apache Kafka's ReplicationControlManager", ELECTS, since="2.4", level=SHOULD)
def unknown_kind(at: ProbeContext) -> None:
    """A kind of election that does not exist is refused with INVALID_REQUEST."""
    topic = at.topic().name
    seen = _elect(at, [{"topic": topic, "partitions": [0]}], election_type=77)
    at.expect("error code", ErrorCode.none if isinstance(seen, dict) else seen, ErrorCode.invalid_request)


@case("admin/records/negative", "Apache Kafka's Partition", {DELETE: ANY, CREATE: ANY}, since="0.11", level=SHOULD)
def negative(at: ProbeContext) -> None:
    """Records cannot be deleted up to a negative offset other than -1, which means the high watermark."""
    topic = at.topic().name
    request = {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": -2}]}], "timeout": TIMEOUT_MS}
    result = single(at.call(DELETE, request), "topics", "partitions")
    at.expect_error(result, ErrorCode.offset_out_of_range)


@case("admin/records/compacted", "Apache Kafka's UnifiedLog", {DELETE: ANY, CREATE: ANY}, since="1.0", level=SHOULD)
def compacted(at: ProbeContext) -> None:
    """Records of a topic that is only compacted cannot be deleted: POLICY_VIOLATION."""
    topic = at.topic(configs={"cleanup.policy": "compact"}).name
    request = {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": -1}]}], "timeout": TIMEOUT_MS}
    result = single(at.call(DELETE, request), "topics", "partitions")
    at.expect_error(result, ErrorCode.policy_violation)


@case("admin/described/replicas", "KIP-966", {DESCRIBE: ANY, CREATE: ANY}, since="3.8")
def replicas(at: ProbeContext) -> None:
    """DescribeTopicPartitions returns the leader and the ISR, and no eligible leader or last known ELR beside those."""
    topic = at.topic().name
    result = single(at.call(DESCRIBE, {"topics": [{"name": topic}]}), "topics")
    row = single(result, "partitions")
    at.expect("the leader leads, and is in sync", row.leader_id in row.isr_nodes, True)
    beside = [*(row.eligible_leader_replicas or ()), *(row.last_known_elr or ())]
    at.expect("eligible and last known replicas", beside, [])


# APIs that the codecs here do not know. Their requests are made by hand.

_LENGTH, _HEADER = struct.Struct(">i"), struct.Struct(">hhih")
_NONE, _ALL = b"\x00", b"\x01"
NO_ERROR = (ErrorCode.none,)
PERHAPS_REFUSED = (ErrorCode.none, ErrorCode.security_disabled, ErrorCode.cluster_authorization_failed)


def _by_hand(
    name: str, api_key: int, version: int, body: bytes, words: str, *wanted: ErrorCode, source: str, since: str
) -> ProbeCase:
    """A case with a request of one flexible version. Its response has the error code after the throttle time."""

    def play(at: ProbeContext) -> None:
        low, high = at.broker.versions.get(api_key, (0, -1))
        if not low <= version <= high:
            raise NotAdvertised(f"{api_name(api_key)} {version} is not advertised")
        frame = _HEADER.pack(api_key, version, 5, 5) + b"probe\x00" + body
        at.main.send_bytes(_LENGTH.pack(len(frame)) + frame, f"{api_name(api_key)} {version}")
        response = at.main.receive_frame(5, api_name(api_key))
        at.expect("correlation ID", int.from_bytes(response[:4], "big"), 5)
        at.expect("error code", ErrorCode(int.from_bytes(response[9:11], "big", signed=True)), *wanted)

    play.__doc__ = words
    return case(name, source, {API_VERSIONS: ANY}, since=since, level=SHOULD)(play)


BY_HAND = (
    _by_hand(
        "admin/folders/described",
        int(ApiKey.DESCRIBE_LOG_DIRS),
        3,
        _NONE + _NONE,
        "DescribeLogDirs returns the log directories of all topics without an error.",
        *NO_ERROR,
        source="KIP-113, DescribeLogDirsRequest.json",
        since="1.0",
    ),
    _by_hand(
        "admin/reassignments/listed",
        int(ApiKey.LIST_PARTITION_REASSIGNMENTS),
        0,
        _LENGTH.pack(TIMEOUT_MS) + _NONE + _NONE,
        "ListPartitionReassignments returns those of all topics without an error.",
        *NO_ERROR,
        source="KIP-455",
        since="2.4",
    ),
    _by_hand(
        "admin/quotas/described",
        int(ApiKey.DESCRIBE_CLIENT_QUOTAS),
        1,
        _ALL + _NONE + _NONE,
        "DescribeClientQuotas returns all quotas without an error.",
        *NO_ERROR,
        source="KIP-546",
        since="2.6",
    ),
    _by_hand(
        "admin/rights/described",
        int(ApiKey.DESCRIBE_ACLS),
        2,
        b"\x01\x00\x01\x00\x00\x01\x01\x00",
        "DescribeAcls returns all ACLs, or that there is no authorizer, or that the client is not authorized.",
        *PERHAPS_REFUSED,
        source="KIP-140, KIP-290",
        since="0.11",
    ),
)
