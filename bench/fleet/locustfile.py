"""The Locust file of the fleet. ``python -m bench.fleet`` starts the master and the workers that load it.

The environment variable CRUCIBLE_LOAD_SPEC holds the spec's path. Commands and reports pass through
``bench.locust.messages``. If CRUCIBLE_LOAD_BY_HAND is set there are no commands: Locust's web page starts and stops the
load, and each start makes new clients of the same spec.
"""

import os
import time
from pathlib import Path
from typing import Any

import gevent
import msgspec
from locust import LoadTestShape, events
from locust.runners import WorkerRunner

from bench.fleet.plans import users_needed
from bench.fleet.spec import FleetSpec, call_prelude, clients_at, parse_spec
from bench.fleet.users import FleetUser, WorkerFleet
from bench.locust.messages import register
from bench.locust.processes import BY_HAND_VARIABLE, SPEC_VARIABLE

__all__ = ["FleetUser"]

BY_HAND = BY_HAND_VARIABLE in os.environ


def read_spec() -> FleetSpec:
    return parse_spec(Path(os.environ[SPEC_VARIABLE]).read_bytes())


if read_spec().shape is not None and not BY_HAND:

    class FleetShape(LoadTestShape):
        """Reports to Locust once a second how many clients shall live. The time runs from the command ``go``."""

        spec = read_spec()
        went_s: float | None = None

        def tick(self) -> tuple[int, float]:
            assert self.spec.shape is not None, "without a shape there is no such class"
            users = users_needed(self.spec)
            elapsed_s = 0.0 if self.went_s is None else time.monotonic() - self.went_s
            return clients_at(self.spec.shape, users, elapsed_s, self.spec.load.seconds), float(users)


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Any, **_: Any) -> None:
    def note_start(command: str) -> None:
        if command == "go" and environment.shape_class is not None:
            environment.shape_class.went_s = time.monotonic()

    register(environment, lambda command: on_command(environment, command), note_start)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def on_start(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        spec, start = read_spec(), 0
        if BY_HAND:
            start = environment.starts = getattr(environment, "starts", 0) + 1
            spec = msgspec.structs.replace(spec, process_prefix=f"{spec.process_prefix}{start}.")
        call_prelude(spec)
        fleet = environment.fleet = WorkerFleet(environment, spec, environment.runner.worker_index, start)
        gevent.spawn(fleet.report_forever)
        gevent.spawn(fleet.tick_forever)
        if BY_HAND:
            fleet.go.set()


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def on_stop(environment: Any, **_: Any) -> None:
    """End the history of one start by hand, whose clients have left."""
    if BY_HAND and isinstance(environment.runner, WorkerRunner):
        environment.fleet.close()


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def on_quit(environment: Any, **_: Any) -> None:
    """End the history of a fleet that is led by hand, which may end while its load runs."""
    fleet = getattr(environment, "fleet", None)
    if BY_HAND and fleet is not None:
        fleet.close()


def on_command(environment: Any, command: str) -> None:
    """Carry out the master's command. Runs in a worker."""
    fleet: WorkerFleet = environment.fleet
    if command == "go":
        fleet.go.set()
    elif command == "close":
        fleet.close()
        fleet.report()
    else:
        fleet.stop(command.removeprefix("stop_"))
