"""Apache Kafka's settings in measurements, and how its storage is formatted."""

import base64
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from bench.peers.java import run_java

HEAP = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""Kafka's own start script: kafka-server-start.sh and kafka-run-class.sh."""

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""The settings that differ from Kafka's defaults (8 I/O threads, 3 network threads, no forced flush)."""


FORMAT_LIMIT_S = 60.0


def new_cluster_id() -> str:
    """Makes a cluster ID that begins with a letter. Kafka's own tool takes a leading dash, which base64 may have, for
    an option."""
    return "c" + base64.urlsafe_b64encode(uuid4().bytes).decode()[1:22]


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def format_storage(cluster_id: str, properties: Path) -> None:
    """Raises PeerError."""
    words = ["format", "-t", cluster_id, "-c", str(properties)]
    run_java("kafka.tools.StorageTool", words, FORMAT_LIMIT_S, ["-XX:TieredStopAtLevel=1"])
