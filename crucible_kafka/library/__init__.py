"""A Kafka cluster inside of somebody's tests: ``from crucible_kafka import Cluster``."""

from crucible_kafka.library.cluster import Cluster, NodeHandle
from crucible_kafka.library.errors import CrucibleError, CrucibleTimeout, NodeDead, NotPossible, StartFailed
from crucible_kafka.library.observation import Frame, StoredRecord

__all__ = [
    "Cluster",
    "CrucibleError",
    "CrucibleTimeout",
    "Frame",
    "NodeDead",
    "NodeHandle",
    "NotPossible",
    "StartFailed",
    "StoredRecord",
]
