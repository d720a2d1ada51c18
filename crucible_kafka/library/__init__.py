"""A Kafka cluster inside of somebody's tests: ``from crucible_kafka import Cluster``."""

from crucible_kafka.library.cluster import Cluster
from crucible_kafka.library.errors import (
    CrucibleError,
    CrucibleTimeout,
    DeliveryViolated,
    NodeDead,
    NotPossible,
    RuleNeverFired,
    StartFailed,
)
from crucible_kafka.library.judging import Sent, assert_delivered, values
from crucible_kafka.library.node_handle import NodeHandle
from crucible_kafka.library.observation import Frame, StoredRecord
from crucible_kafka.library.rules import Hit, Matcher, Rule
from crucible_kafka.library.shared_cluster import SharedCluster

__all__ = [
    "Cluster",
    "CrucibleError",
    "CrucibleTimeout",
    "DeliveryViolated",
    "Frame",
    "Hit",
    "Matcher",
    "NodeDead",
    "NodeHandle",
    "NotPossible",
    "Rule",
    "RuleNeverFired",
    "Sent",
    "SharedCluster",
    "StartFailed",
    "StoredRecord",
    "assert_delivered",
    "values",
]
