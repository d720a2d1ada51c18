"""What ``locust -f`` loads, in the master and in each worker. Started by ``python -m bench.fleet`` (see README.md).

The spec's path is in the environment variable CRUCIBLE_FLEET_SPEC. The master reads commands from its stdin, one JSON
object a line, and passes them to the workers as Locust messages; it prints what they report, one JSON object a line.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import gevent
from gevent.fileobject import FileObjectPosix
from locust import events
from locust.runners import MasterRunner, WorkerRunner

from bench.fleet.spec import parse_spec
from bench.fleet.users import FleetUser, WorkerFleet, sums

__all__ = ["FleetUser"]

SPEC_VARIABLE = "CRUCIBLE_FLEET_SPEC"


def say(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"fleet": event, **fields}) + "\n")
    sys.stdout.flush()


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        environment.runner.register_message("fleet_command", on_command, concurrent=True)
    elif isinstance(environment.runner, MasterRunner):
        environment.reports = {}
        environment.runner.register_message("fleet_report", on_report)
        gevent.spawn(read_commands, environment)
        gevent.spawn(print_reports, environment)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def on_start(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        spec = parse_spec(Path(os.environ[SPEC_VARIABLE]).read_bytes())
        environment.fleet = WorkerFleet(environment, spec, environment.runner.worker_index)
        gevent.spawn(environment.fleet.report_forever)


def on_command(environment: Any, msg: Any, **_: Any) -> None:
    """In a worker."""
    fleet: WorkerFleet = environment.fleet
    command = msg.data["cmd"]
    if command == "go":
        fleet.go.set()
    elif command == "close":
        fleet.close()
        fleet.report()
    else:
        fleet.stop(writers=command == "stop_writers")


def on_report(environment: Any, msg: Any, **_: Any) -> None:
    """In the master."""
    environment.reports[msg.data["index"]] = msg.data


def print_reports(environment: Any) -> None:
    while True:
        gevent.sleep(0.2)
        if environment.reports:
            reports = environment.reports.values()
            failure = next((each["failure"] for each in reports if each["failure"]), "")
            say("report", workers=len(reports), failure=failure, **sums(reports))


def read_commands(environment: Any) -> None:
    """In the master; the end of stdin means that whoever started the fleet is gone."""
    lines = FileObjectPosix(sys.stdin.fileno(), "r", closefd=False)
    for line in lines:
        command = json.loads(line)
        if command["cmd"] == "quit":
            break
        environment.runner.send_message("fleet_command", command)
    environment.runner.quit()
