"""Runs a workload on a target: topics, workers, warm-up, the seconds that count, the rest of the reading, verdict."""

import math
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.load import java_client
from bench.load.backlog import Backlog, BacklogError, build_and_drain
from bench.load.clients import JAVA
from bench.load.faults import KILLED, FaultPlayer, LinkError
from bench.load.history import write_judged
from bench.load.ledger import Findings
from bench.load.load_workers import LIST, MESSAGE, LateError, LoadWorkers, TooLargeError
from bench.load.measures import Measures
from bench.load.options import (
    LoadError,
    LoadOptions,
    Progress,
    client_of,
    durations_s,
    local_workers,
    rate_of,
    topic_settings,
)
from bench.load.requirements import check_playable
from bench.load.results import LoadResult, collect
from bench.load.spec import SPEC_NAME, LoadSpec, write_spec
from bench.load.target import LoadTarget
from bench.load.topics import TopicError, leader_of, topics_for
from bench.load.workload import Workload, is_compacted
from bench.locust.processes import LocustProcesses, WorkerDiedError
from bench.peers.node import PeerError
from reference_broker.client.consumer import READ_UNCOMMITTED

LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")
DRAIN_S: Final = 60.0
"""Time that readers have after the load to read the acknowledged records."""
PREPARE_S: Final = 120.0
"""Limit of the time until groups have assigned all partitions, and until idle connections are open."""
NOT_MEASURED: Final = -1


def run(workload: Workload, target: LoadTarget, options: LoadOptions, out_dir: Path, progress: Progress) -> LoadResult:
    """Play a workload once. Files of the run are below ``out_dir``.

    :raises LoadError: the run cannot be carried out, the target refuses the topics or the batches, or a worker ended.
    """
    check_playable(workload, options, target.name, target.node_ids, target.links is not None, target.folder)
    out_dir.mkdir(parents=True, exist_ok=True)
    topics = [f"crucible-bench-{uuid.uuid4().hex[:8]}-{number}" for number in range(workload.topics)]
    spec = spec_of(workload, target, options, topics, out_dir)
    config, is_own = topic_settings(workload, options), target.cluster is not None
    try:
        with topics_for(
            target.bootstrap, spec.all_topics, workload.partitions_per_topic, options.replication, config, not is_own
        ):
            if spec.client == JAVA:
                return _played_by_tools(workload, target, options, spec, progress)
            return _WorkloadRun(workload, target, options, spec, progress).play()
    except TopicError as error:
        raise LoadError(f"{target.name}: {error}.") from error
    except TooLargeError as error:
        shutil.rmtree(out_dir)  # It has nothing that anybody could use.
        raise LoadError(_too_large(workload, target, spec, config, str(error))) from error
    except (WorkerDiedError, PeerError, LinkError) as error:
        raise LoadError(str(error)) from error


def _too_large(workload: Workload, target: LoadTarget, spec: LoadSpec, config: dict[str, str], error: str) -> str:
    """Return the sentence for a target that refuses the batches as too large, with Kafka's name of the error."""
    setting, default = BATCH_LIMITS[error]
    records = "record" if spec.batch_records == 1 else "records"
    size = f"{'' if workload.crucible.message_sizes is None else 'up to '}{workload.largest_value_bytes:,} bytes"
    limit = f", which is {config[setting]}" if setting in config else ""
    return (
        f"{workload.name}: {target.name} refuses batches of {spec.batch_records:,} {records} of {size} "
        f"with {error}: raise {setting} under crucible.topicConfig{limit} (the brokers' {default} is its default), or "
        "lower messageSize or the driver's batch.size."
    )


BATCH_LIMITS: Final = {
    MESSAGE: ("max.message.bytes", "message.max.bytes"),
    LIST: ("segment.bytes", "log.segment.bytes"),
}
"""The setting of topics that limits a batch, and that of brokers which is its default, by the error."""


def spec_of(workload: Workload, target: LoadTarget, options: LoadOptions, topics: list[str], out_dir: Path) -> LoadSpec:
    rate = rate_of(workload, options)
    driver = options.driver
    most = max(1, driver.batch_bytes // workload.record_bytes)
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
        value_bytes=workload.value_bytes,
        sizes=workload.crucible.message_sizes,
        headers=workload.crucible.headers,
        batch_records=most if not rate else max(1, min(most, lingering)),
        compression=options.compression,
        client=client_of(workload, options),
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
        transactions=transactions,
        transform=workload.crucible.transform,
        workers=local_workers(workload, options) + options.joining,
        groups=workload.crucible.groups,
        read_from_start=workload.crucible.read_from_start,
        connections=workload.crucible.connections,
        connections_per_s=workload.crucible.connection_storm,
        out_dir=str(out_dir.resolve()),
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


@dataclass(slots=True)
class _Measured:
    """Measurements of the leader of the workers."""

    end: int = 0  # the second before which the measurement ends, from the start of the load
    backlog: Backlog | None = None
    unfinished: str = ""  # why not all was read; empty if it was
    brokers_cpu_s: float = NOT_MEASURED
    brokers_rss_bytes: int = NOT_MEASURED


class _WorkloadRun:
    """One run, once its topics exist."""

    def __init__(
        self, workload: Workload, target: LoadTarget, options: LoadOptions, spec: LoadSpec, progress: Progress
    ) -> None:
        self._workload, self._target, self._spec, self._options = workload, target, spec, options
        self._folder = Path(spec.out_dir)
        self._print = progress
        warmup_s, seconds = durations_s(workload, options)
        self._first = int(warmup_s)
        self._seconds = max(1, int(seconds))
        self._faults = FaultPlayer(
            workload.crucible.faults,
            target.cluster,
            self._first,
            lambda: leader_of(target.bootstrap, spec.topics[0]),
            target.links,
        )

    def play(self) -> LoadResult:
        with self._workers() as workers:
            self._prepare(workers)
            measured = self._measure(workers)
            self._close(workers)
        return self._result(measured)

    def _progress(self, text: str) -> None:
        self._print(f"{self._target.name}: {text}")

    @contextmanager
    def _workers(self) -> Iterator[LoadWorkers]:
        """Start the workers that are started here, and wait until all workers have reported."""
        path = write_spec(self._spec, self._folder / SPEC_NAME)
        count, joining, listen = self._spec.workers, self._options.joining, self._options.listen
        users = count * math.ceil(self._workload.clients / count)
        if joining:
            at = "a free port of loopback" if listen is None else f"{listen[0]}:{listen[1]}"
            self._progress(f"waits for {joining} workers at {at}")
        logs = self._folder / "logs"
        with LocustProcesses(LOCUSTFILE, count - joining, users, path, logs, joining=joining, listen=listen) as locust:
            locust.wait_until_ready()
            yield LoadWorkers(locust, self._spec.records_per_s, self._progress)

    def _prepare(self, workers: LoadWorkers) -> None:
        """Let transactional producers get their IDs, let readers join their groups, and open idle connections. None of
        it is measured, since the load has not started.

        :raises LoadError: it took too long.
        """
        spec, connections = self._spec, self._workload.crucible.connections
        if connections or spec.members or spec.transactional_clients:
            workers.command("prepare")
        try:
            if spec.transactional_clients:
                workers.await_sum("transactional", PREPARE_S, "get their producer IDs", spec.transactional_clients)
            if spec.members:
                self._progress(f"{spec.members:,} clients join their groups")
                # The first members may have all partitions until the others have joined.
                what = "get partitions from their groups"
                workers.await_sum("members", PREPARE_S, what, spec.members)
                workers.await_sum("assigned", PREPARE_S, what, spec.assigned_by_groups)
            if connections:
                self._progress(f"opens {connections:,} idle connections")
                workers.await_sum("idle", PREPARE_S, f"open {connections:,} idle connections", connections)
        except LateError as late:
            raise LoadError(f"{self._target.name}: {late}.") from late

    def _measure(self, workers: LoadWorkers) -> _Measured:
        """Lead the workers through warm-up, backlog, load and the rest of the reading."""
        measured = _Measured()
        workers.command("go")
        start_s = time.monotonic()
        workers.report_progress_until(start_s + self._first, "warm-up")
        cpu_s = self._cpu_s()
        measured.end = self._first + self._seconds
        try:
            if self._workload.consumer_backlog_size_gb:
                measured.backlog = build_and_drain(self._workload, self._spec.records_per_s, workers, self._progress)
                # The seconds of building and draining count, as OpenMessaging's do.
                measured.end = math.ceil(time.monotonic() - start_s) + self._seconds
        except BacklogError as late:
            measured.unfinished = str(late)
        if self._spec.read_from_start:
            workers.command("catch_up")
        workers.report_progress_until(start_s + measured.end, "load", self._faults, start_s)
        self._faults.finish(lambda: time.monotonic() - start_s)
        if self._has_cpu:
            measured.brokers_cpu_s = self._cpu_s() - cpu_s
        if self._target.cluster is not None:
            measured.brokers_rss_bytes = self._target.cluster.rss_bytes()
        workers.command("stop_producers")
        try:
            if not measured.unfinished:
                workers.await_sum("producing", self._spec.delivery_timeout_ms / 1000, "settle their batches")
                workers.await_sum("to_transform", DRAIN_S, "transform what was acknowledged")
                workers.await_sum("lag", DRAIN_S, "read what was acknowledged")
        except LateError as late:
            measured.unfinished = str(late)
        return measured

    def _close(self, workers: LoadWorkers) -> None:
        """Stop all clients, and let the workers send their results.

        :raises LoadError: a worker sends none.
        """
        workers.command("stop_readers")
        with suppress(LateError):
            workers.await_sum("running", DRAIN_S, "end")
        workers.command("close")
        try:
            workers.await_sum("closed", DRAIN_S, "write their results", self._spec.workers)
        except LateError as late:
            raise LoadError(f"Not all load workers wrote their results; see {self._folder / 'logs'}.") from late

    def _result(self, measured: _Measured) -> LoadResult:
        """Add up what the workers sent, and judge it."""
        spec, compacted = self._spec, is_compacted(topic_settings(self._workload, self._options))
        compacted_keys = self._workload.keys if compacted else 0
        collected = collect(self._folder, spec.workers, spec.idempotent, compacted_keys)
        exactly_once = spec.idempotent and not collected.rebalances
        write_judged(self._folder, spec, exactly_once, collected.findings, compacted_keys)
        return LoadResult(
            workload=self._workload,
            target=self._target.name,
            client=spec.client,
            acks=spec.acks,
            first=self._first,
            end=measured.end,
            backlog=measured.backlog,
            measures=collected.measures,
            findings=collected.findings,
            errors=collected.errors,
            rebalances=collected.rebalances,
            catch_up=collected.catch_up,
            incomplete=collected.incomplete,
            unfinished=measured.unfinished,
            wanted_records_per_s=spec.records_per_s,
            brokers_cpu_s=measured.brokers_cpu_s,
            faults=self._faults.fired,
            brokers_rss_bytes=measured.brokers_rss_bytes,
            generator_cpu_permille=max(
                (second.cpu_permille for second in collected.measures.seconds.values()), default=0
            ),
            generator_cpu_s=collected.cpu_s,
            generator_rss_bytes=collected.rss_bytes,
            clocks=collected.clocks,
        )

    @property
    def _has_cpu(self) -> bool:
        """Whether processor time is known of all nodes. That of a process that was killed is not."""
        return self._target.cluster is not None and all(fired.fault.kind != KILLED for fired in self._faults.fired)

    def _cpu_s(self) -> float:
        return NOT_MEASURED if self._target.cluster is None else self._target.cluster.cpu_s()
