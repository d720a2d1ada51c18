"""metadata.version: which levels this broker knows, and what a level allows (Kafka's MetadataVersion, KIP-778)."""

from reference_broker.model.metadata_image import MetadataImage

METADATA_VERSION_FEATURE = "metadata.version"
LOWEST_METADATA_VERSION = 1
"""3.0-IV1. Kafka 4 itself begins at 3.3-IV3; nothing here depends on what lies between."""
METADATA_VERSION = 25
"""The highest known, 4.0-IV3; that of a new cluster unless configured."""
TRANSACTIONS_FROM = 13
"""3.6-IV1: marker records may be written from here on (KIP-868)."""


def metadata_version(image: MetadataImage) -> int:
    """The finalized level; 0 before the first bootstrap record."""
    return image.features.get(METADATA_VERSION_FEATURE, 0)


def allows_transactions(version: int) -> bool:
    return version >= TRANSACTIONS_FROM
