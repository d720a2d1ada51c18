"""The settings of replicas, groups, transactions and producers."""

from dataclasses import dataclass

from reference_broker.configuration.setting import INT_MAX, Kind, setting

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The only selector that Kafka brings (``apis.records.fetch_partition``). Others would be Java classes."""


@dataclass(frozen=True)
class CoordinationSettings:
    """A part of ``BrokerConfig``."""

    group_initial_rebalance_delay_ms: int = setting(
        3000, "The first rebalance of an empty group waits so many ms for more members.", at_least=0
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, "A member may ask for a session timeout of at most so many ms.", at_least=1
    )
    group_max_size: int = setting(INT_MAX, "A group has at most so many members.", at_least=1)
    group_min_session_timeout_ms: int = setting(
        6000, "A member may ask for a session timeout of at least so many ms.", at_least=1
    )
    offsets_commit_timeout_ms: int = setting(5000, "A commit of offsets waits so many ms to be replicated.", at_least=1)
    offsets_retention_check_interval_ms: int = setting(
        600_000, "Committed offsets that are too old are looked for every so many ms.", kind=Kind.LONG, at_least=1
    )
    offsets_retention_minutes: int = setting(
        10_080, "Committed offsets of an empty group are kept for so many minutes.", at_least=1
    )
    offsets_topic_num_partitions: int = setting(
        50, "The topic __consumer_offsets has so many partitions.", at_least=1, at_most=10_000
    )
    offsets_topic_replication_factor: int = setting(
        3, "The topic __consumer_offsets has so many replicas, at most one on each registered broker.", at_least=1
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "A segment of __consumer_offsets is closed once it has so many bytes.", at_least=1
    )
    producer_id_expiration_check_interval_ms: int = setting(
        600_000, "Idle producers are looked for every so many ms.", at_least=1
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "A producer ID is forgotten once it was idle for so many ms.", at_least=1
    )
    replica_fetch_backoff_ms: int = setting(
        1000, "A follower waits so many ms after a fetch from a leader, or of a partition, failed.", at_least=0
    )
    replica_fetch_max_bytes: int = setting(1_048_576, "A follower asks for so many bytes of one partition.", at_least=0)
    replica_fetch_min_bytes: int = setting(1, "A follower's fetch waits for so many bytes.", at_least=0)
    replica_fetch_response_max_bytes: int = setting(
        10_485_760, "A follower's fetch asks for so many bytes in all, and is answered with no more.", at_least=0
    )
    replica_fetch_wait_max_ms: int = setting(500, "A follower's fetch waits for data for so many ms.", at_least=0)
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5000, "High watermarks are written to the disk every so many ms.", kind=Kind.LONG, at_least=1
    )
    replica_lag_time_max_ms: int = setting(
        30_000, "A replica is out of sync once it was behind the leader for so many ms.", kind=Kind.LONG, at_least=1
    )
    replica_selector_class: str = setting(
        "",
        "A consumer that names its rack is sent to a follower there; empty: consumers read from leaders.",
        choices=("", RACK_AWARE),
    )
    replica_socket_timeout_ms: int = setting(30_000, "A follower gives up a request after so many ms.", at_least=1)
    request_timeout_ms: int = setting(
        30_000,
        "A request to a node about transactions or remote log metadata fails after this time, in ms, and so does a "
        "marker or a record of the transaction log that is not replicated.",
        at_least=1,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, "Transactions that are open for too long are looked for every so many ms.", at_least=1
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "A producer may ask for transactions of at most so many ms.", at_least=1
    )
    transaction_partition_verification_enable: bool = setting(
        True, "A transaction's first records in a partition are taken once its coordinator knows the partition."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "Transactional IDs that are idle for too long are looked for every so many ms.", at_least=1
    )
    transaction_state_log_min_isr: int = setting(
        2, "The topic __transaction_state has this min.insync.replicas, at most as many as replicas.", at_least=1
    )
    transaction_state_log_num_partitions: int = setting(
        50, "The topic __transaction_state has so many partitions.", at_least=1, at_most=10_000
    )
    transaction_state_log_replication_factor: int = setting(
        3,
        "The topic __transaction_state has so many replicas, at most one on each registered broker.",
        kind=Kind.SHORT,
        at_least=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600, "A segment of __transaction_state is closed once it has so many bytes.", at_least=1
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000, "A transactional ID is forgotten once it was idle for so many ms.", at_least=1
    )
