"""Apache Kafka's jars, fetched once by Maven into the clone's ``.cache`` folder."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.targets.model import TargetError

CACHE = Path(__file__).resolve().parents[3] / ".cache"
WORDS = ("classpath",)
FETCH_LIMIT_S = 900.0
_MISSING = re.compile(
    r"Could not find artifact \S+ in \w+|[\w.:-]+ was not found in \S+|Could not transfer artifact \S+"
)

KAFKA = (("org.apache.kafka", "kafka_2.13"), ("org.apache.kafka", "kafka-tools"))
LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl")
"""Kafka's jars come without what writes its log. With this one errors go to stdout."""
TIERED_STORAGE = ("org.apache.kafka", "kafka-storage")
"""Its test jar has LocalTieredStorage, the remote tier of Kafka's own tests: a folder."""
STREAMS = ("org.apache.kafka", "kafka-streams")
"""Its test jar has the programs of Kafka's system tests of Streams."""
APPLICATIONS = (STREAMS, ("org.apache.kafka", "connect-mirror"), ("org.apache.kafka", "connect-file"))

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>crucible</groupId><artifactId>peer-kafka</artifactId><version>1</version>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>{kind}
    </dependency>"""
_TESTS_ALONE = """
      <classifier>test</classifier>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"""
"""The jar of an artifact's tests, without what it needs."""


def provide(version: str) -> Mapping[str, str]:
    """Raise TargetError."""
    return {"classpath": f"{classpath(version)}:{_logging(version)}:{tiered_storage(version)}"}


def classpath(version: str) -> str:
    """Return Java's class path for Kafka's server and tools. The first call for a version fetches about 54 MB.

    Raise TargetError when Maven or Java is missing or the jars cannot be had.
    """
    if shutil.which("java") is None:
        raise TargetError("Apache Kafka needs Java 17 or newer: install it (Debian: openjdk-17-jre-headless).")
    return _fetched(CACHE / f"kafka-{version}", "Apache Kafka", KAFKA, version)


def tiered_storage(version: str) -> str:
    """Return the class path of LocalTieredStorage alone. Raise TargetError."""
    folder = CACHE / f"kafka-storage-tests-{version}"
    return _fetched(folder, "LocalTieredStorage", (TIERED_STORAGE,), version, _TESTS_ALONE)


def applications(version: str) -> str:
    """Return the class path of Streams with its system tests, Connect with its file connectors, and MirrorMaker. The
    first call for a version fetches about 105 MB more than ``classpath``. Raise TargetError."""
    classpath(version)  # It names the version of log4j.
    tests = _fetched(CACHE / f"kafka-streams-tests-{version}", "Streams' tests", (STREAMS,), version, _TESTS_ALONE)
    own = _fetched(CACHE / f"kafka-applications-{version}", "Connect and Streams", APPLICATIONS, version)
    return f"{own}:{tests}:{_logging(version)}"


def _logging(version: str) -> str:
    """Return the class path of what writes the log of a server, in the version of log4j that this Kafka has."""
    libs = CACHE / f"kafka-{version}" / "libs"
    found = [path.stem.removeprefix("log4j-core-") for path in libs.glob("log4j-core-*.jar")]
    return _fetched(CACHE / f"log4j-{found[0]}", "log4j", (LOGGING,), found[0]) if found else str(libs)


def _fetched(folder: Path, what: str, artifacts: Sequence[tuple[str, str]], version: str, kind: str = "") -> str:
    """Return the class path of all jars that these need. They are fetched once. Raise TargetError."""
    if not (folder / "complete").exists():
        _fetch(folder, what, artifacts, version, kind)
    return str(folder / "libs" / "*")


def _fetch(folder: Path, what: str, artifacts: Sequence[tuple[str, str]], version: str, kind: str) -> None:
    if shutil.which("mvn") is None:
        raise TargetError("Apache Kafka's jars come through Maven: install it (Debian: apt-get install maven).")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [_DEPENDENCY.format(group=group, name=name, version=version, kind=kind) for group, name in artifacts]
    (folder / "pom.xml").write_text(_POM.format(dependencies="".join(wanted)))
    command = ["mvn", "-q", "-B", "-Dstyle.color=never", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as expired:
        raise TargetError(f"Maven did not fetch {what} {version} within {FETCH_LIMIT_S:g} s.") from expired
    if done.returncode != 0:
        shutil.rmtree(folder, ignore_errors=True)
        raise TargetError(f"Maven could not fetch {what} {version}: {_why(done.stdout + done.stderr)}")
    (folder / "complete").touch()


def _why(said: str) -> str:
    """Return the part of Maven's output about what is missing, or else its first line."""
    missing = _MISSING.search(said)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{missing[0]}." if missing else (lines or ["it said nothing"])[0]
