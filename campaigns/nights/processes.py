"""Processes of a night: commands with a deadline and a log file, and forked players that report each result.

Players are forked, as the children of a search are (``chaos.search.children``), so they have all modules at once. They
end with the night, however that ends.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

from bench.children import ends_with_me
from chaos.search.children import FORK

ROOT = Path(__file__).resolve().parents[2]
LOOKS_EACH_S = 0.2
COMMAND_ENDS_WITHIN_S = 30.0
"""Seconds that a terminated command has to end what it started. Then all of it is killed."""
OVER = -1000
"""The exit code of a command whose time was over."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a process."""

    code: int
    """The exit code, or OVER."""
    said: str
    """The end of its output."""

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        return lines[-1].removeprefix("crucible: ") if lines else "it said nothing"


def crucible(*words: str) -> list[str]:
    return [sys.executable, str(ROOT / "crucible_kafka"), *words]


def run(
    command: Sequence[str],
    until: float,
    log: Path,
    beat: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Done:
    """Run the command until it ends, at most until this time (``time.monotonic()``). ``beat`` is called meanwhile."""
    log.parent.mkdir(parents=True, exist_ok=True)
    end_with_me = ends_with_me()

    def prepare() -> None:
        end_with_me()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Behind a shell's & it would be ignored.

    with (
        log.open("ab") as output,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=prepare,
            start_new_session=True,  # Ctrl-C is the night's; it ends its commands one by one.
        ) as child,
    ):
        try:
            code = _awaited(child, until, beat)
        finally:
            if child.poll() is None:
                _end(child)
    return Done(code, _tail(log))


def _awaited(child: "subprocess.Popen[bytes]", until: float, beat: Callable[[], None]) -> int:
    while time.monotonic() < until:
        try:
            return child.wait(LOOKS_EACH_S)
        except subprocess.TimeoutExpired:
            beat()
    return OVER


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Let the command end what it has started, and then kill what is left of its session."""
    child.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        child.wait(COMMAND_ENDS_WITHIN_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _tail(log: Path, most_bytes: int = 20_000) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - most_bytes))
        return file.read().decode(errors="replace")


Tell = Callable[[Any], None]
Work = Callable[[Tell], None]
Job = TypeVar("Job")
ENDS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """The last word about a child. ``how`` is empty if it did all of its work, else it says why not."""

    how: str = ""


@dataclass(slots=True)
class _Child(Generic[Job]):
    job: Job
    process: BaseProcess
    limit_s: float
    last_output_s: float = field(default_factory=time.monotonic)


class Players(Generic[Job]):
    """A pool of at most ``most`` children at a time. Leaving its block ends those that still run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[Connection, _Child[Job]] = {}

    def __enter__(self) -> "Players[Job]":
        return self

    def __exit__(self, *_: object) -> None:
        for reader in list(self._running):
            self._end(reader)

    @property
    def are_free(self) -> bool:
        return len(self._running) < self._most

    @property
    def jobs(self) -> list[Job]:
        return [each.job for each in self._running.values()]

    def start(self, job: Job, work: Work, limit_s: float) -> None:
        """Start a child for ``work``. It is killed if it sends nothing for ``limit_s``."""
        reader, writer = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_work, args=(work, writer, ends_with_me()))
        process.start()
        writer.close()
        self._running[reader] = _Child(job, process, limit_s)

    def receive(self, for_s: float) -> Iterator[tuple[Job, Any]]:
        """Yield messages of children within this time, each with its job, and ``Ended`` as the last of each child."""
        for reader in wait(list(self._running), for_s):
            assert isinstance(reader, Connection)
            child = self._running[reader]
            try:
                message = reader.recv()
                child.last_output_s = time.monotonic()
            except EOFError:
                child.process.join()
                self._end(reader)
                code = child.process.exitcode
                message = Ended("" if code == 0 else f"its process ended with exit code {code}")
            yield child.job, message
        for reader, child in list(self._running.items()):
            if time.monotonic() - child.last_output_s > child.limit_s:
                self._end(reader)
                yield child.job, Ended(f"it did not end within {child.limit_s:.0f} s")

    def _end(self, reader: Connection) -> None:
        child = self._running.pop(reader)
        reader.close()
        child.process.terminate()
        child.process.join(ENDS_WITHIN_S)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()


def _work(work: Work, tell: Connection, end_with_starter: Callable[[], None]) -> None:
    end_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The night gets Ctrl-C too, and ends its children.
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    work(tell.send)
