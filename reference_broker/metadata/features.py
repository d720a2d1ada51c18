"""The cluster's features: which levels this broker knows, and what a level allows (KIP-584).

metadata.version is Kafka's (MetadataVersion, KIP-778); crucible.metadata.epoch switches the metadata epoch on (M-14).
"""

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.delta import MetadataFault
from reference_broker.metadata.image import MetadataImage

METADATA_VERSION_FEATURE = "metadata.version"
LOWEST_METADATA_VERSION = 1
"""3.0-IV1. Kafka 4 itself begins at 3.3-IV3; nothing here depends on what lies between."""
METADATA_VERSION = 25
"""The highest known, 4.0-IV3; that of a new cluster unless configured."""
TRANSACTIONS_FROM = 13
"""3.6-IV1: marker records may be written from here on (KIP-868)."""

METADATA_EPOCH_FEATURE = "crucible.metadata.epoch"
METADATA_EPOCH_LEVEL = 1
"""The highest known. At level 0 brokers tell clients what their own image of the metadata log says; at 1 what the
active controller sent them with UpdateMetadata, and committed offsets are stored with the epoch (KIP-232)."""


def supported_features(config: BrokerConfig) -> tuple[tuple[str, int, int], ...]:
    """(name, lowest level, highest level) of a node."""
    features = [(METADATA_VERSION_FEATURE, LOWEST_METADATA_VERSION, METADATA_VERSION)]
    if config.crucible_metadata_epoch_enable:
        features.append((METADATA_EPOCH_FEATURE, 0, METADATA_EPOCH_LEVEL))
    return tuple(features)


def check_levels(image: MetadataImage, config: BrokerConfig) -> None:
    """Raises MetadataFault where a finalized level is one that this node does not know."""
    known = {name: (low, high) for name, low, high in supported_features(config)}
    for name, level in image.features.items():
        low, high = known.get(name, (0, 0))
        if not low <= level <= high:
            raise MetadataFault(
                f"This node does not know level {level} of {name}, which is finalized: it cannot be the active "
                "controller. Start it with the code and the configuration of the other nodes."
            )


def sends_metadata_epoch(image: MetadataImage) -> bool:
    """Whether level 1 is finalized."""
    return image.features.get(METADATA_EPOCH_FEATURE, 0) >= METADATA_EPOCH_LEVEL


def metadata_version(image: MetadataImage) -> int:
    """The finalized level; 0 before the first bootstrap record."""
    return image.features.get(METADATA_VERSION_FEATURE, 0)


def allows_transactions(version: int) -> bool:
    return version >= TRANSACTIONS_FROM
