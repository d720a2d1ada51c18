"""Apache Kafka's jars, fetched once by Maven into the clone's ``.cache`` folder."""

import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.errors import PeerError

VERSION = "4.1.1"
CACHE = Path(__file__).resolve().parents[2] / ".cache"

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>crucible</groupId><artifactId>peer-kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""


def kafka_classpath(cache: Path = CACHE) -> str:
    """Returns Java's class path for Kafka's server and tools. The first call fetches about 54 MB.

    Raises PeerError when Maven or Java is missing or the jars cannot be had.
    """
    if shutil.which("java") is None:
        raise PeerError("Apache Kafka needs Java 17 or newer: install it (Debian: openjdk-17-jre-headless).")
    folder = cache / f"kafka-{VERSION}"
    if not (folder / "complete").exists():
        _fetch(folder)
    return str(folder / "libs" / "*")


def _fetch(folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise PeerError("Apache Kafka's jars come through Maven: install it (Debian: apt-get install maven).")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM.format(version=VERSION))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise PeerError(f"Maven could not fetch Apache Kafka {VERSION}: {' '.join(last)}")
    (folder / "complete").touch()


def main() -> int:
    """Fetches the jars. Returns 2 and prints one sentence if that fails."""
    try:
        kafka_classpath()
    except PeerError as error:
        sys.stderr.write(f"crucible: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
