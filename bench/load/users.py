"""Locust users of the load: only Locust processes import this, because locust patches the whole process.

A user is a greenlet that runs one client. Clients report batches; once a second their sums go to Locust's statistics,
since a call for each batch would cost as much as the batch.
"""

import os
import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any, Final

import gevent
import msgspec
from gevent.event import Event
from locust import User, task
from locust.exception import StopUser

from bench.fleet.recorder import bounds_us, bucket_of
from bench.load.backlog import DRAINED_RECORDS
from bench.load.clients import Client, ProducerClient, ReaderClient, makers
from bench.load.connections import Connected, ConnectionMaker
from bench.load.group_reader import GroupLoadReader
from bench.load.history import CopiedHistory, LoadHistory, shares_disk
from bench.load.ledger import Read, Sent
from bench.load.measures import LoadSecond, Measures
from bench.load.producer import LoadPlan, LoadProducer, Settled, Waits, monotonic_us
from bench.load.reader import LoadReader, ReadPlan, Taken
from bench.load.results import CatchUp, WorkerResult
from bench.load.spec import LoadSpec, worker_plans
from bench.load.transactional import TransactionalLoadProducer
from bench.load.transform import Transformer, TransformPlan
from bench.locust.clock import SAME_CLOCK, UNCORRECTED_VARIABLE, WALL, Round, offset_of
from bench.locust.generator import GeneratorMeter, Sample
from bench.locust.messages import REPORT, tick_until

REPORT_INTERVAL_S: Final = 0.5
TOO_LARGE: Final = ("MESSAGE_TOO_LARGE", "MSG_SIZE_TOO_LARGE", "MESSAGE_SIZE_TOO_LARGE")
"""The names of Kafka's error 10: Kafka's own, librdkafka's and kafka-python's. No attempt can cure it."""
LIST_TOO_LARGE: Final = "RECORD_LIST_TOO_LARGE"
"""Kafka's error 18: a batch is larger than a segment may be. All libraries have this name."""
AnyClient = ProducerClient | ReaderClient | ConnectionMaker
PRODUCE: Final = ("PRODUCE", "batch")
CONSUME: Final = ("CONSUME", "fetch")


class WorkerLoad:
    """One worker's share of the clients, and what they measured."""

    def __init__(self, environment: Any, spec: LoadSpec, index: int) -> None:
        _allow_open_files()
        self.environment = environment
        self.index = index
        self.go = Event()
        self._rebalances = 0  # between the start of the load and its end
        self.late = Event()  # for readers that begin with the seconds that count
        self._late_us = 0
        self._catch_ups: list[CatchUp] = []
        self.early = Event()  # for clients that begin before the load
        self.start_us = 0
        self.closed = False
        self.failure = ""
        self._cpu_start_s = 0.0
        self._clock: Round | None = None
        self._spec = spec
        self._measures = Measures()
        self._sent: dict[str, Sent] = {}
        self._reads: list[tuple[int, Read]] = []
        self._read_errors: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._locust: dict[tuple[str, str], Counter[int]] = {PRODUCE: Counter(), CONSUME: Counter()}
        exchange, folder = environment.exchange, Path(spec.out_dir)
        self._history: LoadHistory | CopiedHistory
        if shares_disk(folder, exchange.spec):
            self._history = LoadHistory(folder, index)
        else:
            self._history = CopiedHistory(index, exchange.send_file)
        self._make_producer, self._make_reader = makers(spec.client)
        producers, readers, transformers, connections = worker_plans(spec, index)
        self._producers = [self._producer(plan) for plan in producers]
        self._readers = [self._reader(*reader) for reader in readers]
        self._makers = [ConnectionMaker(connection, spec.bootstrap, self._connected) for connection in connections]
        self._transformers = [self._transformer(plan) for plan in transformers]
        clients: list[AnyClient] = [*self._producers, *self._readers, *self._transformers, *self._makers]
        self._waiting = iter(clients)
        self._running = len(clients)
        self._producing = len(self._producers)
        self.meter = GeneratorMeter(time.monotonic(), time.process_time())

    def take(self) -> AnyClient | None:
        """Return the next client without a user. None if all have one."""
        return next(self._waiting, None)

    def ended(self, client: Client) -> None:
        self._running -= 1
        self._producing -= client in self._producers

    def command(self, command: str) -> None:
        if command == "prepare":
            self.early.set()
        elif command == "go":
            self._rebalances = -self._assignments
            self.start_us = monotonic_us()
            self._cpu_start_s = time.process_time()
            self.go.set()
        elif command == "catch_up":
            self._late_us = monotonic_us()
            self.late.set()
        elif command == "stop_producers":
            for producer in self._producers:
                producer.stop()
        elif command in ("pause_readers", "resume_readers"):
            for reader in self._readers:
                reader.paused = command == "pause_readers"
        elif command == "stop_readers":
            self._rebalances += self._assignments
            for reader in self._readers:
                reader.stop()
            beside: list[Client] = [*self._makers, *self._transformers]
            for client in beside:
                client.stop()
        elif command == "close":
            self._close()
        self.report()

    @property
    def _assignments(self) -> int:
        return sum(reader.rebalances for reader in self._readers if isinstance(reader, GroupLoadReader))

    def _close(self) -> None:
        sent = {writer: (each.ok, each.info, each.fail, dict(each.errors)) for writer, each in self._sent.items()}
        reads = [(number, each.writers, each.repeated, each.reordered, each.damaged) for number, each in self._reads]
        cpu_s = time.process_time() - self._cpu_start_s
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        clock, incomplete, name = SAME_CLOCK, "", f"worker {self.index} on {gethostname()}"
        if self._clock is not None:
            try:
                last = self.environment.exchange.measure_clock()
            except TimeoutError as failure:
                last, incomplete = None, f"the clock of {name} could not be compared at the end: {failure}"
            clock = offset_of(self._clock, last or self._clock)
        try:
            self._history.close(self._measures)
        except (OSError, TimeoutError) as failure:
            if isinstance(self._history, LoadHistory):
                self.failure = f"the history of worker {self.index} cannot be kept: {failure}"
                return
            incomplete = f"the history of {name} could not be copied here: {failure}"
        result = WorkerResult(
            self._measures,
            sent,
            reads,
            dict(self._read_errors),
            cpu_s,
            rss_bytes,
            clock,
            self._rebalances,
            self._catch_ups,
            incomplete,
        )
        self.environment.exchange.send_result(self.index, msgspec.json.encode(result))
        self.closed = True

    # Clients

    def _producer(self, plan: LoadPlan) -> ProducerClient:
        sent = self._sent[plan.process] = Sent()
        spans = self._history.client(plan.process)
        measures, totals, latencies = self._measures, self._totals, self._locust[PRODUCE]

        def settled(each: Settled) -> None:
            start_us, records, end_us = self.start_us, each.count, each.end_us
            at = (end_us - start_us) // 1_000_000
            measures.second((each.due_us - start_us) // 1_000_000).offered += records
            sending = measures.second((each.first_sent_us - start_us) // 1_000_000)
            sending.sent += records
            delay_us = each.first_sent_us - each.due_us
            sending.max_slip_us = max(sending.max_slip_us, delay_us)
            sent.add(each.kind, each.error, each.first_sequence, each.first_sequence + records)
            spans.add(each.kind, *each.where, plan.process, each.first_sequence, records, end_us - start_us)
            if plan.acks == 0 and each.error is None:
                measures.latency("delay", at, delay_us, records)
                totals["unacknowledged"] += records
                return
            if each.kind == "aborted":
                measures.second(at).aborted += records
                return
            if each.kind != "ok":
                measures.second(at).failed += records
                totals["failed"] += records
                totals["too_large"] += each.error in TOO_LARGE
                totals["list_too_large"] += each.error == LIST_TOO_LARGE
                return
            measures.second(at).acknowledged += records
            totals["acknowledged"] += records
            response_us = end_us - each.due_us
            measures.latency("publish", at, response_us - delay_us, records)
            measures.latency("delay", at, delay_us, records)
            measures.latency("response", at, response_us, records)
            latencies[bucket_of(response_us)] += 1

        if plan.transaction is not None:
            return TransactionalLoadProducer(plan, self._spec.bootstrap, settled, self._ended_transaction)
        return self._make_producer(plan, self._spec.bootstrap, settled)

    def _ended_transaction(self, committed: bool, begin_us: int, end_us: int) -> None:
        at = (end_us - self.start_us) // 1_000_000
        self._measures.second(at).transactions += committed
        self._measures.latency("commit", at, end_us - begin_us, 1)

    def _transformer(self, plan: TransformPlan) -> Transformer:
        def taken(each: Taken) -> None:
            if each.error:
                self._read_errors[each.error] += 1

        return Transformer(plan, self._spec.bootstrap, taken, self._ended_transaction)

    def _reader(self, subscription: int, plan: ReadPlan) -> ReaderClient:
        read = Read()
        self._reads.append((subscription, read))
        spans = self._history.client(plan.process, subscription)
        measures, totals, latencies = self._measures, self._totals, self._locust[CONSUME]

        def verified(each: Taken) -> int:
            """Return how many records the ledger got."""
            if each.error:
                self._read_errors[each.error] += 1
            records = 0
            for span in each.spans:
                read.add(*each.where, span.writer, span.first_sequence, span.count, span.valid)
                kind = "read" if span.valid and span.writer else "damaged"
                spans.add(kind, *each.where, span.writer, span.first_sequence, span.count, each.at_us - self.start_us)
                records += span.count
            return records

        def taken(each: Taken) -> None:
            records = verified(each)
            if not records:
                return
            at = (each.at_us - self.start_us) // 1_000_000
            measures.second(at).read += records
            totals["read"] += records
            now_ms = WALL.now_ns() / 1e6
            for timestamp_ms, count in each.written:
                latency_us = int((now_ms - timestamp_ms) * 1000)
                measures.latency("end_to_end", at, latency_us, count)
                latencies[bucket_of(latency_us)] += 1

        if plan.catches_up:
            return self._catch_up_reader(verified, plan)
        if plan.group_id:
            return GroupLoadReader(plan, self._spec.bootstrap, taken)
        return self._make_reader(plan, self._spec.bootstrap, taken)

    def _catch_up_reader(self, verified: Callable[[Taken], int], plan: ReadPlan) -> LoadReader:
        """Verify what it reads as usual, and count it neither for the rate of the others nor for their latency."""
        records, is_behind = 0, True

        def taken(each: Taken) -> None:
            nonlocal records, is_behind
            records += verified(each)
            if is_behind and reader.knows_lag and reader.lag <= DRAINED_RECORDS:
                is_behind = False
                self._catch_ups.append(CatchUp((each.at_us - self._late_us) / 1e6, records))

        reader = LoadReader(plan, self._spec.bootstrap, taken)
        return reader

    def _connected(self, connected: Connected) -> None:
        if connected.error is not None:
            self._read_errors[f"connect: {connected.error}"] += 1
            return
        at = (connected.end_us - self.start_us) // 1_000_000
        self._measures.second(at).connections += 1
        self._measures.latency("connect", at, connected.end_us - connected.due_us, 1)

    # Reports

    def prepare(self) -> None:
        """Measure the offset of the clock, and then report until the end. The first report says that it is ready."""
        try:
            self._clock = self.environment.exchange.measure_clock()
        except TimeoutError as failure:
            self.failure = str(failure)
        if self._clock is not None and UNCORRECTED_VARIABLE not in os.environ:
            WALL.correct(self._clock.offset_us)
        gevent.spawn(tick_until, lambda: self.closed, self.meter)
        self.report_forever()

    def report_forever(self) -> None:
        while not self.closed:
            self.report()
            gevent.sleep(REPORT_INTERVAL_S)

    def report(self) -> None:
        sample = self.meter.sample(time.monotonic(), time.process_time())
        waits = self._waits()
        if self.start_us:
            self._note(self._measures.second((monotonic_us() - self.start_us) // 1_000_000), sample, waits)
        if self.start_us:
            self._history.roll(monotonic_us() - self.start_us)
        self._update_locust()
        data = {
            "index": self.index,
            "acknowledged": self._totals["acknowledged"],
            "unacknowledged": self._totals["unacknowledged"],
            "failed": self._totals["failed"],
            "too_large": self._totals["too_large"],
            "list_too_large": self._totals["list_too_large"],
            "read": self._totals["read"],
            "lag": sum(reader.lag for reader in self._readers),
            "to_transform": sum(transformer.lag for transformer in self._transformers),
            "assigned": sum(len(member.assigned) for member in self._members),
            "idle": sum(maker.held for maker in self._makers),
            "transactional": sum(
                producer.is_ready
                for producer in (*self._producers, *self._transformers)
                if isinstance(producer, TransactionalLoadProducer)
            ),
            "members": sum(bool(member.assigned) for member in self._members),
            "producing": self._producing,
            "running": self._running,
            "worst_wanted_permille": sample.wanted_permille,
            "worst_lag_us": sample.lag_us,
            "worst_at_us": monotonic_us() - self.start_us if self.start_us else 0,
            "waits_for_responses": waits.for_responses,
            "waits_for_leaders": waits.for_leaders,
            "closed": self.closed,
            "ended_early": 0,
            "failure": self.failure,
        }
        self.environment.runner.send_message(REPORT, data)

    @property
    def _members(self) -> list[GroupLoadReader]:
        """The clients that groups assign partitions."""
        readers = [reader for reader in self._readers if isinstance(reader, GroupLoadReader)]
        return [*readers, *(transformer.source for transformer in self._transformers)]

    def _waits(self) -> Waits:
        """Return the sum over the producers that know what they wait for: those of this suite."""
        found = [producer.waits() for producer in self._producers if isinstance(producer, LoadProducer)]
        return Waits(sum(each.for_responses for each in found), sum(each.for_leaders for each in found))

    @staticmethod
    def _note(second: LoadSecond, sample: Sample, waits: Waits) -> None:
        second.cpu_permille = max(second.cpu_permille, sample.cpu_permille)
        second.wanted_permille = max(second.wanted_permille, sample.wanted_permille)
        second.lag_us = max(second.lag_us, sample.lag_us)
        second.waits_for_responses = max(second.waits_for_responses, waits.for_responses)
        second.waits_for_leaders = max(second.waits_for_leaders, waits.for_leaders)

    def _update_locust(self) -> None:
        """Add the batches since the last report to Locust's statistics, in the form in which it keeps them."""
        stats = self.environment.stats
        for (method, name), buckets in self._locust.items():
            for bucket, count in buckets.items():
                milliseconds = bounds_us(bucket)[0] / 1000
                for entry in (stats.total, stats.entries[name, method]):
                    entry.log(milliseconds, 0)
                    entry.num_requests += count - 1
                    entry.num_reqs_per_sec[int(entry.last_request_timestamp)] += count - 1
                    entry.total_response_time += milliseconds * (count - 1)
                    entry.response_times[round(milliseconds)] += count - 1
            buckets.clear()


def _allow_open_files() -> None:
    """Let this process have as many connections as the system allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class LoadUser(User):
    """A user for one client, from its start to its end."""

    client: AnyClient | None = None

    @task
    def live(self) -> None:
        load: WorkerLoad = self.environment.load
        client = self.client = load.take()
        if client is not None:
            is_early = isinstance(client, GroupLoadReader | Transformer) or (
                isinstance(client, ConnectionMaker) and client.plan.idle
            )
            is_late = isinstance(client, LoadReader) and client.plan.catches_up
            try:
                if isinstance(client, TransactionalLoadProducer):
                    load.early.wait()
                    client.prepare()
                (load.early if is_early else load.late if is_late else load.go).wait()
                client.run()
            except Exception as failure:
                load.failure = f"{client.plan.process}: {type(failure).__name__}: {failure}"
                raise
            finally:
                load.ended(client)
        raise StopUser

    def stop(self, force: bool = False) -> Any:
        if self.client is not None:
            self.client.stop()
        return super().stop(force=force)
