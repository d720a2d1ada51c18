"""The APIs of the protocol: keys, names, versions, and which versions are flexible (KIP-482).

Source: Kafka's message schemas (``validVersions`` and ``flexibleVersions`` of each request).
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class ApiKey(IntEnum):
    """Every API key of Kafka 4.1, and the four that older inter-broker protocols used (4-7)."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


FIRST_DRAFT_VERSION: Final = 1000
"""Versions from here on are private drafts. They are never flexible, whatever the API's other versions are."""

_METADATA_EPOCH_APIS: Final = (ApiKey.METADATA, ApiKey.UPDATE_METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)

WITH_LEADER_EPOCHS: Final = 1001
"""KIP-232 is older than leader epochs in the protocol (KIP-320), static members (KIP-345) and topic IDs (KIP-516). Its
drafts are as its page has them in version 1000. In this version they also carry what those need."""

METADATA_EPOCH_DRAFTS: Final = frozenset(
    {
        *((key, 1000) for key in _METADATA_EPOCH_APIS),
        *((key, WITH_LEADER_EPOCHS) for key in _METADATA_EPOCH_APIS),
    }
)
"""The drafts of KIP-232. A node with ``crucible.metadata.epoch.enable`` off does not serve them."""


def api_name(api_key: int) -> str:
    """The API's name as Kafka's schemas spell it (``CreateTopics``); ``Api(n)`` for an unknown key. Never fails."""
    return _NAMES.get(api_key) or f"Api({int(api_key)})"


_NAMES: Final[Mapping[int, str]] = {
    int(key): "".join(part.capitalize() for part in key.name.split("_")) for key in ApiKey
}

FETCH_FIRST_REVISION: Final = 1000
"""The draft of Fetch that has KIP-227's first revision exactly as its page does."""
FETCH_FIRST_REVISION_REPLICAS: Final = 1002
"""The draft of the first revision with the fields that followers must send since then (KIP-320, KIP-516, KIP-595,
KIP-903)."""
FETCH_TOMBSTONE_HORIZON: Final = 1001
"""The draft of Fetch whose responses carry the tombstone horizon marker (H-1). Its sessions are of the final revision.
A node with ``crucible.tombstone.horizon.enable`` off does not serve it."""

FIRST_REVISIONS: Final = frozenset({FETCH_FIRST_REVISION, FETCH_FIRST_REVISION_REPLICAS})
"""The versions of Fetch whose sessions are of KIP-227's first revision."""

DRAFTS: Final[Mapping[tuple[int, int], str]] = {
    (key, version): f"crucible.{api_name(key)}.{version}"
    for key, version in sorted(
        {
            (ApiKey.FETCH, FETCH_FIRST_REVISION),
            (ApiKey.FETCH, FETCH_FIRST_REVISION_REPLICAS),
            (ApiKey.FETCH, FETCH_TOMBSTONE_HORIZON),
            (ApiKey.FETCH_SNAPSHOT, 1000),
            *METADATA_EPOCH_DRAFTS,
        }
    )
}
"""Every draft's API key and version, with the feature by which ApiVersions announces it. Drafts lie outside the
announced range of versions, so no unmodified client uses one. Their layouts are in ``drafts``; Fetch's is in
``fetch_drafts``. UpdateMetadata exists only as a draft, because Kafka 4 removed it."""


VERSIONS: Final[Mapping[int, tuple[int, int, int]]] = {
    ApiKey.PRODUCE: (3, 13, 9),
    ApiKey.FETCH: (4, 18, 12),
    ApiKey.LIST_OFFSETS: (1, 10, 6),
    ApiKey.METADATA: (0, 13, 9),
    ApiKey.OFFSET_COMMIT: (2, 9, 8),
    ApiKey.OFFSET_FETCH: (1, 9, 6),
    ApiKey.FIND_COORDINATOR: (0, 6, 3),
    ApiKey.JOIN_GROUP: (0, 9, 6),
    ApiKey.HEARTBEAT: (0, 4, 4),
    ApiKey.LEAVE_GROUP: (0, 5, 4),
    ApiKey.SYNC_GROUP: (0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: (0, 6, 5),
    ApiKey.LIST_GROUPS: (0, 5, 3),
    ApiKey.API_VERSIONS: (0, 4, 3),
    ApiKey.CREATE_TOPICS: (2, 7, 5),
    ApiKey.DELETE_TOPICS: (1, 6, 4),
    ApiKey.DELETE_RECORDS: (0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4, 3),
    ApiKey.END_TXN: (0, 5, 3),
    ApiKey.WRITE_TXN_MARKERS: (1, 2, 1),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5, 3),
    ApiKey.DESCRIBE_ACLS: (1, 3, 2),
    ApiKey.CREATE_ACLS: (1, 3, 2),
    ApiKey.DELETE_ACLS: (1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: (1, 4, 4),
    ApiKey.ALTER_CONFIGS: (0, 2, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3, 2),
    ApiKey.DELETE_GROUPS: (0, 2, 2),
    ApiKey.ELECT_LEADERS: (0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1, 1),
    ApiKey.OFFSET_DELETE: (0, 0, FIRST_DRAFT_VERSION),
    ApiKey.VOTE: (0, 2, 0),
    ApiKey.BEGIN_QUORUM_EPOCH: (0, 1, 1),
    ApiKey.END_QUORUM_EPOCH: (0, 1, 1),
    ApiKey.DESCRIBE_QUORUM: (0, 2, 0),
    ApiKey.ALTER_PARTITION: (2, 3, 2),
    ApiKey.UPDATE_FEATURES: (0, 2, 0),
    ApiKey.FETCH_SNAPSHOT: (0, 1, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 2, 0),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0, 0),
    ApiKey.BROKER_REGISTRATION: (0, 4, 0),
    ApiKey.BROKER_HEARTBEAT: (0, 2, 0),
    ApiKey.UNREGISTER_BROKER: (0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2, 0),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0, 0),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (0, 0, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0, 0),
}
"""The versions of each API that is served: the lowest, the highest, and the first that is flexible. Handlers see the
class of the highest version. Versions that Kafka calls unstable (ListOffsets 11, InitProducerId 6, OffsetCommit 10,
OffsetFetch 10) are omitted."""

_VERSIONS: Final = {int(key): versions for key, versions in VERSIONS.items()}
"""``VERSIONS`` with plain numbers as keys. Each request is looked up here, and ints are found faster than ApiKeys."""
_NONE: Final = (0, -1, FIRST_DRAFT_VERSION)


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether a version has compact lengths and tagged fields (and so request header v2)."""
    return _VERSIONS.get(api_key, _NONE)[2] <= version < FIRST_DRAFT_VERSION


def is_known(api_key: int, version: int) -> bool:
    """Return whether messages of this version can be encoded and decoded here."""
    least, greatest, _ = _VERSIONS.get(api_key, _NONE)
    return least <= version <= greatest or (api_key, version) in DRAFTS
