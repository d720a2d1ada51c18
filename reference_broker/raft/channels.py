"""The connections that one node keeps to another: requests of one channel are answered in their order."""

from enum import IntEnum


class Channel(IntEnum):
    """Long polls of one channel do not hold up the requests of another."""

    RAFT = 0
    """Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch of the metadata log, FetchSnapshot."""
    CONTROLLER = 1
    """What a broker asks of the active controller: registration, heartbeats, producer IDs, topics for its clients."""
