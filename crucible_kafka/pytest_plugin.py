"""The fixtures ``kafka`` and ``kafka_cluster`` for pytest: real Kafka nodes for the tests of other projects.

pytest loads this module in every run of everybody who has the wheel, so it imports the library only when a test uses
one of the fixtures.
"""

import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from crucible_kafka.library import SharedCluster

POOL: Final = "_kafka_clusters"
"""The fixture behind the two others. Without it, a fixture named kafka is not this plugin's."""
MARK_FIELDS: Final = ("nodes", "config", "versions")
START_LIMIT_S: Final = 30.0
MAX_CLUSTERS: Final = 4
"""The number of clusters with settings of marks that run at the same time. The one unused for longest ends."""

STARTED: Final = pytest.StashKey[float]()
"""When the test began, in Unix time."""
CLUSTER: Final = pytest.StashKey["SharedCluster"]()
"""The cluster that the test uses."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a cluster. Tests with equal settings share a cluster."""

    nodes: int = 1
    config: tuple[tuple[str, str], ...] = ()
    """Broker settings by Kafka's names, sorted."""
    versions: str | tuple[tuple[str, int], ...] | None = None
    """A release of Kafka, or the highest version of some APIs, sorted."""

    def cluster(self) -> "SharedCluster":
        """Return a cluster that is not started. Raise ValueError for a setting that cannot be."""
        from crucible_kafka.library import SharedCluster

        versions = dict(self.versions) if isinstance(self.versions, tuple) else self.versions
        return SharedCluster(self.nodes, config=dict(self.config), versions=versions, start_limit_s=START_LIMIT_S)


# Options and marks


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka", "Kafka clusters of the fixtures kafka and kafka_cluster (Crucible)")
    group.addoption("--kafka-nodes", metavar="N", default="1", help="number of nodes: 1 (the default), 3 or 5")
    text = "a broker setting, such as num.partitions=6 (repeatable)"
    group.addoption("--kafka-config", metavar="KEY=VALUE", action="append", default=[], help=text)
    text = "let clients see the API versions of this release of Kafka, such as 2.8"
    group.addoption("--kafka-versions", metavar="RELEASE", default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    text = "kafka(nodes=1, config={}, versions=None): settings of the cluster that the test gets from the fixture kafka"
    config.addinivalue_line("markers", text)
    _settings_of_options(config)


def _settings_of_options(config: pytest.Config) -> Settings:
    """Return the settings of the command line. Raise pytest.UsageError for what can be seen without the library."""
    nodes, pairs = config.getoption("--kafka-nodes"), config.getoption("--kafka-config")
    versions = config.getoption("--kafka-versions")
    if str(nodes) not in ("1", "3", "5"):
        raise pytest.UsageError(f"--kafka-nodes is {nodes}: give 1, 3 or 5.")
    for pair in pairs:
        if not re.fullmatch(r"[^=\s]+=.*", pair):
            raise pytest.UsageError(f"--kafka-config is {pair!r}: give KEY=VALUE, such as num.partitions=6.")
    if versions is not None and not re.fullmatch(r"\d+\.\d+", versions):
        raise pytest.UsageError(f"--kafka-versions is {versions!r}: give a release of Kafka, such as 2.8.")
    settings = dict(pair.split("=", 1) for pair in pairs)
    return Settings(int(nodes), tuple(sorted(settings.items())), versions)


def _settings_of(item: pytest.Item) -> Settings:
    """Return the settings of a test: those of the options, changed by its marks, of which the closest wins."""
    settings = _settings_of_options(item.config)
    nodes, config, versions = settings.nodes, dict(settings.config), settings.versions
    for mark in reversed([*item.iter_markers("kafka")]):
        unknown = [*map(repr, mark.args), *(name for name in mark.kwargs if name not in MARK_FIELDS)]
        if unknown:
            known = ", ".join(f"{name}=" for name in MARK_FIELDS)
            pytest.fail(f"The mark kafka has {unknown[0]}: it takes {known}.", pytrace=False)
        nodes = mark.kwargs.get("nodes", nodes)
        given = mark.kwargs.get("config") or {}
        versions = mark.kwargs.get("versions", versions)
        kinds = {"nodes": (nodes, int), "config": (given, dict), "versions": (versions, str | dict | None)}
        for name, (value, kind) in kinds.items():
            if not isinstance(value, kind):
                allowed = {"nodes": "1, 3 or 5", "config": "a dictionary", "versions": 'a release, such as "2.8"'}
                pytest.fail(f"The mark kafka has {name}={value!r}: give {allowed[name]}.", pytrace=False)
        config |= {
            str(key): str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()
        }
    return Settings(
        nodes,
        tuple(sorted(config.items())),
        tuple(sorted(versions.items())) if isinstance(versions, dict) else versions,
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the options whole if a test needs them. In a worker of xdist, whose errors would be internal errors, each
    test reports it instead."""
    settings = _settings_of_options(config)
    if settings == Settings(settings.nodes) or hasattr(config, "workerinput"):
        return
    if any(POOL in getattr(item, "fixturenames", ()) for item in items):
        try:
            settings.cluster()
        except ValueError as wrong:
            raise pytest.UsageError(f"--kafka-config or --kafka-versions: {wrong}") from wrong


# Clusters of the session


class Clusters:
    """The clusters of a session, by settings. Each starts when the first test needs it."""

    def __init__(self, usual: Settings) -> None:
        self.usual: Final = usual
        """Settings of the options. Their cluster stays until the session ends."""
        self._running: dict[Settings, SharedCluster] = {}
        """The one used last comes last."""
        self._failures: dict[Settings, str] = {}

    def get(self, settings: Settings) -> "SharedCluster":
        """Return a cluster that runs. Fail the test with one sentence if it cannot; a second one does not try again."""
        from crucible_kafka.library import CrucibleError

        cluster = self._running.pop(settings, None)
        if cluster is None and settings not in self._failures:
            self._make_room()
            try:
                cluster = settings.cluster().start()
            except (CrucibleError, OSError, ValueError, TypeError) as failure:
                self._failures[settings] = f"The Kafka cluster could not be started: {failure}"
        if cluster is None:
            pytest.fail(self._failures[settings], pytrace=False)
        self._running[settings] = cluster
        return cluster

    def running(self, settings: Settings) -> "SharedCluster | None":
        """Return the cluster with these settings if one runs."""
        return self._running.get(settings)

    def _make_room(self) -> None:
        of_marks = [settings for settings in self._running if settings != self.usual]
        for settings in of_marks[: max(0, len(of_marks) - MAX_CLUSTERS + 1)]:
            self._running.pop(settings).close()

    def discard(self, cluster: "SharedCluster") -> None:
        """End a cluster that is of no more use. The next test that needs one gets a new one."""
        self._running = {settings: running for settings, running in self._running.items() if running is not cluster}
        cluster.close()

    def close(self) -> None:
        """End all clusters. Fail if a node has crashed in a test that used ``kafka_cluster`` alone."""
        crashes = []
        while self._running:
            cluster = self._running.popitem()[1]
            crashes += [text] if (text := cluster.crashes()) else []
            cluster.close()
        if crashes:
            pytest.fail("\n".join(crashes), pytrace=False)


@pytest.fixture(scope="session")
def _kafka_clusters(pytestconfig: pytest.Config) -> Iterator[Clusters]:
    clusters = Clusters(_settings_of_options(pytestconfig))
    try:
        yield clusters
    finally:
        clusters.close()


@pytest.fixture(scope="session")
def kafka_cluster(_kafka_clusters: Clusters) -> "SharedCluster":
    """A Kafka cluster for the whole session. It has the settings of the command line."""
    return _kafka_clusters.get(_kafka_clusters.usual)


@pytest.fixture
def kafka(request: pytest.FixtureRequest, _kafka_clusters: Clusters) -> "Iterator[SharedCluster]":
    """A Kafka cluster for one test. Its rules, faults, topics and groups end with the test."""
    from crucible_kafka.library import CrucibleError

    settings = _settings_of(request.node)
    cluster = _kafka_clusters.get(settings)
    try:
        cluster.begin_test()
    except CrucibleError as failure:
        warnings.warn(f"The Kafka cluster ended between two tests. This one has a new one: {failure}", stacklevel=1)
        _kafka_clusters.discard(cluster)
        cluster = _kafka_clusters.get(settings)
        cluster.begin_test()
    request.node.stash[CLUSTER] = cluster
    yield cluster
    problem = ""
    try:
        cluster.end_test()
    except CrucibleError as failure:
        problem = str(failure)
    if problem:
        _kafka_clusters.discard(cluster)
        pytest.fail(
            f"The next test gets a new Kafka cluster, because this one did not recover: {problem}", pytrace=False
        )


# One test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    names = getattr(item, "fixturenames", ())
    item.stash[STARTED] = time.time()
    if POOL in names and "kafka" not in names and any(mark.kwargs for mark in item.iter_markers("kafka")):
        text = "The mark kafka changes the fixture kafka, and this test uses kafka_cluster alone: use kafka instead."
        pytest.fail(text, pytrace=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that passes though a node has crashed, or one of its rules has never fired. Shorten the library's own
    failures."""
    try:
        result = yield
    except Exception as failure:
        if CLUSTER in item.stash and not item.config.getoption("fulltrace", False):
            _end_trace_at_library(failure)
        raise
    cluster = item.stash.get(CLUSTER, None)
    if cluster is not None:
        from crucible_kafka.library import CrucibleError, RuleNeverFired

        sentence = ""
        try:
            cluster.check_nodes()
            cluster.check_rules_of_test()
        except (RuleNeverFired, CrucibleError) as failure:
            sentence = str(failure)
        if sentence:  # Outside of the except clause, or the report would have the sentence twice.
            pytest.fail(sentence, pytrace=False)
    return result


def _end_trace_at_library(failure: Exception) -> None:
    """Let the trace of an exception of the library end at the line that called it. Its sentence says the rest."""
    from crucible_kafka.library import CrucibleError, DeliveryViolated, RuleNeverFired

    if not isinstance(failure, CrucibleError | DeliveryViolated | RuleNeverFired):
        return
    failure.__cause__, failure.__suppress_context__ = None, True
    trace = failure.__traceback__
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_globals.get("__name__", "").startswith("crucible_kafka.library."):
            trace.tb_next = None
        trace = trace.tb_next


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Add the section "kafka" to the report of a test that failed."""
    report = yield
    cluster = item.stash.get(CLUSTER, None)
    if cluster is None and POOL in getattr(item, "funcargs", {}):
        cluster = item.funcargs[POOL].running(item.funcargs[POOL].usual)  # type: ignore[attr-defined]
    if report.failed and cluster is not None and not cluster.is_closed:
        from crucible_kafka.library.failure_report import failure_report

        try:
            text = failure_report(cluster, item.stash.get(STARTED, 0.0))
        except Exception as failure:  # A report of a failure must not hide the failure.
            text = f"The cluster could not be queried: {failure!r}"
        report.sections.append(("kafka", text))
    return report
