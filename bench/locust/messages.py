"""Messages between master, workers and parent process: those beside Locust's own.

The master reads commands from its stdin, one JSON object a line, and passes them to the workers. It prints the sums of
what they report, also one JSON object a line. Only Locust processes import this.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import gevent
from gevent.fileobject import FileObjectPosix
from locust import runners
from locust.runners import MasterRunner, WorkerRunner

from bench.locust.generator import TICK_S, GeneratorMeter
from bench.locust.processes import MASTER_GONE_CODE

COMMAND = "crucible_command"
REPORT = "crucible_report"
"""Names of messages between master and workers."""
AT: Final = "at_s"
"""When a report came, by the master's monotonic clock. It is no sum."""
SILENT_S: Final = 60
"""Limit of a worker's silence, which may be long while the machine is busy. Locust would regard the worker as missing
after 3 s and end the load. ``LocustProcesses``, which has started the process, detects its real end."""
runners.HEARTBEAT_LIVENESS = SILENT_S  # heartbeats come once a second
MASTER_SILENT_S: Final = 5.0
"""Silence of the master after which a worker tries to connect to it. A master that is only busy still accepts."""
MASTER_GONE_S: Final = 50.0
"""Silence after which the master counts as gone in any case. After 60 s Locust itself would end the worker with exit
code 0, as after a complete run."""
CONNECT_LIMIT_S: Final = 2.0


def register(
    environment: Any,
    on_command: Callable[[str], None],
    before_command: Callable[[str], None] = lambda _: None,
) -> None:
    """Take part, as a master or as a worker. A worker gets each command in ``on_command``.

    The master calls ``before_command`` before it passes a command on.
    """
    if isinstance(environment.runner, WorkerRunner):
        environment.runner.register_message(COMMAND, lambda msg, **_: on_command(msg.data["cmd"]), concurrent=True)
    elif isinstance(environment.runner, MasterRunner):
        reports: dict[int, dict[str, Any]] = {}

        def take_report(msg: Any, **_: Any) -> None:
            reports[msg.data["index"]] = {**msg.data, AT: time.monotonic()}

        environment.runner.register_message(REPORT, take_report)
        gevent.spawn(_read_commands, environment, before_command)
        gevent.spawn(_print_reports, reports)


def tick_until(has_ended: Callable[[], bool], meter: GeneratorMeter) -> None:
    """Measure how late a sleep ends, because every client of this worker is as late."""
    while not has_ended():
        before_s = time.monotonic()
        gevent.sleep(TICK_S)
        meter.ticked(time.monotonic() - before_s)


def end_without_master(runner: WorkerRunner) -> None:
    """End this worker's process when the master is gone, since its results would be lost. Call it in a greenlet."""
    while True:
        gevent.sleep(1.0)
        last_s = runner.last_heartbeat_timestamp  # None before the first response
        silent_s = time.time() - last_s if last_s else 0.0
        if silent_s < MASTER_SILENT_S:
            continue
        if silent_s > MASTER_GONE_S or not _accepts(runner.master_host, runner.master_port):
            os._exit(MASTER_GONE_CODE)  # Clients may wait for brokers. There is nothing to end in order.


def _accepts(host: str, port: int) -> bool:
    """Return whether somebody listens there, or may do so behind a slow network."""
    try:
        with socket.create_connection((host, port), CONNECT_LIMIT_S):
            return True
    except TimeoutError:
        return True
    except OSError:
        return False


def send_failure(environment: Any, failure: str) -> None:
    """Report from a worker that it cannot begin."""
    index = environment.runner.worker_index
    environment.runner.send_message(REPORT, {"index": index, "failure": failure, "ended_early": 0})


def sums(reports: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the sums over the workers' last reports. Of a name that begins with ``worst_`` it is the largest."""
    total: dict[str, int] = {}
    for report in reports:
        for key, value in report.items():
            if key == AT:
                continue
            if key.startswith("worst_"):
                total[key] = max(total.get(key, 0), int(value))
            elif key not in ("index", "failure"):
                total[key] = total.get(key, 0) + int(value)
    return total


def failure_of(reports: Mapping[int, dict[str, Any]], now_s: float) -> str:
    """Return why a worker has failed or seems to be gone, by the last reports; empty if none has. A worker of another
    machine may vanish, and Locust's master then continues without it."""
    for index, report in reports.items():
        if report["failure"]:
            return str(report["failure"])
        if not report.get("closed") and now_s - report[AT] > SILENT_S:
            return f"worker {index} has sent nothing for {SILENT_S} s"
    return ""


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"locust": event, **fields}) + "\n")
    sys.stdout.flush()


def _print_reports(reports: dict[int, dict[str, Any]]) -> None:
    while True:
        gevent.sleep(0.2)
        if reports:
            failure = failure_of(reports, time.monotonic())
            say("report", workers=len(reports), failure=failure, **sums(reports.values()))


def _read_commands(environment: Any, before_command: Callable[[str], None]) -> None:
    """Pass on the commands of stdin. At its end the process that started Locust is gone, so Locust ends too."""
    lines = FileObjectPosix(sys.stdin.fileno(), "r", closefd=False)
    for line in lines:
        command = json.loads(line)
        if command["cmd"] == "quit":
            break
        before_command(command["cmd"])
        environment.runner.send_message(COMMAND, command)
    environment.runner.quit()
