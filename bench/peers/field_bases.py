"""The valid requests of which ``field_variations`` changes one field at a time, and what both brokers hold before.

Most requests leave the broker as it is, or are sent for validation only, so that all of them meet the same objects. One
that changes something names objects of its own. They are made before each request, on both brokers
(``PreparedBroker.fresh``).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final
from uuid import UUID

from bench.peers.clients import PRODUCE_VERSION, connect, produce_request
from bench.probe.conversation import body
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import VERSIONS, ApiKey, api_name
from reference_broker.wire.errors import ErrorCode

TOPIC, OTHER_TOPIC, GROUP, TRANSACTIONAL_ID = "t", "u", "g", "tx"
PARTITIONS = 2
SILENT_S = 4.0
BATCH: Final = build([Record(timestamp_ms=1_700_000_000_000, key=b"k", value=b"v")] * 3)
SMALL_IDS = 12
"""Producer IDs that both brokers give out first, since requests name small numbers, which shall be nobody's."""


class OfSide:
    """A value that each broker has given out itself, or of which each pair of requests has its own: an attribute of
    PreparedBroker."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __deepcopy__(self, _: object) -> "OfSide":
        return self


@dataclass(slots=True)
class PreparedBroker:
    """One broker on loopback, prepared with ``prepare``, and the objects of the next request."""

    port: int
    topic_id: bytes = bytes(16)
    producer_id: int = -1
    producer_epoch: int = -1
    name: str = ""
    member_id: str = ""
    own_topic_id: bytes = bytes(16)
    own_producer_id: int = -1
    own_producer_epoch: int = -1
    _made: int = field(default=0, init=False)
    _connection: Connection | None = field(default=None, init=False)
    _preparing: Connection | None = field(default=None, init=False)

    def own(self, value: Any) -> Any:
        """Replace each OfSide in plain values."""
        if isinstance(value, OfSide):
            return getattr(self, value.name)
        if isinstance(value, Mapping):
            return {name: self.own(each) for name, each in value.items()}
        return [self.own(each) for each in value] if isinstance(value, list) else value

    def exchange(self, frame: bytes) -> memoryview:
        """Send a request and return its response. Raise TransportError; the next request then has a new connection."""
        if self._connection is None:
            self._connection = connect(self.port, SILENT_S)
        try:
            return self._connection.exchange(frame)
        except TransportError:
            self._connection.close()
            self._connection = None
            raise

    def close(self) -> None:
        for each in (self._connection, self._preparing):
            if each is not None:
                each.close()
        self._connection = self._preparing = None

    def prepare(self) -> None:
        """Make two topics, one with records, an empty group with an offset, and a transactional ID."""
        self.topic_id = self._create(TOPIC)
        self._create(OTHER_TOPIC)
        for partition in range(PARTITIONS):
            self._until(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(TOPIC, partition, BATCH))
        for kind, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
            self._until(ApiKey.FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": [key]})
        self._until(ApiKey.OFFSET_COMMIT, 8, {**COMMIT, "group_id": GROUP})
        for _ in range(SMALL_IDS):
            self._producer(None)
        self.producer_id, self.producer_epoch = self._producer(TRANSACTIONAL_ID)

    def fresh(self, make: "Callable[[PreparedBroker], None] | None") -> None:
        """Make the objects of the next request."""
        self._made += 1
        self.name = f"own-{self._made}"
        if make is not None:
            make(self)

    def make_topic(self) -> None:
        """A topic, and those again that a request may have deleted by another name."""
        self._create(OTHER_TOPIC)
        self.own_topic_id = self._create(self.name)
        self._until(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [GROUP]})

    def make_group(self) -> None:
        """A group without members, and with an offset."""
        self._until(ApiKey.OFFSET_COMMIT, 8, {**COMMIT, "group_id": self.name})

    def make_member_id(self) -> None:
        """A group whose only member has an ID and has not joined yet."""
        response = self._until(ApiKey.JOIN_GROUP, 5, {**JOIN, "group_id": self.name}, ErrorCode.member_id_required)
        self.member_id = str(response.member_id)

    def make_member(self) -> None:
        """A group with one member in generation 1, which has its assignment."""
        self.make_member_id()
        member = {"group_id": self.name, "member_id": self.member_id}
        self._until(ApiKey.JOIN_GROUP, 5, {**JOIN, **member})
        assignments = [{"member_id": self.member_id, "assignment": b"a"}]
        self._until(ApiKey.SYNC_GROUP, 3, {**member, "generation_id": 1, "assignments": assignments})

    def make_producer(self) -> None:
        """A transactional ID whose producer has started nothing."""
        self.own_producer_id, self.own_producer_epoch = self._producer(self.name)

    def make_transaction(self) -> None:
        """A transactional ID whose producer has added a partition to its transaction."""
        self.make_producer()
        owner = {"producer_id": self.own_producer_id, "producer_epoch": self.own_producer_epoch}
        added = {"transactional_id": self.name, **owner, "topics": [{"name": TOPIC, "partitions": [0]}]}
        self._until(ApiKey.ADD_PARTITIONS_TO_TXN, 3, {"transactions": [added]})

    def _create(self, name: str) -> bytes:
        """Return the ID of a new topic. A topic that exists already stays as it is."""
        topic = {"name": name, "num_partitions": PARTITIONS, "replication_factor": 1}
        response: Any = self._call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000})
        identity = response.topics[0].topic_id
        return identity.bytes if isinstance(identity, UUID) else bytes(16)

    def _producer(self, transactional_id: str | None) -> tuple[int, int]:
        init = {"transactional_id": transactional_id, "transaction_timeout": 900_000}
        response = self._until(ApiKey.INIT_PRODUCER_ID, 4, {**init, "producer_id": -1, "producer_epoch": -1})
        return int(response.producer_id), int(response.producer_epoch)

    def _until(self, api_key: int, version: int, sent: object, error: ErrorCode = ErrorCode.none) -> Any:
        """Send a request until its response has this error. A topic or a coordinator may not be there yet."""
        deadline = time.monotonic() + 60
        while True:
            response = self._call(api_key, version, sent)
            errors = {*errors_of(response)}
            if errors <= {error}:
                return response
            assert time.monotonic() < deadline, f"{api_name(api_key)}: {errors}"
            time.sleep(0.2)

    def _call(self, api_key: int, version: int, sent: object) -> object:
        if self._preparing is None:
            self._preparing = connect(self.port)
        return self._preparing.call(api_key, version, body(api_key, sent))


@dataclass(frozen=True, slots=True)
class Valid:
    """A request that both brokers take, by plain values. A field that is not named has its default."""

    api_key: ApiKey
    values: Mapping[str, Any]
    what: str = ""  # distinguishes several requests of one API
    make: Callable[[PreparedBroker], None] | None = None  # makes the request's own objects, if it needs any
    oldest: int = 0
    newest: int = 999

    @property
    def name(self) -> str:
        return f"{api_name(self.api_key)} {self.what}".strip()

    @property
    def versions(self) -> range:
        oldest, newest, *_ = VERSIONS[self.api_key]
        return range(max(oldest, self.oldest), min(newest, self.newest) + 1)


def errors_of(response: object) -> Iterator[ErrorCode]:
    """Yield each error code of a response."""
    for field_ in fields(response):  # type: ignore[arg-type]  # Bodies are dataclasses.
        value = getattr(response, field_.name)
        if field_.name.endswith("error_code"):
            yield ErrorCode(int(value))
        for one in value if isinstance(value, list | tuple) else [value]:
            if is_dataclass(one):
                yield from errors_of(one)


JOIN: Final = {
    "session_timeout": 30_000,
    "rebalance_timeout": 60_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"m"}],
}
ONE_OFFSET: Final = [
    {"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "m"}]}
]
COMMIT: Final = {"generation_id_or_member_epoch": -1, "topics": ONE_OFFSET}
PRODUCER: Final = {"producer_id": OfSide("producer_id"), "producer_epoch": OfSide("producer_epoch")}
OWNER: Final = {"transactional_id": TRANSACTIONAL_ID, **PRODUCER}
OWN_PRODUCER: Final = {"producer_id": OfSide("own_producer_id"), "producer_epoch": OfSide("own_producer_epoch")}
OWN_MEMBER: Final = {"group_id": OfSide("name"), "generation_id": 1, "member_id": OfSide("member_id")}
SETTING: Final = {"name": "retention.ms", "value": "1000"}
RECORDS: Final = {
    "acks": -1,
    "timeout": 5000,
    "topic_data": [{"name": TOPIC, "topic_id": OfSide("topic_id"), "partition_data": [{"index": 0, "records": BATCH}]}],
}
PART: Final = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
FETCH: Final = {
    "max_wait": 50,
    "min_bytes": 0,
    "topics": [{"topic": TOPIC, "topic_id": OfSide("topic_id"), "partitions": [PART]}],
}
PATTERN: Final = {"resource_type": 2, "resource_name": TOPIC, "operation": 2, "permission_type": 3}
ACL: Final = {**PATTERN, "resource_pattern_type": 3, "principal": "User:x", "host": "*"}
FILTER: Final = {
    "resource_type_filter": 2,
    "resource_name_filter": TOPIC,
    "pattern_type_filter": 3,
    "principal_filter": "User:x",
    "host_filter": "*",
    "operation": 2,
    "permission_type": 3,
}
BASES: Final = (
    Valid(ApiKey.PRODUCE, RECORDS),
    Valid(ApiKey.FETCH, FETCH),
    Valid(ApiKey.FETCH, {**FETCH, "isolation_level": 1}, "read_committed"),
    Valid(
        ApiKey.FETCH,
        {**FETCH, "session_id": 0, "session_epoch": 0, "forgotten_topics_data": []},
        "of a new session",
        oldest=7,
    ),
    Valid(
        ApiKey.LIST_OFFSETS,
        {
            "replica_id": -1,
            "topics": [
                {"name": TOPIC, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}
            ],
        },
    ),
    Valid(ApiKey.LIST_GROUPS, {}),
    Valid(ApiKey.METADATA, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False}),
    Valid(ApiKey.OFFSET_COMMIT, {"group_id": GROUP, **COMMIT}),
    Valid(
        ApiKey.OFFSET_COMMIT,
        {
            "group_id": OfSide("name"),
            "generation_id_or_member_epoch": 1,
            "member_id": OfSide("member_id"),
            "topics": ONE_OFFSET,
        },
        "of a member",
        PreparedBroker.make_member,
    ),
    Valid(
        ApiKey.OFFSET_FETCH, {"groups": [{"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]}
    ),
    Valid(ApiKey.FIND_COORDINATOR, {"coordinator_keys": [GROUP]}),
    Valid(ApiKey.JOIN_GROUP, {"group_id": OfSide("name"), **JOIN}, "of a new group"),
    Valid(
        ApiKey.JOIN_GROUP,
        {**JOIN, "group_id": OfSide("name"), "member_id": OfSide("member_id")},
        "with an ID",
        PreparedBroker.make_member_id,
    ),
    Valid(
        ApiKey.JOIN_GROUP,
        {**JOIN, "group_id": OfSide("name"), "member_id": OfSide("member_id")},
        "of a member",
        PreparedBroker.make_member,
    ),
    Valid(ApiKey.JOIN_GROUP, {**JOIN, "group_id": OfSide("name"), "group_instance_id": "i"}, "static", oldest=5),
    Valid(ApiKey.HEARTBEAT, {"group_id": GROUP, "generation_id": 1, "member_id": "m"}),
    Valid(ApiKey.HEARTBEAT, OWN_MEMBER, "of a member", PreparedBroker.make_member),
    Valid(ApiKey.LEAVE_GROUP, {"group_id": GROUP, "members": [{"member_id": "m"}]}),
    Valid(
        ApiKey.LEAVE_GROUP,
        {"group_id": OfSide("name"), "members": [{"member_id": OfSide("member_id")}]},
        "of a member",
        PreparedBroker.make_member,
    ),
    Valid(
        ApiKey.SYNC_GROUP,
        {
            "group_id": GROUP,
            "generation_id": 1,
            "member_id": "m",
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
        },
    ),
    Valid(
        ApiKey.SYNC_GROUP,
        {
            **OWN_MEMBER,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": OfSide("member_id"), "assignment": b"b"}],
        },
        "of a member",
        PreparedBroker.make_member,
    ),
    Valid(ApiKey.DESCRIBE_GROUPS, {"groups": [GROUP]}),
    Valid(ApiKey.API_VERSIONS, {"client_software_name": "variations", "client_software_version": "1"}),
    Valid(
        ApiKey.CREATE_TOPICS,
        {
            "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1, "configs": [SETTING]}],
            "timeout": 5000,
            "validate_only": True,
        },
    ),
    Valid(
        ApiKey.DELETE_RECORDS,
        {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}], "timeout": 2000},
    ),
    Valid(
        ApiKey.INIT_PRODUCER_ID,
        {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
        "without transactions",
    ),
    Valid(
        ApiKey.INIT_PRODUCER_ID,
        {"transactional_id": OfSide("name"), "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1},
        "of a new transactional ID",
    ),
    Valid(
        ApiKey.INIT_PRODUCER_ID,
        {"transactional_id": OfSide("name"), "transaction_timeout": 60_000, **OWN_PRODUCER},
        "of its producer",
        PreparedBroker.make_producer,
    ),
    Valid(
        ApiKey.INIT_PRODUCER_ID,
        {"transactional_id": OfSide("name"), "transaction_timeout": 60_000, **OWN_PRODUCER},
        "amid a transaction",
        PreparedBroker.make_transaction,
        oldest=3,
    ),
    Valid(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        {
            "replica_id": -1,
            "topics": [
                {"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}
            ],
        },
    ),
    Valid(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        {"transactions": [{**OWNER, "topics": [{"name": TOPIC, "partitions": [0]}]}]},
        newest=3,  # Later versions are for brokers.
    ),
    Valid(ApiKey.ADD_OFFSETS_TO_TXN, {**OWNER, "group_id": GROUP}),
    Valid(
        ApiKey.END_TXN,
        {"transactional_id": OfSide("name"), **OWN_PRODUCER, "committed": True},
        "of a transaction",
        PreparedBroker.make_transaction,
    ),
    Valid(
        ApiKey.END_TXN,
        {"transactional_id": OfSide("name"), **OWN_PRODUCER, "committed": False},
        "of nothing",
        PreparedBroker.make_producer,
    ),
    Valid(
        ApiKey.WRITE_TXN_MARKERS,
        {
            "markers": [
                {
                    **OWN_PRODUCER,
                    "transaction_result": True,
                    "topics": [{"name": TOPIC, "partition_indexes": [0]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
        make=PreparedBroker.make_transaction,
        newest=1,  # Kafka 4.1 does not have version 2 on its brokers' listeners.
    ),
    Valid(ApiKey.TXN_OFFSET_COMMIT, {**OWNER, "group_id": GROUP, "generation_id": -1, "topics": ONE_OFFSET}),
    Valid(ApiKey.DESCRIBE_ACLS, FILTER),
    Valid(ApiKey.CREATE_ACLS, {"creations": [ACL]}),
    Valid(ApiKey.DELETE_ACLS, {"filters": [FILTER]}),
    Valid(
        ApiKey.DESCRIBE_CONFIGS,
        {"resources": [{"resource_type": 2, "resource_name": TOPIC, "configuration_keys": ["retention.ms"]}]},
    ),
    Valid(
        ApiKey.ALTER_CONFIGS,
        {
            "resources": [{"resource_type": 2, "resource_name": TOPIC, "configs": [SETTING]}],
            "validate_only": True,
        },
    ),
    Valid(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        {
            "resources": [
                {"resource_type": 2, "resource_name": TOPIC, "configs": [{**SETTING, "config_operation": 0}]}
            ],
            "validate_only": True,
        },
    ),
    Valid(
        ApiKey.CREATE_PARTITIONS,
        {
            "topics": [{"name": TOPIC, "count": 3, "assignments": None}],
            "timeout": 2000,
            "validate_only": True,
        },
    ),
    Valid(ApiKey.ELECT_LEADERS, {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": 2000}),
    Valid(
        ApiKey.OFFSET_DELETE, {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 1}]}]}
    ),
    Valid(
        ApiKey.UPDATE_FEATURES,
        {
            "timeout": 2000,
            "feature_updates": [{"feature": "transaction.version", "max_version_level": 2, "upgrade_type": 1}],
            "validate_only": True,
        },
    ),
    Valid(
        ApiKey.DESCRIBE_QUORUM,
        {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    ),
    Valid(ApiKey.DESCRIBE_CLUSTER, {}),
    Valid(ApiKey.DESCRIBE_PRODUCERS, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}),
    Valid(ApiKey.UNREGISTER_BROKER, {"broker_id": 77}),
    Valid(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [TRANSACTIONAL_ID]}),
    Valid(ApiKey.LIST_TRANSACTIONS, {}),
    Valid(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        {"topics": [{"name": TOPIC}], "cursor": {"topic_name": TOPIC, "partition_index": 0}},
    ),
    Valid(ApiKey.DELETE_GROUPS, {"groups_names": [OfSide("name")]}, make=PreparedBroker.make_group),
    Valid(ApiKey.DELETE_GROUPS, {"groups_names": [OfSide("name")]}, "with a member", PreparedBroker.make_member),
    Valid(
        ApiKey.DELETE_TOPICS, {"topics": [{"name": OfSide("name")}], "timeout": 5000}, make=PreparedBroker.make_topic
    ),
    Valid(
        ApiKey.DELETE_TOPICS,
        {"topics": [{"name": None, "topic_id": OfSide("own_topic_id")}], "timeout": 5000},
        "by ID",
        PreparedBroker.make_topic,
        oldest=6,
    ),
)
"""In the order in which they are sent. Groups are listed before some have members, since members time out. Topics are
deleted last, since the names that are tried are those of others, too."""

AMONG_NODES: Final[Mapping[ApiKey, str]] = {
    ApiKey.VOTE: "controllers elect each other",
    ApiKey.BEGIN_QUORUM_EPOCH: "controllers elect each other",
    ApiKey.END_QUORUM_EPOCH: "controllers elect each other",
    ApiKey.FETCH_SNAPSHOT: "replicas of the metadata log fetch it from controllers",
    ApiKey.ALTER_PARTITION: "leaders report in-sync replicas to the controller",
    ApiKey.BROKER_REGISTRATION: "brokers register with the controller",
    ApiKey.BROKER_HEARTBEAT: "brokers report to the controller",
    ApiKey.ALLOCATE_PRODUCER_IDS: "brokers get blocks of producer IDs from the controller",
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: "brokers report their directories to the controller",
}
"""APIs that are not compared, since Kafka's brokers do not serve them on the listener of clients."""
