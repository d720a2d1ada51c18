"""Apache Kafka's jars, fetched once by Maven into the clone's ``.cache`` folder."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.targets.errors import TargetError

CACHE = Path(__file__).resolve().parents[3] / ".cache"
WORDS = ("classpath",)
FETCH_LIMIT_S = 900.0

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>crucible</groupId><artifactId>peer-kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
  </dependencies>
</project>
"""


def provide(version: str) -> Mapping[str, str]:
    """Raises TargetError."""
    return {"classpath": classpath(version)}


def classpath(version: str) -> str:
    """Returns Java's class path for Kafka's server and tools. The first call for a version fetches about 54 MB.

    Raises TargetError when Maven or Java is missing or the jars cannot be had.
    """
    if shutil.which("java") is None:
        raise TargetError("Apache Kafka needs Java 17 or newer: install it (Debian: openjdk-17-jre-headless).")
    folder = CACHE / f"kafka-{version}"
    if not (folder / "complete").exists():
        _fetch(folder, version)
    return str(folder / "libs" / "*")


def _fetch(folder: Path, version: str) -> None:
    if shutil.which("mvn") is None:
        raise TargetError("Apache Kafka's jars come through Maven: install it (Debian: apt-get install maven).")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM.format(version=version))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as expired:
        raise TargetError(f"Maven did not fetch Apache Kafka {version} within {FETCH_LIMIT_S:g} s.") from expired
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise TargetError(f"Maven could not fetch Apache Kafka {version}: {_why(done.stdout + done.stderr)}")
    (folder / "complete").touch()


def _why(said: str) -> str:
    """Returns the line of Maven's output that says what is missing, or else its first line."""
    lines = [line.removeprefix("[ERROR]").strip() for line in said.splitlines() if line.strip()]
    missing = [line for line in lines if "Could not" in line or "not found" in line]
    return (missing or lines or ["it said nothing"])[0]
