"""Nox sessions. Each runs a command of ``./crucible --help``, or a module."""

import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "none"

WORKLOADS = [
    f"docs/workloads/{name}.yaml"
    for name in ("1-topic-16-partitions-1kb", "100-partitions", "end-to-end-latency", "fan-out-1-to-10")
]
"""Workloads that ``bench`` plays. Its figures are in .benchmarks/workloads, also as pytest-benchmark's JSON."""


def _crucible(session: nox.Session, *words: str) -> None:
    session.run(sys.executable, "crucible_kafka", *words, *session.posargs, external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Run everything that CI runs."""
    _crucible(session, "test")


@nox.session
def fast(session: nox.Session) -> None:
    """Run the checks and tests that need no Java and start no process. A second call takes 90 s on two idle cores."""
    _crucible(session, "test", "--fast")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format and import contracts."""
    _crucible(session, "test", "--only", "lint", "--only", "format", "--only", "contracts")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types with mypy, strictly."""
    _crucible(session, "test", "--only", "types")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the micro-benchmarks, measure a whole node, and play workloads on it. ``nox -s bench -- --peer kafka``
    measures Apache Kafka, too."""
    words = ["-m", "pytest", "bench/micro", "--benchmark-only", "--benchmark-autosave"]
    session.run(sys.executable, *words, external=True)
    _crucible(session, "bench")
    targets = ("reference", *(["kafka"] if "--peer" in session.posargs else []))
    words = ["crucible_kafka", "bench", *WORKLOADS, "--repeat", "5", "--seconds", "20", "--warmup", "5"]
    for target in targets:
        words += ["--target", target]
    session.run(sys.executable, *words, external=True)


@nox.session
def peer(session: nox.Session) -> None:
    """Run Apache Kafka's own tools against this broker, then measure it beside Kafka. Needs Java and Maven. The
    examples of the control API in Go and JavaScript are skipped without Go or npm."""
    session.run(
        sys.executable, "-m", "bench.peers.kafka", external=True
    )  # It says what must be installed, if anything.
    folders = ("bench", "campaigns", "crucible_kafka")
    session.run(sys.executable, "-m", "pytest", "-m", "peer", *folders, external=True)
    _crucible(session, "bench", "--peer", "kafka")


@nox.session
def suites(session: nox.Session) -> None:
    """Run test suites of client projects on the broker, and their failed tests also on Apache Kafka. They come from the
    registries of their languages. Needs Go, Cargo, a C++ compiler and Java."""
    session.run(sys.executable, "-m", "campaigns.suites", *session.posargs, external=True)


@nox.session
def hostile(session: nox.Session) -> None:
    """Run 500 hostile peers of each kind at once, against one node and three, and kill each node once (SIGKILL)."""
    session.run(sys.executable, "-m", "bench.hostile", *session.posargs, external=True)


@nox.session
def chaos(session: nox.Session) -> None:
    """Play every scenario with real processes, without a mutant and with each of its own."""
    _crucible(session, "run", "--all", "--with-mutants")


@nox.session
def nightly(session: nox.Session) -> None:
    """Play a night: searches, live plays, other brokers, benchmarks, and tests that take too long for CI:
    ``nox -s nightly -- --hours 8``."""
    _crucible(session, "nightly")


@nox.session
def evidence(session: nox.Session) -> None:
    """Play the probe three times on all bundled brokers and write docs/evidence. It takes half an hour, and downloads
    and builds missing brokers. ``nox -s evidence -- kfake`` plays only that one."""
    _crucible(session, "evidence")


@nox.session(venv_backend="venv")
def docs(session: nox.Session) -> None:
    """Build the documentation as a site in build/site. A broken link fails. mkdocs-material is installed into an
    environment of its own, since nothing else needs it."""
    session.install(*nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]["docs"])
    session.run("python", "-m", "tools.site_pages")
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def report(session: nox.Session) -> None:
    """Compute the verdicts and pages of run folders again: ``nox -s report -- RUN_DIR``."""
    _crucible(session, "report")
