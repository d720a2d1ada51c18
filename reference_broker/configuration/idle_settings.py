"""Kafka's settings of brokers that have no effect here, and which the files and tools of operators name.

They are taken at the start and while the broker runs, and described with Kafka's types and defaults. The log has a line
for each that is set (``WITHOUT_EFFECT``).
"""

from dataclasses import dataclass, fields

from reference_broker.configuration.setting import INT_MAX, LONG_MAX, Kind, setting


@dataclass(frozen=True)
class IdleSettings:
    """A part of ``BrokerConfig``. Nothing reads these fields but DescribeConfigs."""

    background_threads: int = setting(10, "So many threads do background work; it has no effect here.", at_least=1)
    follower_replication_throttled_rate: int = setting(
        LONG_MAX, "A follower's throttled replicas fetch so many bytes a second; it has no effect here.", kind=Kind.LONG
    )
    leader_replication_throttled_rate: int = setting(
        LONG_MAX,
        "A leader's throttled replicas get so many bytes a second; it has no effect here.",
        kind=Kind.LONG,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9, "The cleaner's map of keys is full at this share of its size; it has no effect here."
    )
    log_cleaner_io_buffer_size: int = setting(
        524_288, "The cleaner reads and writes through buffers of so many bytes; it has no effect here.", at_least=0
    )
    log_cleaner_threads: int = setting(1, "So many threads compact; it has no effect here.", at_least=1)
    max_connection_creation_rate: int = setting(
        INT_MAX, "So many connections may be made in a second; it has no effect here.", at_least=0
    )
    max_connections_per_ip: int = setting(
        INT_MAX, "So many connections may be open from one address; it has no effect here.", at_least=0
    )
    num_io_threads: int = setting(8, "So many threads handle requests; it has no effect here.", at_least=1)
    num_network_threads: int = setting(3, "So many threads read and write sockets; it has no effect here.", at_least=1)
    num_recovery_threads_per_data_dir: int = setting(
        2, "So many threads recover logs at the start; it has no effect here.", at_least=1
    )
    num_replica_fetchers: int = setting(1, "So many threads fetch from each leader; it has no effect here.")
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        LONG_MAX,
        "At most so many bytes a second go to the remote tier; it has no effect here.",
        kind=Kind.LONG,
        at_least=1,
    )
    remote_log_manager_expiration_thread_pool_size: int = setting(
        10, "So many threads delete from the remote tier; it has no effect here.", at_least=1
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        LONG_MAX,
        "At most so many bytes a second are read from the remote tier; it has no effect here.",
        kind=Kind.LONG,
        at_least=1,
    )
    remote_log_reader_threads: int = setting(
        10, "So many threads read from the remote tier; it has no effect here.", at_least=1
    )
    sasl_kerberos_min_time_before_relogin: int = setting(
        60_000, "A login thread sleeps so many ms between refreshes; it has no effect here.", kind=Kind.LONG
    )


IDLE_KEYS = tuple(field.name.replace("_", ".") for field in fields(IdleSettings))
"""The names of all of them."""
