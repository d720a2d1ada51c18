"""The two systems that are compared: the reference broker and Apache Kafka."""

from bench.peers.cluster import System
from bench.peers.kafka import KAFKA_NAME, kafka_cluster
from bench.peers.reference import REFERENCE_NAME, reference_cluster

REFERENCE = System(REFERENCE_NAME, reference_cluster)
KAFKA = System(KAFKA_NAME, kafka_cluster)


def systems(peer: str | None) -> list[System]:
    """Returns the reference broker, and after it the peer, if there is one. ``peer`` is None or ``kafka``."""
    return [REFERENCE, KAFKA] if peer else [REFERENCE]
