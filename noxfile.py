"""The sessions of nox. Each calls the command line that everybody uses (``./crucible --help``)."""

import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "none"


def _crucible(session: nox.Session, *words: str) -> None:
    session.run(sys.executable, "crucible_kafka", *words, *session.posargs, external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Runs everything that CI runs."""
    _crucible(session, "test")


@nox.session
def fast(session: nox.Session) -> None:
    """Runs what needs no Java and starts no process, in a minute and a half."""
    _crucible(session, "test", "--fast")


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style, layout and import contracts."""
    _crucible(session, "test", "--only", "lint", "--only", "format", "--only", "contracts")


@nox.session
def types(session: nox.Session) -> None:
    """Checks the types with mypy, strictly."""
    _crucible(session, "test", "--only", "types")


@nox.session
def bench(session: nox.Session) -> None:
    """Runs the micro-benchmarks, and then measures a whole node."""
    words = ["-m", "pytest", "bench/micro", "--benchmark-only", "--benchmark-autosave"]
    session.run(sys.executable, *words, external=True)
    _crucible(session, "bench")


@nox.session
def peer(session: nox.Session) -> None:
    """Runs Apache Kafka's own tools against this broker, then measures it beside Kafka. Needs Java and Maven."""
    session.run(
        sys.executable, "-m", "bench.peers.kafka", external=True
    )  # It says what must be installed, if anything.
    folders = ("bench/peers/tests", "campaigns/upgrade/tests")
    session.run(sys.executable, "-m", "pytest", "-m", "peer", *folders, external=True)
    _crucible(session, "bench", "--peer", "kafka")


@nox.session
def suites(session: nox.Session) -> None:
    """Plays other people's test suites of their clients on the broker, and on Apache Kafka what fails there. It fetches
    them from the registries of their languages, and needs Go, Cargo, a C++ compiler and Java."""
    session.run(sys.executable, "-m", "campaigns.suites", *session.posargs, external=True)


@nox.session
def hostile(session: nox.Session) -> None:
    """500 hostile peers of each kind at once, against one node and three, with kill -9 in their midst."""
    session.run(sys.executable, "-m", "bench.hostile", *session.posargs, external=True)


@nox.session
def chaos(session: nox.Session) -> None:
    """Plays every scenario with real processes, without a mutant and with each of its own."""
    _crucible(session, "run", "--all", "--with-mutants")


@nox.session
def nightly(session: nox.Session) -> None:
    """Plays a night: searches, live plays, other brokers, measurements, and tests that take too long for CI:
    ``nox -s nightly -- --hours 8``."""
    _crucible(session, "nightly")


@nox.session
def evidence(session: nox.Session) -> None:
    """Plays the probe three times on all bundled brokers and writes docs/evidence. It takes half an hour, and fetches
    and builds what is not there: ``nox -s evidence -- kfake`` plays that one."""
    _crucible(session, "evidence")


@nox.session
def report(session: nox.Session) -> None:
    """Judges and draws run folders again: ``nox -s report -- RUN_DIR``."""
    _crucible(session, "report")
