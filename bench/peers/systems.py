"""The two systems that are compared: the reference broker and Apache Kafka."""

from bench.peers import kafka_cluster, reference
from bench.peers.cluster import System

REFERENCE = System(reference.NAME, reference.reference_cluster)
KAFKA = System(kafka_cluster.NAME, kafka_cluster.kafka_cluster)


def systems(peer: str | None) -> list[System]:
    """Returns the reference broker, and after it the peer, if there is one. ``peer`` is None or ``kafka``."""
    return [REFERENCE, KAFKA] if peer else [REFERENCE]
