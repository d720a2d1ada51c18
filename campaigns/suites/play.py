"""Plays client suites on the reference broker, and on Apache Kafka what fails there: ``python -m campaigns.suites``.

A suite is fetched once into ``.cache/suites`` and copied for each run, because the addresses of the cluster are written
into it. A failure counts against the broker unless the suite's file allows it with a reason, or the same test fails on
Apache Kafka in the same session.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.children import ends_with_me
from bench.peers.cluster import PeerCluster, System, until
from bench.peers.node import PeerError
from bench.ports import free_ports
from campaigns.suites.suite import Outcomes, Suite, SuiteError, SuiteOutcome, outcomes
from chaos.live.toxiproxy_server import ToxiproxyServer

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "suites"
FETCH_LIMIT_S = 600.0
BUILD_LIMIT_S = 1800.0
ENDED_WITHIN_S = 10.0
CLUSTER_WHOLE_WITHIN_S = 60.0
ON_KAFKA = "fails on Apache Kafka, too"
"""The reason why a failure does not count although the suite's file does not allow it."""
_STANDARD_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a suite."""

    suite: Suite
    ours: Outcomes
    peer: Outcomes | None = None  # None unless something failed that the suite's file does not allow

    def count(self, outcome: SuiteOutcome) -> int:
        return sum(each is outcome for each in self.ours.values())

    @property
    def failed(self) -> list[str]:
        return [name for name, outcome in self.ours.items() if outcome is SuiteOutcome.FAILED]

    def why(self, test: str) -> str:
        """Return why a failed test does not count against the broker; empty if it does."""
        if reason := self.suite.reason(test):
            return reason
        if self.peer is not None and self.peer.get(test) is SuiteOutcome.FAILED:
            return ON_KAFKA
        return ""

    @property
    def red(self) -> list[str]:
        """Failures that count against the broker."""
        return [name for name in self.failed if not self.why(name)]


def play(suite: Suite, broker: System, peer: System | None, logs: Path, test: str = "") -> Result:
    """Play a suite, or one test of it, on the broker, and on the peer if something failed that is not allowed. Raise
    SuiteError if it cannot be fetched, built or started."""
    source = fetched(suite)
    result = Result(suite, run_on(suite, source, broker, logs, test))
    if not result.red or peer is None:
        return result
    return Result(suite, result.ours, run_on(suite, source, peer, logs, test))


# Fetching


def fetched(suite: Suite) -> Path:
    """Return the folder of the unchanged suite, which is fetched and built if it is not there."""
    folder = CACHE / f"{suite.name}-{suite.version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpacked = _FETCH[suite.registry](suite, Path(scratch))
            shutil.copytree(unpacked, Path(scratch) / "whole", symlinks=True)
            for each in (Path(scratch) / "whole").rglob("*"):
                each.chmod(each.stat().st_mode | 0o200)  # Go keeps its modules read-only.
            if suite.build:
                where = Path(scratch) / "whole" / suite.subfolder
                _call([word.format(cache=CACHE) for word in suite.build], where, suite, BUILD_LIMIT_S)
            (Path(scratch) / "whole").rename(folder)
    return folder


def _fetch_go(suite: Suite, scratch: Path) -> Path:
    output = _call(["go", "mod", "download", "-json", f"{suite.package}@{suite.version}"], scratch, suite)
    return Path(json.loads(output)["Dir"])


def _fetch_crate(suite: Suite, scratch: Path) -> Path:
    _call(["cargo", "init", "--quiet", "--name", "holder"], scratch, suite)
    _call(["cargo", "add", "--quiet", f"{suite.package}@={suite.version}"], scratch, suite)
    _call(["cargo", "vendor", "--quiet", "--versioned-dirs", "vendor"], scratch, suite)
    crate = scratch / "vendor" / f"{suite.package}-{suite.version}"
    for each in crate.glob("rust-toolchain*"):
        each.unlink()  # It names a toolchain that may not be installed; any newer one will do.
    return crate


_FETCH = {"go": _fetch_go, "crates": _fetch_crate}


def _call(command: Sequence[str], folder: Path, suite: Suite, limit_s: float = FETCH_LIMIT_S) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False, env=_environment()
        )
    except FileNotFoundError:
        raise SuiteError(f"{suite.title} needs {command[0]}, which is not on PATH: install it.") from None
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{suite.title} was not fetched or built within {limit_s:g} s; try again later.") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SuiteError(f"{suite.title} cannot be fetched or built ({' '.join(command[:3])}): {last}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "GOFLAGS": "-mod=mod"}


# Running


def run_on(suite: Suite, source: Path, system: System, logs: Path, test: str = "") -> Outcomes:
    """Run a suite, or one test of it, on a new cluster, which ends with it. ``logs`` gets what the suite printed."""
    logs.mkdir(parents=True, exist_ok=True)
    config = {**_STANDARD_SETTINGS, **_replication(suite.nodes), **suite.config}
    with tempfile.TemporaryDirectory(prefix="crucible-suite-") as scratch:
        copy = Path(scratch) / "suite"
        shutil.copytree(source, copy, symlinks=True)
        try:
            proxies = [f"127.0.0.1:{port}" for port in free_ports(suite.nodes)] if suite.toxiproxy else []
            folder = Path(scratch) / "cluster"
            with (
                system.launched(folder, suite.nodes, config, proxies) as cluster,
                _toxiproxy(suite) as toxiproxy,
            ):
                _await_all(cluster)
                words = {**_words(cluster, proxies), "toxiproxy": toxiproxy, "cache": str(CACHE), "test": test}
                _replace(suite, copy, words)
                output = _run(suite, copy, words, logs / f"{suite.name}-{system.name.replace(' ', '-')}.log")
                dead = [
                    member.node_id for member in cluster.members if member.process and member.process.poll() is not None
                ]
        except PeerError as error:
            raise SuiteError(str(error)) from error
        found = outcomes(suite.format, output)
    return {**found, **{f"node {node} ended during the suite": SuiteOutcome.FAILED for node in dead}}


def _replication(nodes: int) -> dict[str, str]:
    factor = str(min(nodes, 3))
    return {"offsets.topic.replication.factor": factor, "transaction.state.log.replication.factor": factor}


def _await_all(cluster: PeerCluster) -> None:
    """Wait until clients see the controller and every node. Raise PeerError if they do not in time."""
    if not cluster.members:
        return

    def is_whole() -> bool:
        # A new client each time: an older one goes to the advertised proxies, which the suite makes later.
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        try:
            seen = admin.list_topics(timeout=5)
        except KafkaException:
            return False
        return seen.controller_id >= 0 and len(seen.brokers) == len(cluster.members)

    until(is_whole, CLUSTER_WHOLE_WITHIN_S, "a cluster with its controller and all its nodes")


def _words(cluster: PeerCluster, proxies: Sequence[str]) -> dict[str, str]:
    """Return the values of the address placeholders in a suite's file."""
    return {
        "bootstrap": cluster.bootstrap,
        "quoted": _quoted(f"127.0.0.1:{port}" for port in cluster.ports),
        "proxies": _quoted(proxies),
    }


def _quoted(addresses: Iterable[str]) -> str:
    return ", ".join(f'"{address}"' for address in addresses)


def _replace(suite: Suite, copy: Path, words: Mapping[str, str]) -> None:
    for each in suite.replace:
        touched = 0
        for path in sorted(copy.glob(each.glob)):
            text = path.read_text(encoding="utf-8")
            if each.old in text:
                path.write_text(text.replace(each.old, each.new.format(**words)), encoding="utf-8")
                touched += 1
        if not touched:
            raise SuiteError(f"{suite.name}.toml replaces {each.old!r} in {each.glob}, where it does not occur.")


def _run(suite: Suite, copy: Path, words: Mapping[str, str], log: Path) -> str:
    """Return what the suite's command printed. It and what it started end after ``limit_s``."""
    chosen = suite.one if words["test"] else ()
    command = [word.format(**words) for word in (*suite.command, *chosen)]
    environment = _environment() | {name: value.format(**words) for name, value in suite.environment.items()}
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                command,
                cwd=copy / suite.subfolder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=ends_with_me(),
            )
        except FileNotFoundError:
            raise SuiteError(f"{suite.title} needs {command[0]}, which is not on PATH: install it.") from None
        try:
            child.wait(suite.limit_s)
        except subprocess.TimeoutExpired:
            output.write(f"\ncrucible: stopped after {suite.limit_s:g} s\n".encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(ENDED_WITHIN_S)
    return log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def _toxiproxy(suite: Suite) -> Iterator[str]:
    """Run a Toxiproxy server if the suite wants one, and yield the address of its HTTP interface."""
    if not suite.toxiproxy:
        yield ""
        return
    with tempfile.TemporaryDirectory() as scratch, ToxiproxyServer(Path(scratch) / "toxiproxy.log") as server:
        yield server.address
