"""Runs a fleet from start to end: ``python -m bench.fleet SPEC.json``. README.md lists what it prints and takes."""

import argparse
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.fleet.behaviours.protocol import Behaviour
from bench.fleet.driver import BlockingDriver, clock
from bench.fleet.fleet import Fleet, make_fleet
from bench.fleet.negotiation import UnreachableError, announces, negotiate
from bench.fleet.parquet_sink import ParquetSink
from bench.fleet.plans import users_needed
from bench.fleet.recorder import Recorder
from bench.fleet.spec import FleetSpec, SpecError, address_of, call_prelude, parse_spec, write_spec
from bench.locust.processes import LocustProcesses, WorkerDiedError, wait_for_page
from reference_broker.wire.apis import DRAFTS, FETCH_FIRST_REVISION, ApiKey

LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")
EXIT_OK: Final = 0
EXIT_SETUP: Final = 2
EXIT_CRASH: Final = 4
SLACK_S: Final = 10
WEB_HOST: Final = "127.0.0.1"
"""Anybody who reaches the page can load a broker, so it listens on loopback only."""


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class FleetRun:
    """One run of a fleet.

    With ``hold`` it waits after the load for the command ``final`` or the end of stdin. ``page`` is the host and port
    of Locust's web page. The page then starts and stops the load, until stdin ends or a signal or a command comes.
    """

    def __init__(self, spec: FleetSpec, hold: bool, page: tuple[str, int] | None = None) -> None:
        self.spec = spec
        self.hold = hold or page is not None
        self.page = page
        self.fleet: Fleet = make_fleet(spec)
        self.out_dir = Path(spec.out_dir)
        self.recorder = Recorder(ParquetSink(self.out_dir, "fleet"), "fleet", spec.start_mono_us)
        self.commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.last: dict[str, int] = {}

    def run(self) -> None:
        """Play all phases of the run.

        :raises WorkerDiedError: a Locust process ended by itself.
        :raises SpecError: topics cannot be made.
        """
        workers, users = self.spec.workers, users_needed(self.spec)
        with LocustProcesses(
            LOCUSTFILE, workers, users, self._written_spec(), self.out_dir / "logs", self.page
        ) as locust:
            self._prepare()
            if self.page is None:
                self._load(locust)
                self._finish(locust)
            else:
                self._serve(locust, self.page)
        self._look_at_the_end()

    def _written_spec(self) -> Path:
        return write_spec(self.spec, self.out_dir / "fleet-spec.json")

    def _prepare(self) -> None:
        for preparer in (self.fleet.preparer, self.fleet.target_preparer):
            if preparer is not None:
                self._drive(preparer)
                if preparer.failure is not None:
                    raise SpecError(preparer.failure)
        if self.fleet.seeder is not None:
            self._drive(self.fleet.seeder)

    def _serve(self, locust: LocustProcesses, page: tuple[str, int]) -> None:
        """Let the web page start and stop the load, until the user ends the fleet."""
        wait_for_page(page, locust)
        say("web", url=f"http://{page[0]}:{page[1]}", clients=len(self.fleet.load), workers=self.spec.workers)
        while self._next_command(locust) is None:
            pass

    def _look_at_the_end(self) -> None:
        for reader in self.fleet.last_readers:
            self._drive(reader)
        missed = [reader.missed for reader in self.fleet.last_readers]
        unread = sum(len(last_reader.unread) for last_reader in self.fleet.last_readers)
        undescribed = 0
        if self.fleet.final_describer is not None:
            self._drive(self.fleet.final_describer)
            undescribed = self.fleet.final_describer.undescribed
            missed.append(self.fleet.final_describer.missed)
        self.recorder.close(clock())
        missed = list(dict.fromkeys(filter(None, missed)))
        say("done", unread_partitions=unread, undescribed_nodes=undescribed, missed=missed, **self.last)

    def _drive(self, behaviour: Behaviour) -> None:
        BlockingDriver(behaviour, self.recorder.record).run()

    def _load(self, locust: LocustProcesses) -> None:
        locust.wait_until_ready()
        locust.send_command("go")
        fleet, workers = self.fleet, self.spec.workers
        clients = {"fetchers": len(fleet.fetchers), "producers": len(fleet.producers), "admins": len(fleet.admins)}
        clients |= {"metadata_readers": len(fleet.metadata_readers)}
        clients |= {"members": len(fleet.members), "mirrors": len(fleet.mirrors)}
        clients |= {"transactional": len(fleet.transactional), "transactional_workers": len(fleet.workers)}
        clients |= {"strays": len(fleet.strays), "janitors": len(fleet.janitors)}
        say("load", **clients, workers=workers)
        end_s = time.monotonic() + self.spec.load.seconds if self.spec.load.seconds else float("inf")
        while time.monotonic() < end_s and self._next_command(locust) is None:
            pass
        self._stop(locust, "writers")
        say("load_ended", **self.last)

    def _finish(self, locust: LocustProcesses) -> None:
        while self.hold and self._next_command(locust) != "final":
            pass
        say("final")
        for stage in ("workers", "readers"):
            if self.fleet.stages[stage]:
                self._stop(locust, stage)
        locust.send_command("close")
        if not self._wait(locust, "closed", self.spec.workers):
            raise WorkerDiedError(f"Not all Locust workers closed their history; see {self.out_dir / 'logs'}.")

    def _stop(self, locust: LocustProcesses, stage: str) -> None:
        locust.send_command(f"stop_{stage}")
        self._wait(locust, f"{stage}_left")

    def _next_command(self, locust: LocustProcesses) -> str | None:
        """Print progress and wait for a command. Return None if none comes within half a second."""
        report = locust.report()
        if report is not None and report != self.last:
            self.last = report
            say("progress", second=(clock().mono_us - self.spec.start_mono_us) // 1_000_000, **report)
        try:
            return self.commands.get(timeout=0.5)
        except queue.Empty:
            return None

    def _wait(self, locust: LocustProcesses, key: str, value: int = 0) -> bool:
        """Wait until the workers' sum of ``key`` is ``value``. Return False after the drain time and some slack."""
        end_s = time.monotonic() + self.spec.drain_ms / 1000 + SLACK_S
        while time.monotonic() < end_s:
            report = locust.report()
            if report is not None:
                self.last = report
                if report[key] == value:
                    return True
            time.sleep(0.05)
        return False

    def listen(self) -> None:
        """Begin to take commands from stdin: {"cmd": "stop"} or {"cmd": "final"}. SIGTERM and SIGINT mean ``stop`` and
        then ``final``."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        threading.Thread(target=self._read_stdin, daemon=True).start()

    def _on_signal(self, *_: object) -> None:
        self.hold = False
        self.commands.put("stop")

    def _read_stdin(self) -> None:
        for line in sys.stdin:
            try:
                self.commands.put(str(json.loads(line)["cmd"]))
            except (ValueError, KeyError, TypeError):
                say("error", message=f"Not a command: {line.strip()[:100]}")
        if self.hold:  # The process that started the fleet is gone: end the load if it still runs, and then the fleet.
            self.hold = False
            self.commands.put("gone")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description="Run a fleet of Kafka clients.")
    parser.add_argument("spec", type=Path, help="the fleet's JSON file; bench/fleet/README.md says what it holds")
    parser.add_argument("--hold", action="store_true", help='wait after the load for {"cmd": "final"} on stdin')
    parser.add_argument("--web", type=int, metavar="PORT", help="let Locust's web page there start and stop the load")
    options = parser.parse_args(arguments)
    try:
        spec = _resolved(options.spec)
        call_prelude(spec)
        run = FleetRun(spec, options.hold, None if options.web is None else (WEB_HOST, options.web))
        run.listen()
        run.run()
    except (SpecError, UnreachableError, OSError) as error:
        say("error", message=str(error))
        sys.stderr.write(f"{error}\n")
        return EXIT_SETUP
    except (WorkerDiedError, subprocess.SubprocessError) as error:
        say("error", message=str(error))
        sys.stderr.write(f"{error}\n")
        return EXIT_CRASH
    return EXIT_OK


def _resolved(path: Path) -> FleetSpec:
    """Read the spec and add what is known only now: API versions, the run's start, the output folder's full path."""
    spec = parse_spec(path.read_bytes())
    dialled = [address_of(spec.dial.get(each, each)) for each in spec.bootstrap]
    versions = negotiate(dialled, spec.reach_ms / 1000)
    draft = DRAFTS[ApiKey.FETCH, FETCH_FIRST_REVISION]
    speaks_first = any(fetcher.revision == "first" for fetcher in spec.load.fetchers)
    if speaks_first and not announces(dialled, draft, spec.reach_ms / 1000):
        raise SpecError(f"The broker does not announce {draft}, which fetchers of the first revision speak.")
    out_dir = Path(spec.out_dir or ".").resolve()
    out_dir.mkdir(parents=True, exist_ok=True)
    return msgspec.structs.replace(
        spec,
        out_dir=str(out_dir),
        start_mono_us=spec.start_mono_us or clock().mono_us,
        versions=versions | spec.versions,
    )
