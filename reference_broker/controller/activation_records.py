"""The first records of a new active controller (Kafka's ActivationRecordsGenerator). They precede all changes.

It writes an Abort if its predecessor left a transaction open, and the first records of an empty log.
"""

from dataclasses import dataclass

from reference_broker.metadata.broker_settings import cluster_min_isr_record
from reference_broker.metadata.features import (
    ELR_FEATURE,
    ELR_FROM,
    ELR_LEVEL,
    METADATA_EPOCH_FEATURE,
    METADATA_VERSION_FEATURE,
    TRANSACTION_FEATURE,
    TRANSACTION_LEVEL_FROM,
    allows_transactions,
    metadata_version,
)
from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.records import FeatureLevelRecord, MetadataFault, MetadataRecord


@dataclass(frozen=True, slots=True)
class ActivationRecords:
    """The first records of a controller term."""

    abort: str | None
    """The reason in the Abort record, or None if no transaction is open at the end of the log."""
    bootstrap: tuple[MetadataRecord, ...]
    """The first records of an empty log."""
    as_transaction: bool
    """Whether ``bootstrap`` is written as a transaction."""


def activation_records(
    image: MetadataImage,
    in_transaction: bool,
    bootstrap_version: int,
    bootstrap_epoch_level: int = 0,
    bootstrap_min_isr: int = 0,
    bootstrap_transaction_level: int = 0,
) -> ActivationRecords:
    """Return what a new controller writes first. ``image`` is the metadata at the end of the log, without the open
    transaction.

    The bootstrap values are for a new cluster: the levels of metadata.version, crucible.metadata.epoch and
    transaction.version (if its metadata.version has that), and min.insync.replicas. Unless that is 0, a new cluster
    keeps eligible leader replicas if its metadata.version has them.

    Raise MetadataFault if a transaction is open although the metadata.version allows none. Then another controller
    of the quorum is configured differently.
    """
    is_empty = metadata_version(image) == 0
    version = bootstrap_version if is_empty else metadata_version(image)
    if in_transaction and not allows_transactions(version):
        raise MetadataFault(
            f"The metadata log ends in a transaction, which metadata.version {version} does not allow: give all "
            "controllers the same crucible.bootstrap.metadata.version."
        )
    reason = "Bootstrap was not finished" if is_empty else "Controller failover"
    bootstrap: tuple[MetadataRecord, ...] = ()
    if is_empty:  # Decision metadata-log-empty
        bootstrap = (FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=version),)
        if bootstrap_epoch_level:
            bootstrap += (FeatureLevelRecord(name=METADATA_EPOCH_FEATURE, feature_level=bootstrap_epoch_level),)
        if bootstrap_min_isr and version >= ELR_FROM:
            bootstrap += (FeatureLevelRecord(name=ELR_FEATURE, feature_level=ELR_LEVEL),)
            bootstrap += (cluster_min_isr_record(bootstrap_min_isr),)
        if bootstrap_transaction_level and version >= TRANSACTION_LEVEL_FROM:
            bootstrap += (FeatureLevelRecord(name=TRANSACTION_FEATURE, feature_level=bootstrap_transaction_level),)
    return ActivationRecords(reason if in_transaction else None, bootstrap, is_empty and allows_transactions(version))
