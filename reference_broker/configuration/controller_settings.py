"""The settings of the controller quorum and its log."""

from dataclasses import dataclass

from reference_broker.configuration.setting import Kind, setting

MIN_METADATA_SEGMENT_BYTES = 1024
"""Kafka's minimum is 8 MiB, the size of its largest batch. Our batches are small, and a batch that is larger makes its
segment larger."""


@dataclass(frozen=True)
class ControllerSettings:
    """A part of ``BrokerConfig``."""

    controller_quorum_election_backoff_max_ms: int = setting(
        1000, "After an election without a winner the next one begins within so many ms.", at_least=1
    )
    controller_quorum_election_timeout_ms: int = setting(1000, "An election is given up after so many ms.", at_least=1)
    controller_quorum_fetch_timeout_ms: int = setting(
        2000, "A new leader is sought once the old one, or a majority of voters, was silent for so many ms.", at_least=1
    )
    controller_quorum_request_timeout_ms: int = setting(
        2000, "A request to a voter is given up after so many ms.", at_least=1
    )
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
        "A batch of metadata records has at most so many bytes; a larger set is written as a transaction.",
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
        1_048_576, "A request for a piece of a snapshot asks for so many bytes.", at_least=1
    )
    crucible_metadata_snapshot_keep_ms: int = setting(
        60_000, "A superseded snapshot is kept for so many ms.", kind=Kind.LONG, at_least=0
    )
    metadata_log_max_record_bytes_between_snapshots: int = setting(
        20_971_520, "A snapshot of the metadata is made after so many bytes of records.", kind=Kind.LONG, at_least=1
    )
    metadata_log_max_snapshot_interval_ms: int = setting(
        3_600_000,
        "A snapshot of the metadata is made after so many ms; 0: time does not count.",
        kind=Kind.LONG,
        at_least=0,
    )
    metadata_log_segment_bytes: int = setting(
        2**30, "A segment of the metadata log is closed once it has so many bytes.", at_least=MIN_METADATA_SEGMENT_BYTES
    )
    metadata_log_segment_ms: int = setting(
        604_800_000, "A segment of the metadata log is closed once it is so many ms old.", kind=Kind.LONG, at_least=1
    )
    metadata_max_retention_bytes: int = setting(
        104_857_600,
        "Old segments and snapshots of the metadata go once all have more bytes than this; -1 is no limit.",
        kind=Kind.LONG,
        at_least=-1,
    )
    metadata_max_retention_ms: int = setting(
        604_800_000,
        "A snapshot of the metadata goes once it is so many ms old; -1 is no limit.",
        kind=Kind.LONG,
        at_least=-1,
    )
