"""The channels between two nodes. The requests of one channel are answered in their order."""

from enum import IntEnum


class Channel(IntEnum):
    """One purpose for which a node asks another node. Each channel is a connection of its own, so the long polls of one
    channel do not delay the requests of another."""

    RAFT = 0
    """Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch of the metadata log, FetchSnapshot."""
    CONTROLLER = 1
    """A broker's registration and heartbeats, sent to the active controller."""
    REPLICA = 2
    """A follower's requests to the leaders of its partitions: Fetch, ListOffsets."""
    FORWARD = 3
    """A broker's other requests to the active controller, for itself (producer IDs, changes of in-sync replicas) or for
    its clients. Their answers may wait for long changes of the metadata, and must not delay heartbeats."""
    METADATA = 4
    """UpdateMetadata, from the active controller to each live broker. A broker that does not answer delays no other."""
    MARKERS = 5
    """WriteTxnMarkers, from a transaction coordinator to the leaders of partitions. They wait for replication."""
    VERIFICATION = 6
    """AddPartitionsToTxn, from the leaders of partitions to transaction coordinators. Producers wait for it."""
    REMOTE_LOG_READ = 7
    """Fetch and ListOffsets of ``__remote_log_metadata``. The fetches wait there for news."""
    REMOTE_LOG_WRITE = 8
    """Produce to ``__remote_log_metadata``. It waits for replication."""
