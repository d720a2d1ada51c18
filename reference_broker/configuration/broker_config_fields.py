"""The fields of ``BrokerConfig`` by subject: the controller quorum, coordination, the remote tier, and settings without
effect.

Kafka's settings of brokers that have no effect here are those that the files and tools of operators name. They are
taken at the start and while the broker runs, and described with Kafka's types and defaults. The log has a line for each
that is set (``WITHOUT_EFFECT``).
"""

from dataclasses import dataclass, fields

from reference_broker.configuration.setting import INT_MAX, LONG_MAX, Kind, setting

MIN_METADATA_SEGMENT_BYTES = 1024
"""Kafka's minimum is 8 MiB, the size of its largest batch. Our batches are small, and a batch that is larger makes its
segment larger."""


@dataclass(frozen=True)
class ControllerSettings:
    """A part of ``BrokerConfig``."""

    controller_quorum_election_backoff_max_ms: int = setting(
        1000, "Longest delay before the next election after one without a winner, in ms.", at_least=1
    )
    controller_quorum_election_timeout_ms: int = setting(1000, "Timeout of an election, in ms.", at_least=1)
    controller_quorum_fetch_timeout_ms: int = setting(
        2000,
        "Time without the leader, or without a majority of voters, after which a new leader is elected, in ms.",
        at_least=1,
    )
    controller_quorum_request_timeout_ms: int = setting(2000, "Timeout of a request to a voter, in ms.", at_least=1)
    controller_quorum_voters: str = setting(
        "", "The quorum's voters are these ID@HOST:PORT, as this node reaches them; empty: this node alone."
    )
    crucible_bootstrap_eligible_leader_replicas: int = setting(
        1,
        "A new cluster has this level of eligible.leader.replicas.version, if its metadata.version is 23 or higher.",
        at_least=0,
        at_most=1,
    )
    crucible_bootstrap_metadata_epoch: int = setting(
        0,
        "A new cluster has this level of the feature crucible.metadata.epoch; 1 carries KIP-232's metadata epoch.",
        at_least=0,
        at_most=1,
    )
    crucible_bootstrap_metadata_version: int = setting(
        27, "A new cluster has this metadata.version.", at_least=7, at_most=27
    )
    crucible_bootstrap_transaction_version: int = setting(
        2,
        "A new cluster has this level of transaction.version, if its metadata.version is 24 or higher.",
        at_least=0,
        at_most=2,
    )
    crucible_metadata_batch_max_bytes: int = setting(
        8192,
        "Largest batch of metadata records, in bytes; a larger set is written as a transaction.",
        at_least=256,
        at_most=8 * 2**20,
    )
    crucible_metadata_epoch_enable: bool = setting(
        True, "This node knows the metadata epoch; false: it is like code from before KIP-232."
    )
    crucible_metadata_snapshot_fetch_draft: bool = setting(
        False, "This node fetches snapshots in the layout of KIP-630's earlier page, which all nodes must know."
    )
    crucible_metadata_snapshot_fetch_max_bytes: int = setting(
        1_048_576, "Number of bytes that a request for a piece of a snapshot requests.", at_least=1
    )
    crucible_metadata_snapshot_keep_ms: int = setting(
        60_000, "Time for which a superseded snapshot is kept, in ms.", kind=Kind.LONG, at_least=0
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        20_971_520,
        "Number of bytes of records after which a snapshot of the metadata is made.",
        kind=Kind.LONG,
        at_least=1,
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        3_600_000,
        "Time after which a snapshot of the metadata is made, in ms; 0: time does not count.",
        kind=Kind.LONG,
        at_least=0,
    )
    metadata_log_segment_bytes: int = setting(
        2**30, "Size at which a segment of the metadata log is closed, in bytes.", at_least=MIN_METADATA_SEGMENT_BYTES
    )
    metadata_log_segment_ms: int = setting(
        604_800_000, "Age at which a segment of the metadata log is closed, in ms.", kind=Kind.LONG, at_least=1
    )
    metadata_max_retention_bytes: int = setting(
        104_857_600,
        "Total size above which old segments and snapshots of the metadata are deleted, in bytes; -1 is no limit.",
        kind=Kind.LONG,
        at_least=-1,
    )
    metadata_max_retention_ms: int = setting(
        604_800_000,
        "Age at which a snapshot of the metadata is deleted, in ms; -1 is no limit.",
        kind=Kind.LONG,
        at_least=-1,
    )


RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The only selector that Kafka brings (``apis.records.fetch_partition``). Others would be Java classes."""


@dataclass(frozen=True)
class CoordinationSettings:
    """A part of ``BrokerConfig``."""

    group_initial_rebalance_delay_ms: int = setting(
        3000, "Time for which the first rebalance of an empty group waits for more members, in ms.", at_least=0
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "Largest session timeout that a member may request, in ms.", at_least=1
    )
    group_max_size: int = setting(INT_MAX, "Largest number of members of a group.", at_least=1)
    group_min_session_timeout_ms: int = setting(
        6000, "Smallest session timeout that a member may request, in ms.", at_least=1
    )
    offsets_commit_timeout_ms: int = setting(
        5000, "Time for which a commit of offsets waits to be replicated, in ms.", at_least=1
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Interval of the checks for expired committed offsets, in ms.", kind=Kind.LONG, at_least=1
    )
    offsets_retention_minutes: int = setting(
        10_080, "Time for which committed offsets of an empty group are kept, in minutes.", at_least=1
    )
    offsets_topic_num_partitions: int = setting(
        50, "Number of partitions of __consumer_offsets.", at_least=1, at_most=10_000
    )
    offsets_topic_replication_factor: int = setting(
        3, "Number of replicas of __consumer_offsets, at most one on each registered broker.", at_least=1
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "Size at which a segment of __consumer_offsets is closed, in bytes.", at_least=1
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "Interval of the checks for idle producers, in ms.", at_least=1
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "Idle time after which a producer ID is forgotten, in ms.", at_least=1
    )
    replica_fetch_backoff_ms: int = setting(
        1000, "Delay of a follower after a failed fetch from a leader, or of a partition, in ms.", at_least=0
    )
    replica_fetch_max_bytes: int = setting(
        1_048_576, "Number of bytes of one partition that a follower requests.", at_least=0
    )
    replica_fetch_min_bytes: int = setting(1, "Number of bytes for which a follower's fetch waits.", at_least=0)
    replica_fetch_response_max_bytes: int = setting(
        10_485_760, "The most bytes in all that a follower's fetch requests and gets.", at_least=0
    )
    replica_fetch_wait_max_ms: int = setting(
        500, "Longest time for which a follower's fetch waits for data, in ms.", at_least=0
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000, "Interval at which high watermarks are written to the disk, in ms.", kind=Kind.LONG, at_least=1
    )
    replica_lag_time_max_ms: int = setting(
        30_000, "Time of lag behind the leader after which a replica is out of sync, in ms.", kind=Kind.LONG, at_least=1
    )
    replica_selector_class: str = setting(
        "",
        "A consumer that names its rack is sent to a follower there; empty: consumers read from leaders.",
        choices=("", RACK_AWARE),
    )
    replica_socket_timeout_ms: int = setting(30_000, "Timeout of a follower's request, in ms.", at_least=1)
    request_timeout_ms: int = setting(
        30_000,
        "A request to a node about transactions or remote log metadata fails after this time, in ms, and so does a "
        "marker or a record of the transaction log that is not replicated.",
        at_least=1,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "Interval of the checks for transactions that have timed out, in ms.", at_least=1
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "Largest transaction timeout that a producer may request, in ms.", at_least=1
    )
    transaction_partition_verification_enable: bool = setting(
        True, "A transaction's first records in a partition are taken once its coordinator knows the partition."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "Interval of the checks for expired transactional IDs, in ms.", at_least=1
    )
    transaction_state_log_min_isr: int = setting(
        2, "The topic __transaction_state has this min.insync.replicas, at most as many as replicas.", at_least=1
    )
    transaction_state_log_num_partitions: int = setting(
        50, "Number of partitions of __transaction_state.", at_least=1, at_most=10_000
    )
    transaction_state_log_replication_factor: int = setting(
        3,
        "Number of replicas of __transaction_state, at most one on each registered broker.",
        kind=Kind.SHORT,
        at_least=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "Size at which a segment of __transaction_state is closed, in bytes.", at_least=1
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "Idle time after which a transactional ID expires, in ms.", at_least=1
    )


@dataclass(frozen=True)
class TierSettings:
    """A part of ``BrokerConfig``."""

    crucible_remote_store_endpoint: str = setting(
        "", "S3 is reached at this http:// or https:// address; empty: Amazon's, or that of the environment."
    )
    crucible_remote_store_timeout_ms: int = setting(
        30_000, "Time without progress after which a call of the object store fails, in ms.", at_least=100
    )
    crucible_remote_store_url: str = setting(
        "", "Remote segments are in this object store, s3://BUCKET/PREFIX or a folder; empty: a folder beside the data."
    )
    remote_fetch_max_wait_ms: int = setting(
        500, "Longest time for which a fetch waits for records from the remote tier, in ms.", at_least=1
    )
    remote_list_offsets_request_timeout_ms: int = setting(
        30_000,
        "Longest time for which a ListOffsets request waits for the remote tier, in ms.",
        kind=Kind.LONG,
        at_least=1,
    )
    remote_log_index_file_cache_total_size_bytes: int = setting(
        2**30, "Size of the cache of remote segments' indexes, in bytes.", kind=Kind.LONG, at_least=1
    )
    remote_log_manager_copier_thread_pool_size: int = setting(
        10, "Number of segments that are copied to the remote tier at a time.", at_least=1
    )
    remote_log_manager_task_interval_ms: int = setting(
        30_000, "Interval at which the node looks for segments to copy or to delete, in ms.", kind=Kind.LONG, at_least=1
    )
    remote_log_manager_task_retry_backoff_max_ms: int = setting(
        30_000, "Longest delay of a retry after failures of the remote tier, in ms.", kind=Kind.LONG, at_least=1
    )
    remote_log_manager_task_retry_backoff_ms: int = setting(
        500, "Delay of the first retry after a failure of the remote tier, in ms.", kind=Kind.LONG, at_least=1
    )
    remote_log_storage_system_enable: bool = setting(
        False, "The node has a remote tier, to which topics with remote.storage.enable are copied."
    )
    rlmm_config_remote_log_metadata_consume_wait_ms: int = setting(
        120_000,
        "Time within which an event of a remote segment must be known everywhere, in ms.",
        kind=Kind.LONG,
        at_least=0,
    )
    rlmm_config_remote_log_metadata_topic_min_isr: int = setting(
        2,
        "The topic __remote_log_metadata has this min.insync.replicas, at most as many as replicas.",
        kind=Kind.SHORT,
        at_least=1,
    )
    rlmm_config_remote_log_metadata_topic_num_partitions: int = setting(
        50, "Number of partitions of __remote_log_metadata.", at_least=1, at_most=10_000
    )
    rlmm_config_remote_log_metadata_topic_replication_factor: int = setting(
        3,
        "Number of replicas of __remote_log_metadata, at most one on each registered broker.",
        kind=Kind.SHORT,
        at_least=1,
    )
    rlmm_config_remote_log_metadata_topic_retention_ms: int = setting(
        -1, "Age at which records of __remote_log_metadata are deleted, in ms; -1: never.", kind=Kind.LONG, at_least=-1
    )


@dataclass(frozen=True)
class IdleSettings:
    """A part of ``BrokerConfig``. Nothing reads these fields but DescribeConfigs."""

    background_threads: int = setting(10, "Number of threads for background work; it has no effect here.", at_least=1)
    follower_replication_throttled_rate: int = setting(
        LONG_MAX, "Bytes a second that a follower's throttled replicas fetch; it has no effect here.", kind=Kind.LONG
    )
    leader_replication_throttled_rate: int = setting(
        LONG_MAX,
        "Bytes a second that a leader sends to throttled replicas; it has no effect here.",
        kind=Kind.LONG,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9, "The cleaner's map of keys is full at this share of its size; it has no effect here."
    )
    log_cleaner_io_buffer_size: int = setting(
        524_288, "Size of the cleaner's buffers, in bytes; it has no effect here.", at_least=0
    )
    log_cleaner_threads: int = setting(1, "Number of threads that compact; it has no effect here.", at_least=1)
    max_connection_creation_rate: int = setting(
        INT_MAX, "Most connections that may be made in a second; it has no effect here.", at_least=0
    )
    max_connections_per_ip: int = setting(
        INT_MAX, "Most open connections from one address; it has no effect here.", at_least=0
    )
    num_io_threads: int = setting(8, "Number of threads that handle requests; it has no effect here.", at_least=1)
    num_network_threads: int = setting(
        3, "Number of threads that read and write sockets; it has no effect here.", at_least=1
    )
    num_recovery_threads_per_data_dir: int = setting(
        2, "Number of threads that recover logs at the start; it has no effect here.", at_least=1
    )
    num_replica_fetchers: int = setting(1, "Number of threads that fetch from each leader; it has no effect here.")
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        LONG_MAX,
        "Most bytes a second that go to the remote tier; it has no effect here.",
        kind=Kind.LONG,
        at_least=1,
    )
    remote_log_manager_expiration_thread_pool_size: int = setting(
        10, "Number of threads that delete from the remote tier; it has no effect here.", at_least=1
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        LONG_MAX,
        "Most bytes a second that are read from the remote tier; it has no effect here.",
        kind=Kind.LONG,
        at_least=1,
    )
    remote_log_reader_threads: int = setting(
        10, "Number of threads that read from the remote tier; it has no effect here.", at_least=1
    )
    sasl_kerberos_min_time_before_relogin: int = setting(
        60_000, "Pause of a login thread between refreshes, in ms; it has no effect here.", kind=Kind.LONG
    )


IDLE_KEYS = tuple(field.name.replace("_", ".") for field in fields(IdleSettings))
"""The names of all of them."""
