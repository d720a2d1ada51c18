"""Apache Kafka in measurements: its jars, programs in a Java process of their own, and combined nodes in KRaft mode.

The jars are those of the version that ``kafka.toml`` names (``bench.targets``). ``python -m bench.peers.kafka`` fetches
them.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.peers.cluster import PeerCluster, target_cluster
from bench.peers.node import PeerError
from bench.targets.loader import find
from bench.targets.model import TargetError
from bench.targets.providers import kafka

KAFKA_VERSION = find("kafka").version


def kafka_classpath() -> str:
    """Return Java's class path for Kafka's server and tools. Raise PeerError."""
    try:
        return kafka.classpath(KAFKA_VERSION)
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong


def applications_classpath() -> str:
    """Return Java's class path for Kafka Streams, Connect and MirrorMaker, without the server. Raise PeerError."""
    try:
        return kafka.applications(KAFKA_VERSION)
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong


class ToolError(PeerError):
    """A Java program failed or hung. The message is what it printed."""


def java_command(
    main_class: str, words: Sequence[str], options: Sequence[str] = (), classpath: str | None = None
) -> list[str]:
    """Return the command that starts ``main_class`` with ``words``. ``options`` are those of the virtual machine. The
    default ``classpath`` is that of Kafka's server and tools.

    Raise PeerError when Java or the jars cannot be had.
    """
    return ["java", *options, "-XX:-UsePerfData", "-cp", classpath or kafka_classpath(), main_class, *words]


def run_java(
    main_class: str, words: Sequence[str], limit_s: float, options: Sequence[str] = (), stdin: str = ""
) -> tuple[str, str]:
    """Run the program to its end and return its standard output and standard error.

    Raise ToolError when it fails or does not end within ``limit_s``, and PeerError as ``java_command`` does.
    """
    command = java_command(main_class, words, options)
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as expired:
        raise ToolError(f"{main_class} did not end within {limit_s:g} s") from expired
    errors = _without_logging(done.stderr)
    if done.returncode != 0:
        raise ToolError(f"{main_class} failed: {done.stdout}{errors}".strip())
    return done.stdout, errors


def _without_logging(text: str) -> str:
    """Remove what SLF4J says at each start, because Kafka's jars come without a logging back end."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("SLF4J"))


HEAP = "-Xms1g -Xmx1g -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
"""Kafka's own start script: kafka-server-start.sh and kafka-run-class.sh."""

SETTINGS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""All else stays at Kafka's defaults (8 I/O threads, 3 network threads, no forced flush)."""


KAFKA_NAME = "Apache Kafka"


@contextmanager
def kafka_cluster(
    folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = ()
) -> Iterator[PeerCluster]:
    """Make new nodes below ``folder``, which are formatted and not launched. Raise PeerError when that fails."""
    chosen = replace(find("kafka"), nodes=nodes)
    with target_cluster(chosen, folder, {**SETTINGS, **config}, {"vm": HEAP}, advertised) as cluster:
        yield cluster


def main() -> int:
    """Fetch the jars. Return 2 and print one sentence if that fails."""
    try:
        kafka_classpath()
        applications_classpath()
    except PeerError as error:
        sys.stderr.write(f"crucible: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
