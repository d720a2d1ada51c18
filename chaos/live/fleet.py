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

from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.driver import BlockingDriver, clock
from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.recorder import Recorder
from bench.fleet.spec import (
    AdminGroup,
    FetcherGroup,
    FleetSpec,
    MetadataReaderGroup,
    ProducerGroup,
    idle_partitions,
    settings_of,
)
from chaos.group_load import groups_of, mirror_of
from chaos.live.client_mutant import PRELUDE, reached, words_for
from chaos.live.errors import NodeDied, SetupError
from chaos.live.run_folder import RunFolder
from chaos.seeds import number_for, random_for
from scenarios.model import Scenario

DRAIN_MS = 30_000
FINAL_READ_MS = 60_000
IDLE_RECORDS = 3
IDLE_VALUE_BYTES = 64
IDLE_WRITER = "idle-writer"
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Way:
    """How to reach the brokers. ``bootstrap``: HOST:PORT of each; ``topic_prefix``: before the names of the run's
    topics; ``versions`` and ``dial``: see FleetSpec. ``target``: HOST:PORT of the cluster that a mirror copies to."""

    bootstrap: tuple[str, ...]
    topic_prefix: str = ""
    versions: Mapping[str, int] = field(default_factory=dict)
    dial: Mapping[str, str] = field(default_factory=dict)
    target: tuple[str, ...] = ()


def spec_of(scenario: Scenario, folder: Path, way: Way, origin_us: int, seed: int) -> FleetSpec:
    """The scenario's load at its live size."""
    load = scenario.load
    topic = load.topics[0]
    return FleetSpec(
        bootstrap=list(way.bootstrap),
        seconds=max(1, round(load.seconds)),
        partitions=topic.partitions,
        fetchers=[
            FetcherGroup(
                each.behaviour,
                each.count,
                each.partitions,
                each.poll_interval_ms,
                each.max_wait_ms,
                each.min_bytes,
                each.max_bytes,
                each.partition_max_bytes,
                each.revision,
            )
            for each in load.fetchers
        ],
        producers=[
            ProducerGroup(
                each.count,
                max(1, round(each.rate_per_s * each.count)),
                each.record_bytes,
                each.batch_records,
                each.acks,
                each.idempotent,
            )
            for each in load.producers
        ],
        admins=[
            AdminGroup(
                each.count, each.rate_per_s * each.count, dict(each.mix), each.partitions, each.topics_per_request
            )
            for each in load.admins
        ],
        metadata_readers=[MetadataReaderGroup(each.count, each.poll_interval_ms) for each in load.metadata_readers],
        groups=groups_of(load, simulated=False),
        mirror=mirror_of(load, way.target, simulated=False),
        out_dir=str(folder),
        seed=number_for(seed, "fleet"),
        topic=f"{way.topic_prefix}{topic.name}",
        idle_topic=f"{way.topic_prefix}idle",
        made_topic=f"{way.topic_prefix}made",
        replication_factor=topic.replicas,
        topic_config=dict(topic.config),
        start_mono_us=origin_us,
        workers=WORKERS,
        request_timeout_ms=load.request_timeout_ms,
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
        spec_file = folder.logs / "fleet-spec.json"
        spec_file.write_bytes(msgspec.json.encode(self._spec))
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
        self._idle = IdleWriter(scenario, self._spec, folder, origin_us, seed)

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
    """Appends once to each idle partition while the load runs (``idle_appends_s``), one after the other: a response
    that is lost may then be the only one that carried a partition's last record."""

    def __init__(self, scenario: Scenario, spec: FleetSpec, folder: RunFolder, origin_us: int, seed: int) -> None:
        partitions = tuple(idle_partitions(spec))
        over_us = int(scenario.load.idle_appends_s * 1e6)
        self._thread: threading.Thread | None = None
        self.failure = ""
        if not over_us or not partitions:
            return
        plan = ProducerPlan(
            IDLE_WRITER,
            partitions,
            interval_us=over_us // len(partitions),
            records_per_request=IDLE_RECORDS,
            record_bytes=IDLE_VALUE_BYTES,
            keys=1,
            max_slots=len(partitions),
        )
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
