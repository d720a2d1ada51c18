"""The file that ``locust -f`` loads for a benchmark's load, in the master and in each worker.

The environment variable CRUCIBLE_LOAD_SPEC holds the spec's path. Commands and reports pass through
``bench.locust.messages``.
"""

import os
from pathlib import Path
from typing import Any

import gevent
from locust import events, runners
from locust.runners import WorkerRunner

from bench.load.spec import read_spec
from bench.load.users import LoadUser, WorkerLoad
from bench.locust.messages import register
from bench.locust.processes import SPEC_VARIABLE

__all__ = ["LoadUser"]

runners.HEARTBEAT_LIVENESS = 60
"""A worker may be silent for so many seconds while the machine is busy."""


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Any, **_: Any) -> None:
    register(environment, lambda command: environment.load.command(command))


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def on_start(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        spec = read_spec(Path(os.environ[SPEC_VARIABLE]))
        load = environment.load = WorkerLoad(environment, spec, environment.runner.worker_index)
        gevent.spawn(load.report_forever)
        gevent.spawn(load.tick_forever)
