"""The settings of the remote tier."""

from dataclasses import dataclass

from reference_broker.configuration.setting import Kind, setting


@dataclass(frozen=True)
class TierSettings:
    """A part of ``BrokerConfig``."""

    crucible_remote_store_endpoint: str = setting(
        "", "S3 is reached at this http:// or https:// address; empty: Amazon's, or that of the environment."
    )
    crucible_remote_store_timeout_ms: int = setting(
        30_000, "A call of the object store that shows no sign of life for so many ms has failed.", at_least=100
    )
    crucible_remote_store_url: str = setting(
        "", "Remote segments are in this object store, s3://BUCKET/PREFIX or a folder; empty: a folder beside the data."
    )
    remote_fetch_max_wait_ms: int = setting(
        500, "A fetch waits so many ms for records from the remote tier.", at_least=1
    )
    remote_list_offsets_request_timeout_ms: int = setting(
        30_000, "A ListOffsets request waits so many ms for the remote tier.", kind=Kind.LONG, at_least=1
    )
    remote_log_index_file_cache_total_size_bytes: int = setting(
        2**30, "Indexes of remote segments are kept in so many bytes.", kind=Kind.LONG, at_least=1
    )
    remote_log_manager_copier_thread_pool_size: int = setting(
        10, "So many segments are copied to the remote tier at a time.", at_least=1
    )
    remote_log_manager_task_interval_ms: int = setting(
        30_000, "The node looks every so many ms for segments to copy or to delete.", kind=Kind.LONG, at_least=1
    )
    remote_log_manager_task_retry_backoff_max_ms: int = setting(
        30_000, "After failures the remote tier is tried again after so many ms at most.", kind=Kind.LONG, at_least=1
    )
    remote_log_manager_task_retry_backoff_ms: int = setting(
        500, "After a failure the remote tier is tried again after so many ms.", kind=Kind.LONG, at_least=1
    )
    remote_log_storage_system_enable: bool = setting(
        False, "The node has a remote tier, to which topics with remote.storage.enable are copied."
    )
    rlmm_config_remote_log_metadata_consume_wait_ms: int = setting(
        120_000,
        "What is told of a remote segment must be known everywhere after so many ms.",
        kind=Kind.LONG,
        at_least=0,
    )
    rlmm_config_remote_log_metadata_topic_num_partitions: int = setting(
        50, "The topic __remote_log_metadata has so many partitions.", at_least=1, at_most=10_000
    )
    rlmm_config_remote_log_metadata_topic_replication_factor: int = setting(
        3,
        "The topic __remote_log_metadata has so many replicas, at most one on each registered broker.",
        kind=Kind.SHORT,
        at_least=1,
    )
    rlmm_config_remote_log_metadata_topic_retention_ms: int = setting(
        -1, "Records of __remote_log_metadata go once they are so many ms old; -1: never.", kind=Kind.LONG, at_least=-1
    )
