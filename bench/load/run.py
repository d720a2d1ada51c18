"""Runs a workload on a target: topics, workers, warm-up, the seconds that count, the rest of the reading, verdict."""

import math
import resource
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from bench.load import java_client
from bench.load.backlog import Backlog, BacklogError, build_and_drain, complaint_of_space
from bench.load.clients import JAVA
from bench.load.driver import Driver
from bench.load.faults import KILLED, LEADER, ClientLinks, FaultPlayer, LinkError
from bench.load.history import write_judged
from bench.load.ledger import Findings
from bench.load.measures import Measures
from bench.load.progress import line
from bench.load.results import LoadResult, collect
from bench.load.spec import LoadSpec, write_spec
from bench.load.topics import TopicError, leader_of, topics_for
from bench.load.workload import Workload, complaint_of_client, complaint_of_topics, is_compacted
from bench.locust.processes import LocustProcesses, WorkerDiedError
from bench.peers.cluster import PeerCluster, target_cluster
from bench.peers.node import PeerError
from bench.targets.loader import find
from bench.targets.model import Chosen, TargetError
from reference_broker.client.consumer import READ_UNCOMMITTED

LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")
DRAIN_S: Final = 60.0
"""How long readers may need after the load to read what was acknowledged."""
SPARE_FILES: Final = 500
"""What a worker has open beside idle connections."""
PREPARE_S: Final = 120.0
"""How long groups may need to assign all partitions, and how long the opening of idle connections may take."""
WAIT_SAID_S: Final = 5.0
"""How often a wait for the clients is reported."""
NOT_MEASURED: Final = -1


class LoadError(Exception):
    """The run could not be carried out. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How workloads are played, beside what their files say. None stands for the file's own."""

    records_per_s: float | None = None
    seconds: float | None = None
    warmup_s: float | None = None
    workers: int = 1  # started here
    joining: int = 0  # workers that somebody starts elsewhere (``worker.py``)
    listen: tuple[str, int] | None = None  # where they join; None: loopback, and any free port
    replication: int = 1
    acks: int = -1
    idempotent: bool = True
    compression: str = "none"
    client: str | None = None
    driver: Driver = field(default_factory=Driver)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Brokers that take a load. ``cluster`` is None for those that run elsewhere."""

    name: str
    bootstrap: Sequence[tuple[str, int]]
    cluster: PeerCluster | None
    folder: Path | None = None  # has the brokers' data; None if nobody here knows it
    links: ClientLinks | None = None  # between clients and nodes, for faults


Progress = Callable[[str], None]
MakesLinks = Callable[[int], AbstractContextManager[ClientLinks]]
"""Make the links between clients and nodes, for this number of nodes."""


@contextmanager
def started(
    text: str,
    progress: Progress,
    settings: Mapping[str, str] = MappingProxyType({}),
    make_links: MakesLinks | None = None,
) -> Iterator[LoadTarget]:
    """Yield a target by its name (``bench/targets``), started for as long as the block lasts, or as it runs already.

    ``settings`` are those of brokers that are started, by Kafka's names. With ``make_links`` clients reach their nodes
    through links.

    :raises LoadError: it is not known, or does not start.
    """
    try:
        chosen = find(text)
    except TargetError as error:
        raise LoadError(str(error)) from error
    if chosen.file.addresses:
        if settings:
            progress(f"{text}: runs already, so brokerConfig sets nothing; it needs {', '.join(settings)}")
        yield LoadTarget(text, [_address(each) for each in chosen.file.addresses], None)
        return
    if "/" not in text.rpartition(".toml")[2]:
        chosen = replace(chosen, nodes=1)
    progress(f"{text}: starts {chosen.nodes} {'node' if chosen.nodes == 1 else 'nodes'}")
    with (
        TemporaryDirectory(prefix="crucible-bench-", ignore_cleanup_errors=True) as folder,
        _linked(chosen, make_links) as links,
        _cluster(chosen, Path(folder), settings, links) as cluster,
    ):
        addresses = [("127.0.0.1", port) for port in cluster.ports] if links is None else links.addresses
        yield LoadTarget(text, addresses, cluster, Path(folder), links)


@contextmanager
def _linked(chosen: Chosen, make_links: MakesLinks | None) -> Iterator[ClientLinks | None]:
    node = chosen.file.node
    if make_links is None or node is None:
        yield None
        return
    if not any("{advertised}" in text for _, text in (*node.files, *node.words)):
        raise LoadError(f"{chosen.text}: its file has no {{advertised}}, so clients cannot be led through links.")
    try:
        with make_links(chosen.nodes) as links:
            yield links
    except LinkError as error:
        raise LoadError(str(error)) from error


@contextmanager
def _cluster(
    chosen: Chosen, folder: Path, settings: Mapping[str, str], links: ClientLinks | None
) -> Iterator[PeerCluster]:
    advertised = [] if links is None else [f"{host}:{port}" for host, port in links.addresses]
    try:
        with target_cluster(chosen, folder, settings, advertised=advertised) as cluster:
            if links is not None:
                links.connect(cluster.ports)
            cluster.launch()
            cluster.await_ready()
            yield cluster
    except PeerError as error:
        raise LoadError(str(error)) from error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def run(workload: Workload, target: LoadTarget, options: LoadOptions, out_dir: Path, progress: Progress) -> LoadResult:
    """Play a workload once.

    :raises LoadError: the target refuses the topics, or a worker ended.
    """
    complaint = complaint_of_client(workload, options.client or workload.crucible.client)
    if complaint:
        raise LoadError(f"{workload.name}: {complaint}.")
    if complaint := _complaint(workload, target, options):
        raise LoadError(f"{target.name}: {complaint}.")
    config = topic_settings(workload, options)
    if complaint := complaint_of_topics(workload, config):
        raise LoadError(f"{workload.name}: {complaint}.")
    out_dir.mkdir(parents=True, exist_ok=True)
    topics = [f"crucible-bench-{uuid.uuid4().hex[:8]}-{number}" for number in range(workload.topics)]
    spec = spec_of(workload, target, options, topics, out_dir)
    if spec.client == JAVA and (complaint := java_client.complaint_of(spec, options.joining)):
        raise LoadError(f"{workload.name}: {complaint}.")
    if target.folder is not None:
        seconds = sum(durations_s(workload, options))
        copies = options.replication * (1 if spec.transform is None else 2)
        complaint = complaint_of_space(workload, spec.records_per_s, seconds, copies, target.folder)
        if complaint:
            raise LoadError(f"{workload.name}: {complaint}.")
    try:
        partitions, is_own = workload.partitions_per_topic, target.cluster is not None
        with topics_for(target.bootstrap, spec.all_topics, partitions, options.replication, config, not is_own):
            if spec.client == JAVA:
                return _played_by_tools(workload, target, options, spec, progress)
            return _WorkloadRun(workload, target, options, spec, progress).lead_workers()
    except TopicError as error:
        raise LoadError(f"{target.name}: {error}.") from error
    except (WorkerDiedError, PeerError, LinkError) as error:
        raise LoadError(str(error)) from error


def spec_of(workload: Workload, target: LoadTarget, options: LoadOptions, topics: list[str], out_dir: Path) -> LoadSpec:
    rate = workload.producer_rate if options.records_per_s is None else options.records_per_s
    driver = options.driver
    most = max(1, driver.batch_bytes // workload.message_size)
    lingering = int(rate / workload.producers * driver.linger_ms / 1000)
    transactions = workload.crucible.transactions
    if transactions is not None and transactions.records:
        most = min(most, transactions.records)
    return LoadSpec(
        bootstrap=list(target.bootstrap),
        topics=topics,
        partitions=workload.partitions_per_topic,
        producers=workload.producers_per_topic,
        subscriptions=workload.subscriptions_per_topic,
        consumers=workload.consumer_per_subscription,
        records_per_s=rate,
        value_bytes=workload.message_size,
        batch_records=most if not rate else max(1, min(most, lingering)),
        compression=options.compression,
        client=options.client or workload.crucible.client,
        keys=workload.keys,
        padding=workload.padding,
        acks=options.acks,
        requests_in_flight=driver.requests_in_flight,
        request_timeout_ms=driver.request_timeout_ms,
        delivery_timeout_ms=driver.delivery_timeout_ms,
        isolation_level=driver.isolation_level or READ_UNCOMMITTED,
        fetch_max_wait_ms=driver.fetch_max_wait_ms,
        fetch_min_bytes=driver.fetch_min_bytes,
        fetch_max_bytes=driver.fetch_max_bytes,
        partition_max_bytes=driver.partition_max_bytes,
        idempotent=options.idempotent,
        fetch_sessions=workload.crucible.fetch_sessions,
        transactions=workload.crucible.transactions,
        transform=workload.crucible.transform,
        workers=_local_workers(workload, options) + options.joining,
        groups=workload.crucible.groups,
        read_from_start=workload.crucible.read_from_start,
        connections=workload.crucible.connections,
        connections_per_s=workload.crucible.connection_storm,
        out_dir=str(out_dir.resolve()),
    )


def topic_settings(workload: Workload, options: LoadOptions) -> dict[str, str]:
    """Return the settings of the topics. The workload's own come before the driver file's."""
    return {**options.driver.topic_settings, **workload.crucible.topic_settings}


def durations_s(workload: Workload, options: LoadOptions) -> tuple[float, float]:
    """Return how long warm-up and load last."""
    return (
        workload.warmup_duration_minutes * 60 if options.warmup_s is None else options.warmup_s,
        workload.test_duration_minutes * 60 if options.seconds is None else options.seconds,
    )


def _played_by_tools(
    workload: Workload, target: LoadTarget, options: LoadOptions, spec: LoadSpec, progress: Progress
) -> LoadResult:
    """Have Kafka's perf tests play a workload. Raise PeerError if they cannot."""
    cluster = target.cluster
    cpu_s = float(NOT_MEASURED) if cluster is None else cluster.cpu_s()
    seconds = sum(durations_s(workload, options))
    played = java_client.play(
        spec, seconds, Path(spec.out_dir) / "logs", lambda text: progress(f"{target.name}: {text}")
    )
    stated = played.stated
    return LoadResult(
        workload=workload,
        target=target.name,
        client=spec.client,
        first=0,
        end=max(1, round(stated.sent / stated.sent_per_s)) if stated.sent_per_s else 1,
        measures=Measures(),
        findings=Findings(0, 0, 0, 0, 0, 0, 0),
        errors={},
        unfinished="",
        wanted_records_per_s=spec.records_per_s,
        brokers_cpu_s=NOT_MEASURED if cluster is None else cluster.cpu_s() - cpu_s,
        brokers_rss_bytes=NOT_MEASURED if cluster is None else cluster.rss_bytes(),
        generator_cpu_permille=round(1000 * played.cpu_s / max(1.0, seconds)),
        generator_cpu_s=played.cpu_s,
        generator_rss_bytes=played.rss_bytes,
        stated=stated,
    )


@dataclass(frozen=True, slots=True)
class _Leader:
    """The workers as ``backlog`` leads them."""

    locust: LocustProcesses

    def command(self, command: str) -> None:
        self.locust.send_command(command)

    def counts(self) -> tuple[int, int] | None:
        report = self.locust.report()
        return None if report is None else (report["acknowledged"], report["read"])


def _local_workers(workload: Workload, options: LoadOptions) -> int:
    """Return how many workers are started here: no more than there are clients, and one if nobody joins."""
    clients = workload.clients
    least = 0 if options.joining else 1
    return max(least, min(options.workers, clients - options.joining))


def _complaint(workload: Workload, target: LoadTarget, options: LoadOptions) -> str:
    """Return why the workers cannot play the workload, or nothing."""
    clients = workload.clients
    if options.joining > clients:
        return f"{options.joining} workers are too many for {clients} clients"
    if why := _complaint_of_faults(workload, target, options):
        return why
    files, connections = resource.getrlimit(resource.RLIMIT_NOFILE)[1], workload.crucible.connections
    if connections / max(1, _local_workers(workload, options)) > files - SPARE_FILES:
        return f"{connections:,} connections are more than a process may open here ({files:,} files): give more workers"
    if options.listen is not None and options.listen[0] not in ("127.0.0.1", "localhost", "::1") and target.cluster:
        return "brokers that are started here listen on 127.0.0.1, where workers of other machines have no way to them"
    return ""


def _complaint_of_faults(workload: Workload, target: LoadTarget, options: LoadOptions) -> str:
    faults, cluster = workload.crucible.faults, target.cluster
    if faults and cluster is None:
        return "faults need nodes that are started here, and these brokers run elsewhere"
    if faults and workload.consumer_backlog_size_gb:
        return "faults do not go together with a backlog, whose duration nobody knows before"
    if any(each.is_of_link for each in faults) and target.links is None:
        return "faults of links need links through Toxiproxy, which nobody has made"
    _, seconds = durations_s(workload, options)
    for each in faults:
        if each.at_s >= seconds:
            return f"a fault at {each.at_s:g} s is not within the {seconds:g} s of the measurement"
        known = [member.node_id for member in cluster.members] if cluster else []
        if each.node != LEADER and each.node not in known:
            return f"a fault's node {each.node} is none of {', '.join(map(str, known))}"
    return ""


class _WorkloadRun:
    """One run, once its topics exist."""

    def __init__(
        self, workload: Workload, target: LoadTarget, options: LoadOptions, spec: LoadSpec, progress: Progress
    ) -> None:
        self._workload, self._target, self._spec, self._progress = workload, target, spec, progress
        self._options = options
        warmup_s, seconds = durations_s(workload, options)
        self._first = int(warmup_s)
        self._seconds = max(1, int(seconds))
        self._last: dict[str, int] = {}
        self._player = FaultPlayer(
            workload.crucible.faults,
            target.cluster,
            self._first,
            lambda: leader_of(target.bootstrap, spec.topics[0]),
            target.links,
        )

    def lead_workers(self) -> LoadResult:
        """Start the workers, lead them through warm-up, load and the rest of the reading, and collect their results."""
        folder = Path(self._spec.out_dir)
        path = write_spec(self._spec, folder / "load-spec.json")
        workers, clients = self._spec.workers, self._workload.clients
        users = workers * -(-clients // workers)
        cpu_s = [float(NOT_MEASURED)] * 2
        rss_bytes = NOT_MEASURED
        joining, listen = self._options.joining, self._options.listen
        if joining:
            at = "a free port of loopback" if listen is None else f"{listen[0]}:{listen[1]}"
            self._progress(f"{self._target.name}: waits for {joining} workers at {at}")
        with LocustProcesses(
            LOCUSTFILE, workers - joining, users, path, folder / "logs", joining=joining, listen=listen
        ) as locust:
            locust.wait_until_ready()
            self._prepare(locust)
            locust.send_command("go")
            start_s = time.monotonic()
            self._report_progress_until(locust, start_s + self._first, "warm-up")
            cpu_s[0] = self._cpu_s()
            backlog, late = self._drained_backlog(locust)
            # The seconds of building and draining count, as OpenMessaging's do.
            end = math.ceil(time.monotonic() - start_s) if backlog else self._first
            end += self._seconds
            if self._spec.read_from_start:
                locust.send_command("catch_up")
            self._report_progress_until(locust, start_s + end, "load", start_s)
            self._player.finish(lambda: time.monotonic() - start_s)
            cpu_s[1] = self._cpu_s()
            if self._target.cluster is not None:
                rss_bytes = self._target.cluster.rss_bytes()
            locust.send_command("stop_producers")
            unfinished = late or self._await_sum(
                locust, "producing", self._spec.delivery_timeout_ms / 1000, "settle their batches"
            )
            for sums, what in (("to_transform", "transform"), ("lag", "read")):
                unfinished = unfinished or self._await_sum(locust, sums, DRAIN_S, f"{what} what was acknowledged")
            locust.send_command("stop_readers")
            self._await_sum(locust, "running", DRAIN_S, "end")
            locust.send_command("close")
            if self._await_sum(locust, "closed", DRAIN_S, "write their results", workers):
                raise LoadError(f"Not all load workers wrote their results; see {folder / 'logs'}.")
        compacted = is_compacted(topic_settings(self._workload, self._options))
        collected = collect(folder, workers, self._spec.idempotent, self._workload.keys if compacted else 0)
        exactly_once = self._spec.idempotent and not collected.rebalances
        if not compacted:  # Spark does not know which records are superseded.
            write_judged(folder, self._spec, exactly_once, collected.findings)
        seconds = collected.measures.seconds.values()
        return LoadResult(
            workload=self._workload,
            target=self._target.name,
            client=self._spec.client,
            first=self._first,
            end=end,
            backlog=backlog,
            measures=collected.measures,
            findings=collected.findings,
            errors=collected.errors,
            rebalances=collected.rebalances,
            catch_up=collected.catch_up,
            unfinished=unfinished,
            wanted_records_per_s=self._spec.records_per_s,
            brokers_cpu_s=cpu_s[1] - cpu_s[0] if self._has_cpu else NOT_MEASURED,
            faults=self._player.fired,
            brokers_rss_bytes=rss_bytes,
            generator_cpu_permille=max((each.cpu_permille for each in seconds), default=0),
            generator_cpu_s=collected.cpu_s,
            generator_rss_bytes=collected.rss_bytes,
            clocks=collected.clocks,
        )

    def _drained_backlog(self, locust: LocustProcesses) -> tuple[Backlog | None, str]:
        """Build a backlog and drain it, if the workload wants one. Return it, or what did not happen in time."""
        if not self._workload.consumer_backlog_size_gb:
            return None, ""

        def progress(text: str) -> None:
            self._progress(f"{self._target.name}: {text}")

        try:
            return build_and_drain(self._workload, self._spec.records_per_s, _Leader(locust), progress), ""
        except BacklogError as error:
            return None, str(error)

    def _prepare(self, locust: LocustProcesses) -> None:
        """Let transactional producers get their IDs, let readers join their groups, and open idle connections. None of
        it is measured, since the load has not begun."""
        workload, late, name = self._workload, "", self._target.name
        connections = workload.crucible.connections
        spec = self._spec
        if connections or spec.members or spec.transactional_clients:
            locust.send_command("prepare")
        if spec.transactional_clients:
            what = "get their producer IDs"
            late = self._await_sum(locust, "transactional", PREPARE_S, what, spec.transactional_clients)
        if spec.members and not late:
            self._progress(f"{name}: {spec.members:,} clients join their groups")
            # The first members may have all partitions until the others have joined.
            what = "get partitions from their groups"
            late = self._await_sum(locust, "members", PREPARE_S, what, spec.members)
            late = late or self._await_sum(locust, "assigned", PREPARE_S, what, spec.assigned_by_groups)
        if connections and not late:
            self._progress(f"{name}: opens {connections:,} idle connections")
            late = self._await_sum(locust, "idle", PREPARE_S, f"open {connections:,} idle connections", connections)
        if late:
            raise LoadError(f"{name}: {late}.")

    @property
    def _has_cpu(self) -> bool:
        """Whether processor time is known of all nodes. That of a process that was killed is not."""
        return self._target.cluster is not None and all(each.fault.kind != KILLED for each in self._player.fired)

    def _cpu_s(self) -> float:
        return NOT_MEASURED if self._target.cluster is None else self._target.cluster.cpu_s()

    def _report_progress_until(
        self, locust: LocustProcesses, until_s: float, phase: str, start_s: float = math.inf
    ) -> None:
        """Report progress once a second, until the time has come. Faults are injected if ``start_s`` says when the load
        has started."""
        before, since_s = self._last, time.monotonic()
        while (left_s := until_s - time.monotonic()) > 0:
            self._player.do_due(time.monotonic() - start_s)
            time.sleep(max(0.0, min(1.0, left_s, start_s + self._player.next_s - time.monotonic())))
            report = locust.report()
            if report is None or time.monotonic() < since_s + min(1.0, left_s):
                continue
            text = line(before, report, self._spec.records_per_s)
            before = self._last = report
            since_s = time.monotonic()
            self._progress(f"{self._target.name}: {phase}, {max(0.0, left_s - 1):.0f} s left: {text}")

    def _await_sum(self, locust: LocustProcesses, key: str, limit_s: float, what: str, value: int = 0) -> str:
        """Wait until the workers' sum of ``key`` is ``value``. Return what did not happen in time, or nothing."""
        start_s = said_s = time.monotonic()
        end_s, seen = start_s + limit_s, 0
        while time.monotonic() < end_s:
            report = locust.report()
            if report is not None and time.monotonic() >= said_s + WAIT_SAID_S:
                said_s = time.monotonic()
                left = f"{abs(report[key] - value):,} left, for up to {end_s - said_s:.0f} s more"
                self._progress(f"{self._target.name}: waits until the clients {what}: {left}")
            if report is not None and report != self._last:
                # The first report may be older than the command.
                seen = seen + 1 if report[key] == value else 0
                self._last = report
                if seen == 2 or (seen and key == "closed"):
                    return ""
            time.sleep(0.05)
        return f"the clients did not {what} within {limit_s:g} s"
