"""Apache Kafka's jars in measurements: those of the version that ``kafka.toml`` names (``bench.targets``)."""

import sys

from bench.peers.node import PeerError
from bench.targets.errors import TargetError
from bench.targets.loader import find
from bench.targets.providers import kafka

KAFKA_VERSION = find("kafka").version


def kafka_classpath() -> str:
    """Returns Java's class path for Kafka's server and tools. Raises PeerError."""
    try:
        return kafka.classpath(KAFKA_VERSION)
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong


def applications_classpath() -> str:
    """Returns Java's class path for Kafka Streams, Connect and MirrorMaker, without the server. Raises PeerError."""
    try:
        return kafka.applications(KAFKA_VERSION)
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong


def main() -> int:
    """Fetches the jars. Returns 2 and prints one sentence if that fails."""
    try:
        kafka_classpath()
        applications_classpath()
    except PeerError as error:
        sys.stderr.write(f"crucible: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
