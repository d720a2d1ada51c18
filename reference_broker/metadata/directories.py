"""In which log directory a replica is, and whether that is online (KIP-858, Kafka's DirectoryId)."""

from collections.abc import Collection

from reference_broker.metadata.image import PartitionImage
from reference_broker.metadata.uuids import LOST_DIRECTORY, NO_DIRECTORY, UNASSIGNED_DIRECTORY


def directory_of(partition: PartitionImage, replica: int) -> bytes:
    """The directory ID of one replica, or NO_DIRECTORY if it was never told."""
    if replica not in partition.replicas or len(partition.directories) != len(partition.replicas):
        return NO_DIRECTORY
    return partition.directories[partition.replicas.index(replica)]


def is_online(directory: bytes, directories: Collection[bytes]) -> bool:
    """Whether a broker with these ``directories`` has that one. One that was never told counts as there, and so does
    each one if the broker's own were never told."""
    if directory in (NO_DIRECTORY, UNASSIGNED_DIRECTORY):
        return True
    return directory != LOST_DIRECTORY and (not directories or directory in directories)
