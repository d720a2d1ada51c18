"""Vocabulary of scenario files: roles, operations, errors and names of APIs. Kinds of faults: ``fault_kinds.py``."""

NEEDS = ("interceptor", "signals", "proxy", "drafts", "disk", "clock")
"""Features that a scenario may need of the world that plays it. ``interceptor``, ``disk`` and ``clock`` exist only
inside our own broker's process; ``signals`` need a process that we started; ``proxy`` needs the links through
Toxiproxy."""

PARTITION_ROLES = ("partition_leader", "partition_follower")
"""Roles of a node: it leads the first partition of the hot topic, or it is another replica of that partition."""

NODE_ROLES = ("leader", "follower", "observer", *PARTITION_ROLES, "any")
"""Roles of a node, resolved when a fault fires.

``leader`` is the active controller, ``follower`` a voter that is not, ``observer`` a node without a vote. ``any`` is,
at a state, whichever node comes to it first and, at a time, one drawn from the seed.
"""
SAME_NODE = "same"
"""For a fault with ``after``: the node that the earlier fault hit."""

CONNECTION_ROLES = ("client", "peer")
"""Sender of a request: a client, or another node."""

LINK_ENDS = ("client", *NODE_ROLES, "all")
"""Ends of a link other than node numbers. In ``A>B`` A dials B. ``all`` is every node but the other end."""

DISK_OPERATIONS = ("open", "stat", "read", "write", "truncate", "rename", "delete", "list", "sync")
"""The operations of a node's disk. ``open`` is each one that may have to open a file, such as a read or a write."""

ERRORS = ("EIO", "ENOSPC", "EROFS", "EMFILE", "ENFILE")
"""Reasons why an operation of the disk fails, by the names of the system's error numbers."""

STORE_OPERATIONS = ("put", "get", "list", "delete")
"""The calls of the object store."""

STORE_FAILURES = ("unavailable", "refused")
"""Failures of a ``store_refused`` call: a retry may succeed, or the configuration must be corrected first."""

NO_DESCRIPTOR = ("EMFILE", "ENFILE")
"""These errors mean that there is no free descriptor, so only an operation that opens a file has them."""

FRAME_PARTS = ("checksummed", "length", "anywhere")
"""Parts of a frame in which a bit is flipped.

``checksummed`` is what the CRC of a record batch covers, and the CRC itself; only requests to produce and responses to
fetches have it. ``length`` is the frame's own length or the length of a batch. ``anywhere`` is any byte of the frame.
"""

CODE_PLACES = ("either", "response", "items")
"""Fields in which ``response_error`` puts its code.

``response`` is the error code of the response itself; nothing else is in the response then. ``items`` are all error
codes below it, of partitions and the like. ``either`` is the first of the two that the response has.
"""

SIM_AT_PERCENT = (80, 120)
"""In the simulator a timed fault begins between 80 % and 120 % of its ``sim_at_s``, as drawn from the seed."""

BEHAVIOURS = ("full", "incremental", "forgetting", "emptying", "rotating", "refetching", "resending", "presuming")
"""Behaviours of a fetcher.

``full`` sends only full fetches, without a session. The others fetch incrementally: ``forgetting`` forgets partitions
and takes them back, ``emptying`` does so with all that it has, ``rotating`` reads some from the start again. After a
lost response ``refetching`` sends a full fetch in both revisions, ``resending`` sends epoch N again, and ``presuming``
presumes N + 1. In the first revision all others send N again, too.
"""

REVISIONS = ("final", "first")
"""Revisions of fetch sessions. A scenario is played in each that it has."""

FETCHER_REVISIONS = (*REVISIONS, "none")
"""Revisions that a fetcher speaks. ``none`` means full fetches without a session, whatever its behaviour."""

ADMIN_OPERATIONS = (
    "create",
    "delete",
    "configure",
    "describe",
    "upgrade",
    "min_isr",
    "broker_min_isr",
    "loaded_min_isr",
    "loaded_setting",
    "group_request",
    "transaction_request",
    "fetch_request",
    "record_request",
)
"""Operations of an admin: creates topics, deletes one, changes a topic's config, describes topics, raises
``metadata.version`` by one level, changes a topic's ``min.insync.replicas``, tries to remove that of the cluster or to
set that of a broker, changes ``min.insync.replicas`` or any setting of a topic that the load writes and reads, sends a
request of a consumer group, of a transaction, or of a fetch session, of its own that may be false or late, or appends
or deletes records of the load's last topic, which must be no other client's."""

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
"""Records that a consumer may read (Kafka's ``isolation.level``)."""

GROUP_PROTOCOLS = ("eager", "cooperative", "assigned")
"""Protocols by which members of a group rebalance.

With ``eager`` all members give up all partitions, with ``cooperative`` only those that move. With ``assigned`` there is
no membership.
"""

RESETS = ("earliest", "latest", "none")
"""Positions of a member without a committed offset, or with one out of range. With ``none`` it stops."""

OFFSET_PLACES = ("kafka", "outside")
"""Storage of a member's offsets, each with the metadata epoch: at its coordinator, or outside."""

METADATA_SOURCES = ("any", "alternating")
"""The source of a member's metadata: ``any`` draws one each time, ``alternating`` takes one after the other."""

API_KEYS = {
    "produce": 0,
    "fetch": 1,
    "list_offsets": 2,
    "metadata": 3,
    "leader_and_isr": 4,
    "stop_replica": 5,
    "update_metadata": 6,
    "controlled_shutdown": 7,
    "offset_commit": 8,
    "offset_fetch": 9,
    "find_coordinator": 10,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
    "describe_groups": 15,
    "list_groups": 16,
    "sasl_handshake": 17,
    "api_versions": 18,
    "create_topics": 19,
    "delete_topics": 20,
    "delete_records": 21,
    "init_producer_id": 22,
    "offset_for_leader_epoch": 23,
    "add_partitions_to_txn": 24,
    "add_offsets_to_txn": 25,
    "end_txn": 26,
    "write_txn_markers": 27,
    "txn_offset_commit": 28,
    "describe_acls": 29,
    "create_acls": 30,
    "delete_acls": 31,
    "describe_configs": 32,
    "alter_configs": 33,
    "alter_replica_log_dirs": 34,
    "describe_log_dirs": 35,
    "sasl_authenticate": 36,
    "create_partitions": 37,
    "create_delegation_token": 38,
    "renew_delegation_token": 39,
    "expire_delegation_token": 40,
    "describe_delegation_token": 41,
    "delete_groups": 42,
    "elect_leaders": 43,
    "incremental_alter_configs": 44,
    "alter_partition_reassignments": 45,
    "list_partition_reassignments": 46,
    "offset_delete": 47,
    "describe_client_quotas": 48,
    "alter_client_quotas": 49,
    "describe_user_scram_credentials": 50,
    "alter_user_scram_credentials": 51,
    "vote": 52,
    "begin_quorum_epoch": 53,
    "end_quorum_epoch": 54,
    "describe_quorum": 55,
    "alter_partition": 56,
    "update_features": 57,
    "envelope": 58,
    "fetch_snapshot": 59,
    "describe_cluster": 60,
    "describe_producers": 61,
    "broker_registration": 62,
    "broker_heartbeat": 63,
    "unregister_broker": 64,
    "describe_transactions": 65,
    "list_transactions": 66,
    "allocate_producer_ids": 67,
    "consumer_group_heartbeat": 68,
    "consumer_group_describe": 69,
    "controller_registration": 70,
    "get_telemetry_subscriptions": 71,
    "push_telemetry": 72,
    "assign_replicas_to_dirs": 73,
    "list_config_resources": 74,
    "describe_topic_partitions": 75,
    "share_group_heartbeat": 76,
    "share_group_describe": 77,
    "share_fetch": 78,
    "share_acknowledge": 79,
    "add_raft_voter": 80,
    "remove_raft_voter": 81,
    "update_raft_voter": 82,
    "initialize_share_group_state": 83,
    "read_share_group_state": 84,
    "write_share_group_state": 85,
    "delete_share_group_state": 86,
    "read_share_group_state_summary": 87,
    "streams_group_heartbeat": 88,
    "streams_group_describe": 89,
    "describe_share_group_offsets": 90,
    "alter_share_group_offsets": 91,
    "delete_share_group_offsets": 92,
}
"""All APIs of Kafka's protocol. Names as in Kafka's schemas, such as ``OffsetCommit``, may be used for these."""

DIRECTIONS = ("upstream", "downstream", "both")
