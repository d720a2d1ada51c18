"""The Locust file of a benchmark's load. The master and each worker load it (``locust -f``).

In the master the environment variable CRUCIBLE_LOAD_SPEC holds the spec's path. Workers get the spec from the master
and send it their results (``bench.locust.exchange``), since they may be on other machines. Commands and reports pass
through ``bench.locust.messages``.
"""

import os
from pathlib import Path
from typing import Any

import gevent
from locust import events
from locust.runners import MasterRunner, WorkerRunner

from bench.load.history import HISTORY_FOLDER
from bench.load.results import result_path
from bench.load.spec import parse_spec, read_spec
from bench.load.users import LoadUser, WorkerLoad
from bench.locust.exchange import MasterExchange, WorkerExchange
from bench.locust.messages import end_without_master, register, send_failure
from bench.locust.processes import SPEC_VARIABLE

__all__ = ["LoadUser"]


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Any, **_: Any) -> None:
    register(environment, lambda command: on_command(environment, command))
    if isinstance(environment.runner, WorkerRunner):
        environment.exchange = WorkerExchange(environment.runner)
        gevent.spawn(end_without_master, environment.runner)
    elif isinstance(environment.runner, MasterRunner):
        folder = Path(read_spec(Path(os.environ[SPEC_VARIABLE])).out_dir)
        environment.exchange = MasterExchange(
            environment.runner,
            lambda index, result: _write(result_path(folder, index), result),
            folder / HISTORY_FOLDER,
        )


def on_command(environment: Any, command: str) -> None:
    """Carry out the master's command. A worker that has joined after the start has no part in the run."""
    load: WorkerLoad | None = getattr(environment, "load", None)
    if load is not None:
        load.command(command)


def _load_of(environment: Any) -> WorkerLoad:
    """Return what this worker has to do. Locust gives users to any worker that joins, however many are expected."""
    index, text = environment.runner.worker_index, environment.exchange.spec
    if not text:
        raise RuntimeError(f"worker {index} joined after the start; are there more workers than --expect-workers?")
    spec = parse_spec(text)
    if index >= spec.workers:
        raise RuntimeError(f"more workers joined than the {spec.workers} that were expected")
    return WorkerLoad(environment, spec, index)


def _write(path: Path, result: bytes) -> None:
    path.write_bytes(result)


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def on_start(environment: Any, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        try:
            environment.load = _load_of(environment)
        except Exception as failure:
            send_failure(environment, f"{type(failure).__name__}: {failure}")
            raise
        gevent.spawn(environment.load.prepare)
    else:
        environment.exchange.send_spec(Path(os.environ[SPEC_VARIABLE]).read_bytes())
