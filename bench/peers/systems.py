"""The two makers of brokers that are laid side by side."""

from bench.peers import kafka_cluster, reference
from bench.peers.cluster import System

REFERENCE = System(reference.NAME, reference.reference_cluster)
KAFKA = System(kafka_cluster.NAME, kafka_cluster.kafka_cluster)


def systems(peer: str | None) -> list[System]:
    """The reference first. ``peer``: None or ``kafka``."""
    return [REFERENCE, KAFKA] if peer else [REFERENCE]
