"""Starts and ends Locust's processes: workers, and a master without a load of its own.

Nothing here imports locust. ``wait_for_page`` waits for Locust's web page, on which the user starts, watches and stops
the load.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from bench.children import ends_with_me
from bench.ports import free_port

ROOT: Final = Path(__file__).parents[2]
SPEC_VARIABLE: Final = "CRUCIBLE_LOAD_SPEC"
"""The environment variable that holds the path of the workers' spec."""
BY_HAND_VARIABLE: Final = "CRUCIBLE_LOAD_BY_HAND"
"""It is set if Locust's web page starts and stops the load."""
MASTER_GONE_CODE: Final = 75
"""Exit code of a worker whose master is gone: EX_TEMPFAIL of sysexits.h, which Locust does not use."""
REPORT_LINE: Final = '{"locust": "report"'
"""The beginning of a line of the master's output that is a report."""
QUIT_S: Final = 10
READY_S: Final = 60
JOIN_S: Final = 600
"""Time for which the master waits for workers that are started elsewhere."""
LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = ("0.0.0.0", "*", "::")
"""Addresses of a listener that stand for all of the machine's."""


class WorkerDiedError(Exception):
    """A Locust process ended by itself, or no longer responds. The message is one sentence."""


class LocustProcesses:
    """A context manager. The processes start when it is entered, and are gone when it is left. Logs go to ``log_dir``.

    Users exist as soon as the workers have found the master, and wait for the command ``go``. If ``page`` is given, it
    is the host and port of Locust's web page, which then starts and stops the load instead.

    ``workers`` are started here. ``joining`` more are expected to join from elsewhere, at the address ``listen``
    (default: loopback, and any free port).
    """

    def __init__(
        self,
        locustfile: Path,
        workers: int,
        users: int,
        spec_path: Path,
        log_dir: Path,
        page: tuple[str, int] | None = None,
        joining: int = 0,
        listen: tuple[str, int] | None = None,
    ) -> None:
        self._count = workers
        self._joining = joining
        self._users = users
        self._locustfile = locustfile
        self._page = page
        self._last: dict[str, int] | None = None
        self._failure = ""
        self._log_dir = log_dir
        self._environment = {
            **os.environ,
            SPEC_VARIABLE: str(spec_path),
            **({BY_HAND_VARIABLE: "1"} if page is not None else {}),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        }
        self._host, self._port = listen or (LOOPBACK, free_port())
        self._workers: list[subprocess.Popen[str]] = []
        self._master: subprocess.Popen[str] | None = None
        self._logs: list[IO[str]] = []
        self._reports: threading.Thread | None = None

    def __enter__(self) -> "LocustProcesses":
        self._log_dir.mkdir(parents=True, exist_ok=True)
        users, port = str(self._users), str(self._port)
        arguments = ["--master", "--master-bind-host", self._host, "--master-bind-port", port]
        arguments += ["-u", users, "-r", users, "--only-summary", "--stop-timeout", "5", "--exit-code-on-error", "0"]
        if self._page is None:
            arguments += ["--headless", "--expect-workers", str(self._count + self._joining)]
            arguments += ["--expect-workers-max-wait", str(self._ready_s)]
        else:
            arguments += ["--web-host", self._page[0], "--web-port", str(self._page[1])]
        self._master = self._start("locust-master", arguments, subprocess.PIPE)
        self._reports = threading.Thread(target=self._read_reports, args=(self._master.stdout,), daemon=True)
        self._reports.start()
        for index in range(self._count):
            arguments = ["--worker", "--master-host", self._own_address, "--master-port", port]
            self._workers.append(self._start(f"locust-worker-{index}", arguments, subprocess.DEVNULL))
        return self

    def wait_until_ready(self) -> None:
        """Wait until all workers have reported.

        :raises WorkerDiedError: one of them has not reported in time.
        """
        deadline = time.monotonic() + self._ready_s
        while self.report() is None:
            if time.monotonic() > deadline:
                raise WorkerDiedError(
                    f"The Locust workers did not come up within {self._ready_s} s; see {self._log_dir}."
                )
            time.sleep(0.02)

    def send_command(self, command: str) -> None:
        assert self._master is not None, "a command before the master was started"
        assert self._master.stdin is not None, "the master has a pipe for its stdin"
        try:
            self._master.stdin.write(json.dumps({"cmd": command}) + "\n")
            self._master.stdin.flush()
        except OSError as error:
            raise WorkerDiedError(f"The Locust master is gone: {error}.") from error

    def report(self) -> dict[str, int] | None:
        """Return the sums over all workers, or None while not all of them have reported.

        :raises WorkerDiedError: one of the processes has ended, cannot write its results, or has lost a client.
        """
        for process in self._processes:
            code = process.poll()
            if code is not None:
                raise WorkerDiedError(f"A Locust process ended by itself (code {code}); see {self._log_dir}.")
        if self._failure:
            raise WorkerDiedError(f"A Locust worker failed: {self._failure}.")
        return self._last

    @property
    def _ready_s(self) -> int:
        return JOIN_S if self._joining else READY_S

    @property
    def _own_address(self) -> str:
        """Return the address at which workers of this machine reach the master."""
        return LOOPBACK if self._host in EVERYWHERE else self._host

    @property
    def _processes(self) -> "list[subprocess.Popen[str]]":
        return [*self._workers, *([self._master] if self._master is not None else [])]

    def _start(self, name: str, arguments: list[str], stdin: int) -> "subprocess.Popen[str]":
        log = (self._log_dir / f"{name}.log").open("w")
        self._logs.append(log)
        command = [sys.executable, "-m", "locust", "-f", str(self._locustfile), *arguments]
        return subprocess.Popen(
            command,
            stdin=stdin,
            stdout=subprocess.PIPE if stdin == subprocess.PIPE else log,
            stderr=log,
            text=True,
            env=self._environment,
            start_new_session=True,  # Ctrl-C is for the command that started it, which ends the load in order.
            preexec_fn=ends_with_me(),
        )

    def _read_reports(self, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith(REPORT_LINE):
                report = json.loads(line)
                del report["locust"]
                failure = report.pop("failure")
                self._failure = self._failure or failure
                early = report.pop("ended_early")
                if early:
                    self._failure = self._failure or f"{early} of the clients ended before they were stopped"
                if report.pop("workers") == self._count + self._joining:
                    self._last = report

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._master is not None and self._master.poll() is None and kind is None and self._page is None:
            self.send_command("quit")
        else:
            for process in self._processes:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(QUIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()
        if self._reports is not None:
            self._reports.join()
        for pipe in () if self._master is None else (self._master.stdin, self._master.stdout):
            if pipe is not None:
                pipe.close()


PAGE_S: Final = 60


def wait_for_page(page: tuple[str, int], locust: LocustProcesses) -> None:
    """Wait until somebody listens there.

    :raises WorkerDiedError: nobody listened in time, or a Locust process ended (perhaps because the port is taken).
    """
    deadline_s = time.monotonic() + PAGE_S
    while time.monotonic() < deadline_s:
        locust.report()
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(page) == 0:
                return
        time.sleep(0.1)
    raise WorkerDiedError(f"Locust's web page did not come up at {page[0]}:{page[1]} within {PAGE_S} s.")
