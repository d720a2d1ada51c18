"""The connections that one node keeps to another: requests of one channel are answered in their order."""

from enum import IntEnum


class Channel(IntEnum):
    """Long polls of one channel do not hold up the requests of another."""

    RAFT = 0
    """Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch of the metadata log, FetchSnapshot."""
    CONTROLLER = 1
    """What a broker says of itself to the active controller: registration, heartbeats."""
    REPLICA = 2
    """What a follower asks of the leaders of its partitions: Fetch, ListOffsets."""
    FORWARD = 3
    """What else a broker asks of the active controller, for itself (producer IDs, changes of in-sync replicas) or for
    its clients: answers may wait for long changes of the metadata, which hold up no heartbeat."""
    METADATA = 4
    """UpdateMetadata, from the active controller to each live broker: one that does not answer delays no other."""
