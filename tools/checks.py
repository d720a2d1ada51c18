"""Run the parts of `./crucible test`.

Live tests wait more than they compute, so two files of them run side by side. The tests with Spark run beside them with
the lowest priority, since live tests leave half of the processor time idle. What only computes runs behind both, in the
time that neither wants.

Quick tests are many and short. Each core has a process of its own with a share of their files, because pytest-xdist
would import all of them in each process, and its messages take 4 ms of processor time for each test.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click

from bench.children import ends_with_me

ROOT = Path(__file__).resolve().parents[1]
# Without -P pytest would find the package data in this folder, take our modules for a plugin, and compile them with
# rewritten assertions: some 10 s of processor time in each process.
PYTEST = (sys.executable, "-P", "-m", "pytest", "--benchmark-disable", "-q")
TWO_FILES_AT_ONCE = ("-n", "2", "--dist", "loadfile")
ON_ALL_CORES = ("-n", str(os.cpu_count() or 1), "--dist", "worksteal")
Stage = tuple[tuple[str, ...], ...]
"""Commands that run side by side."""
SHARES = os.cpu_count() or 1
LOGS_NOTHING = ("-p", "no:logging")
"""Quick tests read no logs, and pytest's plugin for them takes a tenth of the time of a test that does nothing."""
QUICK: Stage = tuple(
    (*PYTEST, *LOGS_NOTHING, "--part", "quick", "--share", f"{share}/{SHARES}") for share in range(1, SHARES + 1)
)
LONG: Stage = ((*PYTEST, *ON_ALL_CORES, "--part", "thorough", "--part", "simulated"),)
CHECKS: dict[str, tuple[str, tuple[Stage, ...]]] = {
    "lint": ("style", (((sys.executable, "-m", "ruff", "check", "."),),)),
    "format": ("layout", (((sys.executable, "-m", "ruff", "format", "--check", "."),),)),
    "contracts": ("imports between rooms", (((str(Path(sys.executable).parent / "lint-imports"), "--no-cache"),),)),
    "types": ("types", (((sys.executable, "-m", "mypy"),),)),
    "quick": ("quick tests", (QUICK,)),
    "pure": ("tests that only compute", (QUICK, LONG)),
    "live": ("live tests", (((*PYTEST, *TWO_FILES_AT_ONCE, "--part", "live"),),)),
    "spark": ("tests of what Spark judges", (((*PYTEST, "--part", "spark"),),)),
}
"""Titles of the checks, and their stages one after the other."""
FAST = ("lint", "format", "contracts", "quick")
WHOLE = ("lint", "format", "contracts", "types", "pure", "live", "spark")
TESTS = ("pure", "live", "spark")
LANES = (("live", "quick"), ("spark",), ("contracts", "types", "pure"))
"""Parts that run at the same time, if one of the first two lanes has any. The first lane that has some is shown as it
runs, and has the highest priority. What the others print follows it."""
NO_TESTS = 5
"""Pytest's exit code if no test was left to run. It is ours if no part had one."""
PATIENCE_BEHIND_S = 900
"""The time limit of one test behind others. It may have to wait until they leave it a processor."""
CHILD_ENDS_WITHIN_S = 30


def wanted(only: Sequence[str], fast: bool) -> tuple[str, ...]:
    """Return the names of the checks to run, in their order."""
    if not only:
        return FAST if fast else WHOLE
    named = {*only, *(TESTS if "tests" in only else ())}
    return tuple(name for name in WHOLE if name in named)


def run(names: Sequence[str], pytest_words: Sequence[str]) -> int:
    """Return 0 if all is well, 5 if no test was left to run, else 1."""
    wanted_lanes = [[name for name in lane if name in names] for lane in LANES]
    lanes = [lane for lane in wanted_lanes if lane] if any(wanted_lanes[:-1]) else []
    statuses = {name: _status_of(name, pytest_words) for name in names if not any(name in lane for lane in lanes)}
    with ExitStack() as stack:
        behind = {" or ".join(lane): stack.enter_context(_behind(lane, pytest_words)) for lane in lanes[1:]}
        statuses |= {name: _status_of(name, pytest_words) for lane in lanes[:1] for name in lane}
        statuses |= {name: status() for name, status in behind.items()}
    return _worst(statuses)


def _worst(statuses: Mapping[str, int]) -> int:
    failed = [name for name, status in statuses.items() if status not in (0, NO_TESTS)]
    if failed:
        click.echo(f"crucible: failed: {', '.join(failed)}", err=True)
        return 1
    of_tests = [status for name, status in statuses.items() if any(tests in name for tests in (*TESTS, "quick"))]
    return min(of_tests, default=0)


def _status_of(name: str, pytest_words: Sequence[str]) -> int:
    what, stages = CHECKS[name]
    click.echo(f"== {what}", err=True)
    statuses: list[int] = []
    for stage in stages:
        statuses += _statuses_of([[*words, *(pytest_words if "pytest" in words else ())] for words in stage])
    return next((status for status in statuses if status not in (0, NO_TESTS)), min(statuses))


def _statuses_of(commands: Sequence[Sequence[str]]) -> list[int]:
    """Run these side by side and return their statuses. The first one is shown as it runs, what the others print
    follows it."""
    with ExitStack() as stack:
        beside = [stack.enter_context(_shown_later(words)) for words in commands[1:]]
        with _started(commands[0]) as child:
            first = child.wait()
        return [first, *(status() for status in beside)]


@contextmanager
def _behind(names: Sequence[str], pytest_words: Sequence[str]) -> Iterator[Callable[[], int]]:
    """Run these checks while its block runs. It yields a function that waits for them, shows their output and returns
    their status."""
    only = [word for name in names for word in ("--only", name)]
    command = ["nice", "-n", "19", sys.executable, "crucible_kafka", "test", *only, "--", *pytest_words]
    prepared = _do_nothing if "spark" in names else _when_idle
    patient = {**os.environ, "PYTEST_TIMEOUT": str(PATIENCE_BEHIND_S)}
    with _shown_later(command, signal.SIGTERM, prepared, env=patient) as status:
        yield status


def _do_nothing() -> None:
    """Prepare nothing."""


@contextmanager
def _shown_later(
    command: Sequence[str],
    end: signal.Signals = signal.SIGINT,
    prepared: Callable[[], None] = _do_nothing,
    **options: Any,
) -> Iterator[Callable[[], int]]:
    """Run a command while its block runs, as ``_started`` does. It yields a function that waits for it, shows its
    output and returns its status."""
    with (
        tempfile.TemporaryFile("w+") as said,
        _started(command, end, prepared, stdout=said, stderr=said, **options) as child,
    ):

        def status() -> int:
            found = child.wait()
            said.seek(0)
            click.echo(said.read(), nl=False)
            return found

        yield status


def _when_idle() -> None:
    """Give this process, and those that it starts, a processor only while no other process wants it. Where the system
    has no such class, ``nice`` must do."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def _started(
    command: Sequence[str],
    end: signal.Signals = signal.SIGINT,
    prepared: Callable[[], None] = _do_nothing,
    **options: Any,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a command, once the new process has called ``prepared``. If we are stopped, the command gets the signal
    ``end`` and has time to end what it has started. If we are killed, it is killed too. It keeps the bytecode of test
    files, which pytest takes long to compile, for the processes after it."""
    end_with_me = ends_with_me()
    environment = {**options.pop("env", os.environ)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def prepare() -> None:
        end_with_me()
        prepared()

    with subprocess.Popen(command, cwd=ROOT, env=environment, preexec_fn=prepare, **options) as child:
        try:
            yield child
        except KeyboardInterrupt as stop:
            if getattr(stop, "number", signal.SIGINT) != signal.SIGINT:  # Ctrl-C reaches the whole group anyway.
                child.send_signal(end)
            try:
                child.wait(CHILD_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
