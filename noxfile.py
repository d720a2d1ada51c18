"""The sessions of nox. Each calls the command line that everybody uses (``./crucible --help``)."""

import sys

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "none"


def _crucible(session: nox.Session, *words: str) -> None:
    session.run(sys.executable, "crucible.py", *words, *session.posargs, external=True)


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
    session.run(sys.executable, "-m", "bench.peers.jars", external=True)  # It says what must be installed, if anything.
    session.run(sys.executable, "-m", "pytest", "-m", "peer", "bench/peers/tests", external=True)
    _crucible(session, "bench", "--peer", "kafka")


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
    """Runs the quick tests with ten times as many of Hypothesis's examples, and the tests that take too long for CI.
    Then plays random faults and every scenario with its mutants in the simulator, compares the two judges of such runs
    and the revisions of fetch sessions, plays everything live, and keeps at last which mutants are caught there."""
    words = ["-m", "pytest", "--benchmark-disable", "-q", "--part", "quick", "--timeout", "1800"]
    session.run(sys.executable, *words, env={"HYPOTHESIS_PROFILE": "nightly"}, external=True)
    session.run(sys.executable, "-m", "pytest", "-m", "nightly", external=True)
    _crucible(session, "sim", "swarm", "--seeds", "10000")
    _crucible(session, "sim", "--all", "--seeds", "500", "--with-mutants")
    session.run(sys.executable, "-m", "tools.two_judges", "--seeds", "20", external=True)
    session.run(sys.executable, "-m", "chaos.search.revisions_compared", "--seeds", "5", external=True)
    _crucible(session, "run", "--all")
    session.run(sys.executable, "-m", "tools.mutants_live", external=True)


@nox.session
def evidence(session: nox.Session) -> None:
    """Plays the probe three times on all bundled brokers and writes docs/evidence. It takes half an hour, and fetches
    and builds what is not there: ``nox -s evidence -- kfake`` plays that one."""
    _crucible(session, "evidence")


@nox.session
def report(session: nox.Session) -> None:
    """Judges and draws run folders again: ``nox -s report -- RUN_DIR``."""
    _crucible(session, "report")
