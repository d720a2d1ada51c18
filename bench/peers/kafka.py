"""Apache Kafka's settings in measurements, and how its storage is formatted."""

import base64
import subprocess
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from bench.peers.errors import PeerError

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
"""Everything else is Kafka's default (8 I/O threads, 3 network threads, no forced flush)."""


def new_cluster_id() -> str:
    """With a leading letter: base64 may begin with a dash, which Kafka's own tool takes for an option."""
    return "c" + base64.urlsafe_b64encode(uuid4().bytes).decode()[1:22]


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def format_storage(classpath: str, cluster_id: str, properties: Path) -> None:
    """Raises PeerError."""
    words = ["format", "-t", cluster_id, "-c", str(properties)]
    formatted = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", classpath, "kafka.tools.StorageTool", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if formatted.returncode != 0:
        raise PeerError(f"Apache Kafka could not format its storage: {formatted.stderr.strip().splitlines()[-1:]}")
