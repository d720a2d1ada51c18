"""Crucible: the command line, and a Kafka cluster for the tests of other projects (``Cluster``).

``import crucible_kafka`` costs nothing: the library loads with the first of its names, so that the command line stays
fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crucible_kafka.library import Cluster as Cluster
    from crucible_kafka.library import CrucibleError as CrucibleError
    from crucible_kafka.library import CrucibleTimeout as CrucibleTimeout
    from crucible_kafka.library import DeliveryViolated as DeliveryViolated
    from crucible_kafka.library import Frame as Frame
    from crucible_kafka.library import Hit as Hit
    from crucible_kafka.library import Matcher as Matcher
    from crucible_kafka.library import NodeDead as NodeDead
    from crucible_kafka.library import NodeHandle as NodeHandle
    from crucible_kafka.library import NotPossible as NotPossible
    from crucible_kafka.library import Rule as Rule
    from crucible_kafka.library import RuleNeverFired as RuleNeverFired
    from crucible_kafka.library import Sent as Sent
    from crucible_kafka.library import SharedCluster as SharedCluster
    from crucible_kafka.library import StartFailed as StartFailed
    from crucible_kafka.library import StoredRecord as StoredRecord
    from crucible_kafka.library import assert_delivered as assert_delivered
    from crucible_kafka.library import values as values

_LIBRARY = "crucible_kafka.library"
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LIBRARY), name)
