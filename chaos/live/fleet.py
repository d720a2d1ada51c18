"""The fleet of a live run: ``python -m bench.fleet`` as a process, and the writer of idle partitions beside it."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from bench.fleet.behaviours.producers import KeyedProducer
from bench.fleet.driver import BlockingDriver, clock
from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.plans import IDLE_WRITER, idle_writer_plan
from bench.fleet.recorder import Recorder
from bench.fleet.spec import FleetSpec, settings_of, write_spec
from chaos.live.client_mutant import PRELUDE, reached, words_for
from chaos.live.errors import NodeDied, SetupError
from chaos.live.run_folder import RunFolder
from chaos.seeds import number_for, random_for
from scenarios.model import Scenario

DRAIN_MS = 30_000
FINAL_READ_MS = 60_000
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Way:
    """How to reach the brokers.

    ``bootstrap`` holds each broker's HOST:PORT. ``topic_prefix`` stands before the names of the run's topics. FleetSpec
    explains ``versions`` and ``dial``. ``target`` is HOST:PORT of the cluster that a mirror copies to.
    """

    bootstrap: tuple[str, ...]
    topic_prefix: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)
    dial: Mapping[str, str] = field(default_factory=dict)
    target: tuple[str, ...] = ()


def spec_of(scenario: Scenario, folder: Path, way: Way, origin_us: int, seed: int) -> FleetSpec:
    """The scenario's load at its live size."""
    return FleetSpec(
        bootstrap=list(way.bootstrap),
        load=scenario.load,
        target=list(way.target),
        topic_prefix=way.topic_prefix,
        out_dir=str(folder),
        seed=number_for(seed, "fleet"),
        start_mono_us=origin_us,
        workers=WORKERS,
        drain_ms=DRAIN_MS,
        final_read_ms=FINAL_READ_MS,
        versions=dict(way.versions),
        dial=dict(way.dial),
    )


class Fleet:
    """One fleet process. Its stdout brings events (bench/fleet/README.md), its stdin takes commands. ``mutant``: of the
    client's side, empty for none."""

    def __init__(
        self, scenario: Scenario, folder: RunFolder, way: Way, origin_us: int, seed: int, mutant: str = ""
    ) -> None:
        self._origin_us = origin_us
        self._folder = folder
        self._log = folder.logs / "fleet.log"
        spec = spec_of(scenario, folder.path, way, origin_us, seed)
        prelude, words = (PRELUDE, words_for(mutant, folder)) if mutant else ("", [])
        self._spec = msgspec.structs.replace(spec, prelude=prelude, prelude_words=words)
        spec_file = write_spec(self._spec, folder.logs / "fleet-spec.json")
        self._events: dict[str, tuple[int, dict[str, Any]]] = {}
        with self._log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.fleet", str(spec_file), "--hold"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        self._idle = IdleWriter(self._spec, folder, origin_us, seed)

    def happened(self, event: str) -> int | None:
        """When (microseconds since the run's start) the fleet said so; None: not yet."""
        found = self._events.get(event)
        return None if found is None else found[0]

    @property
    def mutant_reached(self) -> bool:
        """Whether one of its processes came to where its client is changed."""
        return reached(self._folder)

    def load_begins(self) -> None:
        """Idle partitions get their append from now on."""
        self._idle.start()

    def final(self) -> None:
        """All is healed: last polls, then the final read."""
        self._idle.end()
        if self._idle.failure:
            raise NodeDied(f"the writer of idle partitions failed: {self._idle.failure}")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b'{"cmd": "final"}\n')
            self._process.stdin.flush()
        except OSError as failure:
            raise NodeDied(f"the fleet is gone: {self._last_words()}") from failure

    def check(self) -> None:
        """Raises NodeDied or SetupError if it ended before it was done."""
        status = self._process.poll()
        if status is None or status == 0:
            return
        self._reader.join(2)
        told = self._events.get("error", (0, {}))[1].get("message") or self._last_words()
        if status == 2 and "load" not in self._events:
            raise SetupError(f"The fleet could not start: {told}")
        raise NodeDied(f"the fleet ended with {status}: {told}")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._idle.end()
        if not self.ended:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(2)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _read(self, lines: IO[bytes]) -> None:
        for line in lines:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and "event" in value:
                self._events.setdefault(value["event"], (time.monotonic_ns() // 1000 - self._origin_us, value))
        lines.close()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it said nothing, see {self._log.parent}"


class IdleWriter:
    """Appends once to each idle partition, one after the other, while the load runs (``idle_appends_s``). A lost
    response may then be the only one that carried a partition's last record."""

    def __init__(self, spec: FleetSpec, folder: RunFolder, origin_us: int, seed: int) -> None:
        self._thread: threading.Thread | None = None
        self.failure = ""
        plan = idle_writer_plan(spec)
        if plan is None:
            return
        behaviour = KeyedProducer(plan, settings_of(spec), random_for(seed, IDLE_WRITER))
        self._recorder = Recorder(ParquetSink(folder.path, IDLE_WRITER), IDLE_WRITER, origin_us)
        self._driver = BlockingDriver(behaviour, self._recorder.record)
        self._thread = threading.Thread(target=self._run, name=IDLE_WRITER, daemon=True)

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def _run(self) -> None:
        try:
            self._driver.run()
        except Exception as failure:  # Told by whoever ends the run.
            self.failure = f"{type(failure).__name__}: {failure}"

    def end(self) -> None:
        """What is still open is finished, or becomes unknown; ``failure`` then says what went wrong, if anything."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if thread.ident is not None:
            self._driver.stop()
            thread.join(DRAIN_MS / 1000)
        left = () if self._driver.finished or thread.ident is None else (self._driver.behaviour,)
        try:
            self._recorder.close(clock(), left)
        except OSError as failure:
            self.failure = self.failure or str(failure)
