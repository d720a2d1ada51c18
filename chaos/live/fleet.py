"""Starts the fleet's process, and writes idle partitions beside it."""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.fleet.behaviours.producers import KeyedProducer
from bench.fleet.driver import BlockingDriver, clock
from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.plans import IDLE_WRITER, idle_writer_plan
from bench.fleet.recorder import Recorder
from bench.fleet.spec import FleetSpec, settings_of, write_spec
from chaos.live.client_mutant import PRELUDE, words_for
from chaos.live.errors import NodeDied, SetupError
from chaos.live.processes import Child
from chaos.live.run_folder import RunFolder
from chaos.seeds import number_for, random_for
from reports.manifest import CheckResult
from scenarios.model import Scenario

DRAIN_MS = 30_000
FINAL_READ_MS = 60_000
WORKERS = 2
END_LIMIT_S = 15.0
RESPONSES_AFTER_HEAL = "responses-after-heal"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Addresses of the brokers, HOST:PORT."""

    bootstrap: tuple[str, ...]
    """Of each broker."""
    topic_prefix: str = ""
    """Prefix of the names of the run's topics."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """As in FleetSpec."""
    dial: Mapping[str, str] = field(default_factory=dict)
    """As in FleetSpec."""
    target: tuple[str, ...] = ()
    """Addresses of the cluster to which a mirror copies."""


def live_fleet_spec(scenario: Scenario, folder: Path, access: ClusterAccess, origin_us: int, seed: int) -> FleetSpec:
    """Return the fleet's spec: the scenario's load at its live size."""
    return FleetSpec(
        bootstrap=list(access.bootstrap),
        load=scenario.load,
        target=list(access.target),
        topic_prefix=access.topic_prefix,
        out_dir=str(folder),
        seed=number_for(seed, "fleet"),
        start_mono_us=origin_us,
        workers=WORKERS,
        drain_ms=DRAIN_MS,
        final_read_ms=FINAL_READ_MS,
        versions=dict(access.versions),
        dial=dict(access.dial),
    )


class FleetProcess(Child):
    """``python -m bench.fleet`` with some ``words``. ``on_event`` gets each event that it reports (see bench/fleet)."""

    def __init__(
        self, spec: FleetSpec, folder: RunFolder, words: Sequence[str], on_event: Callable[[dict[str, Any]], None]
    ) -> None:
        self._on_event = on_event
        self._error = ""
        self._loads = False
        file = write_spec(spec, folder.logs / "fleet-spec.json")
        command = [sys.executable, "-m", "bench.fleet", str(file), *words]
        super().__init__("the fleet", command, folder.logs / "fleet.log", on_line=self._handle_event)

    def _handle_event(self, event: dict[str, Any]) -> None:
        if event.get("event") == "error":
            self._error = str(event.get("message"))
        self._loads = self._loads or event.get("event") == "load"
        self._on_event(event)

    def check(self) -> None:
        """Raise NodeDied if it ended before it was done, or SetupError if it ended before it began to load."""
        status = self.exit_status
        if status is None or status == 0:
            return
        self.close()
        words = self._error or self.last_words()
        if status == 2 and not self._loads:
            raise SetupError(f"The fleet could not start: {words}")
        raise NodeDied(f"the fleet ended with {status}: {words}")


class LiveFleet:
    """The fleet of one run, with the writer of idle partitions. ``mutant`` names a mutant of the client, if any."""

    def __init__(
        self, scenario: Scenario, folder: RunFolder, access: ClusterAccess, origin_us: int, seed: int, mutant: str = ""
    ) -> None:
        self._origin_us = origin_us
        self.events: dict[str, int] = {}  # when the fleet first reported each, in microseconds since the run's start
        self.report: dict[str, int] = {}  # the last one about its progress
        self.missed: list[str] = []  # what its last readers could not get
        spec = live_fleet_spec(scenario, folder.path, access, origin_us, seed)
        prelude, words = (PRELUDE, words_for(mutant, folder)) if mutant else ("", [])
        spec = msgspec.structs.replace(spec, prelude=prelude, prelude_words=words)
        self._idle = IdleWriter(spec, folder, origin_us, seed)
        self._process = FleetProcess(spec, folder, ["--hold"], self._take_event)
        self.check = self._process.check

    def load_begins(self) -> None:
        """Start the writer of idle partitions."""
        self._idle.start()

    def final(self) -> None:
        """Start the last polls of the clients, and then the final read. All faults must be healed."""
        self._idle.end()
        if self._idle.failure:
            raise NodeDied(f"the writer of idle partitions failed: {self._idle.failure}")
        self._process.send_command(cmd="final")

    def heal_checks(self, at_us: int) -> tuple[CheckResult, ...]:
        """Return whether all nodes responded to the last readers; empty if the readers did not finish."""
        if "done" not in self.events:
            return ()
        missed = "; ".join(self.missed)
        return (CheckResult(guarantee=RESPONSES_AFTER_HEAL, holds=not missed, evidence=1, at_us=at_us, detail=missed),)

    def close(self) -> None:
        self._idle.end()
        self._process.terminate(END_LIMIT_S)
        self._process.close()

    def _take_event(self, event: dict[str, Any]) -> None:
        self.events.setdefault(str(event.get("event")), time.monotonic_ns() // 1000 - self._origin_us)
        if event.get("event") == "done":
            self.missed = [str(each) for each in event.get("missed", ())]
        if event.get("event") == "progress":
            self.report = {name: value for name, value in event.items() if name != "event"}


class IdleWriter:
    """Appends once to each idle partition, one after the other, while the load runs (``idle_appends_s``). A lost
    response may then be the only one that carried a partition's last record.

    ``failure`` is empty if nothing went wrong.
    """

    def __init__(self, spec: FleetSpec, folder: RunFolder, origin_us: int, seed: int) -> None:
        self._thread: threading.Thread | None = None
        self.failure = ""
        plan = idle_writer_plan(spec)
        if plan is None:
            return
        behaviour = KeyedProducer(plan, settings_of(spec), random_for(seed, IDLE_WRITER))
        self._recorder = Recorder(ParquetSink(folder.path, IDLE_WRITER), IDLE_WRITER, origin_us)
        self._driver = BlockingDriver(behaviour, self._recorder.record)
        self._thread = threading.Thread(target=self._write, name=IDLE_WRITER, daemon=True)

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def _write(self) -> None:
        try:
            self._driver.run()
        except Exception as failure:  # ``LiveFleet.final`` raises it as NodeDied.
            self.failure = f"{type(failure).__name__}: {failure}"

    def end(self) -> None:
        """End the writer, and close its record. What is still open becomes unknown."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        begun = thread.ident is not None
        if begun:
            self._driver.stop()
            thread.join(DRAIN_MS / 1000)
        left = (self._driver.behaviour,) if begun and not self._driver.finished else ()
        try:
            self._recorder.close(clock(), left)
        except OSError as failure:
            self.failure = self.failure or str(failure)
