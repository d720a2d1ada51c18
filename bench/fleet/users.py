"""Locust users of the fleet. Only Locust processes import this, because locust patches the whole process.

A user is a greenlet that drives one behaviour over blocking sockets. The worker's number decides which behaviours its
users drive. So names, partitions and seeds are the same however many workers there are.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import gevent
from gevent.event import Event
from locust import User, task
from locust.exception import StopUser

from bench.fleet.behaviours.cluster import ClusterScript, MetadataBoard
from bench.fleet.behaviours.protocol import Behaviour
from bench.fleet.driver import BlockingDriver, clock
from bench.fleet.early_signs import SIGNS_OF, EarlySigns
from bench.fleet.fleet import STAGES, make_fleet
from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.recorder import Recorder
from bench.fleet.spec import FleetSpec
from bench.locust.generator import GeneratorMeter, Sample
from bench.locust.messages import REPORT, tick_until
from reports.rows import HistoryRow, OperationRow, SpanRow

REPORT_INTERVAL_S: Final = 1.0
LIVE_S: Final = 3
"""Number of seconds whose figures are shown live. Those of a single second change too much to be read."""
_REQUEST_TYPES: Final = {
    "fetch": "FETCH",
    "produce": "PRODUCE",
    "create_topics": "ADMIN",
    "delete_topics": "ADMIN",
    "alter_configs": "ADMIN",
    "describe": "ADMIN",
    "metadata_read": "METADATA",
    "offset_commit": "GROUP",
    "offset_fetch": "GROUP",
    "join_group": "GROUP",
    "sync_group": "GROUP",
    "copy": "PRODUCE",
    "transaction": "PRODUCE",
}
"""Locust's request types by the history's words. They are few, since Locust keeps statistics for each type and name."""


class OperationFailed(Exception):  # noqa: N818 - Locust shows the name to people
    """Locust counts it as a failure. Its text is Kafka's error name, so there are few different ones."""


class WorkerFleet:
    """One worker's share of the fleet, its recorder and its reports to the master.

    If the user starts and stops the fleet by hand, ``start`` is the number of the start, which is part of the names of
    the worker's files. Otherwise it is 0.
    """

    def __init__(self, environment: Any, spec: FleetSpec, index: int, start: int = 0) -> None:
        self.environment = environment
        self.index = index
        self.name = f"worker-{index}" if not start else f"worker-{index}-{start}"
        fleet = make_fleet(spec, (index, spec.workers))
        self.sink = ParquetSink(Path(spec.out_dir), self.name)
        self.recorder = Recorder(self.sink, self.name, spec.start_mono_us)
        self.signs = EarlySigns()
        kinds: tuple[Sequence[Behaviour], ...] = (
            fleet.producers,
            fleet.transactional,
            fleet.admins,
            fleet.fetchers,
            fleet.metadata_readers,
            fleet.members,
            fleet.mirrors,
            fleet.workers,
            fleet.strays,
            fleet.janitors,
        )
        self.drivers = [BlockingDriver(behaviour, self.record) for behaviour in evenly_mixed(kinds)]
        self._stage_of = {client.process: stage for stage, clients in fleet.stages.items() for client in clients}
        share_metadata([*fleet.fetchers, *fleet.producers])
        self.meter = GeneratorMeter(time.monotonic(), time.process_time())
        self.closed = False
        self.failure = ""
        self.go = Event()
        self._waiting = iter(self.drivers)
        self._failures: dict[str, OperationFailed] = {}

    def take(self) -> BlockingDriver | None:
        """Return the driver of the next behaviour without a user. None if all have one."""
        return next(self._waiting, None)

    def record(self, rows: tuple[HistoryRow, ...]) -> None:
        self.recorder.record(rows)
        for row in rows:
            if isinstance(row, OperationRow) and row.f in _REQUEST_TYPES:
                self._report_to_locust(row)
            elif isinstance(row, SpanRow) and row.kind == "read":
                self.signs.read(row)

    def _report_to_locust(self, row: OperationRow) -> None:
        failure = None
        if row.type != "ok":
            name = row.error or row.type
            failure = self._failures.setdefault(name, OperationFailed(name))
        self.environment.events.request.fire(
            request_type=_REQUEST_TYPES[row.f],
            name=row.f,
            response_time=(row.complete_us - row.intended_us) / 1000,
            response_length=row.response_bytes,
            exception=failure,
            context={},
            start_time=time.time(),
            response=None,
        )

    def stop(self, stage: str) -> None:
        """End the load of the clients of one of ``STAGES``."""
        for driver in self._in_stage(stage):
            driver.stop()

    def left(self, stage: str) -> int:
        return sum(not driver.finished for driver in self._in_stage(stage))

    def _in_stage(self, stage: str) -> list[BlockingDriver]:
        return [driver for driver in self.drivers if self._stage_of[driver.behaviour.process] == stage]

    def ended_early(self) -> int:
        """Return how many clients have ended although the fleet continues."""
        return sum(driver.finished and not driver.stop_requested for driver in self.drivers)

    def close(self) -> None:
        """End the history, whatever is still open."""
        if self.closed or self.failure:
            return
        try:
            self.recorder.close(clock(), [driver.behaviour for driver in self.drivers if not driver.finished])
        except OSError as failure:
            self.failure = str(failure)
        else:
            self.closed = True

    @property
    def _ended(self) -> bool:
        return self.closed or bool(self.failure)

    def tick_forever(self) -> None:
        tick_until(lambda: self._ended, self.meter)

    def report_forever(self) -> None:
        """Once a second records what the worker needed, and reports its totals to the master."""
        self.report(Sample(0, 0, 0))
        while not self._ended:
            gevent.sleep(REPORT_INTERVAL_S)
            sample = self.meter.sample(time.monotonic(), time.process_time())
            if not self._ended:
                self.recorder.note_generator(clock().mono_us - 1_000_000, sample)
                self.recorder.write_part(clock().mono_us)
                self.failure = self.failure or self.sink.failure
            self.report(sample)

    def report(self, sample: Sample | None = None) -> None:
        sample = sample or Sample(0, 0, 0)
        live = self.recorder.live(clock().mono_us, LIVE_S)
        data = {
            "index": self.index,
            **asdict(self.recorder.totals),
            "offered_per_s": live.offered // LIVE_S,
            "completed_per_s": live.completed // LIVE_S,
            "worst_produce_p99_us": live.produce_p99_us,
            "worst_fetch_p99_us": live.fetch_p99_us,
            **{f"{SIGNS_OF}{name}": count for name, count in self.signs.seen.items()},
            **{f"{stage}_left": self.left(stage) for stage in STAGES},
            "cpu_permille": sample.cpu_permille,
            "worst_wanted_permille": sample.wanted_permille,
            "worst_lag_us": sample.lag_us,
            "closed": self.closed,
            "ended_early": self.ended_early(),
            "failure": self.failure,
        }
        self.environment.runner.send_message(REPORT, data)


def share_metadata(scripts: Sequence[ClusterScript]) -> None:
    """Give all scripts about the same topics one board."""
    boards: dict[tuple[str, ...], MetadataBoard] = {}
    for script in scripts:
        script.board = boards.setdefault(script.topics, MetadataBoard(script.topics))


class FleetUser(User):
    """Drives one behaviour from its start to its end, then stops. When Locust takes a user away, its client leaves."""

    driver: BlockingDriver | None = None

    @task
    def live(self) -> None:
        fleet: WorkerFleet = self.environment.fleet
        driver = self.driver = fleet.take()
        if driver is not None:
            fleet.go.wait()
            try:
                driver.run()
            except Exception as failure:
                fleet.failure = f"{driver.behaviour.process}: {type(failure).__name__}: {failure}"
                raise
            finally:
                driver.abandon()
        raise StopUser

    def stop(self, force: bool = False) -> Any:
        if self.driver is not None:
            self.driver.leave()
        return super().stop(force=force)


def evenly_mixed(kinds: Sequence[Sequence[Behaviour]]) -> list[Behaviour]:
    """Order clients so that the first ones, however many, hold about the same share of each kind."""
    placed = [
        ((number + 0.5) / len(kind), place, each)
        for place, kind in enumerate(kinds)
        for number, each in enumerate(kind)
    ]
    return [each for _, _, each in sorted(placed, key=lambda one: one[:2])]
