"""A Kafka cluster inside tests: ``from crucible_kafka import Cluster``.

Each name loads with its first use: the process of a node imports modules of this package, and needs none of the names.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_HOME = {
    "Cluster": "cluster",
    "CrucibleError": "errors",
    "CrucibleTimeout": "errors",
    "DeliveryViolated": "errors",
    "Frame": "observation",
    "Hit": "rules",
    "Matcher": "rules",
    "NodeDead": "errors",
    "NodeHandle": "node_handle",
    "NotPossible": "errors",
    "Rule": "rules",
    "RuleNeverFired": "errors",
    "Sent": "judging",
    "SharedCluster": "shared_cluster",
    "StartFailed": "errors",
    "StoredRecord": "observation",
    "assert_delivered": "judging",
    "values": "judging",
}
"""The module of each name."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
