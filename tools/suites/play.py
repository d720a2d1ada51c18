"""Plays client suites on the reference broker, and on Apache Kafka what fails there: ``python -m tools.suites``.

A suite is fetched once into ``.cache/suites`` and copied for each run, because the addresses of the cluster are written
into it. A failure counts against the broker unless the suite's file allows it with a reason, or the same test fails on
Apache Kafka in the same session.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.children import ends_with_me
from bench.peers.cluster import Cluster, System, until
from bench.peers.errors import PeerError
from chaos.live.toxiproxy_server import ToxiproxyServer
from tools.suites.suite import Outcome, Outcomes, Suite, SuiteError, outcomes

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "suites"
FETCH_LIMIT_S = 600.0
ENDED_WITHIN_S = 10.0
CLUSTER_WHOLE_WITHIN_S = 60.0
_STANDARD_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@dataclass(frozen=True, slots=True)
class Result:
    """What a suite showed. ``peer`` is None unless something failed that the suite's file does not allow."""

    suite: Suite
    ours: Outcomes
    peer: Outcomes | None = None

    def count(self, outcome: Outcome) -> int:
        return sum(each is outcome for each in self.ours.values())

    @property
    def failed(self) -> list[str]:
        return [name for name, outcome in self.ours.items() if outcome is Outcome.FAILED]

    def why(self, test: str) -> str:
        """Return why a failed test does not count against the broker; empty if it does."""
        if reason := self.suite.reason(test):
            return reason
        if self.peer is not None and self.peer.get(test) is Outcome.FAILED:
            return "fails on Apache Kafka, too"
        return ""

    @property
    def red(self) -> list[str]:
        """Failures that count against the broker."""
        return [name for name in self.failed if not self.why(name)]


def play(suite: Suite, broker: System, peer: System | None, logs: Path) -> Result:
    """Play a suite on the broker, and on the peer if something failed that is not allowed. Raise SuiteError if it
    cannot be fetched or started."""
    source = fetched(suite)
    result = Result(suite, run_on(suite, source, broker, logs))
    if not result.red or peer is None:
        return result
    return Result(suite, result.ours, run_on(suite, source, peer, logs))


# Fetching


def fetched(suite: Suite) -> Path:
    """Return the folder of the unchanged suite, which is fetched if it is not there."""
    folder = CACHE / f"{suite.name}-{suite.version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpacked = _FETCH[suite.registry](suite, Path(scratch))
            shutil.copytree(unpacked, Path(scratch) / "whole", symlinks=True)
            for each in (Path(scratch) / "whole").rglob("*"):
                each.chmod(each.stat().st_mode | 0o200)  # Go keeps its modules read-only.
            (Path(scratch) / "whole").rename(folder)
    return folder


def _fetch_go(suite: Suite, scratch: Path) -> Path:
    output = _fetch(["go", "mod", "download", "-json", f"{suite.package}@{suite.version}"], scratch, suite)
    return Path(json.loads(output)["Dir"])


def _fetch_crate(suite: Suite, scratch: Path) -> Path:
    _fetch(["cargo", "init", "--quiet", "--name", "holder"], scratch, suite)
    _fetch(["cargo", "add", "--quiet", f"{suite.package}@={suite.version}"], scratch, suite)
    _fetch(["cargo", "vendor", "--quiet", "--versioned-dirs", "vendor"], scratch, suite)
    crate = scratch / "vendor" / f"{suite.package}-{suite.version}"
    for each in crate.glob("rust-toolchain*"):
        each.unlink()  # It names a toolchain that may not be installed; any newer one will do.
    return crate


def _fetch_pypi(suite: Suite, scratch: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    _fetch([*pip, f"{suite.package}=={suite.version}"], scratch, suite)
    (archive,) = scratch.glob("*.tar.gz")
    (scratch / "source").mkdir()
    _fetch(["tar", "--extract", "--file", str(archive), "--directory", str(scratch / "source")], scratch, suite)
    (unpacked,) = (scratch / "source").iterdir()
    return unpacked


_FETCH = {"go": _fetch_go, "crates": _fetch_crate, "pypi": _fetch_pypi}


def _fetch(command: Sequence[str], folder: Path, suite: Suite) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_LIMIT_S, check=False, env=_environment()
        )
    except FileNotFoundError:
        raise SuiteError(f"{suite.title} needs {command[0]}, which is not on PATH: install it.") from None
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{suite.title} was not fetched within {FETCH_LIMIT_S:g} s; try again later.") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SuiteError(f"{suite.title} cannot be fetched ({' '.join(command[:3])}): {last}")
    return done.stdout


def _environment() -> dict[str, str]:
    return {**os.environ, "GOFLAGS": "-mod=mod"}


# Running


def run_on(suite: Suite, source: Path, system: System, logs: Path) -> Outcomes:
    """Run a suite on a new cluster, which ends with it. What the suite printed goes to a file in ``logs``."""
    logs.mkdir(parents=True, exist_ok=True)
    config = {**_STANDARD_SETTINGS, **_replication(suite.nodes), **suite.config}
    with tempfile.TemporaryDirectory(prefix="crucible-suite-") as scratch:
        copy = Path(scratch) / "suite"
        shutil.copytree(source, copy, symlinks=True)
        try:
            with system.launched(Path(scratch) / "cluster", suite.nodes, config) as cluster, _proxies(suite) as proxies:
                _await_all(cluster)
                words = _words(suite, cluster, proxies, Path(scratch))
                _replace(suite, copy, words)
                output = _run(suite, copy, words, logs / f"{suite.name}-{system.name.replace(' ', '-')}.log")
                dead = [each.node_id for each in cluster.members if each.process and each.process.poll() is not None]
        except PeerError as error:
            raise SuiteError(str(error)) from error
        found = outcomes(suite.format, output, Path(words["results"]))
    return {**found, **{f"node {node} ended during the suite": Outcome.FAILED for node in dead}}


def _replication(nodes: int) -> dict[str, str]:
    factor = str(min(nodes, 3))
    return {"offsets.topic.replication.factor": factor, "transaction.state.log.replication.factor": factor}


def _await_all(cluster: Cluster) -> None:
    """Wait until clients see the controller and every node. Raise PeerError if they do not in time."""
    if not cluster.members:
        return
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

    def is_whole() -> bool:
        seen = admin.list_topics(timeout=5)
        return seen.controller_id >= 0 and len(seen.brokers) == len(cluster.members)

    until(is_whole, CLUSTER_WHOLE_WITHIN_S, "a cluster with its controller and all its nodes")


def _words(suite: Suite, cluster: Cluster, toxiproxy: str, scratch: Path) -> dict[str, str]:
    """Return what the placeholders of a suite's file stand for."""
    addresses = [f"127.0.0.1:{port}" for port in cluster.ports]
    return {
        "bootstrap": cluster.bootstrap,
        "quoted": ", ".join(f'"{address}"' for address in addresses),
        "toxiproxy": toxiproxy,
        "python": str(_python(suite)),
        "results": str(scratch / "results.xml"),
    }


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
    command = [word.format(**words) for word in suite.command]
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


def _python(suite: Suite) -> Path:
    """Return the interpreter with the requirements of the suite's tests, in an environment of its own."""
    if not suite.install:
        return Path(sys.executable)
    home = CACHE / f"{suite.name}-{suite.version}-venv"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        _fetch([sys.executable, "-m", "venv", "--clear", str(home)], CACHE, suite)
        _fetch([str(python), "-m", "pip", "install", "--quiet", *suite.install], CACHE, suite)
        (home / "complete").touch()
    return python


@contextmanager
def _proxies(suite: Suite) -> Iterator[str]:
    """Run a Toxiproxy server if the suite wants one, and yield the address of its HTTP interface."""
    if not suite.toxiproxy:
        yield ""
        return
    with tempfile.TemporaryDirectory() as scratch, ToxiproxyServer(Path(scratch) / "toxiproxy.log") as server:
        yield server.address


# Reporting


def page(results: Sequence[Result], seen: str) -> str:
    """Return the report card in Markdown. ``seen`` says when and where it was played."""
    lines = [
        "# Test suites of clients",
        "",
        "Suites that others wrote for their clients, played on the reference broker, and on Apache Kafka where a test",
        "failed that is not allowed. `nox -s suites` plays them again. A red test fails here and not on Apache Kafka.",
        "",
        f"Seen {seen}.",
        "",
        "| suite | version | passed | skipped | failed | of these on Apache Kafka, too | allowed | red |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in results:
        allowed = sum(bool(each.suite.reason(name)) for name in each.failed)
        on_kafka = len(each.failed) - allowed - len(each.red)
        counts = (each.count(Outcome.PASSED), each.count(Outcome.SKIPPED), len(each.failed))
        cells = (each.suite.title, each.suite.version, *counts, on_kafka, allowed, len(each.red))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for each in results:
        if each.failed:
            lines += ["", f"## {each.suite.title}", "", "| test | why |", "| --- | --- |"]
            lines += [f"| `{name}` | {each.why(name) or '**red**'} |" for name in each.failed]
    return "\n".join(lines) + "\n"
