"""The cluster's features and what a level allows (KIP-584).

metadata.version is Kafka's (MetadataVersion, KIP-778); crucible.metadata.epoch switches the metadata epoch on (M-14).
"""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.image import MetadataImage, includes
from reference_broker.metadata.records import MetadataFault
from reference_broker.wire.apis import DRAFTS

METADATA_VERSION_FEATURE = "metadata.version"
LOWEST_METADATA_VERSION = 7
"""3.3-IV3, as in Kafka 4, whose tools know no lower one."""
METADATA_VERSION = 27
"""4.1-IV1, the highest known version. A new cluster gets it unless another one is configured. The records are those of
25 (4.0-IV3): 26 and 27 change defaults and the version of followers' fetches only."""
TRANSACTIONS_FROM = 13
"""3.6-IV1. From this version on, transaction marker records may be written (KIP-868)."""

ELR_FEATURE = "eligible.leader.replicas.version"
ELR_LEVEL = 1
"""The highest known level. At level 1 the controller keeps eligible leader replicas (KIP-966)."""
ELR_FROM = 23
"""4.0-IV1. From this version on, the records have the fields of KIP-966."""

DIRECTORIES_FROM = 17
"""3.7-IV2. From this version on, partitions say in which log directory each replica is (KIP-858)."""

TRANSACTION_FEATURE = "transaction.version"
"""At level 1 the coordinator writes the flexible version of its records. At level 2 clients add partitions by writing
to them, and each end of a transaction raises the producer's epoch (KIP-890)."""
TRANSACTION_LEVEL = 2
"""The highest known level."""
TRANSACTION_LEVEL_FROM = 24
"""4.0-IV2. A new cluster of this version or a newer one begins with the configured level of transaction.version."""

METADATA_EPOCH_FEATURE = "crucible.metadata.epoch"
METADATA_EPOCH_LEVEL = 1
"""The highest known level. At level 0 a broker serves clients from its own image of the metadata log. At level 1 it
serves them with what the active controller sent it with UpdateMetadata, and committed offsets are stored with the epoch
(KIP-232)."""

GROUP_FEATURE = "group.version"
GROUP_LEVEL = 1
"""The highest known level. It is stored and announced and changes nothing: a node does not serve KIP-848's groups, and
says so in ApiVersions, like Kafka where ``group.coordinator.rebalance.protocols`` lacks ``consumer``."""

KRAFT_FEATURE = "kraft.version"
KRAFT_LEVEL = 1
"""The highest known level. It is stored and announced and changes nothing: the set of voters is fixed, and a node does
not serve AddRaftVoter and RemoveRaftVoter (KIP-853)."""

OFF_FEATURES = frozenset({"share.version", "streams.version"})
"""Features of Kafka that only have level 0 here and are not announced. ``kafka-features downgrade --release-version``
sets them to it."""

DRAFT_FEATURES = frozenset(DRAFTS.values())
DRAFT_LEVEL = 1
"""The one level of a draft's feature. ApiVersions announces it as finalized; no record has it."""


def supported_features(config: BrokerConfig) -> tuple[tuple[str, int, int], ...]:
    """The (name, lowest level, highest level) of each feature that a node supports."""
    features = [
        (METADATA_VERSION_FEATURE, LOWEST_METADATA_VERSION, METADATA_VERSION),
        (ELR_FEATURE, 0, ELR_LEVEL),
        (GROUP_FEATURE, 0, GROUP_LEVEL),
        (KRAFT_FEATURE, 0, KRAFT_LEVEL),
        (TRANSACTION_FEATURE, 0, TRANSACTION_LEVEL),
    ]
    if config.crucible_metadata_epoch_enable:
        features.append((METADATA_EPOCH_FEATURE, 0, METADATA_EPOCH_LEVEL))
    return tuple(features)


def check_levels(image: MetadataImage, config: BrokerConfig) -> None:
    """Raise MetadataFault if this node does not know a finalized level."""
    for name, level in image.features.items():
        if not includes(supported_features(config), name, level):
            raise MetadataFault(
                f"This node does not know level {level} of {name}, which is finalized: it cannot be the active "
                "controller. Start it with the code and the configuration of the other nodes."
            )


def sends_metadata_epoch(image: MetadataImage) -> bool:
    """Return whether level 1 of the metadata epoch feature is finalized."""
    return image.features.get(METADATA_EPOCH_FEATURE, 0) >= METADATA_EPOCH_LEVEL


def keeps_eligible_leaders(image: MetadataImage) -> bool:
    """Return whether level 1 of eligible leader replicas is finalized."""
    return image.features.get(ELR_FEATURE, 0) >= ELR_LEVEL


def transaction_version(image: MetadataImage) -> int:
    """The finalized level of transaction.version, 0 if there is none."""
    return image.features.get(TRANSACTION_FEATURE, 0)


def knows_directories(image: MetadataImage) -> bool:
    """Return whether partitions say in which log directory each replica is (KIP-858)."""
    return metadata_version(image) >= DIRECTORIES_FROM


def metadata_version(image: MetadataImage) -> int:
    """The finalized level of metadata.version, or 0 before the first bootstrap record."""
    return image.features.get(METADATA_VERSION_FEATURE, 0)


def allows_transactions(version: int) -> bool:
    return version >= TRANSACTIONS_FROM
